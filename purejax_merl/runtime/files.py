"""What goes into a file, and how: plain JSON data, whole files or none.

In: numbers, arrays, bytes. Out: JSON-ready data, files on the disk.
Axis: none. May import: nothing of this package.
"""

import dataclasses
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """What JSON can hold of `value`: arrays become lists, numbers that are not finite None.

    **Raises**: `TypeError` for an object that is neither data nor an array.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case Path():
            return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return plain(_from_array(value))


def _from_array(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        return array.tolist()
    if array.dtype.kind == "V":  # bfloat16 and other small floats that JSON does not know
        return array.astype(np.float32).tolist()
    raise TypeError(f"`{type(value).__name__}` cannot be written as JSON: {value!r}")


TORN = ".*.tmp"
"""Matches what a process that was killed inside `atomic_write` leaves."""


def atomic_write(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Puts `data` at `path` so that a reader, or a crash, sees all of it or none.

    **Raises**: `FileExistsError` if `path` exists and `overwrite` is false; `OSError` otherwise.
    """
    name = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(name, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(name, path)
        else:
            _move_to_free(name, path)
    finally:
        name.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _move_to_free(name: Path, path: Path) -> None:
    """A hard link fails where the target exists, with no gap between the look and the leap."""
    try:
        os.link(name, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        os.rename(name, path)


def _sync_folder(folder: Path) -> None:
    """Makes the new name itself durable; some systems cannot open a folder, and need not."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
