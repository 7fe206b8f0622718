"""Seeds and arms as a table and a figure: numbers known by hand, and what is refused."""

import csv
import importlib
import io
import json
from collections.abc import Mapping

import numpy as np
import pytest

from purejax_merl import compare
from purejax_merl.runtime import comparison, comparison_figure, runs
from purejax_merl.runtime.statistics import bootstrap_interval, stratified_bootstrap


def cell(mean, half=0.125):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def make_run(folder, *, seed=0, sigma=0.05, fitness: float | None = 0.5, rounds=4, **more: float):
    """A run as its files; `fitness` None: not finished. `more`: further sampled metrics."""
    folder.mkdir(parents=True)
    config = {"seed": seed, "outer": 4, "run_dir": str(folder), "es": {"sigma": sigma}}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        {"outer": t, "score_fitness": 0.25 * t + seed, "env_steps": 1000 * (t + 1), "seconds": 0.5}
        for t in range(rounds)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if fitness is not None:
        sampled = {"fitness": cell(fitness)} | {name: cell(mean) for name, mean in more.items()}
        both = {"sampled": sampled, "greedy": {"fitness": cell(fitness + 0.25)}}
        (folder / "evaluation.json").write_text(json.dumps({"episodes": 8, **both}))
    return folder


def make_study(folder, scores: Mapping[float, Mapping[int, float | None]]):
    """`scores`: sigma → seed → fitness."""
    for sigma, by_seed in scores.items():
        for seed, fitness in by_seed.items():
            name = f"seed{seed}-es.sigma={sigma}"
            coverage = 2 * (fitness or 0)
            make_run(folder / name, seed=seed, sigma=sigma, fitness=fitness, coverage=coverage)
    (folder / "config.json").write_text(json.dumps({"seed": 0, "outer": 4}))
    return folder


def table(folder):
    text = (folder / compare.TABLE).read_bytes().decode()
    assert text.count("\r\n") == text.count("\n")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def refused(capsys, *flags):
    """What a refusal says; its exit code is 2 and it prints nothing else."""
    with pytest.raises(SystemExit) as stop:
        compare.main([str(flag) for flag in flags])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.fixture
def no_matplotlib(monkeypatch):
    real = importlib.import_module

    def without(name, *rest):
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(comparison_figure.importlib, "import_module", without)


def test_the_table_holds_the_numbers(tmp_path, no_matplotlib):
    scores = {0.02: {0: 0.5, 1: 0.75}, 0.05: {0: 0.25, 1: 0.5}}
    study = make_study(tmp_path / "study", scores)
    compare.main([str(study)])
    low, high = table(study)
    assert low == {
        "label": "sigma 0.02", "es.sigma": "0.02", "num_seeds": "2", "seed_list": "0 1",
        "interval_over": "seeds", "eval_episodes": "8",
        # Two seeds: a quarter of all redraws is the lower one twice, so the interval is the range.
        "fitness_mean": "0.625", "fitness_low": "0.5", "fitness_high": "0.75",
        "fitness_iqm": "0.625", "fitness_iqm_low": "0.5", "fitness_iqm_high": "0.75",
        "coverage_mean": "1.25", "coverage_low": "1.0", "coverage_high": "1.5",
        "coverage_iqm": "1.25",
        "fitness_greedy_mean": "0.875", "fitness_greedy_low": "0.75",
        "fitness_greedy_high": "1.0", "fitness_greedy_iqm": "0.875",
        "fitness_difference": "", "fitness_difference_low": "", "fitness_difference_high": "",
        "fitness_pairs": "", "fitness_unpaired": "",
        "env_steps_per_run": "4000.0", "seconds_per_run": "2.0", "seconds_shared_by_runs": "4",
    }  # fmt: skip
    assert (high["label"], high["fitness_mean"]) == ("sigma 0.05", "0.375")
    # Both seeds lose exactly a quarter: the difference is certain though the groups overlap.
    names = ("difference", "difference_low", "difference_high", "pairs", "unpaired")
    assert [high[f"fitness_{n}"] for n in names] == ["-0.25", "-0.25", "-0.25", "2", "0"]


