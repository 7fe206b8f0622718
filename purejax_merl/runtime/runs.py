"""Runs as read back from their directories, and which of them are seeds of one another.

In: run directories, or studies that hold several. Out: records, grouped.
Axis: none. May import: runtime's files only.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from purejax_merl.runtime.rundir import RunDirError, read_history

_NOT_COMPARED = ("seed", "seeds", "sweep", "members_at_once", "devices", "run_dir", "tracker")
"""What may differ between repetitions of one experiment."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run, finished or not."""

    folder: Path
    config: dict[str, Any]
    """Flat: `env.grid` → 16."""
    history: list[dict[str, Any]]
    """At least one record, in the order of the rounds."""
    evaluation: dict[str, Any] | None
    """The final evaluation, if the run got there."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.folder.resolve().name

    @property
    def compared(self) -> dict[str, Any]:
        """The config without what may differ between repetitions."""
        return {name: v for name, v in self.config.items() if name not in _NOT_COMPARED}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ by their seed only."""

    label: str
    runs: list[RunRecord]


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """All runs in the given directories; a study counts as its members.

    **Raises**: `RunDirError` for a directory without history, a damaged one, or one named twice.
    """
    places = [place for folder in folders for place in _members(folder)]
    real = [place.resolve() for place in places]
    for place, where in zip(places, real, strict=True):
        if real.count(where) > 1:
            raise RunDirError(f"`{place}` is named twice: its seed would count as two.")
    return [_read_run(place) for place in places]


def _members(folder: Path) -> list[Path]:
    """The run itself, or the runs of a study in the order of their names."""
    if (folder / "history.jsonl").exists() or not folder.is_dir():
        return [folder]
    inside = [path.parent for path in folder.glob("*/history.jsonl")]
    return sorted(inside) or [folder]


def _read_run(folder: Path) -> RunRecord:
    if not folder.is_dir():
        raise RunDirError(f"`{folder}` is no run directory.")
    if not (folder / "history.jsonl").exists():
        raise RunDirError(f"`{folder}` holds no history.jsonl: it is no run directory.")
    history = read_history(folder / "history.jsonl")
    if not history:
        raise RunDirError(f"`{folder}/history.jsonl` has no record yet; wait for the first chunk.")
    evaluation = folder / "evaluation.json"
    return RunRecord(
        folder=folder,
        config=_flat(_read_json(folder / "config.json")),
        history=history,
        evaluation=_read_json(evaluation) if evaluation.exists() else None,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirError(f"`{path}` cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise RunDirError(f"`{path}` is damaged ({error}).") from None


def _flat(config: dict[str, Any], where: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in config.items():
        inner = isinstance(value, dict)
        fields |= _flat(value, f"{where}{name}.") if inner else {f"{where}{name}": value}
    return fields


def group(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs that differ by seed only, together; each group named by what sets it apart."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(json.dumps(run.compared, sort_keys=True), []).append(run)
    groups = list(found.values())
    fields = differing([members[0] for members in groups])
    labels = [_label(members, fields) for members in groups]
    return [Group(label, members) for label, members in zip(labels, groups, strict=True)]


def differing(runs: Sequence[RunRecord]) -> list[str]:
    """Config fields on which not all runs agree, seeds aside."""
    names = list(dict.fromkeys(name for run in runs for name in run.compared))
    absent = object()  # a field that an older version did not write differs from every value
    return [n for n in names if any(r.compared.get(n, absent) != runs[0].compared.get(n, absent)
                                    for r in runs)]  # fmt: skip


def _label(members: list[RunRecord], fields: list[str]) -> str:
    if not 1 <= len(fields) <= 3:
        first = members[0].name
        return first if len(members) == 1 else f"{first} and {len(members) - 1} more"
    values = members[0].compared
    return ", ".join(f"{name.rpartition('.')[2]} {values.get(name, '–')}" for name in fields)
