"""Several runs in one program: seeds and rates side by side."""

import json

import jax
import numpy as np
import pytest

from purejax_merl import model, sweep, train
from purejax_merl.config import ConfigError
from purejax_merl.flags import parse_run
from purejax_merl.runtime.rundir import read_history

FLAGS = [
    *("--grid 8 --n-agents 2 --horizon 8 --rollouts 4 --minibatches 2 --pop 4".split()),
    *("--eval-worlds 2 --width 16 --depth 1 --grad-steps 1 --chunk 1 --episodes 4".split()),
    *("--outer 2".split()),
]


def configure(*flags: str):
    return parse_run([*FLAGS, *flags], prog="test", description="")


def test_members_are_every_combination():
    names = list(
        sweep.members(configure("--seeds", "2", "--sweep", "es.sigma=0.02,0.05", "ppo.lr=1e-3"))
    )
    assert names == [
        "seed0-es.sigma=0.02-ppo.lr=0.001",
        "seed0-es.sigma=0.05-ppo.lr=0.001",
        "seed1-es.sigma=0.02-ppo.lr=0.001",
        "seed1-es.sigma=0.05-ppo.lr=0.001",
    ]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("es.pop=4,8", "es.sigma"),
        ("sigma=1", "es.sigma"),
        ("es.sigma=", "numbers"),
        ("es.sigma=a", "numbers"),
        ("es.sigma=1,1", "twice"),
        ("es.sigma=-1", "--sigma"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused(entry, named):
    with pytest.raises(ConfigError, match=named):
        sweep.members(configure("--sweep", entry))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "run"
    flags = ["--seeds", "2", "--sweep", "ppo.lr=0.001,0.01"]
    return train.main([*FLAGS, *flags, "--run-dir", str(folder)])


@pytest.mark.slow
def test_every_member_has_its_own_run_directory(study):
    members = {path.name for path in study.iterdir() if path.is_dir()} - {"checkpoints"}
    assert members == {f"seed{s}-ppo.lr={lr}" for s in (0, 1) for lr in ("0.001", "0.01")}
    for name in members:
        files = {path.name for path in (study / name).iterdir()}
        assert files >= {"config.json", "history.jsonl", "model.eqx", "evaluation.json"}


@pytest.mark.slow
def test_a_member_is_the_run_that_its_config_describes(study, tmp_path):
    alone = train.main(
        [*FLAGS, "--seed", "1", "--lr", "0.01", "--run-dir", str(tmp_path / "alone")]
    )
    member = study / "seed1-ppo.lr=0.01"
    rows = zip(
        read_history(member / "history.jsonl"), read_history(alone / "history.jsonl"), strict=True
    )
    for theirs, ours in rows:
        del theirs["seconds"], ours["seconds"]
        assert theirs.keys() == ours.keys()
        for name in ours:
            assert theirs[name] == ours[name], name
    theirs, ours = (model.load(path).actor for path in (member, alone))
    for a, b in zip(jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["2", "4"])
def test_mapped_members_are_the_same(study, tmp_path, at_once):
    flags = "--seeds 2 --sweep ppo.lr=0.001,0.01 --members-at-once".split()
    chunked = train.main([*FLAGS, *flags, at_once, "--run-dir", str(tmp_path / "chunked")])
    for name in ("seed0-ppo.lr=0.001", "seed1-ppo.lr=0.01"):
        a, b = (read_history(f / name / "history.jsonl")[-1] for f in (study, chunked))
        np.testing.assert_allclose(a["es_after"], b["es_after"], rtol=1e-4)
        np.testing.assert_allclose(a["move_loss"], b["move_loss"], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_study_resumes(study, tmp_path, monkeypatch):
    from test_resume import crash, interrupt_after

    folder = tmp_path / "run"
    flags = "--seeds 2 --sweep ppo.lr=0.001,0.01 --checkpoint-every 1".split()
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, crash)
        with pytest.raises(RuntimeError, match="went away"):
            train.main([*FLAGS, *flags, "--run-dir", str(folder)])
    train.main(["--resume", str(folder)])
    for name in ("seed0-ppo.lr=0.01", "seed1-ppo.lr=0.001"):
        numbers = [
            (f / name / "model.eqx").read_bytes().split(b"\n", 3)[3] for f in (study, folder)
        ]
        assert numbers[0] == numbers[1]
        evaluations = [
            json.loads((f / name / "evaluation.json").read_text()) for f in (study, folder)
        ]
        assert evaluations[0] == evaluations[1]


def test_an_evosax_sigma_is_part_of_the_program(tmp_path, capsys):
    flags = "--es-kind SNES --es-lr 1.0 --sweep es.sigma=0.1,0.2".split()
    with pytest.raises(SystemExit) as stop:
        train.main([*FLAGS, *flags, "--run-dir", str(tmp_path / "x")])
    assert stop.value.code == 2
    assert "evosax" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
