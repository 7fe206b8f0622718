"""All results as one page that opens offline, and as Markdown tables.

    python benchmarks/page.py

Reads every JSON file in `benchmarks/results`, writes `index.html` beside them and prints the same
tables for a README. What does not pay is said as plainly as what does.
"""

import argparse
import dataclasses
import html
import json
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from purejax_merl.runtime import page
from purejax_merl.runtime.describe import human_bytes

RESULTS = Path(__file__).parent / "results"

WORTH = 1.1
"""A gain below this factor is called none: it drowns in the drift of a shared machine."""


@dataclasses.dataclass(frozen=True)
class Table:
    """One table with what is to be said about it."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


Report = dict[str, Any]


def roofline(report: Report) -> list[Table]:
    return [_roofline(report, "")]


def _roofline(measured: Report, what: str) -> Table:
    ceilings = measured["ceilings"]
    rows = [
        (name, _ms(row["floor_s"]), _ms(row["median_s"]), _spread(row), f"{row['ratio']:.1f}")
        for name, row in measured["phases"].items()
    ]
    ceiling = (
        f"Ceilings: {ceilings['mac_per_s'] / 1e9:.0f} G multiply-adds/s, "
        f"{ceilings['byte_per_s'] / 1e9:.1f} GB/s. The floor of the round is the sum of its parts'."
    )
    heads = ("phase", "floor ms", "measured ms", "min … max", "measured / floor")
    return Table(f"Every phase against its floor{what}", heads, rows, (ceiling,))


def environment(report: Report) -> list[Table]:
    tables = []
    if "worlds" in report:
        tables.append(_worlds(report["worlds"]))
    if "evaluation" in report:
        tables.append(_evaluations({"": report["evaluation"]}))
    if "halves" in report:
        tables.append(_halves(report["halves"]))
    if "memory" in report:
        tables.append(_memory(report["memory"]))
    return tables


def _worlds(worlds: list[Report]) -> Table:
    rows = [
        (
            row["what"],
            f"{row['grid']}² / {row['agents']}",
            _millions(row["env_steps_per_s"]),
            _ms(row["median_s"]),
            _spread(row),
        )
        for row in worlds
    ]
    heads = ("what", "grid / agents", "M team steps/s", "ms a call", "min … max")
    note = f"{worlds[0]['worlds']} worlds at once, random moves, reset and random numbers included."
    return Table("Worlds and views", heads, rows, (note,))


def _evaluations(evaluations: dict[str, Report]) -> Table:
    rows = [
        (
            f"{row['members']} members × {row['worlds']} worlds" + (f", {name}" if name else ""),
            _millions(row["env_steps_per_s"]),
            _millions(row["agent_steps_per_s"]),
            _ms(row["median_s"]),
            _spread(row),
        )
        for name, row in evaluations.items()
    ]
    heads = ("what", "M team steps/s", "M agent steps/s", "ms", "min … max")
    return Table("Evaluation of a population: world, views, actor, sampling", heads, rows)


def _halves(halves: list[Report]) -> Table:
    rows, losses = [], []
    fastest: dict[tuple[int, int], Report] = {}
    for row in halves:
        size = (row["members"], row["worlds"])
        fastest[size] = min(fastest.get(size, row), row, key=lambda r: r["median_s"])
        rows.append(
            (
                f"{size[0]} × {size[1]}",
                row["form"],
                _ms(row["median_s"]),
                _spread(row),
                _millions(row["env_steps_per_s"]),
            )
        )
    for (members, worlds), best in fastest.items():
        vmapped = next(
            r
            for r in halves
            if (r["members"], r["worlds"], r["form"]) == (members, worlds, "one vmap")
        )
        if vmapped["median_s"] > best["median_s"]:
            slower = vmapped["median_s"] / best["median_s"]
            losses.append(
                f"One vmap does not help at {members} × {worlds}: {best['form']} takes "
                f"{1 / slower:.2f} of its time."
            )
    heads = ("members × worlds", "form", "ms", "min … max", "M team steps/s")
    return Table("The evolution half: members at once or one by one", heads, rows, tuple(losses))


def _memory(memory: list[Report]) -> Table:
    rows = [
        (
            f"{row['members']} × {row['worlds']}",
            str(row["member_chunk"] or "all"),
            _bytes(row["memory_bytes"]),
        )
        for row in memory
    ]
    heads = ("members × worlds", "members at once", "planned memory")
    return Table("Memory of a large population's evaluation", heads, rows)


def fusion(report: Report) -> list[Table]:
    return [_fusion(report["rows"])]


def _fusion(measured: list[Report], what: str = "") -> Table:
    rows = [
        (
            f"{m['population']}" + (" (preset)" if m["preset_size"] else ""),
            name,
            _ms(row["median_s"]),
            _spread(row),
            f"{m['arms']['host']['median_s'] / row['median_s']:.2f}",
            _millions(m["env_steps_per_round"] / row["median_s"]),
            f"{row['compile_s']:.1f}",
            _bytes(row.get("memory_bytes")),
        )
        for m in measured
        for name, row in m["arms"].items()
    ]
    heads = (
        "population",
        "loop",
        "ms a round and run",
        "min … max",
        "× of host",
        "M team steps/s",
        "compile s",
        "planned memory",
    )
    notes = [note for m in measured for note in _fusion_notes(m)]
    return Table(
        f"The outer round as loops of the host and as programs{what}", heads, rows, tuple(notes)
    )


def _fusion_notes(measured: Report) -> list[str]:
    """Whether the loops agreed, and every comparison in which fusing does not pay."""
    population, arms = measured["population"], measured["arms"]
    if not measured["check"]["same"]:
        return [f"Population {population}: the loops did NOT end alike; nothing was timed."]
    notes = []
    for fused, plain in (
        ("round", "host"),
        ("chunk", "host"),
        ("chunk", "round"),
        ("seeds in turn", "chunk"),
        ("seeds mapped", "chunk"),
    ):
        if fused in arms and plain in arms:
            gain = arms[plain]["median_s"] / arms[fused]["median_s"]
            if gain < WORTH:
                notes.append(
                    f"Population {population}: no gain of `{fused}` over `{plain}` (× {gain:.2f})."
                )
    return notes


def seeds(report: Report) -> list[Table]:
    return [_seeds(report)]


def _seeds(measured: Report, what: str = "") -> Table:
    forms = measured["forms"]
    apart = forms["one after the other"]
    rows = [
        (
            name,
            f"{form['median_s']:.2f}",
            _spread(form, scale=1.0),
            f"{apart['median_s'] / form['median_s']:.2f}",
            f"{form['compile_s']:.1f}",
            f"{form['total_s']:.1f}",
        )
        for name, form in forms.items()
    ]
    heads = (
        "form",
        "s for the rounds",
        "min … max",
        "× of one after the other",
        "compile s",
        "together s",
    )
    notes = [
        f"{measured['seeds']} seeds × {measured['rounds']} rounds, population "
        f"{measured['population']}."
    ]
    for name, form in forms.items():
        gain = apart["median_s"] / form["median_s"]
        if name != "one after the other" and gain < WORTH:
            notes.append(f"`{name}`: no gain in the rounds themselves (× {gain:.2f}).")
    return Table(f"Seeds in one program{what}", heads, rows, tuple(notes))


def ppo_reference(report: Report) -> list[Table]:
    parts = {"few worlds": report["small"], "full size": report.get("full", {})}
    rows = [
        (
            part,
            name,
            str(row["gradient_images"]),
            f"{row['median_s']:.3f}",
            _spread(row, scale=1.0),
            f"{row['compile_s']:.1f}",
        )
        for part, table in parts.items()
        for name, row in table.items()
    ]
    small = report["small"]
    notes = [
        f"{what}: {small[f'{what}, plain']['median_s'] / small[f'{what}, ours']['median_s']:.1f} "
        "times faster than with `eqx.nn.Conv2d` at the same size."
        for what in ("PPO step", "update")
    ]
    gap = max(report["check"]["relative_difference"].values())
    notes.append(f"Largest relative difference of logits, values and gradients: {gap:.1e}.")
    heads = ("size", "what", "images in gradients", "s", "min … max", "compile s")
    return [Table("The reference preset's PPO step, ours and plain", heads, rows, tuple(notes))]


def startup(report: Report) -> list[Table]:
    starts = report["starts"]
    names = {
        "compile_s": "tracing and compiling",
        "until_compiled_s": "from start to compiled",
        "until_first_round_s": "from start to the first round's end",
        "until_end_s": "the whole command, evaluation included",
    }
    rows = [
        (
            label,
            *(
                f"{table[name]['median_s']:.1f} [{table[name]['min_s']:.1f}, "
                f"{table[name]['max_s']:.1f}]"
                for table in starts.values()
            ),
        )
        for name, label in names.items()
    ]
    rows.append(("peak memory", *(_bytes({"planned": t["peak_bytes"]}) for t in starts.values())))
    heads = ("seconds", *(f"{kind} start" for kind in starts))
    return [Table("Starting", heads, rows, (f"Flags: {' '.join(report['size']['flags'])}",))]


def accelerator(report: Report) -> list[Table]:
    tables = []
    if "evaluation" in report:
        tables.append(_evaluations(report["evaluation"]))
    for precision, measured in report.get("roofline", {}).items():
        tables.append(_roofline(measured, f", {precision}"))
    if "fusion" in report:
        tables.append(_fusion([report["fusion"]]))
    if "seeds" in report:
        tables.append(_seeds(report["seeds"]))
    return tables


def strategies(report: Report) -> list[Table]:
    landscapes = tuple(next(iter(report.values())))
    rows = [(name, *(f"{row[x]:.3f}" for x in landscapes)) for name, row in report.items()]
    note = "Distance of the mean to the optimum over that at the start; nothing is tuned."
    return [Table("Strategies on plain landscapes", ("strategy", *landscapes), rows, (note,))]


def ceilings(report: Report) -> list[Table]:
    rows = [
        (
            rung,
            planner,
            str(row["episodes"]),
            _interval(row["fitness"]),
            *(
                f"{100 * row[name]['mean']:.1f}"
                for name in ("coverage", "conn_05", "conn_hard", "passed")
            ),
        )
        for rung, measured in report["rungs"].items()
        for planner, row in measured["planners"].items()
    ]
    heads = (
        "world",
        "team",
        "worlds",
        "score [95 %]",
        "coverage %",
        "λ₂ > 0.5, % of steps",
        "in one piece %",
        "passed %",
    )
    note = "What the sweep finds is a lower bound of what is possible."
    return [Table("Scripted teams", heads, rows, (note,))]


def ablation(report: Report) -> list[Table]:
    rows = []
    for cell, row in report["cells"].items():
        low, high = row["iqm_interval"]
        rows.append(
            (
                cell,
                str(len(row["score"])),
                f"{row['iqm']:.3f} [{low:.3f}, {high:.3f}]",
                f"{100 * row['coverage']:.1f}",
                f"{100 * row['conn_05']:.1f}",
                f"{100 * row['passed']:.0f}",
                _gap(row["difference"]),
                _gap(row["difference_at_equal_time"]),
                f"{row['seconds']:.0f}",
            )
        )
    heads = (
        "rung / start / arm",
        "seeds",
        "score, IQM [95 %]",
        "coverage %",
        "λ₂ > 0.5, % of steps",
        "passed %",
        "minus gradient, equal steps",
        "equal time",
        "s a seed",
    )
    return [Table("What evolution adds", heads, rows)]


def kill_and_resume(report: Report) -> list[Table]:
    rows = [
        (
            str(number),
            str(kill["records"]),
            kill["checkpoints"][-1] if kill["checkpoints"] else "none",
            str(len(kill["unsound"])),
            str(len(kill["torn"])),
        )
        for number, kill in enumerate(report["kills"], 1)
    ]
    heads = ("kill", "records", "newest checkpoint", "unsound", "half written")
    different = ", ".join(report["different"])
    verdict = (
        f"Different: {different}." if different else "All as in the straight run, bit for bit."
    )
    return [Table(f"A run of {report['outer']} rounds, killed", heads, rows, (verdict,))]


def _interval(row: Report) -> str:
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _gap(difference: Report | None) -> str:
    """A paired difference; the control's own is none."""
    if difference is None or not (difference["low"] or difference["high"]):
        return "–"
    return f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"


