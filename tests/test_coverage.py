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


def at(*cells):
    return jnp.array(cells, jnp.int32)


# Terrains

OBSTACLES = {"none": 0, "some": 0.15, "many": 0.5, "nearly all": 0.97, "all": 1.0}


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
    "small": spec_of(5),
    "plain": spec_of(16),
    "wide": spec_of(40),
    "dense": spec_of(12, density=0.5, rooms=5, spacing=3, size=2),
    "silly": spec_of(9, density=0.97, rooms=9, spacing=2, size=1),
    "solid": spec_of(7, density=1.0, rooms=12, spacing=2, size=2),
}


@pytest.mark.parametrize("size", SPECS)
@pytest.mark.parametrize("name", terrain.TERRAINS)
def test_every_free_cell_can_be_reached_and_spawns_are_free(name, size):
    spec, team, worlds = SPECS[size], 5, 24

    @jax.jit
    @jax.vmap
    def draw(key):
        wall = terrain.make_walls(name, spec, team, key=key)
        cluster = terrain.cluster_spawn(wall, team, 2, key=key)
        return wall, jnp.stack([cluster, terrain.scatter_spawn(wall, team, key=key)])

    walls, spawns = (np.asarray(x) for x in draw(jax.random.split(KEY, worlds)))
    for wall, both in zip(walls, spawns, strict=True):
        assert (~wall).sum() >= team, "fewer free cells than agents"
        assert ndimage.label(~wall)[1] == 1, "a free cell that cannot be reached"
        for cells in both:
            assert len({tuple(cell) for cell in cells}) == team, "two agents on one cell"
            assert not wall[tuple(cells.T)].any(), "spawn in a wall"
        if name == "open":
            assert np.abs(both[0][:, None] - both[0]).max() <= 4, "the cluster is not close"


@pytest.mark.parametrize("name", sorted(set(terrain.TERRAINS) - {"open"}))
def test_terrains_have_walls_and_differ_from_world_to_world(name):
    draw = jax.jit(jax.vmap(lambda key: terrain.make_walls(name, spec_of(16), 4, key=key)))
    walls = np.asarray(draw(jax.random.split(KEY, 8)))
    assert walls.any(axis=(1, 2)).all()
    assert len({wall.tobytes() for wall in walls}) > 4


# Bit rows against boolean grids


def random_grids(width, number=3, height=7, density=0.4):
    return np.random.default_rng(width).random((number, height, width)) < density


WIDTHS = (1, 7, 31, 32, 33, 40, 64, 70)


@pytest.mark.parametrize("width", WIDTHS)
def test_bit_rows_are_boolean_grids(width):
    grids = random_grids(width)
    sets = bits.pack(jnp.asarray(grids))
    height, number = grids.shape[1], len(grids)
    np.testing.assert_array_equal(bits.unpack(sets, width), grids)
    np.testing.assert_array_equal(bits.count(sets), grids.sum((1, 2)))
    np.testing.assert_array_equal(bits.unpack(bits.union(sets), width), grids.any(0))
    np.testing.assert_array_equal(bits.unpack(bits.full(height, width), width), True)
    assert int(bits.count(bits.full(height, width))) == height * width
    cells = at(*itertools.product(range(height), range(width)))
    for k in range(number):
        inside = bits.contains(sets[k], cells)
        np.testing.assert_array_equal(inside.reshape(height, width), grids[k])
    spread = bits.spread(sets[0]) & bits.full(height, width)
    np.testing.assert_array_equal(bits.unpack(spread, width), ndimage.binary_dilation(grids[0]))


@pytest.mark.parametrize("width", WIDTHS)
def test_column_ranges_and_windows(width):
    column, edges = np.arange(width), np.arange(-width - 3, 2 * width + 3)
    low, high = (x.ravel() for x in np.meshgrid(edges, edges))
    ours = bits.unpack(bits.columns(jnp.asarray(low), jnp.asarray(high), width)[:, None], width)
    expected = (column >= low[:, None]) & (column <= high[:, None])
    np.testing.assert_array_equal(ours[:, 0], expected)
    height, radius = 7, 2
    cells = np.array(list(itertools.product(range(height), range(width))))
    ours = bits.unpack(bits.window(jnp.asarray(cells), radius, height, width), width)
    gap = np.maximum(
        np.abs(cells[:, :1, None] - np.arange(height)[:, None]), np.abs(cells[:, 1:, None] - column)
    )
    np.testing.assert_array_equal(ours, gap <= radius)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("radius", [1, 5])
