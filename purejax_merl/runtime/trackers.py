"""Curves shown live elsewhere, beside `history.jsonl`: TensorBoard or Weights & Biases.

In: history records, chunk by chunk. Out: event files in the run directory, or a run on a server.
Axis: rounds as they go by on the host. May import: config, runtime's files.
"""

import hashlib
import importlib
import json
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from purejax_merl.config import ConfigError, TrackerName

_PACKAGES: dict[TrackerName, str] = {"tensorboard": "tensorboardX", "wandb": "wandb"}
_GROUPS = ("train", "skill", "es", "score", "reuse")
"""Prefixes of record fields that belong on one page of curves."""


@runtime_checkable
class Tracker(Protocol):
    """Something that shows records while the run goes on."""

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Takes the records of some rounds, in their order."""
        ...

    def flush(self) -> None:
        """Lets what was appended be seen."""
        ...

    def close(self) -> None:
        """Flushes and ends."""
        ...


def check(name: TrackerName) -> None:
    """**Raises**: `ConfigError` with the cure if the package of this tracker is not installed."""
    if name == "none":
        return
    try:
        importlib.import_module(_PACKAGES[name])
    except ImportError:
        raise ConfigError(
            f"`--tracker {name}` needs {_PACKAGES[name]}, which is not installed: "
            f'pip install "purejax-merl[{name}]", or from a checkout pip install -e ".[{name}]".'
        ) from None


def open_trackers(name: TrackerName, folders: Sequence[Path], first_round: int) -> list[Tracker]:
    """One tracker per run directory, in their order; none where none is wanted.

    **Arguments**: `first_round`: the round that comes next. Those from it on which an interrupted
    run had shown already are shown once.
    """
    if name == "none":
        return []
    kind = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}[name]
    return [kind(folder, first_round) for folder in folders]


class TensorBoard:
    """Event files in `<run directory>/tensorboard`, for `tensorboard --logdir`.

    Written record by record: the package's own `SummaryWriter` hands them to a thread, which a
    flush does not wait for.
    """

    def __init__(self, folder: Path, first_round: int) -> None:
        """Goes on in the same folder; rounds from `first_round` on that are there become void."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        (folder / "tensorboard").mkdir(exist_ok=True)
        # A name of its own for every start: the clock in it counts whole seconds only.
        suffix = f".{uuid.uuid4().hex[:8]}"
        self._file = EventsWriter(str(folder / "tensorboard" / "events"), suffix)
        self._proto: Any = event_pb2  # made at its import: no type checker sees what is in it
        self._scalar = scalar
        self._write(
            first_round, session_log=self._proto.SessionLog(status=self._proto.SessionLog.START)
        )

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """A scalar per field that is a finite number, at the step that is the round."""
        for record in records:
            for name, value in _numbers(record).items():
                self._write(record["outer"], summary=self._scalar(_tag(name), value))

    def flush(self) -> None:
        """Hands everything appended to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()

    def _write(self, step: int, **content: Any) -> None:
        self._file.write_event(self._proto.Event(step=step, wall_time=time.time(), **content))


class WeightsAndBiases:
    """A run of https://wandb.ai with the config. Its own variables (`WANDB_PROJECT`,
    `WANDB_MODE=offline`, …) are respected."""

    def __init__(self, folder: Path, first_round: int) -> None:
        """Starts the run that belongs to this run directory, or goes on with it."""
        import wandb

        folder = folder.resolve()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "purejax_merl"),
            id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
            name=folder.name,
            dir=str(folder),
            config=json.loads((folder / "config.json").read_text()),
            resume="allow" if first_round else None,
            reinit="create_new",  # the members of a study are runs side by side
        )

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Logs each round at its step. One that it has from before an interruption is the same
        round again, and it keeps the first."""
        for record in records:
            numbers = {_tag(name): value for name, value in _numbers(record).items()}
            self._run.log(numbers, step=record["outer"])

    def flush(self) -> None:
        """Nothing to wait for: it sends in the background."""

    def close(self) -> None:
        """Waits until all is sent."""
        self._run.finish()


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The fields to draw: finite, and not the round itself."""
    return {k: v for k, v in record.items() if k != "outer" and v is not None and math.isfinite(v)}


def _tag(name: str) -> str:
    """`train_coverage` → `train/coverage`: trackers show what shares a prefix together."""
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in _GROUPS and rest else name
