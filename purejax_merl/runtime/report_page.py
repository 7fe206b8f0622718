"""Runs as one HTML page: curves, final evaluation, what their configs differ in.

In: runs. Out: HTML text without any reference outside itself.
Axis: none. May import: runtime's files only.
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from purejax_merl.runtime import curves, page
from purejax_merl.runtime.runs import Group, RunRecord, differing, group

# Metric → how it is called and whether it is a share of one. Others follow under their own names.
_METRICS = {
    "coverage": ("coverage", True),
    "conn_05": ("connected: λ₂ > 0.5", True),
    "conn_hard": ("in one piece", True),
    "conn_1e3": ("connected: λ₂ > 0.001", True),
    "passed": ("passed", True),
    "fitness": ("fitness", False),
    "lambda2": ("mean λ₂", False),
    "redundancy": ("redundancy", False),
    "collisions": ("collisions per step", False),
}


def report_page(runs: Sequence[RunRecord]) -> str:
    """The whole report."""
    groups = group(runs)
    data = {
        "groups": [{"label": g.label, "seeds": _seeds(g)} for g in groups],
        "axes": curves.axes(groups),
        "sections": curves.sections(groups),
    }
    title = f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs compared"
    return page.fill(
        "report",
        data,
        title=title,
        subtitle=_subtitle(groups),
        reading=_reading(groups),
        markup={
            "evaluation": _evaluation(groups),
            "difference": _difference(groups),
            "configs": _configs(groups),
        },
    )


def _seeds(members: Group) -> list[Any]:
    return [run.config.get("seed") for run in members.runs]


def _subtitle(groups: list[Group]) -> str:
    parts = []
    for members in groups:
        first, seeds = members.runs[0], ", ".join(map(str, _seeds(members)))
        rounds = max(int(run.history[-1]["outer"]) + 1 for run in members.runs)
        planned = first.config.get("outer", rounds)
        world = [str(first.config.get(f"env.{name}", "?")) for name in ("terrain", "grid")]
        team = f"{first.config.get('env.n_agents', '?')} agents on {' '.join(world)}"
        label = f"{members.label}: " if len(groups) > 1 else ""
        parts.append(f"{label}{team}, {rounds} of {planned} rounds, seed {seeds}")
    return " · ".join(parts)


def _reading(groups: list[Group]) -> str:
    """How to read the curves."""
    numbers = {len(members.runs) for members in groups}
    said = []
    if numbers - {1}:
        said.append("Thick: mean over seeds; thin: each seed.")
    if 2 in numbers:
        said.append("Band of two seeds: their range.")
    if any(number > 2 for number in numbers):
        said.append("Band: Student's 95 % interval of the mean over seeds.")
    if (step := curves.stretch(groups)) > 1:
        said.append(f"Each point is a mean over {step} rounds.")
    return " ".join([*said, "Bold: the last value; point at a curve to read it elsewhere."])


def _evaluation(groups: list[Group]) -> str:
    """Metrics down, groups across."""
    done = [[run.evaluation for run in members.runs if run.evaluation] for members in groups]
    names = dict.fromkeys(name for some in done for e in some for name in e["sampled"])
    order = [name for name in _METRICS if name in names]
    order += [name for name in names if name not in _METRICS]
    if not order:
        return "<p class='soft'>No run has been evaluated yet.</p>"
    rows = [
        [_text(_METRICS.get(name, (name, False))[0]), *(_cell(e, name) for e in done)]
        for name in order
    ]
    heads = ["sampled policy", *(_heading(g, e) for g, e in zip(groups, done, strict=True))]
    note = "<p class='soft'>Fresh test worlds, mean [95 % interval]; greedy policy beneath. "
    note += "The interval of one run is over its episodes; of several seeds, over the seeds "
    return _table(heads, rows) + note + "(two seeds: their range).</p>"


def _heading(members: Group, done: list[dict[str, Any]]) -> str:
    seeds = f"{len(done)} seed{'s' * (len(done) != 1)}"
    episodes = f" × {done[0].get('episodes', '?')} episodes" if done else ", not evaluated yet"
    return f"{_text(members.label)}<br><span class='soft'>{seeds}{episodes}</span>"


def _cell(done: list[dict[str, Any]], name: str) -> str:
    entries = [e["sampled"][name] for e in done if name in e["sampled"]]
    if not entries:
        return "–"
    means = np.array([entry["mean"] for entry in entries])
    share = _METRICS.get(name, ("", False))[1]
    if len(entries) == 1:
        low, high = entries[0]["low"], entries[0]["high"]
    else:
        limits = (0.0, 1.0) if share else None
        low, high = (float(x[0]) for x in curves.interval(means[:, None], limits))
    middle, low, high = (_number(float(x), share) for x in (np.mean(means), low, high))
    text = f"{middle}{' %' * share} [{low}, {high}]"
    greedy = [e["greedy"][name]["mean"] for e in done if name in e.get("greedy", {})]
    if greedy:
        mean = _number(float(np.mean(greedy)), share)
        text += f"<br><span class='soft'>greedy {mean}{' %' * share}</span>"
    return text


def _number(value: float, share: bool) -> str:
    return f"{100 * value:.1f}" if share else f"{value:.3f}"


def _difference(groups: list[Group]) -> str:
    fields = differing([members.runs[0] for members in groups])
    if not fields:
        same = "The runs differ by their seed only." if len(groups[0].runs) > 1 else ""
        return f"<p class='soft'>{same}</p>" if same else ""
    heads = ["field", *(_text(members.label) for members in groups)]
    rows = [[_text(field), *(_text(_shown(g.runs[0], field)) for g in groups)] for field in fields]
    return f"<h2>What the configs differ in</h2>{_table(heads, rows)}"


def _configs(groups: list[Group]) -> str:
    """Every number, folded away."""
    runs = [members.runs[0] for members in groups]
    fields = dict.fromkeys(name for run in runs for name in run.compared)
    heads = ["field", *(_text(members.label) for members in groups)]
    rows = [[_text(field), *(_text(_shown(run, field)) for run in runs)] for field in fields]
    return _table(heads, rows)


def _shown(run: RunRecord, field: str) -> str:
    value = run.compared.get(field, "–")
    return "not set" if value is None else f"{value:g}" if type(value) is float else str(value)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    body = "".join(
        f"<tr><th scope='row'>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide'>{table}</div>"


def _text(value: Any) -> str:
    return html.escape(str(value))