KINDS: dict[str, Callable[[Report], list[Table]]] = {
    kind.__name__: kind
    for kind in (
        fusion,
        seeds,
        roofline,
        environment,
        ppo_reference,
        startup,
        accelerator,
        strategies,
        ceilings,
        ablation,
        kill_and_resume,
    )
}


def sections(folder: Path) -> list[tuple[str, str, list[Table]]]:
    """Name, where it was measured, and tables of every result, in the order of `KINDS`.

    Of a file that is none of these it is said that it was left out.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        kind = report.get("benchmark", path.stem)
        if kind not in KINDS:
            print(f"left out: {path}, there is no table for {kind!r}", file=sys.stderr)
            continue
        found.append((list(KINDS).index(kind), path.stem, report, KINDS[kind]))
    found.sort(key=lambda entry: entry[:2])
    return [(name, provenance(report), kind(report)) for _, name, report, kind in found]


def provenance(report: Report) -> str:
    """Machine, versions, commit; a smoke test says that it is one."""
    machine = report.get("machine")
    if machine is None:
        return ""
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    line = (
        f"{machine['date']}, commit {machine['commit']}: {machine['cores']} cores, "
        f"{machine['processor']}, {machine['device']}, load before {machine['load_before']:.2f}; "
        f"{versions}"
    )
    if "peak_process_bytes" in report:
        line += f"; peak memory {_bytes({'planned': report['peak_process_bytes']})}"
    return f"SMOKE TEST, its numbers mean nothing. {line}" if report.get("quick") else line


def markdown(results: list[tuple[str, str, list[Table]]]) -> str:
    lines = []
    for name, where, tables in results:
        lines += [f"<!-- {name}: {where} -->" if where else f"<!-- {name} -->", ""]
        for table in tables:
            lines += [f"**{table.title}**", "", *_markdown_rows(table), ""]
            lines += [f"* {note}" for note in table.notes] + [""] * bool(table.notes)
    return "\n".join(lines)


def _markdown_rows(table: Table) -> list[str]:
    rows = [table.heads, ("---",) * len(table.heads), *table.rows]
    return ["| " + " | ".join(row) + " |" for row in rows]


def page_of(results: list[tuple[str, str, list[Table]]]) -> str:
    """One HTML page without any reference outside itself."""
    style = (
        resources.files("purejax_merl.runtime").joinpath("pages", "style.css").read_text("utf-8")
    )
    parts = []
    for name, where, tables in results:
        parts.append(f"<section><p class='soft'>{_text(name)}. {_text(where)}</p>")
        for table in tables:
            parts.append(f"<h2>{_text(table.title)}</h2>{_html_rows(table)}")
            parts += [f"<p class='soft'>{_text(note)}</p>" for note in table.notes]
        parts.append("</section>")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='icon' href='data:,'><title>Benchmarks</title>"
        f"<style>{style} section {{ margin-top: 30px; }}</style></head><body>"
        "<h1>Benchmarks</h1><p class='soft'>Medians of samples in the order A B … B A in one "
        f"process; a gain below × {WORTH} is called none.</p>{''.join(parts)}</body></html>\n"
    )


def _html_rows(table: Table) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table.heads)
    body = "".join(
        f"<tr><th scope='row'>{_text(first)}</th>"
        + "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in table.rows
    )
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide'>{grid}</div>"


def _text(value: str) -> str:
    return html.escape(value)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _spread(row: Report, scale: float = 1e3) -> str:
    low, high = row["min_s"] * scale, row["max_s"] * scale
    return f"{low:.3g} … {high:.3g}" if high < 1000 else f"{low:.0f} … {high:.0f}"


def _millions(value: float) -> str:
    return f"{value / 1e6:.3f}"


def _bytes(plan: dict[str, int] | None) -> str:
    planned = (plan or {}).get("planned")
    return human_bytes(planned) if planned else "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files")
    folder = parser.parse_args().results
    results = sections(folder)
    if not results:
        print(f"error: `--results {folder}` holds no JSON file.", file=sys.stderr)
        return 2
    page.write(folder / "index.html", page_of(results).encode(), overwrite=True)
    print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
