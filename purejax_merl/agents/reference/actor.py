"""The reference system's actor: belief → skill, each skill's goals, and a guess at λ₂.

In: a view with `planes` (whose `image()` is `(*batch, agent, row, col, channel)`) and `frontier`
`(*batch, agent, goal, 2)`; the graph; legal goals. Out: a `Policy`.
Axes: agent and batch axes pass through.
May import: types and the other agent files.
"""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from purejax_merl.agents import networks
from purejax_merl.agents.base import AbstractActor
from purejax_merl.agents.reference.backbone import Aggregator, Backbone
from purejax_merl.agents.reference.heads import Disperse
from purejax_merl.types import Policy, View

ILLEGAL = -1e9

Skills = Mapping[str, Callable[[View], Array] | None]


class ReferenceActor(AbstractActor):
    """Backbone → selector over K skills, the goals of each, and an auxiliary estimate.

    The first skill is `disperse`; every other one is scripted or a linear head on the belief.
    """

    # Trained by gradient.
    backbone: Backbone
    disperse: Disperse
    heads: tuple[eqx.nn.Linear, ...]
    """One per learned skill after `disperse`."""
    estimate: eqx.nn.Linear
    # Owned by evolution (and, unless masked, trained by gradient as well).
    selector: eqx.nn.Linear
    """Its flat genome is the weight `(K, W)` row by row, then the bias."""
    scripted: tuple[Callable[[View], Array] | None, ...] = eqx.field(static=True)
    """One entry per skill; None where the skill is learned."""
    skill_names: tuple[str, ...] = eqx.field(static=True)
    learned: tuple[bool, ...] = eqx.field(static=True)

    def __init__(
        self,
        channels: int,
        num_goals: int,
        skills: Skills,
        *,
        width: int = 64,
        depth: int = 2,
        rounds: int = 2,
        aggregator: Aggregator = "max",
        heads: int = 4,
        chunk: int | None = 64,
        key: PRNGKeyArray,
    ):
        """**Arguments:**

        - `channels`: planes of one agent's view.
        - `skills`: name → scripted skill, or None for a learned one; the first, learned, disperses.
        - `depth`: convolutions; `rounds`: of messages; `heads`: of the `multihead` aggregator.
        - `chunk`: images convolved at once; None: all, as an accelerator wants it.
        """
        names, scripted = tuple(skills), tuple(skills.values())
        if not names or scripted[0] is not None:
            raise ValueError(
                f"`ReferenceActor(skills={names})` must begin with a learned skill (None): the "
                'first one disperses, as in `{"disperse": None, "flock": flock, "hold": hold}`.'
            )
        backbone_key, disperse_key, head_key, estimate_key, selector_key = jax.random.split(key, 5)
        self.backbone = Backbone(
            channels,
            width=width,
            depth=depth,
            rounds=rounds,
            aggregator=aggregator,
            heads=heads,
            chunk=chunk,
            key=backbone_key,
        )
        self.disperse = Disperse(width, num_goals, key=disperse_key)
        more = sum(skill is None for skill in scripted) - 1
        self.heads = tuple(
            eqx.nn.Linear(width, num_goals, key=jax.random.fold_in(head_key, i))
            for i in range(more)
        )
        self.estimate = eqx.nn.Linear(width, 1, key=estimate_key)
        self.selector = eqx.nn.Linear(width, len(skills), key=selector_key)
        self.scripted = scripted
        self.skill_names = names
        self.learned = tuple(skill is None for skill in scripted)

    def __call__(
        self,
        view: View,
        graph: Bool[Array, "*batch agent agent"],
        legal: Bool[Array, "*batch agent move"],
    ) -> Policy:
        belief = self.backbone(view.planes.image(), graph)
        return Policy(
            skill_logits=networks.apply(self.selector, belief),
            move_logits=jnp.where(legal[..., None, :], self._goals(view, belief), ILLEGAL),
            estimate=networks.apply(self.estimate, belief)[..., 0],
        )

    def _goals(
        self, view: View, belief: Float[Array, "*batch agent width"]
    ) -> Float[Array, "*batch agent skill goal"]:
        """Goal logits of all skills. A scripted one is mapped over agents and batch axes."""
        heads = iter(self.heads)
        logits = [self.disperse(belief, view.frontier)]
        for skill in self.scripted[1:]:
            if skill is None:
                logits.append(networks.apply(next(heads), belief))
                continue
            for _ in belief.shape[:-1]:
                skill = jax.vmap(skill)
            logits.append(skill(view))
        return jnp.stack(logits, axis=-2)