def test_the_iqm_leaves_the_outer_quarters_out(tmp_path):
    means = [0.0, 0.5, 0.75, 0.25, 8.0]
    folders = [make_run(tmp_path / str(s), seed=s, fitness=m) for s, m in enumerate(means)]
    (row,) = comparison.compare(runs.read_runs(folders), "fitness").rows
    found = row.sampled["fitness"]
    assert (found.mean, found.iqm) == (1.9, 0.5)  # of five values one is cut on either side
    assert (found.low, found.high) == bootstrap_interval(means)
    assert (found.iqm_low, found.iqm_high) == stratified_bootstrap(np.array(means)[:, None])


def test_a_single_seed_has_the_interval_of_its_episodes(tmp_path, no_matplotlib, capsys):
    folder = make_run(tmp_path / "run", fitness=0.5)
    compare.main([str(folder)])
    (row,) = table(folder)
    assert row["interval_over"] == "episodes"
    assert [row[f"fitness_{n}"] for n in ("mean", "low", "high", "iqm")] == [
        "0.5", "0.375", "0.625", "0.5",
    ]  # fmt: skip
    assert row["fitness_iqm_low"] == row["fitness_iqm_high"] == ""
    assert row["seconds_shared_by_runs"] == "1"
    assert "fitness_pairs" not in row
    said = capsys.readouterr().out
    assert "0.500 [0.375, 0.625]" in said
    assert "over the episodes" in said


def test_pairs_are_of_one_seed_and_the_others_are_counted(tmp_path, no_matplotlib, capsys):
    scores = {0.02: {0: 0.5, 1: 0.75, 3: 0.25}, 0.05: {1: 0.5, 3: 0.75, 4: 9.0, 5: None}}
    study = make_study(tmp_path / "study", scores)
    compare.main([str(study)])
    _, other = table(study)
    assert other["seed_list"] == "1 3 4"
    assert other["fitness_difference"] == "0.125"  # (-0.25 + 0.5) / 2
    assert other["fitness_difference_low"] == "-0.25"
    assert other["fitness_difference_high"] == "0.5"
    assert (other["fitness_pairs"], other["fitness_unpaired"]) == ("2", "2")  # seeds 0 and 4
    said = capsys.readouterr().out
    assert "+0.125 [-0.250, +0.500] (2)" in said
    assert "2 pairs of one seed; 2 seeds without a partner left out of" in said
    assert f"unfinished, left out: {study / 'seed5-es.sigma=0.05'} (round 4 of 4)" in said


def test_another_group_may_be_the_baseline(tmp_path, no_matplotlib, capsys):
    study = make_study(tmp_path / "study", {0.02: {0: 0.5, 1: 0.75}, 0.05: {0: 0.25, 1: 0.5}})
    compare.main([str(study), "--baseline", "sigma 0.05"])
    assert [row["fitness_difference"] for row in table(study)] == ["0.25", ""]
    assert "minus sigma 0.05 (pairs)" in capsys.readouterr().out
    compare.main([str(study), "--baseline", "0.05", "--overwrite"])
    assert [row["fitness_difference"] for row in table(study)] == ["0.25", ""]
    capsys.readouterr()
    for name in ("sigma 0.5", "sigma"):  # none, and both
        said = refused(capsys, study, "--baseline", name, "--out", tmp_path)
        assert f"--baseline '{name}'" in said and '"sigma 0.02", "sigma 0.05"' in said


@pytest.mark.parametrize(("seed", "shown"), [(0, ("-0.25", "1", "0")), (1, ("", "0", "2"))])
def test_one_pair_has_no_interval_and_none_no_difference(seed, shown, tmp_path, no_matplotlib):
    make_run(tmp_path / "a", seed=0, sigma=0.02, fitness=0.5)
    make_run(tmp_path / "b", seed=seed, sigma=0.05, fitness=0.25)
    compare.main([*map(str, (tmp_path / "a", tmp_path / "b")), "--out", str(tmp_path / "new")])
    _, row = table(tmp_path / "new")
    names = ("difference", "pairs", "unpaired")
    assert tuple(row[f"fitness_{name}"] for name in names) == shown
    assert row["fitness_difference_low"] == row["fitness_difference_high"] == ""


