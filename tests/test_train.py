"""The main job, end to end and tiny: what it writes, and what can be done with it."""

import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from small import make_networks

import purejax_merl as pm
from purejax_merl import build, evaluate, evaluation, model, train
from purejax_merl.config import ConfigError, RunConfig
from purejax_merl.evolve.cem import CEM, CEMState
from purejax_merl.runtime.rundir import read_history

TINY = (
    "--grid 8 --n-agents 2 --horizon 10 --rollouts 4 --minibatches 2 --pop 4 --eval-worlds 2 "
    "--width 16 --depth 1 --grad-steps 1 --chunk 2 --episodes 8"
).split()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert train.main([*TINY, "--outer", "3", "--run-dir", str(folder)]) == folder
    return folder


def test_the_run_directory_is_complete(run_dir):
    files = {path.name for path in run_dir.iterdir()}
    written = {"config.json", "history.jsonl", "checkpoints", "model.eqx", "evaluation.json"}
    assert files == written | {"report.html"}
    config = RunConfig.from_dict(json.loads((run_dir / "config.json").read_text()))
    assert (config.env.grid, config.es.pop, config.outer) == (8, 4, 3)


def test_history_has_one_record_a_round(run_dir):
    rows = read_history(run_dir / "history.jsonl")
    assert [row["outer"] for row in rows] == [0, 1, 2]
    # 1 PPO step of 4 worlds, 4 members and 2 judged genomes on 2 worlds each, 10 steps all.
    assert [row["env_steps"] for row in rows] == [160, 320, 480]
    for row in rows:
        assert row["mean"] <= row["best"]
        assert 0 <= row["grad_cov"] <= 100
        assert 0 <= row["grad_conn5"] <= 100
        skills = [row[f"skill_{name}"] for name in ("disperse", "flock", "hold")]
        np.testing.assert_allclose(sum(skills), 1, rtol=1e-5)


def test_evaluation_is_that_of_the_saved_model_on_fresh_worlds(run_dir, capsys):
    saved = json.loads((run_dir / "evaluation.json").read_text())
    evaluate.main([str(run_dir), "--episodes", "8", "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["sampled"] == saved["sampled"]
    assert again["greedy"] == saved["greedy"]
    evaluate.main([str(run_dir / "model.eqx"), "--episodes", "8", "--json", "--seed", "1"])
    other = json.loads(capsys.readouterr().out)
    assert other["sampled"] != saved["sampled"]


def test_evaluation_worlds_do_not_depend_on_their_number(run_dir):
    trained = model.load(run_dir / "model.eqx")
    key = build.stream(0, build.TEST)
    few = evaluation.episode_scores(trained.env, trained.actor, 3, key=key)
    more = evaluation.episode_scores(trained.env, trained.actor, 7, key=key)
    np.testing.assert_allclose(few["coverage"], more["coverage"][:3])


def test_streams_share_no_key():
    keys = [
        jax.random.key_data(build.stream(seed, which)).tolist()
        for seed in range(3)
        for which in (build.TRAINING, build.DEVELOPMENT, build.TEST, build.WEIGHTS)
    ]
    assert len({tuple(key) for key in keys}) == len(keys)


def test_a_model_starts_another_grid_and_team(run_dir, tmp_path):
    flags = "--grid 9 --n-agents 3 --terrain clutter --outer 1".split()
    warm = [*TINY, *flags, "--init-from", str(run_dir / "model.eqx")]
    folder = train.main([*warm, "--run-dir", str(tmp_path / "warm")])
    assert model.load(folder / "model.eqx").env.num_agents == 3


@pytest.mark.parametrize(
    ("flags", "named"), [(["--width", "32"], "--width 16"), (["--depth", "2"], "--depth 1")]
)
def test_another_architecture_is_named(run_dir, tmp_path, capsys, flags, named):
    with pytest.raises(SystemExit) as stop:
        train.main([*TINY, *flags, "--init-from", str(run_dir), "--run-dir", str(tmp_path / "x")])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def tiny_config() -> RunConfig:
    from purejax_merl.flags import parse_run

    return parse_run(TINY, prog="test", description="")


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_merl_train_keeps_the_published_signature(make_key):
    seen = []
    final, history = pm.merl_train(
        None,
        tiny_config(),
        key=make_key(0),
        n_outer=3,
        grad_steps=1,
        es_cfg=pm.ESConfig(pop_size=4),
        log_fn=lambda outer, record: seen.append((outer, record["best"])),
    )
    assert [outer for outer, _ in seen] == [0, 1, 2]
    assert len(history) == 3
    assert final.actor.skill_names == ("disperse", "flock", "hold")
    assert float(final.dual.price) == tiny_config().ppo.price
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(final))


def with_minibatches(rollouts: int, minibatches: int) -> RunConfig:
    config = tiny_config()
    ppo = dataclasses.replace(config.ppo, rollouts=rollouts, minibatches=minibatches)
    return dataclasses.replace(config, ppo=ppo)


def test_merl_train_takes_parts_of_ones_own():
    """3 rollouts of the world's 4 steps make 12 minibatches; of the config's 10 they would not."""
    world, (actor, critic) = probes.choice(), make_networks(probes.choice(), width=5)
    final, _ = pm.merl_train(
        world,
        with_minibatches(3, 12),
        key=jax.random.key(0),
        n_outer=1,
        grad_steps=1,
        es_cfg=pm.ESConfig(pop_size=4),
        actor=actor,
        critic=critic,
        strategy=CEM(population_size=6, sigma=0.1),
    )
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (final.actor, actor)]
    assert shapes[0] == shapes[1]
    assert isinstance(final.round_state.strategy, CEMState)


