"""A progress bar over rounds whose rate and time left are those of running, not compiling.

In: how many rounds are done, the last record. Out: a bar on a terminal, plain lines elsewhere.
Axis: rounds as they go by on the host. May import: nothing of this package.
"""

import math
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from tqdm import tqdm

# What a person wants to see of a record: label, keys (the first that is there counts), how to print
# it. Without PPO steps there is only the policy written back to look at.
_SHOWN = (
    ("fitness", ("mean",), "{:.3f}"),
    ("coverage", ("train_coverage", "score_coverage"), "{:.1%}"),
    ("connected", ("train_conn_05", "score_conn_05"), "{:.1%}"),
)


@runtime_checkable
class Stream(Protocol):
    """What a report is written to: stderr, a file, or a notebook's stand-in for either."""

    def write(self, text: str, /) -> Any:
        """Takes text."""

    def flush(self) -> Any:
        """Lets it be seen."""

    def isatty(self) -> bool:
        """Whether a line can be overwritten."""
        ...


class ProgressReporter:
    """Shows how far a run is; enter it once everything is compiled, which starts its clock."""

    def __init__(self, total: int, *, initial: int = 0, stream: Stream | None = None) -> None:
        """**Arguments**: `total`: rounds of the run; `initial`: rounds done before this process;
        `stream`: where to write, stderr if None.
        """
        self._total, self._initial, self._done = total, initial, initial
        self._stream: Stream = sys.stderr if stream is None else stream
        self._started: float | None = None
        self._bar: tqdm | None = None

    def __enter__(self) -> "ProgressReporter":
        self._started = time.monotonic()
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total,
                initial=self._initial,
                unit="round",
                file=self._stream,
                dynamic_ncols=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        if self._bar is not None:
            self._bar.close()

    def update(self, n: int, record: Mapping[str, Any]) -> None:
        """Says that `n` more rounds are done, the last of which gave `record`.

        **Raises**: `RuntimeError` before the reporter is entered, when there is no clock yet.
        """
        if self._started is None:
            raise RuntimeError("`with ProgressReporter(...) as progress:` must be entered first.")
        self._done += n
        if self._bar is None:
            self._print_line(time.monotonic() - self._started, summary(record))
            return
        self._bar.set_postfix_str(summary(record), refresh=False)
        self._bar.update(n)

    def _print_line(self, elapsed: float, text: str) -> None:
        speed = (self._done - self._initial) / max(elapsed, 1e-9)
        parts = [f"round {self._done}/{self._total}", text, rate(speed)]
        if speed > 0 and self._done < self._total:
            parts.append(f"ETA {duration((self._total - self._done) / speed)}")
        print("  ".join(part for part in parts if part), file=self._stream, flush=True)


def summary(record: Mapping[str, Any]) -> str:
    """The few numbers of a record worth a glance; those that it lacks are left out."""
    shown = []
    for label, keys, form in _SHOWN:
        value = next((record[key] for key in keys if record.get(key) is not None), math.nan)
        if math.isfinite(value):
            shown.append(f"{label} {form.format(float(value))}")
    return ", ".join(shown)


def rate(rounds_per_second: float) -> str:
    """Rounds a second, or seconds a round where that is the readable one."""
    if 0 < rounds_per_second < 1:
        return f"{1 / rounds_per_second:.1f} s/round"
    return f"{rounds_per_second:.1f} rounds/s"


def duration(seconds: float) -> str:
    """Whole seconds as `1:02:03` or `2:03`."""
    return tqdm.format_interval(round(seconds))