def test_seeds_are_in_the_order_of_their_numbers(tmp_path):
    folders = [make_run(tmp_path / f"seed{seed}", seed=seed, fitness=seed) for seed in (10, 2)]
    (row,) = comparison.compare(runs.read_runs(folders), "fitness").rows
    assert (row.seeds, row.scores) == ([2, 10], [2, 10])


def test_many_differences_are_named_by_the_study(tmp_path):
    for name, number in (("one", 1), ("two", 2)):
        make_study(tmp_path / name, {0.05: {0: 0.5, 1: 0.5}})
        for file in (tmp_path / name).glob("*/config.json"):
            config = json.loads(file.read_text())
            file.write_text(json.dumps(config | dict.fromkeys("abcd", number)))
    found = comparison.compare(runs.read_runs([tmp_path / "one", tmp_path / "two"]), "fitness")
    assert [row.label for row in found.rows] == ["one", "two"]
    assert list(found.rows[0].fields) == list("abcd")


def test_a_metric_that_a_run_lacks_leaves_its_cells_empty(tmp_path, no_matplotlib, capsys):
    make_run(tmp_path / "a", sigma=0.02, passed=0.5)
    make_run(tmp_path / "b", sigma=0.05)
    out = tmp_path / "out"
    both = [tmp_path / "a", tmp_path / "b", "--out", out]
    assert "must be one that all 2 runs have: fitness" in refused(
        capsys, *both, "--metric", "passed"
    )
    assert not out.exists()
    compare.main([str(flag) for flag in both])
    assert [row["passed_mean"] for row in table(out)] == ["0.5", ""]


def test_unusable_runs_are_refused(tmp_path, capsys):
    done, again = make_run(tmp_path / "done"), make_run(tmp_path / "again")
    waits = make_run(tmp_path / "waits", fitness=None)
    broken = make_run(tmp_path / "broken", sigma=1)
    (broken / "evaluation.json").write_text('{"sampled": {"fitness": {"mean": null}}}')
    assert "no run is finished" in refused(capsys, waits)
    assert "the same run (seed 0" in refused(capsys, done, again)
    assert "broken/evaluation.json" in refused(capsys, done, broken)
    assert "nowhere" in refused(capsys, tmp_path / "nowhere")
    assert "at least one" in refused(capsys)
    message = refused(capsys, done, "--metric", "luck")
    assert "`--metric luck` must be one that the run has: fitness." in message
    assert not list(tmp_path.rglob("compare.*"))


@pytest.mark.parametrize("there", ["compare.csv", "compare.pdf", "compare.png"])
def test_nothing_is_overwritten_unasked(there, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison_figure, "can_draw", lambda: True)
    folder = make_run(tmp_path / "run")
    (folder / there).write_text("precious")
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "compare", None)  # the refusal comes before the work
        assert "--overwrite" in refused(capsys, folder)
    assert (folder / there).read_text() == "precious"
    assert len(list(folder.glob("compare.*"))) == 1
    assert "is a file" in refused(capsys, folder, "--out", folder / there)


def test_without_matplotlib_the_table_is_written_alone(
    tmp_path, no_matplotlib, monkeypatch, capsys
):
    for seed in (0, 1):
        make_run(tmp_path / f"s{seed}", seed=seed)
    monkeypatch.chdir(tmp_path)
    (path,) = compare.main(["s0", "s1"])
    assert path.resolve() == tmp_path / "compare.csv"
    assert 'pip install "purejax-merl[plot]"' in capsys.readouterr().out
    path.write_text("old")
    compare.main(["s0", "s1", "--overwrite"])
    assert len(table(tmp_path)) == 1
    assert "earlier" not in capsys.readouterr().out
    (tmp_path / "compare.png").write_text("of another table")
    compare.main(["s0", "s1", "--overwrite"])
    assert "of an earlier comparison, and left as before: compare.png" in capsys.readouterr().out


