"""`python -m purejax_merl.report RUN…`: curves, evaluation and differences as one page.

In: run directories. Out: report.html.
Axis: none.
May import: config, flags, runtime.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from purejax_merl.flags import one_clear_error


@dataclasses.dataclass(frozen=True)
class ReportArgs:
    """One self-contained page about one run, several, or a study; seeds are drawn together."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, finished or not. A study counts as all its runs."""
    out: Path | None = None
    """Where to write; unset: report.html in the run directory, or here if there are several."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an existing file. The run directory's own report.html is always brought up to
    date."""


def main(argv: Sequence[str] | None = None) -> Path:
    """Writes the report. Bad input exits with code 2."""
    with one_clear_error():
        args = tyro.cli(ReportArgs, prog="python -m purejax_merl.report", args=argv)
        if args.out is None and len(args.runs) == 1:
            path = write(args.runs)
        else:
            path = write(args.runs, args.out or Path("report.html"), overwrite=args.overwrite)
    print(path)
    return path


def write(runs: Sequence[Path], out: Path | None = None, *, overwrite: bool = False) -> Path:
    """The report of `runs` as a file.

    **Arguments:** `out`: None: the first run's own `report.html`, replaced if it exists.

    **Errors:** `RunDirError` for a directory without history; `OutputError` if `out` exists.
    """
    from purejax_merl.runtime import page, report_page
    from purejax_merl.runtime.runs import read_runs

    if out is None:
        out, overwrite = runs[0] / "report.html", True
    page.refuse_existing(out, overwrite)
    text = report_page.report_page(read_runs(runs))
    return page.write(out, text.encode(), overwrite=overwrite)


if __name__ == "__main__":
    main(sys.argv[1:])
