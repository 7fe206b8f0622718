"""The coverage world against plain NumPy, and the rules it promises."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage
from scipy.sparse.csgraph import connected_components

from purejax_merl.agents.compact import CompactActor
from purejax_merl.envs.coverage import CoverageEnv, bits, comms, movement, reward, terrain, view
from purejax_merl.types import features

STAY, NORTH, EAST, SOUTH, WEST = range(5)
KEY = jax.random.key(0)

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Integers do not care how hard the compiler tries, and most of these tests are compilation."""


def at(*cells):
    return jnp.array(cells, jnp.int32)


# Terrains

NAMES = sorted(set(terrain.TERRAINS) - {"clutter"})


def spec_of(grid, density=0.15, rooms=3, spacing=4, size=2):
    return terrain.TerrainSpec(
        height=grid,
        width=grid,
        n_obstacles=int(density * grid * grid),
        rooms=rooms,
        pillar_spacing=spacing,
        pillar_size=size,
    )


SPECS = {
    "wide": spec_of(40),
    "dense": spec_of(12, density=0.5, rooms=5, spacing=3),
    "silly": spec_of(9, density=0.97, rooms=9, spacing=2, size=1),
    "solid": spec_of(5, density=1.0, rooms=12, spacing=2),
}


def test_clutter_is_another_name_for_walls():
    assert terrain.TERRAINS["clutter"] is terrain.TERRAINS["walls"]


# `crowded_mix` draws the others, so that one size of it is enough.
CASES = [(n, s) for n in NAMES for s in SPECS if n != "crowded_mix" or s == "dense"]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_every_free_cell_can_be_reached_and_spawns_are_free(name, size):
    spec, team, worlds = SPECS[size], 5, 24

    @quick_jit
    @jax.vmap
    def draw(key):
        wall = terrain.make_walls(name, spec, team, key=key)
        cluster = terrain.cluster_spawn(wall, team, 2, key=key)
        return wall, jnp.stack([cluster, terrain.scatter_spawn(wall, team, key=key)])

    walls, spawns = (np.asarray(x) for x in draw(jax.random.split(KEY, worlds)))
    for wall, both in zip(walls, spawns, strict=True):
        assert (~wall).sum() >= team, "fewer free cells than agents"
        _, pieces = ndimage.label(~wall)  # pyright: ignore[reportGeneralTypeIssues]
        assert pieces == 1, "a free cell that cannot be reached"
        for cells in both:
            assert len({tuple(cell) for cell in cells}) == team, "two agents on one cell"
            assert not wall[tuple(cells.T)].any(), "spawn in a wall"
        if name == "open":
            assert np.abs(both[0][:, None] - both[0]).max() <= 4, "the cluster is not close"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "open"])
def test_terrains_have_walls_and_differ_from_world_to_world(name):
    draw = quick_jit(jax.vmap(lambda key: terrain.make_walls(name, spec_of(16), 4, key=key)))
    walls = np.asarray(draw(jax.random.split(KEY, 8)))
    assert walls.any(axis=(1, 2)).all()
    assert len({wall.tobytes() for wall in walls}) > 4


# Bit rows against boolean grids


def random_grids(width, number=3, height=7, density=0.4):
    return np.random.default_rng(width).random((number, height, width)) < density


WIDTHS = (7, 32, 40, 70)


