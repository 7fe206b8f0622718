"""What an agent of the coverage world sees.

In: a state's positions and cell sets. Out: the compact view, the critic's view, and the
grid-shaped planes.
Axis: none (agents are rows). An own view reads belief and in-range teammates, nothing else.
May import: the world's own files.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from purejax_merl.envs.coverage import bits, comms

OCTANTS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")


def sector_counts(
    sets: Sequence[UInt32[Array, "agent row word"]], position: Int[Array, "agent 2"]
) -> Float[Array, "agent set 8"]:
    """Number of cells in each compass octant around each agent, in the order of `OCTANTS`.

    An octant is a range of columns in every row: beyond k·tan 22.5° and k·tan 67.5° on either
    side, k rows away.

    **Arguments:** `sets`: one set of cells per agent each; counted together, which is cheaper.

    **Errors:** `ValueError` beyond 256² cells, where a count might not fit into half a word.
    """
    height, words = sets[0].shape[-2:]
    if height * words * bits.WORD > 2**16:
        raise ValueError(f"The compact view counts cells on up to 256 rows; got {height}.")
    above = position[:, :1] - jnp.arange(height)
    away = jnp.abs(above).astype(jnp.float32)
    inner = jnp.floor(away * 0.41421356).astype(jnp.int32)
    outer = jnp.floor(away * 2.41421356).astype(jnp.int32)
    col = position[:, 1:]
    edges = [
        bits.below(c, words) for c in (col - outer, col - inner, col + inner + 1, col + outer + 1)
    ]
    west, east = edges[0], ~edges[3]
    north_west, north, north_east = (b & ~a for a, b in itertools.pairwise(edges))
    # Two counts to a word: rows above the agent in its low half, rows below in its high half.
    half = jnp.where(above < 0, jnp.uint32(16), jnp.uint32(0))

    def vertical(cells: Array, mask: Array) -> UInt32[Array, "agent row"]:
        return jnp.where(above == 0, jnp.uint32(0), _per_row(cells & mask) << half)

    def sides(cells: Array) -> UInt32[Array, "agent row"]:
        return _per_row(cells & west) | (_per_row(cells & east) << jnp.uint32(16))

    rows = [
        counts
        for cells in sets
        for counts in (
            vertical(cells, north),
            vertical(cells, north_east),
            vertical(cells, north_west),
            sides(cells),
        )
    ]
    sums = jnp.stack(_sums_over_rows(rows), axis=-1).reshape(-1, len(sets), 4)
    low, high = sums & jnp.uint32(0xFFFF), sums >> jnp.uint32(16)
    mid, right, left, side = range(4)
    octants = (
        low[..., mid],
        low[..., right],
        high[..., side],
        high[..., right],
        high[..., mid],
        high[..., left],
        low[..., side],
        low[..., left],
    )
    return jnp.stack(octants, axis=-1).astype(jnp.float32)


def _per_row(cells: UInt32[Array, "agent row word"]) -> UInt32[Array, "agent row"]:
    counts = lax.population_count(cells)
    return functools.reduce(jnp.add, [counts[..., i] for i in range(cells.shape[-1])])


def _sums_over_rows(
    rows: Sequence[UInt32[Array, "agent row"]],
) -> Sequence[UInt32[Array, "agent"]]:
    """All sums as one reduction. XLA computes what feeds several reductions again for each of
    them, and the sets that are counted here are dear."""

    def add(one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(a + b for a, b in zip(one, other, strict=True))

    return lax.reduce(tuple(rows), (jnp.uint32(0),) * len(rows), add, (1,))


def squash(counts: Float[Array, "*any"], scale: float) -> Float[Array, "*any"]:
    """Counts in [0, ∞) → [0, 1), half at `scale`: large grids do not drive a network out of
    range."""
    return counts / (counts + scale)


def rings(
    cells: UInt32[Array, "agent row word"],
    position: Int[Array, "agent 2"],
    radii: tuple[int, ...],
    width: int,
    *,
    far_scale: float = 1.0,
) -> Float[Array, "agent features"]:
    """Squashed octant masses of `cells` between successive `radii`, then beyond the last one, the
    latter divided by `far_scale` first."""
    discs = [bits.window(position, radius, cells.shape[-2], width) for radius in radii]
    between = [outer & ~inner for inner, outer in itertools.pairwise(discs)]
    masses = sector_counts([cells & ring for ring in [*between, ~discs[-1]]], position)
    scale = np.ones((len(radii), 1), np.float32)
    scale[-1] = far_scale
    return squash(masses / scale, 20.0).reshape(position.shape[0], -1)


def own_regions(
    position: Int[Array, "agent 2"], rivals: Bool[Array, "agent agent"], height: int, width: int
) -> UInt32[Array, "agent row word"]:
    """The cells of each agent's Voronoi region among its `rivals`: nearer (Euclidean) to it than to
    any of them; ties go to the lower index.

    With a rival at offset q, the cell at offset d is the agent's own if 2 d·q < |q|². In a row of
    cells that bounds the columns on one side, so a region is an interval in every row.
    """
    size, index = position.shape[0], jnp.arange(position.shape[0])
    offset = (position[None] - position[:, None]).astype(jnp.float32)
    # Integers, so that half a cell decides ties and nothing else. Dividing once per pair is exact
    # enough: the error stays below that half up to about 1000² cells.
    square = jnp.sum(offset**2, axis=-1) + jnp.where(index[:, None] < index[None], 0.5, -0.5)
    across = 2 * offset[..., 1]
    to_right, to_left = rivals & (across >= 0), rivals & (across < 0)
    # A rival straight above or below takes whole rows: its bound lies far out on either side.
    per_col = 1 / jnp.where(across == 0, 1e-6, across)
    bound, tilt = square * per_col, -2 * offset[..., 0] * per_col
    down = (jnp.arange(height) - position[:, :1]).astype(jnp.float32)

    def bounds(rival: Bool[Array, "agent agent"], none: float) -> list[Float[Array, "agent row"]]:
        start, slope = jnp.where(rival, bound, none), jnp.where(rival, tilt, 0.0)
        return [start[:, j, None] + slope[:, j, None] * down for j in range(size)]

    first = jnp.floor(functools.reduce(jnp.maximum, bounds(to_left, -1e9))) + 1
    end = jnp.ceil(functools.reduce(jnp.minimum, bounds(to_right, 1e9)))
    col, words = position[:, 1:].astype(jnp.float32), bits.num_words(width)
    first, end = (jnp.clip(x + col, 0, width).astype(jnp.int32) for x in (first, end))
    return bits.below(end, words) & ~bits.below(first, words)


def nearest_teammates(
    position: Int[Array, "agent 2"], comm_r: int, slots: int, candidates: Bool[Array, "agent agent"]
) -> Float[Array, "agent features"]:
    """(Δrow/comm_r, Δcol/comm_r, 1) of each agent's nearest `candidates`, zero-padded to `slots`.

    Ties go to the lower index.
    """
    size = position.shape[0]
    offset = (position[None] - position[:, None]).astype(jnp.float32) / comm_r
    columns = []
    for chosen in _in_order(comms.distance(position), candidates, min(slots, size - 1)):
        there = [jnp.sum(jnp.where(chosen, offset[..., axis], 0.0), axis=-1) for axis in (0, 1)]
        columns += [*there, jnp.any(chosen, axis=-1).astype(jnp.float32)]
    columns += [jnp.zeros(size)] * (3 * slots - len(columns))
    return jnp.stack(columns, axis=-1)


def farthest(
    position: Int[Array, "agent 2"], candidates: Bool[Array, "agent agent"], number: int
) -> Bool[Array, "agent agent"]:
    """At most `number` of each agent's `candidates`, the most distant ones; ties go to the lower
    index."""
    size = position.shape[0]
    far = _in_order(-comms.distance(position), candidates, min(number, size - 1))
    return functools.reduce(jnp.logical_or, far)


def _in_order(
    distance: Int[Array, "agent agent"], candidates: Bool[Array, "agent agent"], number: int
) -> Iterator[Bool[Array, "agent agent"]]:
    """Each agent's nearest candidate as a mask of at most one, then the nearest of the others, and
    so on. A sort is slower for a team."""
    size = distance.shape[0]
    order = distance * size + jnp.arange(size)
    nobody = jnp.iinfo(order.dtype).max
    order = jnp.where(candidates, order, nobody)
    for _ in range(number):
        nearest = jnp.min(order, axis=-1, keepdims=True)
        chosen = (order == nearest) & (order < nobody)
        yield chosen
        order = jnp.where(chosen, nobody, order)


def planes(
    *,
    position: Int[Array, "agent 2"],
    belief: UInt32[Array, "agent row word"],
    wall: UInt32[Array, "row word"],
    width: int,
    comm_r: int,
    sense_r: int,
    sense_free: bool,
    boundary: bool,
) -> UInt32[Array, "agent channel row word"]:
    """The grid-shaped observation as bit rows: known, own cell, known walls, teammates, local
    frontier [, occupancy frontier if `sense_free`][, border if `boundary`]."""
    height, size = wall.shape[0], position.shape[0]
    own = bits.window(position, 0, height, width)
    others = comms.adjacency(position, comm_r) & ~jnp.eye(size, dtype=bool)
    near = jnp.where(others[:, :, None, None], own[None], jnp.uint32(0))
    neighbours = lax.reduce(near, jnp.uint32(0), jnp.bitwise_or, (1,))
    channels = [
        belief,
        own,
        belief & wall,
        neighbours,
        bits.window(position, sense_r, height, width) & ~belief,
    ]
    grid = bits.full(height, width)
    if sense_free:
        unknown = grid & ~belief
        channels.append(belief & ~wall & jax.vmap(bits.spread)(unknown))
    if boundary:
        middle = jnp.arange(height)[:, None] % (height - 1) > 0
        inside = jnp.where(middle, bits.columns(jnp.array(1), jnp.array(width - 2), width), 0)
        channels.append(jnp.broadcast_to(grid & ~inside, belief.shape))
    return jnp.stack(channels, axis=1)


def central_planes(
    position: Int[Array, "agent 2"],
    covered: UInt32[Array, "row word"],
    wall: UInt32[Array, "row word"],
    width: int,
) -> UInt32[Array, "3 row word"]:
    """The grid-shaped view of a central critic as bit rows: covered, any agent here, wall."""
    agents = bits.union(bits.window(position, 0, wall.shape[0], width))
    return jnp.stack([covered, agents, wall])


def visit_counts(positions: np.ndarray, grid: int) -> np.ndarray:
    """Visits of every cell up to each time: `(T+1, N, 2)` positions → `(T+1, H, W)` counts (host
    side)."""
    visits = np.zeros((len(positions), grid, grid), np.int32)
    times = np.arange(len(positions))[:, None]
    np.add.at(visits, (times, positions[..., 0], positions[..., 1]), 1)
    return np.cumsum(visits, axis=0, dtype=np.int32)
