"""A comparison as a figure for a paper: learning curves, and final scores with intervals.

In: a `Comparison`. Out: the bytes of a PDF, a PNG.
Axes: groups, environment steps. May import: runtime's files only. Needs the extra `plot`.
"""

import importlib
import io
import textwrap
from collections.abc import Sequence
from typing import Any

from purejax_merl.runtime import comparison
from purejax_merl.runtime.comparison import Comparison, Curve, Row

# Okabe & Ito's colours, legible under every common colour blindness, without the yellow that is
# lost on white; 7 colours, 4 line styles and 9 markers do not come together twice soon.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

# Metric → axis label with its unit. Others stand under their own names.
LABELS = {
    "fitness": "fitness",
    "coverage": "coverage (share of free cells)",
    "conn_05": "connected, λ₂ > 0.5 (share of steps)",
    "conn_1e3": "connected, λ₂ > 0.001 (share of steps)",
    "conn_hard": "in one piece (share of steps)",
    "passed": "passed (share of episodes)",
    "lambda2": "λ₂ (mean over steps)",
    "redundancy": "redundancy (cells by agents / by team)",
    "collisions": "collisions (agents per step)",
}
_FONTS: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "pdf.fonttype": 42,  # whole TrueType fonts: publishers refuse the default's Type 3
}
_GREY = "#57606a"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        return False
    return True


def files(result: Comparison, formats: Sequence[str]) -> list[bytes]:
    """The figure in each of the formats (`pdf`, `png`), fonts embedded."""
    import matplotlib

    with matplotlib.rc_context(_FONTS):
        figure = draw(result)
        return [_saved(figure, kind) for kind in formats]


def _saved(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without a date, the same runs give the same file.
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def draw(result: Comparison) -> Any:
    """The matplotlib figure: learning curves on the left, final scores on the right."""
    from matplotlib.figure import Figure

    lines = sum(len(_wrapped(row).split("\n")) for row in result.rows)
    columns = _columns(result.rows)
    legend = -(-len(result.rows) // columns)
    height = max(2.6, 0.9 + 0.17 * lines) + 0.17 * legend
    figure = Figure(figsize=(7.2, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_curves(left, result)
    _draw_scores(right, result)
    for axis in (left, right):
        axis.grid(color="#e6eaee", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [_handle(k, row.label) for k, row in enumerate(result.rows)]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.5
    )
    return figure


def _columns(rows: Sequence[Row]) -> int:
    """As many legend columns as the longest label leaves room for."""
    longest = max(len(row.label) for row in rows)
    return max(1, min(len(rows), 100 // (longest + 9)))


def _handle(k: int, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **_line(k))


def _line(k: int) -> dict[str, Any]:
    return {"linestyle": _pick(STYLES, k), "linewidth": 1.3, **_mark(k)}


def _mark(k: int) -> dict[str, Any]:
    return {"color": _pick(COLOURS, k), "marker": _pick(MARKERS, k), "markersize": 4.5}


def _pick(choices: Sequence[str], k: int) -> str:
    return choices[k % len(choices)]


def _draw_curves(axis: Any, result: Comparison) -> None:
    keys = comparison.history_keys(result)
    axis.set_xlabel("environment steps (millions)")
    axis.set_ylabel(LABELS.get(result.metric, result.metric))
    axis.set_title(f"Learning curve{_where(keys)}\n{_of_curves(result)}", loc="left")
    if not any(keys):
        note = {"transform": axis.transAxes, "ha": "center", "color": _GREY}
        axis.text(0.5, 0.5, "not recorded while training", **note)
    for k, (row, key) in enumerate(zip(result.rows, keys, strict=True)):
        if key:
            _draw_curve(axis, k, comparison.learning_curve(row, key))


def _draw_curve(axis: Any, k: int, curve: Curve) -> None:
    millions, every = curve.steps / 1e6, max(1, len(curve.steps) // 6)
    band = {"color": _pick(COLOURS, k), "alpha": 0.18, "linewidth": 0}
    axis.fill_between(millions, curve.low, curve.high, **band)
    # The markers of different groups stand at different places.
    axis.plot(millions, curve.mean, markevery=(k % every, every), **_line(k))


def _where(keys: Sequence[str | None]) -> str:
    names = {"score": "judging worlds", "train": "PPO's rollouts"}
    used = dict.fromkeys(names[key.partition("_")[0]] for key in keys if key)
    return f" on {' or '.join(used)}" if used else ""


def _of_curves(result: Comparison) -> str:
    longest = max(len(run.history) for row in result.rows for run in row.runs)
    rounds = comparison.stretch(longest)
    several = any(len(row.runs) > 1 for row in result.rows)
    said = "mean, 95 % interval over seeds" if several else "one seed each"
    return f"{said}; a point per {rounds} rounds" if rounds > 1 else said


def _draw_scores(axis: Any, result: Comparison) -> None:
    """A dot for the mean, a bar for its interval; beneath, a pale dot for every seed."""
    from matplotlib.transforms import offset_copy

    beneath = offset_copy(axis.transData, axis.figure, y=-7, units="points")
    pale = {"linestyle": "", "marker": ".", "markersize": 5, "alpha": 0.45, "transform": beneath}
    for k, row in enumerate(result.rows):
        found = row.sampled[result.metric]
        reach = [[found.mean - found.low], [found.high - found.mean]]
        axis.errorbar([found.mean], [k], xerr=reach, capsize=2.5, linewidth=1.3, **_mark(k))
        if len(row.runs) > 1:
            axis.plot(row.scores, [k] * len(row.runs), color=_pick(COLOURS, k), **pale)
            # Limits leave out what is drawn with an offset.
            axis.update_datalim([(score, k) for score in row.scores])
    axis.autoscale_view()
    axis.locator_params(axis="x", nbins=5)
    axis.set_yticks(range(len(result.rows)), [_wrapped(row) for row in result.rows])
    axis.set_ylim(len(result.rows) - 0.5, -0.5)
    axis.set_xlabel(LABELS.get(result.metric, result.metric))
    several = any(len(row.runs) > 1 for row in result.rows)
    reading = f"mean, 95 % interval{'; pale: each seed' * several}"
    axis.set_title(f"Final evaluation, sampled policy\n{reading}", loc="left")


def _wrapped(row: Row) -> str:
    """The label, and what its interval is over."""
    number = len(row.runs)
    said = f"over {number} seeds" if number > 1 else "1 seed, over episodes"
    return "\n".join([*textwrap.wrap(row.label, 22), said])