def test_minibatches_are_held_against_the_worlds_own_horizon():
    with pytest.raises(ConfigError, match=r"12 rows.*try `--minibatches 4`"):
        build.build_run(with_minibatches(3, 5), env=probes.choice())


def test_a_saved_model_and_an_own_actor_are_refused():
    actor, _ = make_networks(probes.choice(), width=5)
    with pytest.raises(ConfigError, match="init_from"):
        pm.merl_train(
            None,
            tiny_config(),
            key=jax.random.key(0),
            n_outer=1,
            grad_steps=1,
            es_cfg=pm.ESConfig(),
            init_from="nowhere",
            actor=actor,
        )


def test_every_name_that_the_readme_and_the_notebooks_use_is_there():
    root = pathlib.Path(__file__).parent.parent
    texts = [path.read_text() for path in (root / "README.md", *root.glob("notebooks/*.ipynb"))]
    names = {name for text in texts for name in re.findall(r"\bpm\.(\w+)", text)}
    assert {"load", "merl_train"} <= names
    assert not [name for name in names if not hasattr(pm, name)]


def test_merl_train_needs_a_selector():
    config = tiny_config()
    off = dataclasses.replace(
        config,
        agent=dataclasses.replace(config.agent, selector="off"),
        es=dataclasses.replace(config.es, arm="gradient"),
    )
    with pytest.raises(ConfigError, match="selector"):
        pm.merl_train(
            None, off, key=jax.random.key(0), n_outer=1, grad_steps=1, es_cfg=pm.ESConfig()
        )


@pytest.mark.slow
def test_the_published_fields_are_there_in_every_arm(tmp_path):
    for arm, flags in (("gradient", []), ("merl", ["--grad-steps", "0"])):
        folder = tmp_path / arm
        train.main([*TINY, *flags, "--arm", arm, "--outer", "1", "--run-dir", str(folder)])
        (row,) = read_history(folder / "history.jsonl")
        assert row.keys() >= {"outer", "best", "mean", "grad_cov", "grad_conn5"}
        assert (row["best"] is None) == (arm == "gradient")
        assert (row["grad_cov"] == 0) == (arm == "merl")
