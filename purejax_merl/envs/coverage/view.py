"""What an agent of the coverage world sees.

In: a state's positions and cell sets. Out: the compact view, the critic's view, and the
grid-shaped planes.
Axis: none (agents are rows). An own view reads belief and in-range teammates, nothing else.
May import: the world's own files.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from purejax_merl.envs.coverage import bits, comms

OCTANTS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")


def sector_counts(
    cells: UInt32[Array, "agent row word"], position: Int[Array, "agent 2"]
) -> Float[Array, "agent 8"]:
    """Number of `cells` in each compass octant around each agent, in the order of `OCTANTS`.

    An octant is a range of columns in every row: beyond k·tan 22.5° and k·tan 67.5° on either
    side, k rows away.
    """
    words, height = cells.shape[-1], cells.shape[-2]
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

    def per_row(mask: UInt32[Array, "agent row word"]) -> Int[Array, "agent row"]:
        return jnp.sum(lax.population_count(cells & mask), axis=-1).astype(jnp.int32)

    def rows(
        counts: Int[Array, "agent row"], keep: Bool[Array, "agent row"]
    ) -> Float[Array, "agent"]:
        return jnp.sum(jnp.where(keep, counts, 0), axis=-1).astype(jnp.float32)

    up, down, everywhere = above > 0, above < 0, above == above
    mid, left, right = per_row(north), per_row(north_west), per_row(north_east)
    far_west, far_east = per_row(west), per_row(east)
    return jnp.stack(
        [
            rows(mid, up),
            rows(right, up),
            rows(far_east, everywhere),
            rows(right, down),
            rows(mid, down),
            rows(left, down),
            rows(far_west, everywhere),
            rows(left, up),
        ],
        axis=-1,
    )


def squash(counts: Float[Array, "*any"], scale: float) -> Float[Array, "*any"]:
    """Counts in [0, ∞) → [0, 1), half at `scale`: large grids do not drive a network out of
    range."""
    return counts / (counts + scale)


def rings(
    cells: UInt32[Array, "agent row word"],
    position: Int[Array, "agent 2"],
    radii: tuple[int, ...],
    width: int,
) -> Float[Array, "agent features"]:
    """Squashed octant masses of `cells` between successive `radii`, then beyond the last one."""
    discs = [bits.window(position, radius, cells.shape[-2], width) for radius in radii]
    between = [outer & ~inner for inner, outer in itertools.pairwise(discs)]
    masses = [
        squash(sector_counts(cells & ring, position), 20.0) for ring in [*between, ~discs[-1]]
    ]
    return jnp.concatenate(masses, axis=-1)


def own_regions(
    position: Int[Array, "agent 2"], rivals: Bool[Array, "agent agent"], height: int, width: int
) -> UInt32[Array, "agent row word"]:
    """The cells of each agent's Voronoi region among its `rivals`: nearer (Euclidean) to it than to
    any of them; ties go to the lower index.

    Cell p is nearer to i than to j if `2 p·(p_i − p_j) + |p_j|² − |p_i|² > 0`, which in a row of
    cells is a range of columns.
    """
    apart = position[:, None] - position[None]
    offset = jnp.sum(position**2, axis=-1)
    index = jnp.arange(position.shape[0])
    # Integers: more than a half is at least one, and "or equal" is one less.
    constant = offset[None] - offset[:, None] + (index[:, None] < index[None])
    rest = constant[..., None] + 2 * apart[..., :1] * jnp.arange(height)
    slope = 2 * apart[..., 1:]
    # 2·slope·col + rest ≥ 1: from `edge` on, or up to it. Halves keep the quotient off integers.
    edge = (1 - rest - 0.5) / jnp.where(slope == 0, 1, slope)
    words = bits.num_words(width)
    left = bits.below(jnp.floor(edge).astype(jnp.int32) + 1, words)
    row_wise = jnp.where(rest >= 1, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))[..., None]
    slope = slope[..., None]
    nearer = jnp.where(slope > 0, ~left, jnp.where(slope < 0, left, row_wise))
    nearer = jnp.where(rivals[..., None, None], nearer, jnp.uint32(0xFFFFFFFF))
    return lax.reduce(nearer, jnp.uint32(0xFFFFFFFF), jnp.bitwise_and, (1,))


def nearest_teammates(
    position: Int[Array, "agent 2"], comm_r: int, slots: int, candidates: Bool[Array, "agent agent"]
) -> Float[Array, "agent features"]:
    """(Δrow/comm_r, Δcol/comm_r, 1) of each agent's nearest `candidates`, zero-padded to `slots`.

    Ties go to the lower index. Ranks come from pairwise comparison: a sort is slower for a team.
    """
    size = position.shape[0]
    order = comms.distance(position) * size + jnp.arange(size)
    closer = candidates[:, None, :] & (order[:, None, :] < order[:, :, None])
    rank = jnp.sum(closer, axis=-1)
    taken = (rank[:, :, None] == jnp.arange(slots)) & candidates[:, :, None]
    offset = (position[None] - position[:, None]).astype(jnp.float32) / comm_r
    value = jnp.concatenate([offset, jnp.ones((size, size, 1))], axis=-1)
    chosen = jnp.sum(jnp.where(taken[..., None], value[:, :, None, :], 0.0), axis=1)
    return chosen.reshape(size, slots * 3)


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
