"""The scripted teams do what their names say, so that ceilings and floors are what they claim."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from purejax_merl.config import EnvConfig
from purejax_merl.envs.coverage import bits, movement

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
planners, ceilings = map(importlib.import_module, "planners ceilings".split())

DELTAS = jnp.asarray(movement.DELTAS)
SMALL = EnvConfig(grid=12, n_agents=3, horizon=20, comm_r=3)
SWEEP = planners.Sweep(nodes=8, proposals=16)


def scores(planner, config=SMALL, episodes=4):
    key = jax.random.key(7)
    return ceilings.episode_scores(ceilings.world(config), planner, episodes, key=key)


def test_a_sweep_never_lets_the_team_break_apart():
    swept, wandered = scores(SWEEP), scores(planners.Random())
    assert (swept["conn_05"] == 1).all()
    assert (wandered["conn_05"] < 1).any(), "nothing can break apart here"
    assert (swept["coverage"] > wandered["coverage"]).all()


def test_a_larger_search_covers_more():
    config = EnvConfig(grid=12, n_agents=3, horizon=30)
    small, large = (
        scores(planners.Sweep(nodes=nodes, proposals=16), config)["coverage"].mean()
        for nodes in (1, 32)
    )
    assert large > small


def test_what_is_planned_is_what_happens_between_walls():
    config = EnvConfig(grid=10, n_agents=3, horizon=15, terrain="clutter", n_obstacles=15)
    assert (scores(SWEEP, config)["conn_05"] == 1).all()


@pytest.mark.parametrize("planner", [planners.Random(), planners.Frontier(), planners.Voronoi()])
def test_moves_are_legal(planner):
    env = ceilings.world(
        EnvConfig(grid=8, n_agents=3, horizon=12, terrain="clutter", n_obstacles=9)
    )

    def step(state, key):
        moves = planner.act(env, None, state, key=key)
        legal = env.legal(state)[jnp.arange(3), moves]
        return env.step(state, moves, key=key)[0], legal

    @jax.jit
    def play(key):
        return lax.scan(step, env.reset(key=key), jax.random.split(key, env.horizon))[1]

    assert play(jax.random.key(0)).all()


def test_voronoi_sees_the_whole_map_and_frontier_does_not():
    env = ceilings.world(EnvConfig(grid=16, n_agents=2, horizon=10))
    state = env.reset(key=jax.random.key(0))
    corner = jnp.array([[0, 0], [0, 1]])
    seen = bits.window(corner, 0, 16, 16)
    state = dataclasses.replace(state, position=corner, seen=seen, belief=seen)
    # All but the far corner has been covered by agent 1, which nobody has been told.
    rest = bits.full(16, 16) & ~bits.window(jnp.array([15, 15]), 0, 16, 16)
    covered = dataclasses.replace(state, seen=state.seen.at[1].set(rest))
    frontier, voronoi = planners.Frontier(), planners.Voronoi()
    act = jax.random.key(2)
    explore = jax.jit(lambda state: frontier.act(env, None, state, key=act))
    np.testing.assert_array_equal(explore(state), explore(covered))

    def follow(_, position):
        at = dataclasses.replace(covered, position=position)
        return position + DELTAS[voronoi.act(env, None, at, key=act)]

    end = jax.jit(lambda start: lax.fori_loop(0, 30, follow, start))(covered.position)
    assert (end == 15).all(axis=1).any(), end


def test_a_territory_is_what_is_nearer_and_ties_go_to_the_first():
    def cells(*at):
        return bits.union(bits.window(jnp.array(at), 0, 5, 5))

    ground = bits.full(5, 5)
    left, right, none = cells((2, 0)), cells((2, 4)), jnp.zeros_like(ground)
    first = planners.territory(left, none, right, ground)
    second = planners.territory(right, left, none, ground)
    assert bits.count(first) == 15, "its own two columns and the middle"
    assert bits.count(second) == 10
    assert not (first & second).any()


def test_a_step_towards_goes_round_a_wall():
    wall = bits.union(bits.window(jnp.array([(r, 2) for r in range(4)]), 0, 5, 5))
    passable = bits.full(5, 5) & ~wall
    target = bits.window(jnp.array([0, 4]), 0, 5, 5)

    def walk(_, at):
        return at + DELTAS[planners.step_towards(at, target, passable)]

    at = jax.jit(lambda at: lax.fori_loop(0, 11, walk, at))(jnp.array([0, 1]))
    np.testing.assert_array_equal(at, [0, 4])
    enclosed = bits.window(jnp.array([0, 0]), 0, 5, 5)
    still = planners.step_towards(jnp.array([0, 0]), target, enclosed)
    np.testing.assert_array_equal(DELTAS[still], [0, 0])


@pytest.mark.parametrize("agents", [2, 4, 10])
def test_the_pivots_tell_which_teams_hold(agents):
    env = ceilings.world(EnvConfig(grid=16, n_agents=agents))
    places = jax.random.randint(jax.random.key(agents), (400, agents, 2), 0, 6 + agents)
    lambda2 = jax.jit(jax.vmap(env._lambda2))(places)
    clear = jnp.abs(lambda2 - 0.5) > 1e-3
    held = jax.jit(lambda places: planners.holds(env, places, 0.5))(places)
    assert 20 < held.sum() < 380
    np.testing.assert_array_equal(held[clear], (lambda2 > 0.5)[clear])


def test_no_plan_is_kept_twice():
    value = jnp.array([5.0, 5.0, 5.0, 3.0, 1.0, -jnp.inf])
    copies = jnp.array([7, 7, 9, 1, 2, 3], jnp.uint32)
    index, top = planners.best_distinct(value, copies, 3)
    assert {int(copies[i]) for i in index} == {7, 9, 1}
    assert (top[:-1] >= top[1:]).all()


@pytest.mark.slow
def test_ceilings_in_small(tmp_path, monkeypatch, capsys):
    out = tmp_path / "ceilings.json"
    monkeypatch.setattr(sys, "argv", ["ceilings.py", "--quick", "--json", str(out)])
    assert ceilings.main() == 0
    table = json.loads(out.read_text())["rungs"]["16x4"]["planners"]
    assert table["sweep"]["conn_05"]["mean"] == 1
    assert "| 16x4 | sweep |" in capsys.readouterr().out
