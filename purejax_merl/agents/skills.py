"""Skills: learned heads beside the world's scripted ones, behind one call.

In: own views and the trunk's features. Out: move logits of every skill.
Axes: agent and batch axes pass through; skill K and move A are trailing.
May import: types, agents/networks.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from purejax_merl.agents import networks
from purejax_merl.types import View


class SkillSet(eqx.Module):
    """K skills in a fixed order; each is either a learned linear head or a scripted function of
    the own view."""

    heads: eqx.nn.Linear
    """All learned heads as one layer `width → L·A`."""
    scripted: tuple[Callable[[View], Array] | None, ...] = eqx.field(static=True)
    """One entry per skill; None where the skill is learned."""
    num_moves: int = eqx.field(static=True)

    def __init__(
        self,
        width: int,
        num_moves: int,
        scripted: tuple[Callable[[View], Array] | None, ...],
        *,
        key: PRNGKeyArray,
    ):
        learned = sum(skill is None for skill in scripted)
        self.heads = networks.linear(width, learned * num_moves, scale=0.01, key=key)
        self.scripted = scripted
        self.num_moves = num_moves

    def __call__(
        self, view: View, features: Float[Array, "*batch width"]
    ) -> Float[Array, "*batch skill move"]:
        """Move logits of all skills for every agent."""
        batch = features.shape[:-1]
        learned = iter(jnp.split(networks.apply(self.heads, features), self._num_learned, axis=-1))
        logits = []
        for skill in self.scripted:
            if skill is None:
                logits.append(next(learned))
                continue
            for _ in batch:
                skill = jax.vmap(skill)
            logits.append(skill(view))
        return jnp.stack(logits, axis=-2)

    @property
    def _num_learned(self) -> int:
        return sum(skill is None for skill in self.scripted)
