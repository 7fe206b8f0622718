"""Which numbers of a history belong in one picture, and their mean and interval over seeds.

In: groups of runs. Out: panels of lines, as JSON-ready data.
Axes: rounds, seeds. May import: runtime's files only.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from purejax_merl.runtime.runs import Group, RunRecord

MAX_POINTS = 400
"""A longer curve is drawn as means over equal stretches of rounds."""

_LATE = "policy written back"
_TRAIN = "PPO's rollouts"


@dataclasses.dataclass(frozen=True)
class Panel:
    """One picture: keys of the history → names of their lines."""

    title: str
    unit: str
    lines: dict[str, str]
    scale: float = 1.0
    limits: tuple[float, float] | None = None
    bars: tuple[tuple[float, str], ...] = ()


def _share(title: str, unit: str, lines: dict[str, str]) -> Panel:
    return Panel(title, unit, lines, scale=100.0, limits=(0.0, 100.0))


def _both(name: str) -> dict[str, str]:
    return {f"score_{name}": _LATE, f"train_{name}": _TRAIN}


def _three(prefix: str) -> dict[str, str]:
    names = {"conn_05": "λ₂ > 0.5", "conn_hard": "in one piece", "conn_1e3": "λ₂ > 0.001"}
    return {f"{prefix}_{key}": name for key, name in names.items()}


SECTIONS: dict[str, list[Panel]] = {
    "What the team achieves": [
        _share("Coverage", "% of free cells", _both("coverage")),
        _share(f"Connectivity, {_LATE}", "% of steps", _three("score")),
        _share(f"Connectivity, {_TRAIN}", "% of steps", _three("train")),
        Panel("Mean λ₂", "mean over steps", _both("lambda2"), bars=((0.5, "0.5"),)),
        _share("Episodes passed (both ≥ 90 %)", "% of episodes", _both("passed")),
        Panel("Redundancy", "cells covered by agents / by team", _both("redundancy")),
        Panel("Collisions", "agents per step", _both("collisions")),
    ],
    "Evolution": [
        Panel("Fitness of the population", "fitness", {"best": "best member", "mean": "mean"}),
        Panel(
            "Fitness before and after the step",
            "fitness, judging worlds",
            {"es_before": "before", "es_after": "after"},
        ),
        Panel("Spread of the population", "standard deviation of fitness", {"es_std": "spread"}),
        Panel("Search noise σ", "weight units", {"es_sigma": "σ"}),
        Panel("Length of the step", "weight units", {"es_step_norm": "‖step‖"}),
        Panel("Steps accepted", "share of rounds", {"es_accepted": "accepted"}, limits=(0.0, 1.0)),
        Panel("Members without finite fitness", "members", {"es_non_finite": "not finite"}),
    ],
    "Gradient": [
        Panel("Reward", "per episode, mean of agents", {"reward": "reward"}),
        Panel("Cost", "per episode, mean of agents", {"cost": "cost"}),
        Panel("Price of the cost (dual)", "reward per unit of cost", {"price": "price"}),
        Panel("Policy losses", "loss", {"skill_loss": "selector", "move_loss": "moves"}),
        Panel("Value loss", "squared error, normalised", {"value_loss": "value"}),
        Panel("Auxiliary loss", "squared error", {"auxiliary_loss": "λ₂ estimate"}),
        Panel("Entropies", "nats", {"skill_entropy": "selector", "move_entropy": "moves"}),
        Panel("Change of policy per step", "approximate KL, nats", {"approx_kl": "KL"}),
    ],
    "Speed": [
        Panel("Throughput", "team steps per second", {"_steps_per_second": "steps/s"}),
        Panel("Time per round", "seconds", {"seconds": "s/round"}),
    ],
}
_IN_NO_PANEL = {"outer", "env_steps", "grad_cov", "grad_conn5"}
_LOSSES = {"skill_loss", "skill_entropy"}
_ALWAYS_ZERO_IS_NO_NEWS = {"auxiliary_loss", "es_non_finite", "es_accepted"}


def sections(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Every panel that has numbers.

    With one group, the lines of a panel are its quantities; with several, each quantity gets a
    panel of its own, whose lines are the groups.
    """
    series = [[_columns(run) for run in group.runs] for group in groups]
    keys = list(dict.fromkeys(key for runs in series for run in runs for key in run))
    keys = [key for key in keys if not _no_news(key, series)]
    found = []
    for title, panels in _with_the_rest(keys).items():
        kept = [_restricted(panel, keys) for panel in panels]
        kept = [panel for panel in kept if panel.lines]
        if len(groups) > 1:
            kept = [single for panel in kept for single in _singles(panel)]
        if kept:
            drawn = [_panel(panel, groups, series) for panel in kept]
            found.append({"title": title, "panels": drawn})
    return found


def axes(groups: Sequence[Group]) -> list[dict[str, list[float]]]:
    """For every group, the abscissae to choose from: round, team steps, seconds; mean over runs."""
    found = []
    for group in groups:
        runs = [_columns(run) for run in group.runs]
        length = max(len(run["outer"]) for run in runs)
        spent = [{"seconds": np.cumsum(run["seconds"])} for run in runs if "seconds" in run]
        columns = {
            "round": np.arange(1, length + 1, dtype=float),
            "steps": _mean(_stack(runs, "env_steps", length)),
            "seconds": _mean(_stack(spent, "seconds", length)),
        }
        found.append({name: _thin(values, length).tolist() for name, values in columns.items()})
    return found


def stretch(groups: Sequence[Group]) -> int:
    """Rounds per drawn point of the longest run."""
    longest = max(len(_columns(run)["outer"]) for group in groups for run in group.runs)
    return -(-longest // MAX_POINTS)


def interval(
    values: np.ndarray, limits: tuple[float, float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Over the first axis: Student's 95 % interval of the mean; the range where there are only two.

    With two seeds the interval is twelve standard errors to either side and says nothing.

    **Arguments:** `limits`: what the mean cannot leave, such as (0, 1) of a share.
    """
    from scipy import stats  # slow to import, and wanted only for a page

    number = len(values)
    if number == 2:
        return np.min(values, axis=0), np.max(values, axis=0)
    error = np.std(values, axis=0, ddof=1) / np.sqrt(number)
    half = float(stats.t.ppf(0.975, number - 1)) * error
    middle = np.mean(values, axis=0)
    low, high = limits or (-np.inf, np.inf)
    return np.maximum(middle - half, low), np.minimum(middle + half, high)


def _columns(run: RunRecord) -> dict[str, np.ndarray]:
    """Key → one number a round; NaN where a record lacks it."""
    rounds = [int(record["outer"]) for record in run.history]
    keys = dict.fromkeys(key for record in run.history for key in record)
    columns = {key: np.full(max(rounds) + 1, np.nan) for key in keys}
    for at, record in zip(rounds, run.history, strict=True):
        for key, value in record.items():
            if isinstance(value, int | float):
                columns[key][at] = value
    if {"env_steps", "seconds"} <= columns.keys():
        steps = np.diff(columns["env_steps"], prepend=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = steps / columns["seconds"]
        columns["_steps_per_second"] = np.where(np.isfinite(speed), speed, np.nan)
    return columns


def _no_news(key: str, series: list[list[dict[str, np.ndarray]]]) -> bool:
    """No number at all, or a constant that only says that a feature was not in use."""
    values = np.concatenate([run[key] for runs in series for run in runs if key in run])
    values = values[np.isfinite(values)]
    quiet = values.size and np.all(values == values[0]) and values[0] in (0, 1)
    return not values.size or (key in _ALWAYS_ZERO_IS_NO_NEWS and bool(quiet))


def _with_the_rest(keys: list[str]) -> dict[str, list[Panel]]:
    """The sections, with the skills that there are and whatever a world of one's own reports."""
    used = {key: key.removeprefix("skill_") for key in keys if key.startswith("skill_")}
    skills = {key: name for key, name in used.items() if key not in _LOSSES}
    every = dict(SECTIONS)
    first, *more = SECTIONS["What the team achieves"]
    use = _share(f"Skill use, {_TRAIN}", "% of agents and steps", skills)
    every["What the team achieves"] = [first, *more[:2], use, *more[2:]]
    known = {key for panels in every.values() for panel in panels for key in panel.lines}
    rest = [k for k in keys if k not in known | _IN_NO_PANEL and not k.endswith("_fitness")]
    names = dict.fromkeys(key.removeprefix("score_").removeprefix("train_") for key in rest)
    every["Other"] = [Panel(name, name, _both(name) | {name: name}) for name in names]
    return every


def _restricted(panel: Panel, keys: list[str]) -> Panel:
    lines = {key: name for key, name in panel.lines.items() if key in keys}
    return dataclasses.replace(panel, lines=lines)


def _singles(panel: Panel) -> list[Panel]:
    """One panel a line."""
    if len(panel.lines) == 1:
        return [panel]
    return [
        dataclasses.replace(panel, title=f"{panel.title}: {name}", lines={key: name})
        for key, name in panel.lines.items()
    ]


def _panel(
    panel: Panel, groups: Sequence[Group], series: list[list[dict[str, np.ndarray]]]
) -> dict[str, Any]:
    lines = []
    for at, (group, runs) in enumerate(zip(groups, series, strict=True)):
        for key, name in panel.lines.items():
            drawn = _line([run for run in runs if key in run], key, panel)
            if drawn:
                label = group.label if len(groups) > 1 else name
                lines.append({"group": at, "name": label, **drawn})
    bars = [{"y": y, "label": label} for y, label in panel.bars]
    return {
        "title": panel.title, "unit": panel.unit, "limits": panel.limits, "bars": bars,
        "lines": lines,
    }  # fmt: skip


def _line(runs: list[dict[str, np.ndarray]], key: str, panel: Panel) -> dict[str, Any] | None:
    """Mean, interval and single runs. The mean ends where the shortest run does."""
    if not runs:
        return None
    length = max(len(run["outer"]) for run in runs)
    common = min(len(run["outer"]) for run in runs)
    values = panel.scale * np.stack([_thin(row, length) for row in _stack(runs, key, length)])
    both = values[:, : _points(common, length)]
    line: dict[str, Any] = {"mean": _short(_mean(both)), "low": None, "high": None, "runs": []}
    if len(runs) > 1:
        low, high = interval(both, panel.limits)
        line |= {"low": _short(low), "high": _short(high), "runs": [_short(v) for v in values]}
    return line


def _stack(runs: list[dict[str, np.ndarray]], key: str, length: int) -> np.ndarray:
    rows = [np.pad(run[key], (0, length - len(run[key])), constant_values=np.nan) for run in runs]
    return np.stack(rows) if rows else np.full((1, length), np.nan)


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the first axis, of what is a number; NaN where nothing is."""
    known = np.isfinite(values)
    number = np.sum(known, axis=0)
    total = np.sum(np.where(known, values, 0), axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _thin(values: np.ndarray, length: int) -> np.ndarray:
    """Means over stretches, as long as a curve of `length` rounds needs."""
    step = -(-length // MAX_POINTS)
    padded = np.pad(values, (0, -len(values) % step), constant_values=np.nan)
    return _mean(padded.reshape(-1, step).T)


def _points(rounds: int, length: int) -> int:
    """Points that the first `rounds` of a curve of `length` rounds fill."""
    return -(-rounds // -(-length // MAX_POINTS))


def _short(values: np.ndarray) -> list[float | None]:
    """Five digits: more cannot be seen and doubles the page."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]
