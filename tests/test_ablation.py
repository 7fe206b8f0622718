"""The study's arithmetic: equal budgets, and differences that compare like with like."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from purejax_merl.runtime.runs import read_runs

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
ablation = importlib.import_module("ablation")


def write_run(folder: Path, scores: list[float], **extra: list[float]):
    """A finished run whose rounds take a second each."""
    folder.mkdir(parents=True)
    rows = [
        {"outer": n, "env_steps": 100 * n, "seconds": 1.0, "train_fitness": score}
        | {name: values[n - 1] for name, values in extra.items()}
        for n, score in enumerate(scores, 1)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.json").write_text(json.dumps({"seed": 0}))
    (folder / "evaluation.json").write_text("{}")
    return read_runs([folder])[0]


@pytest.mark.parametrize("arm", ablation.ARMS)
def test_no_arm_spends_more_than_the_budget_nor_a_round_less(arm):
    config = ablation.config_of(ablation.RUNGS["16x4"], arm, budget=800_000)
    spent = config.outer * ablation.steps_per_round(config)
    assert 0 <= 800_000 - spent < ablation.steps_per_round(config)


def test_equal_time_ends_with_the_faster_arm(tmp_path):
    # A seed that shares its program with another has half of every second: 5 s against 20 s.
    fast = write_run(tmp_path / "a" / "seed0", [0.5] * 10)
    write_run(tmp_path / "a" / "seed1", [0.0] * 10)
    slow = write_run(tmp_path / "b" / "seed0", [0.1] * 10 + [0.9] * 10)
    assert ablation._at_equal_time(fast, slow) == pytest.approx(0.5 - 0.1)
    assert ablation._at_equal_time(slow, fast) == pytest.approx(0.1 - 0.5)


def test_a_curve_is_not_of_worlds_on_which_something_was_chosen(tmp_path):
    chosen = write_run(tmp_path / "a" / "seed0", [0.5] * 12, score_fitness=[0.8] * 12)
    plain = write_run(tmp_path / "b" / "seed0", [0.5] * 12)
    assert ablation._at_equal_time(chosen, plain) == 0


def test_a_cell_that_begins_nothing_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["ablation.py", str(tmp_path), "--cells", "99x9"])
    with pytest.raises(SystemExit) as stop:
        ablation.main()
    assert stop.value.code == 2
    assert "--cells 99x9" in capsys.readouterr().err
