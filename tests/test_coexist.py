"""The bare coexistence loop: impure callables on the host, pure ones compiled."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejax_merl.coexist import merl_coexist, merl_coexist_compiled
from purejax_merl.evolve import CEM, NES, ESConfig

GOAL_W, GOAL_THETA = jnp.array([1.0, -1.0]), jnp.array([0.3, -0.2, 0.5])
START = {"executor": jnp.zeros(2), "selector": jnp.zeros(3)}


def descend(gstate):
    """Plain gradient descent on the executor's half of a quadratic; the selector is not touched."""
    step = 0.1 * 2 * (gstate["executor"] - GOAL_W)
    return {**gstate, "executor": gstate["executor"] - step}


def score(theta, gstate):
    return -jnp.sum((theta - GOAL_THETA) ** 2) - jnp.sum((gstate["executor"] - GOAL_W) ** 2)


def read(gstate, theta):
    del theta
    return gstate["selector"]


def write(gstate, theta):
    return {**gstate, "selector": theta}


def host_run(es_cfg, rounds, key, grad_steps=2):
    """The host loop around the same quadratic; evaluation reads the executor from a closure."""
    live = {}

    def train(gstate):
        live["gstate"] = descend(gstate)
        return live["gstate"]

    return merl_coexist(
        theta0=START["selector"],
        eval_fn=lambda theta: float(score(theta, live["gstate"])),
        gradient_step_fn=train,
        sync_in=read,
        sync_out=write,
        n_outer=rounds,
        grad_steps_per_outer=grad_steps,
        es_cfg=es_cfg,
        key=key,
        gstate0=START,
    )


def compiled_run(strategy, rounds, key, grad_steps=2, eval_fn=None):
    return merl_coexist_compiled(
        theta0=START["selector"],
        eval_fn=eval_fn or (lambda theta, gstate, key: score(theta, gstate)),
        gradient_step_fn=lambda gstate, key: descend(gstate),
        sync_in=read,
        sync_out=write,
        n_outer=rounds,
        grad_steps_per_outer=grad_steps,
        strategy=strategy,
        key=key,
        gstate0=START,
    )


def test_host_form_sees_the_executor_of_the_round():
    executor, seen, order = {"version": 0}, [], []

    def train(gstate):
        assert gstate is None
        executor["version"] += 1
        order.append("train")

    def evaluate(theta):
        seen.append(executor["version"])
        return float(executor["version"] * theta[0])

    def sync_in(gstate, theta):
        del gstate
        order.append("in")
        return theta

    def sync_out(gstate, theta):
        del gstate, theta
        order.append("out")

    theta, gstate, history = merl_coexist(
        theta0=jnp.zeros(1),
        eval_fn=evaluate,
        gradient_step_fn=train,
        sync_in=sync_in,
        sync_out=sync_out,
        n_outer=3,
        grad_steps_per_outer=2,
        es_cfg=ESConfig(pop_size=4),
        key=jax.random.PRNGKey(0),
    )
    assert seen == [2] * 4 + [4] * 4 + [6] * 4
    assert order == ["train", "train", "in", "out"] * 3
    assert gstate is None and theta[0] > 0
    assert [outer for outer, _ in history] == [0, 1, 2]
    assert all(set(info) == {"best_fitness", "mean_fitness"} for _, info in history)


@pytest.mark.parametrize("kind", ["nes", "cem"])
def test_compiled_form_equals_host_form(kind):
    es_cfg = ESConfig(pop_size=8, sigma=0.1, lr=0.05, kind=kind)
    key = jax.random.key(5)
    host_theta, host_gstate, history = host_run(es_cfg, 6, key)
    theta, gstate, log = compiled_run(es_cfg, 6, key)
    np.testing.assert_allclose(theta, host_theta, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(gstate, host_gstate, rtol=1e-4, atol=1e-5)
    for name in ("best_fitness", "mean_fitness"):
        rows = [info[name] for _, info in history]
        np.testing.assert_allclose(getattr(log, name), rows, rtol=1e-4, atol=1e-5)


def test_cem_sigma_travels_from_round_to_round_above_its_floor():
    es_cfg = ESConfig(pop_size=16, sigma=0.2, kind="cem")
    _, _, history = host_run(es_cfg, 12, jax.random.key(0))
    _, _, log = compiled_run(es_cfg, 12, jax.random.key(0))
    spread = np.array([info["sigma"] for _, info in history])
    np.testing.assert_allclose(log.sigma, np.maximum(spread, es_cfg.sigma_floor), rtol=1e-3)
    assert log.sigma[-1] < 0.5 * log.sigma[0], "sigma was reset instead of carried"


@pytest.mark.parametrize(
    "strategy",
    [NES(population_size=16, sigma=0.1, lr=0.05, optimizer="adam"), CEM(population_size=16)],
    ids=["nes", "cem"],
)
def test_both_halves_reach_their_own_optimum(strategy):
    theta, gstate, log = compiled_run(strategy, 60, jax.random.key(1))
    np.testing.assert_allclose(gstate["executor"], GOAL_W, atol=1e-3)
    np.testing.assert_allclose(theta, GOAL_THETA, atol=0.1)
    np.testing.assert_array_equal(gstate["selector"], theta)
    assert log.best_fitness.shape == log.mean_fitness.shape == log.sigma.shape == (60,)
    assert log.best_fitness[-1] > log.best_fitness[0]


def test_members_of_a_round_share_their_evaluation_key():
    def noise_only(theta, gstate, key):
        del theta, gstate
        return jax.random.normal(key)

    theta, _, log = compiled_run(NES(population_size=8), 4, jax.random.key(0), eval_fn=noise_only)
    np.testing.assert_array_equal(theta, START["selector"])
    np.testing.assert_allclose(log.best_fitness, log.mean_fitness, rtol=1e-6)
    assert len(np.unique(log.best_fitness)) == 4


def test_compiled_form_accepts_no_state_and_plain_numbers():
    def run(gstate0, step):
        return merl_coexist_compiled(
            theta0=jnp.zeros(2),
            eval_fn=lambda theta, gstate, key: jnp.sum(theta),
            gradient_step_fn=step,
            sync_in=lambda gstate, theta: theta,
            sync_out=lambda gstate, theta: gstate,
            n_outer=2,
            grad_steps_per_outer=3,
            strategy=ESConfig(pop_size=4),
            key=jax.random.PRNGKey(0),
            gstate0=gstate0,
        )

    _, gstate, _ = run(None, lambda gstate, key: gstate)
    assert gstate is None
    _, gstate, _ = run({"count": 0, "name": "x"}, lambda g, key: {**g, "count": g["count"] + 1})
    assert int(gstate["count"]) == 6 and gstate["name"] == "x"


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="n_outer=-1"):
        host_run(ESConfig(), -1, jax.random.key(0))
    with pytest.raises(ValueError, match="grad_steps_per_outer=-2"):
        compiled_run(ESConfig(), 1, jax.random.key(0), grad_steps=-2)