def test_curves_end_where_the_shortest_run_does(tmp_path):
    folders = [make_run(tmp_path / f"s{s}", seed=s, rounds=4 - s) for s in (0, 1)]
    found = comparison.compare(runs.read_runs(folders), "fitness")
    assert comparison.history_keys(found) == ["score_fitness"]
    curve = comparison.learning_curve(found.rows[0], "score_fitness")
    np.testing.assert_array_equal(curve.steps, [1000, 2000, 3000])
    np.testing.assert_array_equal(curve.mean, [0.5, 0.75, 1.0])
    np.testing.assert_array_equal(curve.low, [0.0, 0.25, 0.5])
    np.testing.assert_array_equal(curve.high, [1.0, 1.25, 1.5])


def test_long_curves_are_means_over_stretches(tmp_path):
    folder = make_run(tmp_path / "long", rounds=401)
    found = comparison.compare(runs.read_runs([folder]), "fitness")
    curve = comparison.learning_curve(found.rows[0], "score_fitness")
    assert len(curve.steps) == 134
    assert list(curve.steps[[0, -1]]) == [2000, 400500]  # of rounds 1 to 3; of 400 and 401
    assert list(curve.mean[[0, -1]]) == [0.25, 0.25 * 399.5]


def rewrite_history(folder, **renamed):
    file = folder / "history.jsonl"
    text = file.read_text()
    for old, new in renamed.items():
        text = text.replace(old, new)
    file.write_text(text)


def test_all_curves_are_of_the_same_worlds_where_they_can_be(tmp_path):
    a, b = make_run(tmp_path / "a", sigma=0.02), make_run(tmp_path / "b", sigma=0.05)
    rewrite_history(b, score_fitness="train_fitness")
    found = comparison.compare(runs.read_runs([a, b]), "fitness")
    assert comparison.history_keys(found) == ["score_fitness", "train_fitness"]
    rewrite_history(a, seconds="train_fitness")
    found = comparison.compare(runs.read_runs([a, b]), "fitness")
    assert comparison.history_keys(found) == ["train_fitness"] * 2
    assert [row.seconds for row in found.rows] == [None, 2.0]
    rewrite_history(b, train_fitness="other")
    found = comparison.compare(runs.read_runs([a, b]), "fitness")
    assert comparison.history_keys(found) == ["score_fitness", None]


def test_the_figure_has_labelled_axes(tmp_path):
    pytest.importorskip("matplotlib")
    scores = {0.02: {0: 0.5, 1: 0.75}, 0.05: {0: 0.25}}
    study = make_study(tmp_path / "study", scores)
    result = comparison.compare(runs.read_runs([study]), "coverage")
    figure = comparison_figure.draw(result)
    left, right = figure.axes
    assert left.get_xlabel() == "environment steps (millions)"
    assert left.get_ylabel() == right.get_xlabel() == "coverage (share of free cells)"
    assert [text.get_text() for text in left.texts] == ["not recorded while training"]
    names = [text.get_text().split("\n") for text in right.get_yticklabels()]
    assert names == [["sigma 0.02", "over 2 seeds"], ["sigma 0.05", "1 seed, over episodes"]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["sigma 0.02", "sigma 0.05"]
    low, high = right.get_xlim()
    assert low < 0.375 and high > 1.5
    ends = [drawn.lines[2][0].get_segments()[0][:, 0] for drawn in right.containers]
    np.testing.assert_allclose(ends, [[1.0, 1.5], [0.375, 0.625]])


def test_the_figure_is_written_with_its_fonts(tmp_path):
    pytest.importorskip("matplotlib")
    study = make_study(tmp_path / "study", {0.02: {0: 0.5, 1: 0.75}, 0.05: {0: 0.25}})
    paths = compare.main([str(study)])
    assert [path.name for path in paths] == ["compare.csv", "compare.pdf", "compare.png"]
    pdf, png = (path.read_bytes() for path in paths[1:])
    assert pdf.startswith(b"%PDF") and png.startswith(b"\x89PNG")
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf
