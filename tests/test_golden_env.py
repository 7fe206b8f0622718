"""Recorded trajectories of the coverage world, replayed array by array."""

import functools
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejax_merl import rollout
from purejax_merl.envs.coverage import CoverageEnv, bits, comms, movement, reward, terrain, view

pytestmark = pytest.mark.golden

# Left out on purpose: parts of the recorded system that this project does not have.
LEFT_OUT = {"barrier", "info_gain", "reward_allknobs"}
INPUTS = {"wall", "actions", "skills", "reset_seed", "params"}


def lambda2_close(actual, expected):
    return np.abs(actual - expected) <= 1e-5 + 1e-4 * np.abs(expected)


def make_env(recorded) -> CoverageEnv:
    grid, agents, comm_r, sense_r, cover_r, walls, free, _, claim = (
        int(x) for x in recorded["params"]
    )
    anti_overlap = not np.isnan(recorded["terms_overlap"]).all()
    return CoverageEnv(
        num_agents=agents,
        grid=grid,
        comm_r=comm_r,
        sense_r=sense_r,
        cover_r=cover_r,
        sense_walls=bool(walls),
        sense_free=bool(free),
        terrain="walls",
        horizon=len(recorded["actions"]),
        collision="claim" if claim else "share",
        credit="each",
        w_coverage=1.0,
        w_connectivity=2.0,
        w_collision=-4.0,
        w_overlap=1.0 if anti_overlap else 0.0,
        cost="hinge",
        cost_threshold=1e-3,
    )


def state_arrays(env: CoverageEnv, boundary: bool, state) -> dict:
    """Everything the recording holds about one state."""
    linked = comms.adjacency(state.position, env.comm_r)
    off_diagonal = ~jnp.eye(env.num_agents, dtype=bool)
    distance = comms.distance(state.position) / max(env.comm_r, 1)
    weights = comms.soft_weights(state.position, env.comm_r, env.lambda2_sharp)
    moves = movement.options(state.position, state.wall, env.grid)
    covered = bits.union(state.seen)
    free = bits.full(env.grid, env.grid) & ~state.wall
    return {
        "positions": state.position,
        "covered": bits.unpack(covered, env.grid),
        "seen_by": bits.unpack(state.seen, env.grid),
        "belief": bits.unpack(state.belief, env.grid),
        "comm_graph": linked & (state.step_count > 0),
        "obs": bits.unpack(env.planes(state, boundary=boundary), env.grid),
        "central": bits.unpack(env.central_planes(state), env.grid),
        "lambda2": state.lambda2,
        "coverage_free": bits.count(covered & free) / bits.count(free),
        "coverage_all": bits.count(covered) / env.grid**2,
        "targets": moves.target,
        "action_valid": moves.valid,
        "kb_adjacency": linked & off_diagonal,
        "kb_distance": distance,
        "degree": jnp.sum(linked & off_diagonal, axis=1),
        "reach": comms.reach(linked),
        "edge_margin": comms.edge_margin(weights, 1.0),
    }


def step_arrays(env: CoverageEnv, skills, before, after, transition) -> dict:
    """Everything the recording holds about one transition."""
    linked = comms.adjacency(after.position, env.comm_r)
    footprint = bits.window(after.position, env.cover_r, env.grid, env.grid) & ~after.wall
    covered = bits.union(before.seen)
    each = reward.new_cells(footprint, covered, credit="each")
    connected, shared = reward.reach_fraction(linked), reward.shared_cells(after.position)
    return {
        "terms_coverage": each,
        "terms_connectivity": connected,
        "terms_collision": shared,
        "terms_overlap": reward.overlap(footprint),
        "env_reward": each + 2 * connected - 4 * shared,
        "soft_shortfall": transition.cost,
        "congestion": rollout.crowding(env.graph(after), skills),
        "giant_fraction": comms.giant_fraction(linked),
        "reward_runner": transition.reward - transition.cost,
    }


@eqx.filter_jit
def replay(env: CoverageEnv, boundary: bool, wall, position, actions, skills):
    start = env.start(wall, position)

    def body(state, inputs):
        action, skill = inputs
        options = movement.options(state.position, state.wall, env.grid)
        target = options.target[jnp.arange(env.num_agents), action]
        _, blocked = movement.resolve(state.position, target, rule=env.collision)
        after, transition = env.step(state, action, key=jax.random.key(0))
        arrays = step_arrays(env, skill, state, after, transition) | {"blocked": blocked}
        return after, (state_arrays(env, boundary, after), arrays)

    _, (states, steps) = jax.lax.scan(body, start, (actions, skills))
    first = state_arrays(env, boundary, start)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, states) | steps


def env_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("env_*.npz"))


def test_every_environment_file(golden):
    files = env_files(golden)
    assert files, f"no env_*.npz in {golden}"
    for file in files:
        check_environment(file)


def check_environment(file: pathlib.Path) -> None:
    recorded = dict(np.load(file))
    env = make_env(recorded)
    ours = replay(
        env,
        bool(recorded["params"][7]),
        jnp.asarray(recorded["wall"]),
        jnp.asarray(recorded["positions"][0]),
        jnp.asarray(recorded["actions"]),
        jnp.asarray(recorded["skills"]),
    )
    ours["explored"] = view.visit_counts(np.asarray(ours["positions"]), env.grid)
    assert set(recorded) - INPUTS - LEFT_OUT <= set(ours), f"{file.name}: arrays not compared"
    for name in sorted(set(recorded) - INPUTS - LEFT_OUT):
        actual, expected = np.asarray(ours[name]), recorded[name]
        if name == "terms_overlap" and np.isnan(expected).all():
            continue
        where = f"{file.name}: {name}"
        assert actual.shape == expected.shape, where
        if name in ("lambda2", "soft_shortfall"):
            assert lambda2_close(actual, expected).all(), where
        elif np.issubdtype(expected.dtype, np.floating):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=where)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=where)


def test_lambda2_file(golden):
    recorded = dict(np.load(golden / "lambda2.npz"))
    compared = set()
    for prefix in sorted({name.split("_")[0] for name in recorded}):
        positions = jnp.asarray(recorded[f"{prefix}_positions"])
        comm_r, sharp = int(recorded[f"{prefix}_comm_r"]), float(recorded[f"{prefix}_sharp"])
        weights = jax.vmap(lambda p, r=comm_r, s=sharp: comms.soft_weights(p, r, s))(positions)
        linked = jax.vmap(functools.partial(comms.adjacency, comm_r=comm_r))(positions)
        value = np.asarray(jax.jit(jax.vmap(comms.algebraic_connectivity))(weights))
        expected = recorded[f"{prefix}_lambda2"]
        assert lambda2_close(value, expected).all(), prefix
        np.testing.assert_allclose(weights, recorded[f"{prefix}_weights"], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(linked, recorded[f"{prefix}_adjacency"])
        np.testing.assert_array_equal(jax.vmap(comms.reach)(linked), recorded[f"{prefix}_reach"])
        fraction = jax.vmap(reward.reach_fraction)(linked)
        np.testing.assert_allclose(fraction, recorded[f"{prefix}_reach_fraction"], rtol=1e-6)
        for name, bar in (("conn_1e3", 1e-3), ("conn_05", 0.5)):
            clear = np.abs(expected - bar) > 1e-5 + 1e-4 * bar
            np.testing.assert_array_equal((value > bar)[clear], recorded[f"{prefix}_{name}"][clear])
        compared |= {name for name in recorded if name.startswith(prefix + "_")}
    assert compared == set(recorded)


def is_one_piece(wall: np.ndarray) -> bool:
    return bool((np.asarray(terrain.largest_component(jnp.asarray(wall))) == wall).all())


def test_terrain_file(golden):
    """Flood fill is exact. The recorded maps come from another random stream, so they are held to
    the properties that ours have: one free piece after our repair, spawns on distinct free
    cells."""
    recorded = dict(np.load(golden / "terrains.npz"))
    filled = jax.vmap(terrain.flood_fill)(jnp.asarray(recorded["fill_in"]))
    np.testing.assert_array_equal(filled, recorded["fill_out"])
    assert all(is_one_piece(wall) for wall in recorded["fill_out"])
    compared = {"fill_in", "fill_out"}
    for prefix in sorted({n.removesuffix("_wall") for n in recorded if n.endswith("_wall")}):
        walls = recorded[f"{prefix}_wall"]
        if not prefix.startswith("walls"):
            assert all(is_one_piece(wall) for wall in walls), prefix
        for kind in ("cluster", "scatter"):
            positions = recorded[f"{prefix}_{kind}_pos"]
            for wall, cells in zip(walls, positions, strict=True):
                assert not wall[tuple(cells.T)].any()
                assert len({tuple(c) for c in cells}) == len(cells)
        for seed, agents in zip(recorded[f"{prefix}_seeds"], positions, strict=True):
            ours = terrain.cluster_spawn(
                jnp.asarray(walls[0]), len(agents), 2, key=jax.random.key(int(seed))
            )
            assert not walls[0][tuple(np.asarray(ours).T)].any()
        compared |= {n for n in recorded if n.startswith(prefix + "_")}
    assert compared == set(recorded)
