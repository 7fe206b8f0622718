"""Finished runs as a table: groups of seeds, their scores with intervals, paired differences.

In: runs. Out: rows, learning curves; CSV, plain text.
Axes: seeds, rounds. May import: config, runtime's files.
Intervals are over seeds, since only training again says how another training would come out; a
single seed has none, so its row holds the interval over its episodes and says so.
"""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from purejax_merl.config import ConfigError
from purejax_merl.runtime.rundir import RunDirError
from purejax_merl.runtime.runs import Group, RunRecord, differing, group
from purejax_merl.runtime.statistics import (
    bootstrap_interval,
    iqm,
    paired_bootstrap,
    stratified_bootstrap,
)

MAX_POINTS = 200
"""A longer learning curve is drawn as means over equal stretches of rounds."""

MANY_SEEDS = 10
"""With fewer, a percentile bootstrap covers clearly less than it is asked to."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric of one group, over its seeds."""

    mean: float
    low: float
    high: float
    """95 % interval of the mean."""
    iqm: float
    iqm_low: float | None = None
    iqm_high: float | None = None
    """Its interval, where it was asked for and there are several seeds."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A group minus the baseline in the chosen metric, seed by seed."""

    mean: float | None
    low: float | None
    high: float | None
    """95 % interval of the mean; None with fewer than two pairs."""
    pairs: int
    unpaired: int
    """Seeds that only one of the two groups has."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One group: its finished runs differ by their seed only."""

    label: str
    fields: dict[str, Any]
    """The config fields on which the groups differ."""
    runs: list[RunRecord]
    """In the order of their seeds."""
    episodes: list[Any]
    """Of each run's evaluation."""
    sampled: dict[str, Estimate]
    """Metric → estimate; metrics that not every run of the group has are missing."""
    greedy: Estimate | None
    """The chosen metric under the greedy policy."""
    scores: list[float]
    """The chosen metric of every seed, sampled."""
    difference: Difference | None
    """None in the baseline itself."""
    env_steps: float | None
    """Per run, mean over runs."""
    seconds: float | None
    """Wall-clock time of the rounds per run, without compilation; mean over runs."""
    shared_by: list[int]
    """How many runs shared that time in one program."""

    @property
    def seeds(self) -> list[Any]:
        """One per run."""
        return [run.config.get("seed") for run in self.runs]

    @property
    def interval_over(self) -> str:
        """What the intervals of this row are over."""
        return "seeds" if len(self.runs) > 1 else "episodes"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All groups that have finished runs."""

    metric: str
    metrics: list[str]
    """Every metric of any run, in the order of the evaluations."""
    rows: list[Row]
    baseline: str
    """Label of the group that the others are compared with."""
    unfinished: list[RunRecord]


@dataclasses.dataclass(frozen=True)
class Curve:
    """The chosen metric of one group while it trained."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """95 % interval over seeds; the mean itself for a single one."""


def compare(runs: Sequence[RunRecord], metric: str, baseline: str | None = None) -> Comparison:
    """Groups the finished runs and estimates every metric.

    **Arguments:** `metric`: the one that gets the IQM's interval, greedy scores and differences.
    `baseline`: label of the group that the others are compared with, or a part of it that no other
    has; None: the first one.

    **Returns:** one row per group, the first run's group first.

    **Errors:** `RunDirError` if no run is finished, one has a damaged evaluation, or a group has a
    seed twice; `ConfigError` for a metric that not every finished run has, or a baseline that is no
    group's label.
    """
    finished = [run for run in runs if run.evaluation is not None]
    if not finished:
        names = ", ".join(f"`{run.folder}`" for run in runs)
        raise RunDirError(f"no run is finished (no evaluation.json in {names}).")
    metrics = _checked_metrics(finished, metric)
    groups = [_by_seed(members) for members in group(finished)]
    fields = differing([members.runs[0] for members in groups])
    labels = _labels(groups, fields)
    base = labels[0] if baseline is None else _named(baseline, labels)
    rows = [
        _row(label, members, fields, metrics, metric, groups[labels.index(base)])
        for label, members in zip(labels, groups, strict=True)
    ]
    unfinished = [run for run in runs if run.evaluation is None]
    return Comparison(metric, metrics, rows, base, unfinished)


def _named(baseline: str, labels: Sequence[str]) -> str:
    """The label, or the only one of which this is a part."""
    found = [name for name in labels if name == baseline]
    found = found or [name for name in labels if baseline in name]
    if len(found) != 1:
        valid = ", ".join(f'"{label}"' for label in labels)
        raise ConfigError(f"`--baseline {baseline!r}` must name one of the groups: {valid}.")
    return found[0]


def _checked_metrics(runs: Sequence[RunRecord], metric: str) -> list[str]:
    """Every metric of any run. Refuses a chosen one that not all have."""
    tables = [_table_of(run, "sampled") for run in runs]
    for run, table in zip(runs, tables, strict=True):
        if not table:
            raise RunDirError(f"`{run.folder}/evaluation.json` holds no scores under `sampled`.")
    names = list(dict.fromkeys(name for table in tables for name in table))
    common = [name for name in names if all(name in table for table in tables)]
    if metric not in common:
        every = "the run has" if len(runs) == 1 else f"all {len(runs)} runs have"
        valid = ", ".join(common) or "none"
        raise ConfigError(f"`--metric {metric}` must be one that {every}: {valid}.")
    return names


def _table_of(run: RunRecord, policy: str) -> dict[str, dict[str, float]]:
    """Metric → mean, low, high of one run; without what is not a finite number."""
    table = run.evaluation.get(policy) if isinstance(run.evaluation, dict) else None
    entries = table.items() if isinstance(table, dict) else ()
    numbers = {name: _numbers(entry) for name, entry in entries}
    return {name: found for name, found in numbers.items() if len(found) == 3}


def _numbers(entry: Any) -> dict[str, float]:
    found = {k: entry.get(k) for k in ("mean", "low", "high")} if isinstance(entry, dict) else {}
    whole = {k: float(x) for k, x in found.items() if isinstance(x, int | float)}
    return {name: x for name, x in whole.items() if math.isfinite(x)}


def _by_seed(members: Group) -> Group:
    """The group in the order of its seeds, each of which must count once."""
    found: dict[Any, RunRecord] = {}
    for run in members.runs:
        seed = run.config.get("seed")
        if seed in found:
            raise RunDirError(
                f"`{found[seed].folder}` and `{run.folder}` are the same run (seed {seed}, same "
                "config): it would count as two. Leave one out."
            )
        found[seed] = run
    ordered = sorted(found, key=lambda seed: (str(type(seed)), seed))
    return dataclasses.replace(members, runs=[found[seed] for seed in ordered])


def _labels(groups: Sequence[Group], fields: Sequence[str]) -> list[str]:
    """What sets the groups apart; the names of their studies where that would be too long."""
    if 1 <= len(fields) <= 3:
        return [members.label for members in groups]
    names = [_study(members) or members.label for members in groups]
    if len(set(names)) < len(names):
        homes = [members.runs[0].folder.resolve().parent.name for members in groups]
        names = [f"{home}/{g.label}" for home, g in zip(homes, groups, strict=True)]
    again = [names[:at].count(name) for at, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, again, strict=True)]


def _study(members: Group) -> str:
    """Name of the study that holds the whole group; empty if there is none."""
    homes = {run.folder.resolve().parent for run in members.runs}
    (home, *more) = homes
    return home.name if not more and (home / "config.json").exists() else ""


def _row(
    label: str,
    members: Group,
    fields: Sequence[str],
    metrics: Sequence[str],
    metric: str,
    base: Group,
) -> Row:
    runs = members.runs
    sampled = {name: _estimate(runs, "sampled", name, name == metric) for name in metrics}
    return Row(
        label=label,
        fields={name: runs[0].compared.get(name) for name in fields},
        runs=runs,
        episodes=[(run.evaluation or {}).get("episodes") for run in runs],
        sampled={name: estimate for name, estimate in sampled.items() if estimate},
        greedy=_estimate(runs, "greedy", metric, False),
        scores=list(_scores(members, metric).values()),
        difference=None if members is base else _difference(members, base, metric),
        env_steps=_mean(run.history[-1].get("env_steps") for run in runs),
        seconds=_mean(_seconds(run) for run in runs),
        shared_by=sorted({_sharing(run) for run in runs}),
    )


def _estimate(runs: Sequence[RunRecord], policy: str, name: str, with_iqm: bool) -> Estimate | None:
    """None if a run lacks the metric: the others alone would be another group."""
    tables = [_table_of(run, policy) for run in runs]
    if not all(name in table for table in tables):
        return None
    means = [table[name]["mean"] for table in tables]
    if len(runs) == 1:
        entry = tables[0][name]
        return Estimate(entry["mean"], entry["low"], entry["high"], entry["mean"])
    low, high = bootstrap_interval(means)
    of_iqm = _iqm_interval(means, (low, high)) if with_iqm else (None, None)
    return Estimate(float(np.mean(means)), low, high, iqm(means), *of_iqm)


def _iqm_interval(means: list[float], of_mean: tuple[float, float]) -> tuple[float, float]:
    """Nothing is cut from fewer than four values: their IQM is the mean."""
    return of_mean if len(means) < 4 else stratified_bootstrap(np.array(means)[:, None])


def _scores(members: Group, metric: str) -> dict[Any, float]:
    """Seed → the chosen metric."""
    return {
        run.config.get("seed"): float(_table_of(run, "sampled")[metric]["mean"])
        for run in members.runs
    }


def _difference(members: Group, base: Group, metric: str) -> Difference:
    """Runs of one seed start alike and are judged in the same worlds: they are one pair."""
    ours, theirs = _scores(members, metric), _scores(base, metric)
    both = [seed for seed in ours if seed in theirs]
    unpaired = len(ours) + len(theirs) - 2 * len(both)
    if not both:
        return Difference(None, None, None, 0, unpaired)
    a, b = ([scores[seed] for seed in both] for scores in (ours, theirs))
    low, high = paired_bootstrap(a, b) if len(both) > 1 else (None, None)
    return Difference(float(np.mean(np.subtract(a, b))), low, high, len(both), unpaired)


def _seconds(run: RunRecord) -> float | None:
    """None if any round has no time: the sum would be too small."""
    spent = [record["seconds"] for record in run.history if record.get("seconds") is not None]
    return math.fsum(spent) if len(spent) == len(run.history) else None


def _sharing(run: RunRecord) -> int:
    """Runs in the same program: the members of a study report its time, not their own."""
    study = run.folder.resolve().parent
    members = len(list(study.glob("*/config.json"))) if (study / "config.json").exists() else 1
    return max(members, 1)


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else float(np.mean([x for x in known if x is not None]))


def history_keys(result: Comparison) -> list[str | None]:
    """Row by row, which field of the history is the chosen metric while training.

    **Returns:** one field for all rows if there is one: the policy's score on the judging worlds,
    or else that of PPO's rollouts. Otherwise what each row has; None if it has neither.
    """
    choices = (f"score_{result.metric}", f"train_{result.metric}")
    for key in choices:
        if all(_recorded(row, key) for row in result.rows):
            return [key] * len(result.rows)
    return [next((k for k in choices if _recorded(row, k)), None) for row in result.rows]


def _recorded(row: Row, key: str) -> bool:
    return all(any(_has(record, key) for record in run.history) for run in row.runs)


def _has(record: dict[str, Any], key: str) -> bool:
    return record.get(key) is not None and record.get("env_steps") is not None


def learning_curve(row: Row, key: str) -> Curve:
    """The mean over seeds and its interval, where all runs of the group have a record.

    **Arguments:** `key`: a field of the history.

    **Returns:** at most `MAX_POINTS` points; none if the runs share no number of steps.
    """
    recorded = [
        {r["env_steps"]: float(r[key]) for r in run.history if _has(r, key)} for run in row.runs
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in recorded)))
    values = np.array([[curve[step] for step in steps] for curve in recorded])
    values, steps = _thin(values), _thin(np.array([steps], dtype=float))[0]
    mean = values.mean(axis=0)
    if len(values) == 1:
        return Curve(steps, mean, mean, mean)
    bounds = np.array([bootstrap_interval(column) for column in values.T]).reshape(-1, 2)
    return Curve(steps, mean, bounds[:, 0], bounds[:, 1])


def stretch(points: int) -> int:
    """Rounds that one drawn point stands for."""
    return max(1, -(-points // MAX_POINTS))


def _thin(values: np.ndarray) -> np.ndarray:
    """Means over stretches of the second axis; the last stretch may be shorter."""
    points = values.shape[1]
    starts = np.arange(0, points, stretch(points))
    if not points:
        return values
    return np.add.reduceat(values, starts, axis=1) / np.diff(starts, append=points)


_ESTIMATE = ("mean", "low", "high", "iqm")


def csv_text(result: Comparison) -> str:
    """The table in full precision, RFC 4180: one line per group, empty where there is no number."""
    cells = [_cells(row, result) for row in result.rows]
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(cells[0]))
    writer.writeheader()
    writer.writerows(cells)
    return buffer.getvalue()


def _cells(row: Row, result: Comparison) -> dict[str, Any]:
    """Column → value, the same columns in every row."""
    metric, difference = result.metric, row.difference
    cells: dict[str, Any] = {
        "label": row.label,
        **row.fields,
        "num_seeds": len(row.runs),
        "seed_list": _joined(row.seeds),
        "interval_over": row.interval_over,
        "eval_episodes": _joined(dict.fromkeys(row.episodes)),
    }
    for name in result.metrics:
        names = (*_ESTIMATE, "iqm_low", "iqm_high") if name == metric else _ESTIMATE
        cells |= {f"{name}_{part}": getattr(row.sampled.get(name), part, None) for part in names}
    cells |= {f"{metric}_greedy_{part}": getattr(row.greedy, part, None) for part in _ESTIMATE}
    if len(result.rows) > 1:
        names = {"difference": "mean", "difference_low": "low", "difference_high": "high"}
        names |= {"pairs": "pairs", "unpaired": "unpaired"}
        cells |= {f"{metric}_{n}": getattr(difference, part, None) for n, part in names.items()}
    cells |= {"env_steps_per_run": row.env_steps, "seconds_per_run": row.seconds}
    return cells | {"seconds_shared_by_runs": _joined(row.shared_by)}


def _joined(values: Iterable[Any]) -> str:
    return " ".join(map(str, values))


def text(result: Comparison) -> str:
    """For the terminal: the chosen metric, the mean of every metric, what was left out."""
    parts = [_detail(result), _every_metric(result), _notes(result)]
    return "\n\n".join(part for part in parts if part)


def _detail(result: Comparison) -> str:
    rows = [
        [
            row.label,
            f"{len(row.runs)}{'' if len(row.runs) > 1 else '*'}",
            _shown(*_parts(row.sampled.get(result.metric), "mean", "low", "high")),
            _shown(*_parts(row.sampled.get(result.metric), "iqm", "iqm_low", "iqm_high")),
            _shown(*_parts(row.greedy, "mean", "low", "high")),
            *([_shown_difference(row.difference)] if len(result.rows) > 1 else []),
        ]
        for row in result.rows
    ]
    heads = ["group", "seeds", "mean", "IQM", "greedy, mean"]
    if len(result.rows) > 1:
        heads.append(f"minus {result.baseline} (pairs)")
    title = f"{result.metric} at the end, sampled policy, over seeds [95 % bootstrap interval]"
    return f"{title}\n{_aligned(heads, rows)}"


def _every_metric(result: Comparison) -> str:
    rows = [
        [
            row.label,
            *(_shown(*_parts(row.sampled.get(name), "mean")) for name in result.metrics),
            "–" if row.env_steps is None else f"{row.env_steps:,.0f}",
            "–" if row.seconds is None else f"{row.seconds:,.0f}",
        ]
        for row in result.rows
    ]
    heads = ["group", *result.metrics, "env steps", "seconds"]
    return f"every metric, sampled policy, mean over seeds; per run\n{_aligned(heads, rows)}"


def _notes(result: Comparison) -> str:
    numbers = [len(row.runs) for row in result.rows]
    notes = []
    if 1 in numbers:
        notes.append("* One seed: its interval is over the episodes of its evaluation.")
    if any(1 < number < MANY_SEEDS for number in numbers):
        notes.append(
            f"With fewer than {MANY_SEEDS} seeds a bootstrap interval is too narrow; state n."
        )
    notes += [_about_pairs(row) for row in result.rows if row.difference]
    if any(row.shared_by != [1] for row in result.rows):
        notes.append("Seconds of a study's runs are those of their common program.")
    for run in result.unfinished:
        planned, done = run.config.get("outer", "?"), run.history[-1].get("outer", -1) + 1
        notes.append(f"unfinished, left out: {run.folder} (round {done} of {planned})")
    return "\n".join(note for note in notes if note)


def _about_pairs(row: Row) -> str:
    difference = row.difference
    if difference is None or not difference.unpaired:
        return ""
    pairs, alone = difference.pairs, difference.unpaired
    return (
        f"{row.label}: {pairs} pair{'s' * (pairs != 1)} of one seed; {alone} seed"
        f"{'s' * (alone != 1)} without a partner left out of the difference."
    )


def _parts(estimate: Estimate | None, *names: str) -> list[float | None]:
    return [getattr(estimate, name, None) for name in names]


def _shown(middle: float | None, low: float | None = None, high: float | None = None) -> str:
    if middle is None:
        return "–"
    return f"{middle:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _shown_difference(difference: Difference | None) -> str:
    if difference is None or difference.mean is None:
        return "–" if difference is None else "– (0)"
    limits = "" if difference.low is None else f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"{difference.mean:+.3f}{limits} ({difference.pairs})"


def _aligned(heads: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in padded)
