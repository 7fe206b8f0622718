"""Where an episode starts: walls and spawn positions.

In: a key and sizes. Out: a wall grid in which every free cell can be reached, and N free cells.
Axis: none. Runs once per episode, so it is written for clarity on boolean grids.
May import: nothing of ours.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

Grid = Bool[Array, "row col"]


class TerrainSpec(eqx.Module):
    """Sizes of the terrain generators; all static."""

    height: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    n_obstacles: int = eqx.field(static=True)
    rooms: int = eqx.field(static=True)
    pillar_spacing: int = eqx.field(static=True)
    pillar_size: int = eqx.field(static=True)


def flood_fill(wall: Grid, *, iterations: int | None = None) -> Grid:
    """Turns every cell that the centre cannot reach into wall; the centre itself becomes free.

    **Arguments:** `wall`: `(H, W)`. `iterations`: wavefront steps, 2(H+W) by default; a free cell
    farther away than that becomes wall too, so what remains is still in one piece.
    """
    height, width = wall.shape
    free = ~wall.at[height // 2, width // 2].set(False)
    seed = jnp.zeros_like(wall).at[height // 2, width // 2].set(True)

    def wave(_: Int[Array, ""], reached: Grid) -> Grid:
        return _with_neighbours(reached) & free

    return ~lax.fori_loop(0, iterations or 2 * (height + width), wave, seed)


def _with_neighbours(cells: Grid) -> Grid:
    padded = jnp.pad(cells, 1)
    return cells | padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]


def largest_component(wall: Grid) -> Grid:
    """Keeps the largest 4-connected free region and turns every other free cell into wall."""
    height, width = wall.shape
    own = jnp.where(wall, 0, 1 + jnp.arange(height * width).reshape(height, width))

    def widen(labels: Int[Array, "row col"]) -> Int[Array, "row col"]:
        padded = jnp.pad(labels, 1)
        around = [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
        return jnp.where(wall, 0, jnp.max(jnp.stack([labels, *around]), axis=0))

    def unsettled(carry: tuple[Array, Array]) -> Bool[Array, ""]:
        return jnp.any(carry[0] != carry[1])

    _, labels = lax.while_loop(unsettled, lambda c: (c[1], widen(c[1])), (own - 1, own))
    sizes = jnp.zeros(height * width + 1, jnp.int32).at[labels.ravel()].add(1).at[0].set(0)
    return labels != jnp.argmax(sizes)


def random_walls(spec: TerrainSpec, *, key: PRNGKeyArray) -> Grid:
    """`n_obstacles` distinct wall cells, uniformly; what they cut off becomes wall as well."""
    return largest_component(_scatter(spec, spec.n_obstacles, key=key))


def _scatter(spec: TerrainSpec, number: int, *, key: PRNGKeyArray) -> Grid:
    noise = jax.random.uniform(key, (spec.height * spec.width,))
    order = jnp.argsort(noise)
    cells = jnp.zeros(spec.height * spec.width, bool).at[order[:number]].set(True)
    return cells.reshape(spec.height, spec.width)


def rooms(spec: TerrainSpec, *, key: PRNGKeyArray, door: int = 1) -> Grid:
    """Full-height wall columns that cut the grid into `rooms`, each with one door of `door`
    cells."""
    wall, _ = _rooms_and_doors(spec, door, key=key)
    # Doors of adjacent columns need not meet; with rooms of any width this changes nothing.
    return largest_component(wall)


def _rooms_and_doors(spec: TerrainSpec, door: int, *, key: PRNGKeyArray) -> tuple[Grid, Grid]:
    """The wall columns with their doors open, and the doorways (door cells and the cells beside
    them)."""
    row, col = jnp.arange(spec.height)[:, None], jnp.arange(spec.width)[None]
    columns = jnp.array(
        [(k + 1) * spec.width // spec.rooms for k in range(spec.rooms - 1)], jnp.int32
    )
    tops = jax.random.randint(key, columns.shape, 0, spec.height - door + 1)
    in_door = (row[..., None] >= tops) & (row[..., None] < tops + door)
    wall = jnp.any((col[..., None] == columns) & ~in_door, axis=-1)
    doorway = jnp.any((jnp.abs(col[..., None] - columns) <= 1) & in_door, axis=-1)
    return wall, doorway


def pillars(spec: TerrainSpec, *, key: PRNGKeyArray) -> Grid:
    """Square pillars on a regular lattice with a random offset."""
    offset = jax.random.randint(key, (2,), 0, spec.pillar_spacing)
    row, col = jnp.arange(spec.height)[:, None], jnp.arange(spec.width)[None]
    in_row = (row + offset[0]) % spec.pillar_spacing < spec.pillar_size
    in_col = (col + offset[1]) % spec.pillar_spacing < spec.pillar_size
    return largest_component(in_row & in_col)


def mixed(spec: TerrainSpec, *, key: PRNGKeyArray, n_obstacles: int | None = None) -> Grid:
    """Rooms with doors of two cells, and random walls that leave the doorways open."""
    room_key, wall_key = jax.random.split(key)
    wall, doorway = _rooms_and_doors(spec, 2, key=room_key)
    number = spec.n_obstacles if n_obstacles is None else n_obstacles
    clutter = _scatter(spec, number, key=wall_key)
    return largest_component(wall | (clutter & ~doorway))


def crowded_mix(spec: TerrainSpec, *, key: PRNGKeyArray) -> Grid:
    """One of clutter, pillars and mixed (with half the obstacles), uniformly."""
    pick_key, key = jax.random.split(key)
    makers = [
        lambda k: random_walls(spec, key=k),
        lambda k: pillars(spec, key=k),
        lambda k: mixed(spec, key=k, n_obstacles=spec.n_obstacles // 2),
    ]
    return lax.switch(jax.random.randint(pick_key, (), 0, 3), makers, key)


def open_ground(spec: TerrainSpec, *, key: PRNGKeyArray) -> Grid:
    """No walls."""
    del key
    return jnp.zeros((spec.height, spec.width), bool)


TERRAINS: dict[str, Callable[..., Grid]] = {
    "open": open_ground,
    "walls": random_walls,
    "rooms": rooms,
    # Once both must be in one piece, scattered walls and clutter are the same thing; both names
    # are in use.
    "clutter": random_walls,
    "pillars": pillars,
    "mixed": mixed,
    "crowded_mix": crowded_mix,
}


def make_walls(terrain: str, spec: TerrainSpec, num_agents: int, *, key: PRNGKeyArray) -> Grid:
    """Walls of the named terrain. A draw with fewer free cells than agents is replaced by open
    ground."""
    wall = TERRAINS[terrain](spec, key=key)
    return wall & (jnp.sum(~wall) >= num_agents)


def cluster_spawn(
    wall: Grid, num_agents: int, radius: int, *, key: PRNGKeyArray
) -> Int[Array, "agent 2"]:
    """N distinct free cells within `radius` of a random anchor; the overflow goes to other free
    cells.

    The anchor is a free cell at least `radius` from the border where there is one.
    """
    anchor_key, cell_key = jax.random.split(key)
    height, width = wall.shape
    row, col = jnp.arange(height)[:, None], jnp.arange(width)[None]
    interior = (row >= radius) & (row < height - radius) & (col >= radius) & (col < width - radius)
    noise = jax.random.uniform(anchor_key, wall.shape)
    anchor = jnp.argmax(jnp.where(wall, -1.0, noise + interior))
    near = (jnp.abs(row - anchor // width) <= radius) & (jnp.abs(col - anchor % width) <= radius)
    return _best_cells(near + jax.random.uniform(cell_key, wall.shape), wall, num_agents)


def scatter_spawn(wall: Grid, num_agents: int, *, key: PRNGKeyArray) -> Int[Array, "agent 2"]:
    """N distinct free cells, uniformly."""
    return _best_cells(jax.random.uniform(key, wall.shape), wall, num_agents)


def _best_cells(
    preference: Float[Array, "row col"], wall: Grid, number: int
) -> Int[Array, "agent 2"]:
    _, cells = lax.top_k(jnp.where(wall, -1.0, preference).ravel(), number)
    return jnp.stack(jnp.divmod(cells, wall.shape[1]), axis=-1).astype(jnp.int32)
