"""The coverage world's scripted skills: one agent's own compact view → logits over the five moves.

In: a `CompactView` row. Out: `(5,)` logits. Bearings are Euclidean, so diagonal teammates count.
Axis: none.
May import: the world's own files.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from purejax_merl.envs.coverage.movement import DELTAS, STAY
from purejax_merl.envs.coverage.types import CompactView

SHARPNESS = 4.0
"""Logit of a move that heads straight for the target; STAY has 0."""


class Flock(eqx.Module):
    """Toward the farthest teammate in range; indifferent without one."""

    def __call__(self, view: CompactView) -> Float[Array, "move"]:
        offset, present = _slots(view)
        return _toward(offset[jnp.argmax(jnp.where(present, _chebyshev(offset), -1.0))])


class Hold(eqx.Module):
    """Stay while the soft degree is at least one link, else close up to the nearest teammate in
    range."""

    comm_r: int = eqx.field(static=True)
    sharpness: float = eqx.field(static=True)

    def __call__(self, view: CompactView) -> Float[Array, "move"]:
        offset, present = _slots(view)
        gap = self.comm_r * (1 - _chebyshev(offset))
        degree = jnp.sum(jnp.where(present, jax.nn.sigmoid(self.sharpness * gap), 0.0))
        stay = jnp.where(jnp.arange(len(DELTAS)) == STAY, 10.0, 0.0)
        # Slots are ordered nearest first, so slot 0 is the nearest (or empty: nobody is in range).
        return jnp.where((degree >= 1.0) | ~present[0], stay, _toward(offset[0]))


def _slots(view: CompactView) -> tuple[Float[Array, "slot 2"], Bool[Array, "slot"]]:
    slots = view.teammates.reshape(-1, 3)
    return slots[:, :2], slots[:, 2] > 0


def _chebyshev(offset: Float[Array, "*any 2"]) -> Float[Array, "*any"]:
    return jnp.max(jnp.abs(offset), axis=-1)


def _toward(offset: Float[Array, "2"]) -> Float[Array, "move"]:
    bearing = offset / jnp.maximum(jnp.sqrt(jnp.sum(offset**2)), 1e-6)
    return SHARPNESS * jnp.sum(bearing * DELTAS, axis=-1)
