"""What an agent of the goal world sees: grid planes, frontier features, bearings to teammates.

In: positions, known cells. Out: the pieces of a `GoalView`.
Axis: none (agents are rows; goal K is trailing).
May import: the world's own files.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from purejax_merl.envs.coverage import bits, comms, controller

SECTOR_SHARPNESS = 4.0
"""How hard a cell belongs to the goal direction it lies in."""


class Planes(eqx.Module):
    """Binary grid planes as bit rows, 30 times smaller in a rollout than their floats."""

    words: UInt32[Array, "*batch channel row word"]
    width: int = eqx.field(static=True)
    """Columns of the grid; the last word of a row may be longer."""

    def image(self) -> Float[Array, "*batch row col channel"]:
        """The planes as 0.0 / 1.0, channels last as a convolution wants them."""
        unpacked = bits.unpack(self.words, self.width)
        return jnp.moveaxis(unpacked, -3, -1).astype(jnp.float32)


class Bearings(eqx.Module):
    """Where an agent's teammates are, as its scripted skills need it. Bearings have length 1, or 0
    where there is no such teammate or it stands on the same cell."""

    farthest: Float[Array, "*agent 2"]
    """Toward the farthest teammate in range."""
    nearest: Float[Array, "*agent 2"]
    """Toward the nearest teammate at *any* range: more than the agent can sense (see `Hold`)."""
    degree: Float[Array, "*agent"]
    """Soft degree: Σ over teammates of sigmoid(sharpness · (comm_r − distance))."""


class GoalView(eqx.Module):
    """What one agent sees, and what is derived from it once per step, not in every gradient
    pass."""

    planes: Planes
    """known, own cell, known walls, teammates in range, local frontier [, occupancy frontier]
    [, border]."""
    frontier: Float[Array, "*agent goal 2"]
    """Unknown cells per goal direction: share of the direction's cells, and share of the grid."""
    bearings: Bearings
    """For the scripted skills only; reaches beyond the agent's range (see `goal_skills.Hold`)."""


def bearings(position: Int[Array, "agent 2"], comm_r: int, sharpness: float) -> Bearings:
    """Distances are Chebyshev, bearings Euclidean; ties go to the lower index."""
    others = ~jnp.eye(position.shape[0], dtype=bool)
    distance = comms.distance(position)
    in_range = others & (distance <= comm_r)
    offset = (position[None] - position[:, None]).astype(jnp.float32)
    unit = offset / jnp.maximum(jnp.linalg.norm(offset, axis=-1, keepdims=True), 1e-6)

    def toward(index: Int[Array, "agent"], exists: Bool[Array, "agent"]) -> Float[Array, "agent 2"]:
        chosen = jnp.take_along_axis(unit, index[:, None, None], axis=1)[:, 0]
        return jnp.where(exists[:, None], chosen, 0.0)

    far = jnp.where(in_range, distance, -1)
    near = jnp.where(others, distance, jnp.iinfo(jnp.int32).max)
    return Bearings(
        farthest=toward(jnp.argmax(far, axis=1), jnp.any(in_range, axis=1)),
        nearest=toward(jnp.argmin(near, axis=1), jnp.any(others, axis=1)),
        degree=jnp.sum(comms.soft_weights(position, comm_r, sharpness), axis=1),
    )


def sector_frontier(
    unknown: Bool[Array, "agent row col"], position: Int[Array, "agent 2"], num_goals: int
) -> Float[Array, "agent goal 2"]:
    """How much of what an agent does not know lies in each goal direction.

    Every cell belongs to all K directions by a softmax of its Euclidean bearing's cosine with each
    (goal 0: exp(−distance)), so the features exist for any grid.

    **Returns:** per direction, the unknown share of its cells, and its unknown cells / all cells.
    """
    height, width = unknown.shape[-2:]
    rows = jnp.arange(height) - position[:, :1]
    cols = jnp.arange(width) - position[:, 1:]
    row = jnp.broadcast_to(rows[:, :, None], unknown.shape).astype(jnp.float32)
    col = jnp.broadcast_to(cols[:, None, :], unknown.shape).astype(jnp.float32)
    distance = jnp.sqrt(row**2 + col**2)
    length = jnp.maximum(distance, 1e-6)
    directions = controller.unit_directions(num_goals)[1:]
    scores = [jnp.exp(-distance), *((row * r + col * c) / length for r, c in directions)]
    powers = [jnp.exp(SECTOR_SHARPNESS * score) for score in scores]
    total = sum(powers[1:], powers[0])
    members = jnp.stack([power / total for power in powers], axis=1)
    mass = jnp.sum(members * unknown[:, None], axis=(-2, -1))
    share = mass / jnp.maximum(jnp.sum(members, axis=(-2, -1)), 1e-6)
    return jnp.stack([share, mass / (height * width)], axis=-1)
