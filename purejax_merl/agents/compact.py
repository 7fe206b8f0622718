"""The default actor and critic: a shared MLP over each agent's own view.

In: views. Out: a policy, values. No parameter shape depends on grid or team size.
Axes: agent and batch axes pass through.
May import: types and the other agent files.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from purejax_merl.agents import networks
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.agents.selector import Selector
from purejax_merl.agents.skills import SkillSet
from purejax_merl.types import Policy, View, features

ILLEGAL = -1e9


class CompactActor(AbstractActor):
    """Trunk → selector over K skills, and each skill's moves."""

    # Trained by gradient.
    trunk: networks.Trunk
    skills: SkillSet
    # Owned by evolution (and, unless masked, trained by gradient as well).
    selector: Selector
    skill_names: tuple[str, ...] = eqx.field(static=True)
    learned: tuple[bool, ...] = eqx.field(static=True)

    def __init__(
        self,
        num_features: int,
        num_moves: int,
        skills: dict[str, Callable[[View], Array] | None],
        *,
        width: int,
        depth: int,
        first_bias: float,
        key: PRNGKeyArray,
    ):
        """**Arguments:**

        - `num_features`: length of one agent's `types.features(view)`.
        - `skills`: name → scripted skill, or None for a learned head; the first one leads at the
          start by a logit of `first_bias`.
        """
        trunk_key, skill_key, selector_key = jax.random.split(key, 3)
        scripted = tuple(skills.values())
        self.trunk = networks.Trunk(num_features, width, depth, key=trunk_key)
        self.skills = SkillSet(width, num_moves, scripted, key=skill_key)
        self.selector = Selector(width, len(skills), first_bias=first_bias, key=selector_key)
        self.skill_names = tuple(skills)
        self.learned = tuple(skill is None for skill in scripted)

    def __call__(
        self,
        view: View,
        graph: Bool[Array, "*batch agent agent"],
        legal: Bool[Array, "*batch agent move"],
    ) -> Policy:
        del graph  # what an agent hears is in its view already
        hidden = self.trunk(features(view))
        moves = self.skills(view, hidden)
        return Policy(
            skill_logits=self.selector(hidden),
            move_logits=jnp.where(legal[..., None, :], moves, ILLEGAL),
        )


class CompactCritic(AbstractCritic):
    """MLP over the own view and the team state."""

    trunk: networks.Trunk
    head: eqx.nn.Linear

    def __init__(self, num_features: int, *, width: int, depth: int, key: PRNGKeyArray):
        """**Arguments:** `num_features`: own view and team view together."""
        trunk_key, head_key = jax.random.split(key)
        self.trunk = networks.Trunk(num_features, width, depth, key=trunk_key)
        self.head = networks.linear(width, 1, scale=1.0, key=head_key)

    def __call__(self, view: View, team_view: View) -> Float[Array, "*batch agent"]:
        joined = jnp.concatenate([features(view), features(team_view)], axis=-1)
        return networks.apply(self.head, self.trunk(joined))[..., 0]
