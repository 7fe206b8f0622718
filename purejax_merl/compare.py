"""`python -m purejax_merl.compare RUN_OR_STUDY…`: a table and a figure for a paper.

In: run directories. Out: compare.csv, and with matplotlib compare.pdf and compare.png.
Axis: none.
May import: config, flags, runtime.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from purejax_merl.config import ConfigError
from purejax_merl.flags import one_clear_error

TABLE = "compare.csv"
FIGURES = ("compare.pdf", "compare.png")
NO_FIGURE = 'no figure: it needs matplotlib: pip install "purejax-merl[plot]"'


@dataclasses.dataclass(frozen=True)
class CompareArgs:
    """Final evaluations of runs, seeds together, as a table and a figure; the other groups are
    compared with a baseline, seed by seed."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories. A study counts as all its runs; unfinished runs are left out."""
    metric: str = "fitness"
    """The metric that is compared in detail and drawn; every metric is in the table."""
    baseline: str | None = None
    """Group that the others are compared with, by its name in the table or a part of it, such as
    "arm gradient"; unset: the first one."""
    out: Path | None = None
    """Folder to write into; unset: the run's or study's own, or the current one if several are
    named."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace existing files."""


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Prints the comparison and writes its files. Bad input exits with code 2."""
    with one_clear_error():
        args = tyro.cli(CompareArgs, prog="python -m purejax_merl.compare", args=argv)
        text, paths = write(
            args.runs, args.metric, args.out, baseline=args.baseline, overwrite=args.overwrite
        )
    print("\n".join([text, "", *map(str, paths)]))
    if len(paths) == 1:
        print(NO_FIGURE)
        old = [str(file) for name in FIGURES if (file := paths[0].parent / name).exists()]
        if old:
            print(f"of an earlier comparison, and left as before: {', '.join(old)}")
    return paths


def write(
    runs: Sequence[Path],
    metric: str = "fitness",
    out: Path | None = None,
    *,
    baseline: str | None = None,
    overwrite: bool = False,
) -> tuple[str, list[Path]]:
    """Compares `runs` and writes table and figure, or the table alone without matplotlib.

    **Arguments:** `runs`: run directories or studies. `metric`: one that every finished run has.
    `out`: the folder; None: the run or study itself if it is the only one, else the current one.
    `baseline`: label of the group that the others are compared with; None: the first one.

    **Returns:** the comparison as text, and the files.

    **Errors:** `ConfigError` for no runs, another metric or baseline; `RunDirError` for a directory
    that is no run, a seed that counts twice, or no finished run; `OutputError` for a file in the
    way.
    """
    if not runs:
        raise ConfigError("name at least one run directory or study.")
    from purejax_merl.runtime import comparison, comparison_figure, page
    from purejax_merl.runtime.runs import read_runs

    folder = out or (runs[0] if len(runs) == 1 else Path("."))
    drawn = comparison_figure.can_draw()
    paths = [folder / name for name in (TABLE, *(FIGURES if drawn else ()))]
    _refuse_existing(out, paths, overwrite)
    result = comparison.compare(read_runs(runs), metric, baseline)
    data = [comparison.csv_text(result).encode()]
    if drawn:
        data += comparison_figure.files(result, [path.suffix[1:] for path in paths[1:]])
    for path, content in zip(paths, data, strict=True):
        page.write(path, content, overwrite=overwrite)
    return comparison.text(result), paths


def _refuse_existing(out: Path | None, paths: Sequence[Path], overwrite: bool) -> None:
    """Says what is in the way before anything is read or computed."""
    from purejax_merl.runtime.page import OutputError

    if out is not None and out.exists() and not out.is_dir():
        raise OutputError(f"`--out {out}` is a file; name a folder.")
    there = [str(path) for path in paths if path.exists()]
    if there and not overwrite:
        raise OutputError(
            f"already there, and left as before: `{'`, `'.join(there)}`. Name another folder with "
            "`--out` or pass `--overwrite`."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
