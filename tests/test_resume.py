"""A run that was interrupted and resumed is the straight run, bit for bit."""

import importlib
import json
import os
import pathlib
import shutil
import signal
import sys

import numpy as np
import pytest

from purejax_merl import loop, train
from purejax_merl.runtime import checkpoint
from purejax_merl.runtime.modelfile import ModelFileError

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "benchmarks"))
kill_and_resume = importlib.import_module("kill_and_resume")

FLAGS = [*kill_and_resume.TINY, "--outer", "6"]


def interrupt_after(monkeypatch, chunks: int, how) -> None:
    """Lets `how` happen once `chunks` chunks were handed over."""
    whole = loop.train

    def cut(*args, **kwargs):
        for number, chunk in enumerate(whole(*args, **kwargs), start=1):
            if number == chunks:
                how()
            yield chunk

    monkeypatch.setattr(loop, "train", cut)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    return train.main([*FLAGS, "--run-dir", str(folder)])


def crash() -> None:
    raise RuntimeError("the machine went away")


def crashed(folder: pathlib.Path, chunks: int, monkeypatch) -> pathlib.Path:
    with monkeypatch.context() as patch:
        interrupt_after(patch, chunks, crash)
        with pytest.raises(RuntimeError, match="went away"):
            train.main([*FLAGS, "--run-dir", str(folder)])
    return folder


def assert_same(straight: pathlib.Path, resumed: pathlib.Path) -> None:
    assert kill_and_resume.differences(straight, resumed) == []


@pytest.mark.parametrize("chunks", [1, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_a_crashed_run_resumes_bit_for_bit(straight, tmp_path, monkeypatch, chunks):
    # After 1 chunk there is no checkpoint yet; after 4, one of round 2 and a history up to 3.
    folder = crashed(tmp_path / "run", chunks, monkeypatch)
    train.main(["--resume", str(folder)])
    assert_same(straight, folder)


def test_a_signal_ends_the_chunk_saves_and_says_how_to_go_on(
    straight, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as stop:
            train.main([*FLAGS, "--run-dir", str(folder)])
    assert stop.value.code == 128 + signal.SIGTERM
    assert "--resume" in capsys.readouterr().err
    assert checkpoint.found(folder / "checkpoints")[-1].name == "round-00000003.eqx"
    train.main(["--resume", str(folder)])
    assert_same(straight, folder)


def test_a_damaged_newest_checkpoint_falls_back(straight, tmp_path, monkeypatch, capsys):
    folder = crashed(tmp_path / "run", 5, monkeypatch)
    newest = checkpoint.found(folder / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:-7])
    train.main(["--resume", str(folder)])
    assert f"passed over a checkpoint: `{newest}`" in capsys.readouterr().err
    assert_same(straight, folder)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_resumes_bit_for_bit(tmp_path):
    file = tmp_path / "report.json"
    assert kill_and_resume.main(["--kills", "2", "--outer", "9", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert [len(row["torn"]) > 0 for row in report["kills"]] == [True, False]


def test_a_killed_run_that_came_out_otherwise_is_told(straight, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(straight, other)
    assert kill_and_resume.differences(straight, other) == []
    damaged = (other / "model.eqx").read_bytes()
    (other / "model.eqx").write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    rows = (other / "history.jsonl").read_text().splitlines(keepends=True)
    (other / "history.jsonl").write_text("".join(rows[:-1]))
    assert kill_and_resume.differences(straight, other) == ["weights", "history"]


def test_a_finished_run_is_not_compiled_again(straight, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    (folder / "evaluation.json").unlink()
    monkeypatch.setattr("purejax_merl.loop.Program", None)
    train.main(["--resume", str(folder)])
    assert_same(straight, folder)
    written = [(place / "evaluation.json").read_bytes() for place in (straight, folder)]
    assert written[0] == written[1]


def test_other_flags_are_refused_and_named(straight, capsys):
    before = {path: path.stat().st_mtime_ns for path in straight.rglob("*")}
    with pytest.raises(SystemExit) as stop:
        train.main(["--resume", str(straight), "--sigma", "0.1", "--grid", "9"])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert "es.sigma is 0.05, not 0.1" in printed
    assert "env.grid is 8, not 9" in printed
    assert before == {path: path.stat().st_mtime_ns for path in straight.rglob("*")}


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(SystemExit) as stop:
        train.main(["--resume", str(tmp_path)])
    assert stop.value.code == 2
    assert "config" in capsys.readouterr().err


def test_old_checkpoints_go_and_bad_ones_are_all_named(tmp_path):
    state = {"x": np.arange(3.0)}
    for round_ in range(5):
        checkpoint.save(tmp_path, state, round_, keep=2)
    assert [p.name for p in checkpoint.found(tmp_path)] == [
        "round-00000003.eqx",
        "round-00000004.eqx",
    ]
    for path in checkpoint.found(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="round-00000003"):
        checkpoint.restore(tmp_path, state)
