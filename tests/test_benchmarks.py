"""The host loops that the benchmark times compute what the fused round computes."""

import dataclasses
import importlib
import sys
from pathlib import Path

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import everything
from small import make_hybrid, make_networks, opinionated, run_chunk

from purejax_merl.evolve import NES, module_theta

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
host_loop = importlib.import_module("host_loop")

ROOT = jax.random.key(5)


def tiny_run(anneal_rounds=None, **changes):
    env = everything()
    strategy = NES(population_size=6, sigma=1.0, lr=0.1, optimizer="adam")
    hybrid = make_hybrid(env, strategy=strategy, grad_steps=2, **changes)
    if anneal_rounds is not None:
        hybrid = dataclasses.replace(hybrid, anneal_rounds=jnp.float32(anneal_rounds))
    actor, critic = make_networks(env, width=8)
    return hybrid, hybrid.init(opinionated(actor), critic)


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("host_round", {}),
        ("host_round", {"accept": True, "anneal_rounds": 2}),
        ("batched_round", {}),
    ],
)
def test_host_loop_is_the_fused_round(form, changes):
    hybrid, start = tiny_run(**changes)
    fused, log = run_chunk(hybrid, start, ROOT, jnp.int32(3), chunk=3)
    hosted = start
    for _ in range(3):
        hosted = getattr(host_loop, form)(hybrid, hosted, ROOT)
    assert (log.evolution.std > 0).all(), "the members cannot be told apart"
    chex.assert_trees_all_close(hosted, fused, atol=1e-5)
    moved = module_theta(fused.learner.actor.selector) - module_theta(start.learner.actor.selector)
    assert np.abs(moved).max() > 1e-3


def test_another_key_gives_another_end():
    hybrid, start = tiny_run()
    one, other = (host_loop.host_round(hybrid, start, jax.random.key(k)) for k in (1, 2))
    assert not eqx.tree_equal(one.learner.actor, other.learner.actor)