@pytest.mark.parametrize("width", WIDTHS)
def test_bit_rows_are_boolean_grids(width):
    grids = random_grids(width)
    height = grids.shape[1]
    cells = at(*itertools.product(range(height), range(width)))

    @quick_jit
    def ours(grids):
        sets, everything = bits.pack(grids), bits.full(height, width)
        unpack = functools.partial(bits.unpack, width=width)
        return {
            "pack": unpack(sets),
            "count": bits.count(sets),
            "union": unpack(bits.union(sets)),
            "full": unpack(everything),
            "no more than full": bits.count(everything),
            "contains": bits.contains(sets[0], cells).reshape(height, width),
            "spread": unpack(bits.spread(sets[0]) & everything),
        }

    expected = {
        "pack": grids,
        "count": grids.sum((1, 2)),
        "union": grids.any(0),
        "full": np.ones((height, width), bool),
        "no more than full": height * width,
        "contains": grids[0],
        "spread": ndimage.binary_dilation(grids[0]),
    }
    jax.tree.map(np.testing.assert_array_equal, ours(jnp.asarray(grids)), expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_column_ranges_and_windows(width):
    column, edges = np.arange(width), np.arange(-width - 3, 2 * width + 3)
    low, high = (x.ravel() for x in np.meshgrid(edges, edges))
    height, radius = 7, 2
    cells = np.array(list(itertools.product(range(height), range(width))))

    @quick_jit
    def ours(low, high, cells):
        ranges = bits.columns(low, high, width)[:, None]
        windows = bits.window(cells, radius, height, width)
        return bits.unpack(ranges, width)[:, 0], bits.unpack(windows, width)

    ranges, windows = ours(jnp.asarray(low), jnp.asarray(high), jnp.asarray(cells))
    between = (column >= low[:, None]) & (column <= high[:, None])
    np.testing.assert_array_equal(ranges, between)
    gap = np.maximum(
        np.abs(cells[:, :1, None] - np.arange(height)[:, None]), np.abs(cells[:, 1:, None] - column)
    )
    np.testing.assert_array_equal(windows, gap <= radius)


@pytest.mark.parametrize("width", WIDTHS)
def test_crops_are_windows_of_the_padded_grid(width):
    height, radius = 7, 5
    side, grid = 2 * radius + 1, random_grids(width)[0]
    cells = np.array(list(itertools.product(range(height), range(width))))

    @quick_jit
    def ours(grid, cells):
        cut = jax.vmap(lambda cell: bits.crop(bits.pack(grid), cell, radius))(cells)
        masks = bits.crop_mask(cells, radius, height, width)
        return bits.unpack(cut[..., None], side), bits.unpack(masks[..., None], side)

    for cut, source in zip(ours(grid, cells), (grid, np.ones_like(grid)), strict=True):
        padded = np.pad(source, radius)
        np.testing.assert_array_equal(cut, [padded[r : r + side, c : c + side] for r, c in cells])


@pytest.mark.parametrize("width", [7, 16, 40, 256])
def test_sector_counts_by_angle(width):
    some = random_grids(width, height=width)[0]
    corners = [(0, 0), (0, width - 1), (width - 1, 0), (width - 1, width - 1)]
    cells = np.concatenate([corners, np.random.default_rng(0).integers(0, width, (40, 2))])
    grids = (some, np.ones_like(some))
    sets = [
        jnp.broadcast_to(bits.pack(jnp.asarray(grid)), (len(cells), width, -(-width // 32)))
        for grid in grids
    ]
    ours = quick_jit(view.sector_counts)(sets, jnp.asarray(cells, jnp.int32))
    for grid, of_grid in zip(grids, np.moveaxis(np.asarray(ours), 1, 0), strict=True):
        rows, cols = np.nonzero(grid)
        for cell, counts in zip(cells, of_grid, strict=True):
            up, right = cell[0] - rows, cols - cell[1]
            elsewhere = (up != 0) | (right != 0)
            octant = np.round(np.arctan2(right, up) / (np.pi / 4)).astype(int) % 8
            np.testing.assert_array_equal(counts, np.bincount(octant[elsewhere], minlength=8))


def test_sector_counts_refuse_what_may_not_fit():
    sets = [jnp.zeros((2, 257, 9), jnp.uint32)]
    with pytest.raises(ValueError, match="256 rows; got 257"):
        view.sector_counts(sets, jnp.zeros((2, 2), jnp.int32))


@pytest.mark.parametrize("width", [7, 16, 40, 256])
def test_own_regions_are_voronoi_cells_among_rivals(width):
    random = np.random.default_rng(0)
    ours = quick_jit(view.own_regions, static_argnums=(2, 3))
    row_col = np.stack(np.meshgrid(range(width), range(width), indexing="ij"), axis=-1)
    for _ in range(20):
        cells = random.integers(0, width, (5, 2))
        cells[1] = cells[0]  # a tie everywhere
        rivals = (random.random((5, 5)) < 0.6) & ~np.eye(5, dtype=bool)
        regions = ours(jnp.asarray(cells, jnp.int32), jnp.asarray(rivals), width, width)
        away = np.sum((row_col - cells[:, None, None]) ** 2, axis=-1)
        for i in range(5):
            nearer = [
                (away[i] < away[j]) | ((away[i] == away[j]) & (i < j)) for j in range(5)
            ]  # fmt: skip
            wanted = np.all(
                [n for n, rival in zip(nearer, rivals[i], strict=True) if rival], axis=0
            )
            np.testing.assert_array_equal(bits.unpack(regions[i], width), wanted | ~rivals[i].any())


@pytest.mark.parametrize("views", ["absolute", "relative"])
@pytest.mark.parametrize("agents", [4, 10])
def test_teammates_in_view_are_the_nearest_five_or_the_farthest_three(agents, views):
    env = CoverageEnv(grid=12, num_agents=agents, views=views)
    for episode in range(10):
        cells = np.random.default_rng(episode).integers(0, 12, (agents, 2))
        state = env.start(jnp.zeros((12, 12), bool), jnp.asarray(cells, jnp.int32))
        slots = np.asarray(quick_jit(env.view)(state).teammates).reshape(agents, 5, 3)
        for i in range(agents):
            offsets = cells - cells[i]
            away = np.abs(offsets).max(axis=1)
            shown = [j for j in range(agents) if j != i and away[j] <= env.comm_r]
            if views == "relative":
                shown = sorted(shown, key=lambda j: (-away[j], j))[:3]
            shown = sorted(shown, key=lambda j: (away[j], j))[:5]
            wanted = np.zeros((5, 3))
            wanted[: len(shown), :2] = offsets[shown] / env.comm_r
            wanted[: len(shown), 2] = 1
            np.testing.assert_allclose(slots[i], wanted, rtol=1e-6)


def test_relative_views_are_the_absolute_ones_on_16_cells_and_by_area_beyond():
    def both(grid, agents):
        worlds = [
            CoverageEnv(grid=grid, num_agents=agents, views=views)
            for views in ("absolute", "relative")
        ]
        state = worlds[0].reset(key=jax.random.key(0))
        return [quick_jit(world.view)(state) for world in worlds]

    absolute, relative = both(16, 4)
    jax.tree.map(np.testing.assert_array_equal, absolute, relative)
    absolute, relative = both(32, 4)
    for name in ("sectors", "share"):
        (near, far), (near_relative, far_relative) = (
            np.split(np.asarray(getattr(v, name)), [-8], axis=1) for v in (absolute, relative)
        )
        np.testing.assert_array_equal(near_relative, near)
        cells, cells_relative = (20 * x / (1 - x) for x in (far, far_relative))
        assert cells.max() > 100
        np.testing.assert_allclose(cells_relative, cells / 4, rtol=1e-4)


# The communication graph


def laplacian_lambda2(weights):
    return np.linalg.eigvalsh(np.diag(weights.sum(1)) - weights)[1]


@pytest.mark.parametrize("size", range(2, 13))
def test_lambda2_is_the_second_eigenvalue(size):
    generator = np.random.default_rng(size)
    random = generator.random((20, size, size)) * (generator.random((20, size, size)) < 0.7)
    line = np.eye(size, k=1)
    halves = np.zeros((size, size))
    halves[: size // 2, : size // 2] = halves[size // 2 :, size // 2 :] = 1
    sparse = 1e-3 * np.eye(size, k=1)
    graphs = np.stack([*random, np.ones((size, size)), line, halves, np.zeros_like(line), sparse])
    graphs = np.triu(graphs, 1) + np.triu(graphs, 1).transpose(0, 2, 1)
    ours = quick_jit(jax.vmap(comms.algebraic_connectivity))(jnp.asarray(graphs, jnp.float32))
    expected = [laplacian_lambda2(weights) for weights in graphs]
    np.testing.assert_allclose(ours, expected, atol=2e-5, rtol=1e-4)
    assert (ours >= 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_hard_connectivity_by_search(size):
    positions = np.random.default_rng(size).integers(0, 12, (60, size, 2))

    @quick_jit
    @jax.vmap
    def measure(position):
        linked = comms.adjacency(position, 3)
        return comms.in_one_piece(linked), comms.giant_fraction(linked), comms.reach(linked)

    pieces, giants, reaches = measure(jnp.asarray(positions, jnp.int32))
    for k, position in enumerate(positions):
        linked = np.abs(position[:, None] - position).max(-1) <= 3
        number, label = connected_components(linked)
        assert bool(pieces[k]) == (number == 1)
        np.testing.assert_allclose(giants[k], np.bincount(label).max() / size, rtol=1e-6)
        np.testing.assert_array_equal(reaches[k], label[:, None] == label)


def test_gossip_travels_one_hop_per_step():
    env = CoverageEnv(num_agents=3, grid=16, comm_r=2)
    step = quick_jit(env.step.__func__)
    # A line in which the ends do not hear each other.
    state = env.start(jnp.zeros((16, 16), bool), at((5, 2), (5, 4), (5, 6)))
    news = (6, 2)
    for time, moves in enumerate([(SOUTH, STAY, STAY), (STAY,) * 3, (STAY,) * 3]):
        state, _ = step(env, state, jnp.array(moves), key=KEY)
        knows = bits.unpack(state.belief, 16)[:, *news]
        np.testing.assert_array_equal(knows, [True, time >= 1, time >= 2])


# Moving


def claim_by_hand(position, target):
    """In index order: move unless somebody stands there right now."""
    cells, blocked = [tuple(p) for p in position], []
    for i, wanted in enumerate(map(tuple, target)):
        blocked.append(any(cells[j] == wanted for j in range(len(cells)) if j != i))
        cells[i] = cells[i] if blocked[i] else wanted
    return np.array(cells), np.array(blocked)


def test_sequential_claim_in_every_crowd():
    generator = np.random.default_rng(0)
    free = np.array(list(itertools.product(range(3), range(3))))
    position = np.stack([generator.permutation(free)[:4] for _ in range(300)])
    moves = generator.integers(0, 5, (300, 4))
    target = np.clip(position + movement.DELTAS[moves], 0, 2)
    resolve = quick_jit(jax.vmap(functools.partial(movement.resolve, rule="claim")))
    ours, blocked = resolve(jnp.asarray(position, jnp.int32), jnp.asarray(target, jnp.int32))
    for k in range(len(position)):
        expected, expected_blocked = claim_by_hand(position[k], target[k])
        np.testing.assert_array_equal(ours[k], expected)
        np.testing.assert_array_equal(blocked[k], expected_blocked)
        assert len(np.unique(ours[k], axis=0)) == 4, "two agents on one cell"


CLAIMS = {
    "the lower index wins": ([(0, 0), (0, 2)], [(0, 1), (0, 1)], [(0, 1), (0, 2)]),
    "no swap": ([(0, 0), (0, 1)], [(0, 1), (0, 0)], [(0, 0), (0, 1)]),
    "follows a lower index": ([(0, 1), (0, 0)], [(0, 2), (0, 1)], [(0, 2), (0, 1)]),
    "does not follow a higher one": ([(0, 0), (0, 1)], [(0, 1), (0, 2)], [(0, 0), (0, 2)]),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_sequential_claim_by_hand(case):
    position, target, expected = CLAIMS[case]
    ours, blocked = movement.resolve(at(*position), at(*target), rule="claim")
    np.testing.assert_array_equal(ours, expected)
    stayed = np.all(np.array(position) == expected, axis=-1)
    np.testing.assert_array_equal(blocked, stayed)
    shared, _ = movement.resolve(at(*position), at(*target), rule="share")
    np.testing.assert_array_equal(shared, target)


def test_walls_and_borders_stop_an_agent():
    wall = jnp.zeros((4, 4), bool).at[1, 2].set(True)
    moves = movement.options(at((1, 1), (0, 0), (3, 3)), bits.pack(wall), 4)
    np.testing.assert_array_equal(moves.valid, [[1, 1, 0, 1, 1], [1, 0, 1, 1, 0], [1, 1, 0, 0, 1]])
    np.testing.assert_array_equal(moves.target[0, EAST], (1, 1))


@pytest.mark.parametrize(("rule", "expected"), [("claim", 1.0), ("share", 2.0)])
def test_collisions_are_blocked_or_sharing_agents(rule, expected):
    env = CoverageEnv(num_agents=3, grid=8, collision=rule)
    paid = first_step(env, at((1, 1), (1, 3), (5, 5)), jnp.array([EAST, WEST, STAY]))
    assert float(paid.terms.collisions) == expected


# Paying


@pytest.mark.parametrize("cover_r", [0, 1])
def test_every_new_cell_pays_one_agent_once(cover_r):
    env = CoverageEnv(
        num_agents=4, grid=12, cover_r=cover_r, terrain="walls", n_obstacles=20, horizon=30
    )

    @quick_jit
    def walk(key):
        def body(state, step_key):
            moves = jax.random.randint(step_key, (4,), 0, 5)
            state, paid = env.step(state, moves, key=step_key)
            return state, (bits.count(bits.union(state.seen)), paid.reward)

        start = env.reset(key=key)
        return bits.count(bits.union(start.seen)), jax.lax.scan(
            body, start, jax.random.split(key, env.horizon)
        )[1]

    first, (covered, rewards) = walk(KEY)
    gained = np.diff(np.asarray(covered), prepend=np.asarray(first))
    np.testing.assert_array_equal(np.asarray(rewards).sum(1), gained)
    assert gained.sum() > 10 and (np.asarray(rewards) >= 0).all()


def test_a_cell_that_two_reach_at_once_pays_the_lower_index_or_both():
    footprint = bits.window(at((3, 3), (3, 5)), 1, 8, 8)
    none = jnp.zeros_like(footprint[0])
    np.testing.assert_array_equal(reward.new_cells(footprint, none, credit="first"), [9, 6])
    np.testing.assert_array_equal(reward.new_cells(footprint, none, credit="each"), [9, 9])
    np.testing.assert_array_equal(reward.new_cells(footprint, footprint[1], credit="first"), [6, 0])


@quick_jit
def first_step(env, position, moves):
    start = env.start(jnp.zeros((env.grid, env.grid), bool), position)
    return env.step(start, moves, key=KEY)[1]


def test_cost_is_charged_exactly_where_lambda2_is_under_the_bar():
    env = CoverageEnv(num_agents=2, grid=16, comm_r=5)
    for gap, cost in [(4, 0.0), (5, 0.0), (6, 1.0), (9, 1.0)]:
        paid = first_step(env, at((1, 1), (1, 1 + gap)), jnp.zeros(2, jnp.int32))
        np.testing.assert_array_equal(paid.cost, cost)
        assert float(paid.terms.conn_05) == 1 - cost
        assert float(paid.terms.conn_hard) == float(gap <= 5)


def test_score_of_an_episode_by_hand():
    env = CoverageEnv(num_agents=2, grid=4, horizon=2)

    @quick_jit
    def play(position):
        state = env.start(jnp.zeros((4, 4), bool), position)
        for moves in ((SOUTH, EAST), (NORTH, WEST)):
            state, paid = env.step(state, jnp.array(moves), key=KEY)
        return paid, env.score(state, jax.tree.map(lambda x: x * 0 + 0.75, paid.terms))

    paid, score = play(at((0, 0), (0, 1)))
    # Agent 0: (0,0) (1,0); agent 1: (0,1) (0,2); nothing is covered twice.
    assert float(score.coverage) == 4 / 16 and float(score.redundancy) == 1.0
    assert float(score.fitness) == 0.25 and float(score.passed) == 0.0
    assert bool(paid.truncated) and not bool(paid.terminated)


# Scripted skills


@quick_jit
def logits_of_first(env, position):
    """What each scripted skill of the first agent would do on open ground."""
    view = env.view(env.start(jnp.zeros((env.grid, env.grid), bool), position))
    own = jax.tree.map(lambda x: x[0], view)
    return {name: skill(own) for name, skill in env.skills().items()}


PAIR, TRIO = (CoverageEnv(num_agents=n, grid=16, comm_r=5) for n in (2, 3))


def likeliest(logits, number=1):
    return {int(move) for move in np.argsort(-np.asarray(logits))[:number]}


@pytest.mark.parametrize(
    ("offset", "wanted"),
    [((3, 3), {SOUTH, EAST}), ((-3, -3), {NORTH, WEST}), ((3, -3), {SOUTH, WEST})],
)
def test_flock_heads_for_a_diagonal_teammate(offset, wanted):
    logits = logits_of_first(PAIR, at((7, 7), (7 + offset[0], 7 + offset[1])))["flock"]
    assert likeliest(logits, 2) == wanted
    np.testing.assert_allclose(logits[jnp.array(sorted(wanted))], 4 / 2**0.5, rtol=1e-5)


def test_flock_goes_to_the_farthest_and_is_indifferent_alone():
    assert likeliest(logits_of_first(TRIO, at((7, 7), (7, 6), (11, 7)))["flock"]) == {SOUTH}
    np.testing.assert_array_equal(logits_of_first(PAIR, at((0, 0), (15, 15)))["flock"], 0)


def test_hold_stays_while_linked_and_closes_up_at_the_edge():
    # At the edge of the range a link counts half; the diagonal is the edge as well.
    assert likeliest(logits_of_first(PAIR, at((7, 7), (12, 12)))["hold"], 2) == {SOUTH, EAST}
    assert likeliest(logits_of_first(PAIR, at((7, 7), (15, 15)))["hold"]) == {STAY}
    assert likeliest(logits_of_first(TRIO, at((7, 7), (9, 9), (6, 6)))["hold"]) == {STAY}


# Privacy


def forget(env, state, agent, key):
    """A world that differs from `state` wherever `agent` cannot tell: walls it does not know,
    agents out of its range, and what everybody else knows."""
    wall_key, place_key, seen_key, belief_key = jax.random.split(key, 4)
    shape, size = (env.grid, env.grid), env.num_agents
    everything = bits.full(*shape)

    def random_cells(key, *lead):
        return bits.pack(jax.random.bernoulli(key, 0.5, (*lead, *shape)))

    known = state.belief[agent]
    wall = (state.wall & known) | (random_cells(wall_key) & everything & ~known)
    places = jax.random.randint(place_key, (size, 2), 0, env.grid)
    in_range = comms.distance(state.position)[agent] <= env.comm_r
    stays_out = jnp.max(jnp.abs(places - state.position[agent]), axis=-1) > env.comm_r
    moved = ~in_range & stays_out
    belief = random_cells(belief_key, size).at[agent].set(known)
    return eqx.tree_at(
        lambda s: (s.wall, s.position, s.seen, s.belief, s.lambda2),
        state,
        (
            wall,
            jnp.where(moved[:, None], places, state.position),
            random_cells(seen_key, size),
            belief,
            state.lambda2 + 1,
        ),
    ), jnp.any(moved)


# `crowded_mix` draws walls, pillars and mixed.
@pytest.mark.parametrize("name", ["open", "rooms", "crowded_mix"])
def test_a_policy_knows_nothing_that_its_agent_cannot(name):
    env = CoverageEnv(
        num_agents=5, grid=18, comm_r=4, terrain=name, n_obstacles=40, spawn="scatter", horizon=12
    )
    state = jax.eval_shape(lambda: env.reset(key=KEY))
    num_features = jax.eval_shape(lambda s: features(env.view(s)), state).shape[-1]
    skills = {"disperse": None, **env.skills()}
    actor = CompactActor(num_features, 5, skills, width=32, depth=1, first_bias=0.0, key=KEY)

    def act(state):
        return actor(env.view(state), env.graph(state), env.legal(state))

    @quick_jit
    @jax.vmap
    def compare(key):
        walk_key, forget_key = jax.random.split(key)

        def walk(state, step_key):
            moves = jax.random.randint(step_key, (env.num_agents,), 0, 5)
            return env.step(state, moves, key=step_key)[0], None

        state = jax.lax.scan(walk, env.reset(key=key), jax.random.split(walk_key, 8))[0]
        policy = act(state)

        def perturbed_around(agent):
            other, moved = forget(env, state, agent, forget_key)
            pairs = zip(jax.tree.leaves(policy), jax.tree.leaves(act(other)), strict=True)
            same = [jnp.all(a == b, axis=range(1, a.ndim)) for a, b in pairs]
            same = jnp.all(jnp.stack(same), axis=0)
            return same[agent], moved, jnp.all(same)

        return jax.vmap(perturbed_around)(jnp.arange(env.num_agents))

    own, moved, everyone = compare(jax.random.split(KEY, 32))
    assert moved.any(axis=1).all() and not everyone.any(), "the perturbation changes nothing"
    assert own.all(), f"{int((~own).sum())} of {own.size} agents know what they cannot"