def test_crops_are_windows_of_the_padded_grid(width, radius):
    height, side = 7, 2 * radius + 1
    grid = random_grids(width)[0]
    cells = np.array(list(itertools.product(range(height), range(width))))
    sets = jnp.broadcast_to(bits.pack(jnp.asarray(grid)), (len(cells), height, -(-width // 32)))
    crops = bits.crop(sets, jnp.asarray(cells), radius)
    masks = bits.crop_mask(jnp.asarray(cells), radius, height, width)
    for ours, source in ((crops, grid), (masks, np.ones_like(grid))):
        padded = np.pad(source, radius)
        expected = [padded[r : r + side, c : c + side] for r, c in cells]
        np.testing.assert_array_equal(bits.unpack(ours[..., None], side), expected)


@pytest.mark.parametrize("width", [7, 16, 40])
def test_sector_counts_by_angle(width):
    height = width
    grid = random_grids(width, height=height)[0]
    cells = np.random.default_rng(0).integers(0, width, (40, 2))
    sets = jnp.broadcast_to(bits.pack(jnp.asarray(grid)), (40, height, -(-width // 32)))
    ours = jax.jit(view.sector_counts)(sets, jnp.asarray(cells, jnp.int32))
    rows, cols = np.nonzero(grid)
    for cell, counts in zip(cells, np.asarray(ours), strict=True):
        up, right = cell[0] - rows, cols - cell[1]
        elsewhere = (up != 0) | (right != 0)
        octant = np.round(np.arctan2(right, up) / (np.pi / 4)).astype(int) % 8
        np.testing.assert_array_equal(counts, np.bincount(octant[elsewhere], minlength=8))


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
    ours = jax.jit(jax.vmap(comms.algebraic_connectivity))(jnp.asarray(graphs, jnp.float32))
    expected = [laplacian_lambda2(weights) for weights in graphs]
    np.testing.assert_allclose(ours, expected, atol=2e-5, rtol=1e-4)
    assert (ours >= 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_hard_connectivity_by_search(size):
    positions = np.random.default_rng(size).integers(0, 12, (60, size, 2))

    @jax.jit
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
    step = eqx.filter_jit(env.step)
    # A line in which the ends do not hear each other.
    state = env.start(jnp.zeros((16, 16), bool), at((5, 2), (5, 4), (5, 6)))
    news = (6, 2)
    for time, moves in enumerate([(SOUTH, STAY, STAY), (STAY,) * 3, (STAY,) * 3]):
        state, _ = step(state, jnp.array(moves), key=KEY)
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
    resolve = jax.jit(jax.vmap(functools.partial(movement.resolve, rule="claim")))
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
    np.testing.assert_array_equal(
        moves.valid, [[1, 1, 0, 1, 1], [1, 0, 1, 1, 0], [1, 1, 0, 0, 1]]
    )
    np.testing.assert_array_equal(moves.target[0, EAST], (1, 1))


@pytest.mark.parametrize(("rule", "expected"), [("claim", 1.0), ("share", 2.0)])
def test_collisions_are_blocked_or_sharing_agents(rule, expected):
    env = CoverageEnv(num_agents=3, grid=8, collision=rule)
    state = env.start(jnp.zeros((8, 8), bool), at((1, 1), (1, 3), (5, 5)))
    _, paid = env.step(state, jnp.array([EAST, WEST, STAY]), key=KEY)
    assert float(paid.terms.collisions) == expected


# Paying


@pytest.mark.parametrize("cover_r", [0, 1])
def test_every_new_cell_pays_one_agent_once(cover_r):
    env = CoverageEnv(
        num_agents=4, grid=12, cover_r=cover_r, terrain="walls", n_obstacles=20, horizon=30
    )

    @jax.jit
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
    np.testing.assert_array_equal(
        reward.new_cells(footprint, footprint[1], credit="first"), [6, 0]
    )


def test_cost_is_charged_exactly_where_lambda2_is_under_the_bar():
    env = CoverageEnv(num_agents=2, grid=16, comm_r=5)
    for gap, cost in [(4, 0.0), (5, 0.0), (6, 1.0), (9, 1.0)]:
        state = env.start(jnp.zeros((16, 16), bool), at((1, 1), (1, 1 + gap)))
        _, paid = env.step(state, jnp.zeros(2, jnp.int32), key=KEY)
        np.testing.assert_array_equal(paid.cost, cost)
        assert float(paid.terms.conn_05) == 1 - cost
        assert float(paid.terms.conn_hard) == float(gap <= 5)


def test_score_of_an_episode_by_hand():
    env = CoverageEnv(num_agents=2, grid=4, horizon=2)
    state = env.start(jnp.zeros((4, 4), bool), at((0, 0), (0, 1)))
    for moves in ((SOUTH, EAST), (NORTH, WEST)):
        state, paid = env.step(state, jnp.array(moves), key=KEY)
    score = env.score(state, jax.tree.map(lambda x: x * 0 + 0.75, paid.terms))
    # Agent 0: (0,0) (1,0); agent 1: (0,1) (0,2); nothing is covered twice.
    assert float(score.coverage) == 4 / 16 and float(score.redundancy) == 1.0
    assert float(score.fitness) == 0.25 and float(score.passed) == 0.0
    assert bool(paid.truncated) and not bool(paid.terminated)


# Scripted skills


def one_view(env, position, agent=0):
    state = env.start(jnp.zeros((env.grid, env.grid), bool), at(*position))
    return jax.tree.map(lambda x: x[agent], env.view(state))


def test_flock_heads_for_a_diagonal_teammate():
    env = CoverageEnv(num_agents=2, grid=16)
    for corner, wanted in [((3, 3), {SOUTH, EAST}), ((-3, -3), {NORTH, WEST}), ((3, -3), {SOUTH, WEST})]:
        logits = env.skills()["flock"](one_view(env, [(7, 7), (7 + corner[0], 7 + corner[1])]))
        alive = {int(move) for move in jnp.argsort(-logits)[:2]}
        assert alive == wanted
        np.testing.assert_allclose(logits[jnp.array(sorted(wanted))], 4 / 2**0.5, rtol=1e-5)


def test_flock_goes_to_the_farthest_and_is_indifferent_alone():
    env = CoverageEnv(num_agents=3, grid=16)
    flock = env.skills()["flock"]
    assert int(jnp.argmax(flock(one_view(env, [(7, 7), (7, 6), (11, 7)])))) == SOUTH
    alone = flock(one_view(CoverageEnv(num_agents=2, grid=16), [(0, 0), (15, 15)]))
    np.testing.assert_array_equal(alone, 0)


def test_hold_stays_while_linked_and_closes_up_at_the_edge():
    env = CoverageEnv(num_agents=2, grid=16, comm_r=5)
    hold = env.skills()["hold"]
    # At the edge of the range a link counts half; the diagonal is the edge as well.
    edge = hold(one_view(env, [(7, 7), (12, 12)]))
    assert {int(move) for move in jnp.argsort(-edge)[:2]} == {SOUTH, EAST}
    assert int(jnp.argmax(hold(one_view(env, [(7, 7), (15, 15)])))) == STAY
    linked = CoverageEnv(num_agents=3, grid=16, comm_r=5)
    assert int(jnp.argmax(hold(one_view(linked, [(7, 7), (9, 9), (6, 6)])))) == STAY


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


@pytest.mark.parametrize("name", terrain.TERRAINS)
def test_a_policy_knows_nothing_that_its_agent_cannot(name):
    env = CoverageEnv(
        num_agents=5, grid=18, comm_r=4, terrain=name, n_obstacles=40, spawn="scatter", horizon=12
    )
    num_features = features(env.view(env.reset(key=KEY))).shape[-1]
    skills = {"disperse": None, **env.skills()}
    actor = CompactActor(num_features, 5, skills, width=32, depth=1, first_bias=0.0, key=KEY)
    # Heads that matter, so that a change of any input shows.
    actor = jax.tree.map(lambda x: x * 30 if x.ndim == 2 and x.shape[1] == 32 else x, actor)

    def act(state):
        return actor(env.view(state), env.graph(state), env.legal(state))

    @jax.jit
    @jax.vmap
    def compare(key):
        walk_key, forget_key = jax.random.split(key)

        def body(state, step_key):
            moves = jax.random.randint(step_key, (env.num_agents,), 0, 5)
            return env.step(state, moves, key=step_key)[0], None

        state = jax.lax.scan(body, env.reset(key=key), jax.random.split(walk_key, 8))[0]
        policy = act(state)
        same, moved = [], []
        for agent in range(env.num_agents):
            other, someone_moved = forget(env, state, agent, forget_key)
            pairs = jax.tree.map(lambda a, b, i=agent: jnp.all(a[i] == b[i]), policy, act(other))
            same.append(jnp.stack(jax.tree.leaves(pairs)))
            moved.append(someone_moved)
        others = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.any(a != b), policy, act(other)))
        return jnp.all(jnp.stack(same)), jnp.any(jnp.stack(moved)), jnp.any(jnp.stack(others))

    same, moved, others = compare(jax.random.split(KEY, 32))
    assert moved.all() and others.all(), "the perturbation changes nothing at all"
    assert same.all(), f"{int((~same).sum())} of 32 worlds leak"
