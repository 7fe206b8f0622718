"""How agents move: where each move leads, who is blocked.

In: positions, walls, chosen targets. Out: targets, legality, new positions.
Axis: none (agents are rows).
May import: the world's own files.
"""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from purejax_merl.envs.coverage import bits
from purejax_merl.envs.coverage.types import Moves

STAY, NORTH, EAST, SOUTH, WEST = range(5)
DELTAS = np.array([(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1)], np.int32)
"""(Δrow, Δcol) of each move."""


def options(position: Int[Array, "agent 2"], wall: UInt32[Array, "row word"], width: int) -> Moves:
    """The cell each move leads to (the own cell if off the grid or into a wall), and whether it
    moves."""
    limit = jnp.array([wall.shape[0] - 1, width - 1])
    wanted = jnp.clip(position[:, None] + DELTAS, 0, limit)
    hit = bits.contains(wall, wanted)
    target = jnp.where(hit[..., None], position[:, None], wanted)
    moved = jnp.any(target != position[:, None], axis=-1)
    return Moves(target=target, valid=moved | (jnp.arange(5) == STAY))


def legal(
    position: Int[Array, "agent 2"], known_wall: UInt32[Array, "agent row word"] | None, size: int
) -> Bool[Array, "agent 5"]:
    """Moves that stay on the `size`² grid and off each agent's `known_wall` (None: there are
    none)."""
    wanted = position[:, None] + DELTAS
    inside = jnp.all((wanted >= 0) & (wanted < size), axis=-1)
    if known_wall is None:
        return inside
    cells = jnp.clip(wanted, 0, size - 1)
    rows = jnp.take_along_axis(known_wall, cells[..., :1], axis=1)
    hit = bits.slide(rows, cells[..., 1]) & jnp.uint32(1)
    return inside & ((hit == 0) | (jnp.arange(5) == STAY))


def resolve(
    position: Int[Array, "agent 2"],
    target: Int[Array, "agent 2"],
    *,
    rule: Literal["claim", "share"],
) -> tuple[Int[Array, "agent 2"], Bool[Array, "agent"]]:
    """New positions and who was blocked.

    *share*: everyone lands on its target. *claim*: in index order, an agent moves unless another
    holds its target at that moment; so a lower index wins a contested cell, a cell that a lower
    index has just left is free, and swaps are impossible.
    """
    size = position.shape[0]
    if rule == "share":
        return target, jnp.zeros(size, bool)
    cells, blocked = [position[i] for i in range(size)], []
    for i in range(size):
        held = [jnp.all(cells[j] == target[i]) for j in range(size) if j != i]
        blocked.append(jnp.any(jnp.stack(held)) if held else jnp.zeros((), bool))
        cells[i] = jnp.where(blocked[i], position[i], target[i])
    return jnp.stack(cells), jnp.stack(blocked)
