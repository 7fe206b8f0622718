"""Several devices: who may ask for how many, and that the results are those of one.

Not bit for bit: sums over members and worlds are made device by device, and a product of fewer
rows may run another kernel. Float32 rounding is what `close` allows.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from purejax_merl import build, mesh, sweep, train
from purejax_merl.config import ConfigError
from purejax_merl.flags import parse_run
from purejax_merl.runtime.rundir import read_history

DEVICES = 8


def configure(*flags: str):
    return parse_run(flags, prog="test", description="")


def chosen(monkeypatch, *flags: str, visible: int = 8, backend: str = "tpu") -> int:
    """How many of `visible` devices a run with these flags would take."""
    monkeypatch.setattr(jax, "device_count", lambda: visible)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    taken = [1]
    monkeypatch.setattr(mesh, "make_mesh", taken.append)
    config = configure(*flags)
    build.make_mesh(config, len(sweep.members(config)))
    return taken[-1]


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ("", 8),
        ("--pop 12", 4),
        ("--pop 12 --arm gradient", 8),
        ("--rollouts 30 --minibatches 4 --arm evolution", 8),
        ("--rollouts 30 --minibatches 4 --grad-steps 0", 8),
        ("--seeds 5", 5),
        ("--seeds 3 --sweep es.sigma=0.1,0.2", 6),
        ("--seeds 9 --devices 1", 1),
        ("--seeds 8 --pop 6 --devices 4", 4),
    ],
)
def test_as_many_devices_as_share_the_work_evenly(flags, number, monkeypatch):
    assert chosen(monkeypatch, *flags.split()) == number


def test_a_cpu_is_not_cut_up_unless_asked(monkeypatch):
    assert chosen(monkeypatch, backend="cpu") == 1
    assert chosen(monkeypatch, "--devices", "2", backend="cpu") == 2


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--devices 9", "at most 8"),
        ("--devices 8 --pop 12", r"`--pop 12`.*try `--devices 4`"),
        ("--devices 3", r"`--rollouts 32` and `--pop 16`"),
        ("--devices 4 --seeds 6", r"`--seeds 6`.*try `--devices 3`"),
    ],
)
def test_uneven_or_missing_devices_are_refused(flags, named, monkeypatch):
    with pytest.raises(ConfigError, match=named):
        chosen(monkeypatch, *flags.split())


def test_more_devices_than_there_are_stop_the_command(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        train.main(["--devices", "99", "--run-dir", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert f"at most {jax.device_count()}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("eight")
    script = Path(__file__).with_name("eight_devices.py")
    where = os.environ | {"PYTHONPATH": str(script.parent.parent)}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=where, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(out) -> dict:
    return json.loads((out / "found.json").read_text())


def assert_close(one: Path, many: Path) -> None:
    rows = [read_history(folder / "history.jsonl") for folder in (one, many)]
    assert [row["outer"] for row in rows[1]] == [0, 1, 2]
    for a, b in zip(*rows, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds"}:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(weights(many), weights(one), rtol=1e-4, atol=1e-5)


def weights(folder: Path) -> np.ndarray:
    """All numbers of the saved model, which are float32."""
    return np.frombuffer((folder / "model.eqx").read_bytes().split(b"\n", 3)[3], "<f4")


@pytest.mark.slow
def test_a_population_on_eight_devices_is_that_on_one(out, found):
    assert_close(out / "one", out / "eight")
    assert found["eight"]["devices"] == DEVICES
    assert found["eight"]["traces"] == found["one"]["traces"] == 1
    assert found["one"]["16_members"] > 100
    assert found["eight"]["16_members"] == 0
    assert found["eight"]["2_members"] > 100


@pytest.mark.slow
def test_seeds_on_eight_devices_are_those_on_one(out, found):
    for seed in range(DEVICES):
        assert_close(out / "seeds_one" / f"seed{seed}", out / "seeds_eight" / f"seed{seed}")
    study = found["seeds_eight"]
    assert study["devices"] == study["shape"][0] == DEVICES
    assert study["on_each"] == [1, *study["shape"][1:]]
    assert study["traces"] == 1


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_devices(out):
    assert_close(out / "one", out / "resumed")


@pytest.mark.slow
def test_rows_come_back_in_order_and_lie_in_shares(found):
    for done, on_each in found["rows"].values():
        assert done == [row**2 for row in range(16)]
        assert on_each == [2]
