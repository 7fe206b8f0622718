"""From goals to moves: a fixed stencil of goal cells and the greedy controller that heads for one.

In: positions, goal indices, where each move leads. Out: goal cells, moves 0..4.
Axis: none (agents are rows; goal K and move A are trailing).
May import: the world's own files.
"""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from purejax_merl.envs.coverage.movement import STAY
from purejax_merl.envs.coverage.types import Moves

Metric = Literal["chebyshev", "l1_tiebreak"]

DIRECTIONS = np.array(
    [(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1)], np.int32
)
"""(Δrow, Δcol) of goal 0..8: here, N, E, S, W, NE, SE, SW, NW."""

_BLOCKED = np.int32(1 << 30)
# Any L1 distance to a goal is below this, so it decides only between equal Chebyshev distances.
_TIEBREAK = np.int32(1 << 12)


def unit_directions(num_goals: int) -> np.ndarray:
    """`(K, 2)` float32: the first K directions at length 1; goal 0 has none."""
    directions = DIRECTIONS[:num_goals].astype(np.float32)
    length = np.linalg.norm(directions, axis=1, keepdims=True)
    return directions / np.maximum(length, 1)


def stencil(num_goals: int, stride: int) -> np.ndarray:
    """`(K, 2)` int32: offsets of the goal cells; a diagonal one is `stride` along both axes."""
    return DIRECTIONS[:num_goals] * stride


def goal_cells(
    position: Int[Array, "agent 2"], offsets: np.ndarray, size: int
) -> Int[Array, "agent goal 2"]:
    """The cell of every goal, clipped into the `size`² grid. It may be a wall."""
    return jnp.clip(position[:, None] + offsets, 0, size - 1)


def occupied(
    position: Int[Array, "agent 2"], target: Int[Array, "agent 5 2"]
) -> Bool[Array, "agent 5"]:
    """Moves onto a cell that a teammate holds now. STAY never counts."""
    same = jnp.all(target[:, :, None] == position[None, None], axis=-1)
    others = ~jnp.eye(position.shape[0], dtype=bool)[:, None]
    return jnp.any(same & others, axis=-1) & (jnp.arange(target.shape[1]) != STAY)


def greedy(
    goal: Int[Array, "agent 2"],
    options: Moves,
    avoid: Bool[Array, "agent 5"] | None,
    *,
    metric: Metric,
) -> Int[Array, "agent"]:
    """The move that most reduces the distance to `goal`; STAY where none does.

    Ties go to the lowest move. There is no path-finding: a blocked agent waits.

    **Arguments:**

    - `avoid`: moves not to take, such as `occupied`; None: all valid moves may be taken.
    - `metric`: with four moves, `chebyshev` is blind to the first half of a diagonal step: no
      single move reduces it while |Δrow| = |Δcol|, so diagonal goals stand still unless the border
      clips them. `l1_tiebreak` lets the L1 distance decide between equal Chebyshev distances.
    """
    gap = jnp.abs(options.target - goal[:, None])
    cost = jnp.max(gap, axis=-1)
    if metric == "l1_tiebreak":
        cost = cost * _TIEBREAK + jnp.sum(gap, axis=-1)
    allowed = options.valid if avoid is None else options.valid & ~avoid
    cost = jnp.where(allowed, cost, _BLOCKED)
    # argmin takes the first of equals, and STAY is move 0: no tie ever moves an agent.
    return jnp.argmin(cost, axis=-1).astype(jnp.int32)
