"""Curves shown elsewhere are those of the history, also after an interruption."""

import json
import math
import struct
import sys
import types
from typing import Any

import pytest
from test_train import TINY

from purejax_merl import loop, train
from purejax_merl.runtime import trackers
from purejax_merl.runtime.rundir import read_history, write_json

ROUNDS = [
    {"outer": i, "best": 0.5 + i, "train_coverage": i / 8, "mean": math.nan} for i in range(5)
]


def events(folder):
    """Of all event files in the order of writing: length, checksum, event, checksum."""
    proto: Any = pytest.importorskip("tensorboardX.proto.event_pb2")

    for file in sorted((folder / "tensorboard").iterdir(), key=lambda p: p.stat().st_mtime_ns):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield proto.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def curves(folder) -> dict[str, dict[int, float]]:
    """Tag → step → value, as TensorBoard shows them: a new session voids what is at or after its
    step."""
    proto: Any = pytest.importorskip("tensorboardX.proto.event_pb2")

    shown: dict[str, dict[int, float]] = {}
    for event in events(folder):
        if event.session_log.status == proto.SessionLog.START:
            shown = {t: {s: v for s, v in c.items() if s < event.step} for t, c in shown.items()}
        for value in event.summary.value:
            curve = shown.setdefault(value.tag, {})
            assert event.step not in curve
            curve[event.step] = value.simple_value
    return shown


def test_tensorboard_shows_each_round_once_after_a_resume(tmp_path):
    (before,) = trackers.open_trackers("tensorboard", [tmp_path], 0)
    before.append(ROUNDS[:4])
    before.flush()
    assert curves(tmp_path)["best"] == {i: 0.5 + i for i in range(4)}, "a flush is enough"
    before.close()
    (after,) = trackers.open_trackers("tensorboard", [tmp_path], 2)
    after.append(ROUNDS[2:])
    after.close()
    assert curves(tmp_path) == {
        "best": {i: 0.5 + i for i in range(5)},
        "train/coverage": {i: i / 8 for i in range(5)},
    }


def test_a_study_has_a_tensorboard_per_run_and_compiles_as_without(tmp_path, monkeypatch):
    compiled = []
    whole = loop.Program.__init__
    monkeypatch.setattr(
        loop.Program,
        "__init__",
        lambda self, *args, **kwargs: compiled.append(whole(self, *args, **kwargs)),
    )
    flags = [*TINY, "--outer", "3", "--seeds", "2", "--tracker", "tensorboard"]
    folder = train.main([*flags, "--run-dir", str(tmp_path / "study")])
    assert len(compiled) == 1
    for place in (folder / "seed0", folder / "seed1"):
        rows, shown = read_history(place / "history.jsonl"), curves(place)
        for tag, field in (("mean", "mean"), ("es/std", "es_std"), ("env_steps", "env_steps")):
            assert shown[tag] == pytest.approx({row["outer"]: row[field] for row in rows})


class FakeWandb(types.ModuleType):
    """Records what the package is told."""

    def __init__(self):
        super().__init__("wandb")
        self.started, self.rows, self.finished = [], [], 0

    def init(self, **options):
        self.started.append(options)
        return self

    def log(self, numbers, *, step):
        self.rows.append((step, numbers))

    def finish(self):
        self.finished += 1


def test_wandb_goes_on_with_the_same_run(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        write_json(folder / "config.json", {"seed": 3})
    trackers.check("wandb")
    for first in (0, 2):
        one, two = trackers.open_trackers("wandb", folders, first)
        one.append(ROUNDS[first : first + 1])
        one.flush()
        one.close()
        two.close()
    assert fake.rows == [
        (0, {"best": 0.5, "train/coverage": 0.0}),
        (2, {"best": 2.5, "train/coverage": 0.25}),
    ]
    assert fake.finished == 4
    ids = [options["id"] for options in fake.started]
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]
    assert [options["resume"] for options in fake.started] == [None, None, "allow", "allow"]
    assert {(options["project"], options["config"]["seed"]) for options in fake.started} == {
        ("purejax_merl", 3)
    }


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named_with_its_cure(name, package, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as stop:
        train.main([*TINY, "--tracker", name])
    assert stop.value.code == 2
    assert f'pip install "purejax-merl[{name}]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_may_have_another_tracker(tmp_path, monkeypatch, capsys):
    write_json(tmp_path / "config.json", train.parse_run(TINY, prog="", description="").to_dict())
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit):
        train.main(["--resume", str(tmp_path), "--tracker", "wandb"])
    assert "purejax-merl[wandb]" in capsys.readouterr().err
    assert json.loads((tmp_path / "config.json").read_text())["tracker"] == "none"
