"""The run directory and the text files in it.

In: records (dicts of numbers, strings, arrays). Out: a fresh folder, JSON and JSON-lines files.
Axis: rounds as they go by on the host. May import: runtime's files only.
"""

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from purejax_merl.runtime.files import TORN, atomic_write, plain


class RunDirError(ValueError):
    """A run directory or a file in it cannot be used as asked."""


def create_run_dir(
    path: str | Path | None, root: str | Path = "runs", name_hint: str = "run"
) -> Path:
    """Makes a fresh directory for one run; never touches an existing one.

    **Arguments**: `path`: where the user wants it, or None for a new `root/<name_hint>-<time>`.
    **Returns**: the directory, which exists and is empty.
    **Raises**: `RunDirError` if it exists already or cannot be made.
    """
    if path is None:
        return _create_named(Path(root), name_hint)
    try:
        return _mkdir(Path(path))
    except FileExistsError:
        raise RunDirError(
            f"`--run-dir {path}` exists already and nothing in it was changed; "
            "name a new directory or leave the flag out."
        ) from None


def _create_named(root: Path, hint: str) -> Path:
    """The first free `root/<hint>-<time>[-n]`; `mkdir` itself decides who gets it."""
    hint = re.sub(r"[^\w.=-]+", "-", hint).strip("-.") or "run"
    stem = f"{hint}-{time.strftime('%Y%m%d-%H%M%S')}"
    for n in range(1, 1000):
        try:
            return _mkdir(root / (stem if n == 1 else f"{stem}-{n}"))
        except FileExistsError:
            continue
    raise RunDirError(f"no free name `{stem}-n` under `{root}`; name one with `--run-dir`.")


def _mkdir(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise
    except OSError as error:
        raise RunDirError(
            f"`--run-dir {path}` cannot be made ({error.strerror}); "
            "name a directory that you may write to."
        ) from error
    return path


def write_json(path: str | Path, obj: Any, *, overwrite: bool = False) -> Path:
    """Writes one JSON file, whole or not at all.

    **Arguments**: `obj`: anything that `plain` takes. `overwrite`: replace an existing file.
    **Returns**: `path`.
    **Raises**: `RunDirError` if the file exists and `overwrite` is false, or cannot be written.
    """
    text = json.dumps(plain(obj), allow_nan=False, ensure_ascii=False, indent=2) + "\n"
    try:
        atomic_write(Path(path), text.encode(), overwrite=overwrite)
    except FileExistsError:
        raise RunDirError(f"`{path}` exists already and was left as it is.") from None
    except OSError as error:
        raise RunDirError(f"`{path}` cannot be written ({error.strerror}).") from error
    return Path(path)


class HistoryWriter:
    """Appends one JSON record a line to a history file.

    Each record is handed to the operating system at once; `flush` makes all of them durable.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        """Opens a new file, or with `append` an existing one, whose torn last line is cut off.

        **Raises**: `RunDirError` if the file exists and `append` is false, or cannot be opened.
        """
        try:
            if append:
                _mend(Path(path))
            self._file = open(path, "ab" if append else "xb")  # noqa: SIM115 closed by `close`
        except FileExistsError:
            raise RunDirError(f"`{path}` exists already and was left as it is.") from None
        except OSError as error:
            raise RunDirError(f"`{path}` cannot be written ({error.strerror}).") from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one record; a number that is not finite becomes null."""
        line = json.dumps(plain(record), allow_nan=False, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def flush(self) -> None:
        """Waits until everything appended is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> "HistoryWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.close()


def _mend(path: Path) -> None:
    """Ends the file at its last whole record, so that the next one starts on a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return
    with open(path, "r+b") as file:
        file.truncate(whole)
        if _is_json(data[whole:]):
            file.seek(whole)
            file.write(data[whole:] + b"\n")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def read_history(path: str | Path) -> list[dict[str, Any]]:
    """All whole records of a history file; a last line that a crash tore is left out.

    **Raises**: `RunDirError` if the file cannot be read or an earlier line is not JSON.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise RunDirError(f"`{path}` cannot be read ({error.strerror}).") from error
    if lines and not _is_json(
        lines[-1]
    ):  # the empty rest after the last line break, or a torn line
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not _is_json(line):
            raise RunDirError(f"`{path}` line {number} is not JSON; the file was damaged.")
    return [json.loads(line) for line in lines]


def truncate_history(path: str | Path, rounds: int) -> None:
    """Drops the records from round `rounds` on, which a resumed run will write again."""
    path = Path(path)
    if not path.exists():
        return
    kept = [record for record in read_history(path) if record["outer"] < rounds]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
    atomic_write(path, text.encode(), overwrite=True)


def remove_torn(folder: str | Path) -> None:
    """Removes the files, anywhere in the directory, that a killed process had half written."""
    for path in Path(folder).rglob(TORN):
        path.unlink(missing_ok=True)


def last_value(path: str | Path, name: str, default: Any) -> Any:
    """A field of the history's last record; `default` where there is no record."""
    records = read_history(path) if Path(path).exists() else []
    return records[-1].get(name, default) if records else default


def subfolder(folder: str | Path, name: str) -> Path:
    """A fresh folder for one member of a study."""
    return _mkdir(Path(folder) / name)
