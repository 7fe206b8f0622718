"""The scripted skills of the goal world: one agent's own view → logits over its K goals.

In: a `GoalView` row. Out: `(K,)` logits.
Axis: none.
May import: the world's own files.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from purejax_merl.envs.coverage import controller
from purejax_merl.envs.coverage.goal_views import GoalView

FLOCK_SHARPNESS, HOLD_SHARPNESS, STAY_LOGIT = 2.0, 2.0, 10.0


class Flock(eqx.Module):
    """Toward the farthest teammate in range; indifferent without one."""

    num_goals: int = eqx.field(static=True)

    def __call__(self, view: GoalView) -> Float[Array, "goal"]:
        return FLOCK_SHARPNESS * _cosines(view.bearings.farthest, self.num_goals)


class Hold(eqx.Module):
    """Stay while the soft degree is at least one link, else close up to the nearest teammate.

    As in the reference system, that teammate may be at any range, and the soft degree also counts
    teammates out of range: an agent cannot know either. It is kept so that the recorded logits are
    reproduced; the compact world's `hold` uses in-range teammates only. One link alone never
    reaches the floor of 1, as a sigmoid stays below it.
    """

    num_goals: int = eqx.field(static=True)
    alone: bool = eqx.field(static=True)
    """The team has one agent: nobody to close up to."""

    def __call__(self, view: GoalView) -> Float[Array, "goal"]:
        stay = STAY_LOGIT * (np.arange(self.num_goals) == 0).astype(np.float32)
        if self.alone:
            return jnp.asarray(stay)
        closing = jax.nn.softmax(HOLD_SHARPNESS * _cosines(view.bearings.nearest, self.num_goals))
        return jnp.where(view.bearings.degree >= 1.0, stay, STAY_LOGIT * closing)


def _cosines(bearing: Float[Array, "2"], num_goals: int) -> Float[Array, "goal"]:
    return jnp.sum(controller.unit_directions(num_goals) * bearing, axis=-1)
