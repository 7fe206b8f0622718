"""The loops that the benchmarks time agree, their floors count the right nets, and all run."""

import argparse
import dataclasses
import importlib
import json
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

from purejax_merl.build import make_actor, make_critic, make_env, num_features
from purejax_merl.config import preset
from purejax_merl.evolve import NES, module_theta

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
host_loop, common, page = map(importlib.import_module, "host_loop common page".split())
accelerator, environment, fusion, ppo_reference, roofline, seeds, startup = map(
    importlib.import_module,
    "accelerator environment fusion ppo_reference roofline seeds startup".split(),
)

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


def test_samples_go_back_and_forth():
    said = []
    arms = {name: lambda name=name: said.append(name) for name in "abc"}
    samples = common.interleaved(arms, 2)
    assert "".join(said) == "abc" + "abc" + "cba"
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 2, "b": 2, "c": 2}


def test_floors_count_the_nets_of_the_preset():
    config = preset("compact")
    env = make_env(config)
    assert num_features(env) == (roofline.OWN, roofline.TEAM)

    def products(make):
        net = jax.eval_shape(lambda key: make(config, env, key=key), jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(net) if leaf.ndim == 2)

    assert products(make_actor) == roofline.actor_macs(config)
    assert products(make_critic) == roofline.critic_macs(config)


def test_floor_of_a_round_is_that_of_its_parts():
    works = roofline.floors(preset("compact"))
    ceiling = roofline.Ceiling(mac_per_s=2.0, byte_per_s=1.0)
    # Of traffic and arithmetic the slower one counts.
    assert ceiling.seconds([roofline.Work(macs=8, bytes=3), roofline.Work(bytes=5)]) == 4 + 5
    seconds = {name: ceiling.seconds(work) for name, work in works.items()}
    judged = seconds["ES evaluation"] * 2 / preset("compact").es.pop
    steps = preset("compact").grad_steps * (seconds["PPO rollout"] + seconds["PPO update"])
    np.testing.assert_allclose(seconds["round"], steps + seconds["ES evaluation"] + judged)


def fusion_report(**medians):
    arms = {
        name: common.summary([median]) | {"runs": 1, "compile_s": 1.0}
        for name, median in medians.items()
    }
    row = {
        "population": 8,
        "preset_size": False,
        "env_steps_per_round": 100,
        "check": {"same": True},
        "arms": arms,
    }
    return {"benchmark": "fusion", "quick": True, "rows": [row]}


def test_page_says_where_fusion_does_not_help(tmp_path):
    slower = fusion_report(host=1.0, chunk=1.25, **{"<b>": 2.0})
    (tmp_path / "slower.json").write_text(json.dumps(slower))
    (tmp_path / "other.json").write_text("{}")
    results = page.sections(tmp_path)
    text, html = page.markdown(results), page.page_of(results)
    for shown in (text, html):
        assert "no gain of `chunk` over `host` (× 0.80)" in shown
    assert "<b>" not in html
    faster = page.fusion(fusion_report(host=1.0, chunk=0.5))
    assert faster[0].notes == ()


def test_accelerator_benchmark_wants_an_accelerator(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["accelerator.py"])
    cache = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    try:
        assert accelerator.main() == 2
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    assert "no accelerator" in capsys.readouterr().err


def test_accelerator_benchmark_keeps_every_section(monkeypatch):
    def precision(*args):
        del args
        return {"in": jax.config.jax_default_matmul_precision}  # pyright: ignore

    monkeypatch.setattr(environment, "evaluation", precision)
    for module in (fusion, roofline, seeds):
        monkeypatch.setattr(module, "measure", precision)
    kept = []
    measured = accelerator.measure(accelerator.QUICK, lambda part: kept.append(list(part)))
    both = {name: {"in": name} for name in ("float32", "bfloat16")}
    once = {"in": "float32"}
    assert measured == {"evaluation": both, "roofline": both, "fusion": once, "seeds": once}
    assert kept[0] == ["evaluation"] and kept[-1] == list(measured)


IN_SMALL = {
    # The first two share their programs, and so the tests' compilation cache.
    "fusion": (fusion.QUICK, lambda: {"rows": [fusion.measure(row) for row in fusion.QUICK]}),
    "seeds": (seeds.QUICK, lambda: seeds.measure(seeds.QUICK)),
    "roofline": (roofline.QUICK, lambda: roofline.measure(roofline.QUICK)),
    "environment": (
        environment.QUICK,
        lambda: {
            part.__name__: part(environment.QUICK)
            for part in (environment.worlds, environment.halves, environment.memory)
        },
    ),
    "ppo_reference": (ppo_reference.QUICK, lambda: ppo_reference.measure(ppo_reference.QUICK)),
    "startup": (startup.QUICK, lambda: {"starts": startup.measure(startup.QUICK)}),
}


def numbers(report, name):
    """Every value called `name` anywhere in a report."""
    if isinstance(report, list):
        return [n for item in report for n in numbers(item, name)]
    if not isinstance(report, dict):
        return []
    here = [report[name]] if name in report else []
    return here + [n for item in report.values() for n in numbers(item, name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_SMALL)
def test_benchmark_in_small(name, tmp_path):
    size, measure = IN_SMALL[name]
    report = common.head(name, argparse.Namespace(quick=True), size) | measure()
    common.write(tmp_path / f"{name}.json", report)
    written = json.loads((tmp_path / f"{name}.json").read_text())
    medians = numbers(written, "median_s")
    assert medians and min(medians) > 0
    assert all(numbers(written, "same")), numbers(written, "relative_difference")
    gaps = [gap for gap in numbers(written, "max_abs_difference") if isinstance(gap, float)]
    assert all(gap < 1e-3 for gap in gaps)
    ((_, where, tables),) = page.sections(tmp_path)
    assert "SMOKE TEST" in where
    assert all(table.rows for table in tables)
