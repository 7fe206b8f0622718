"""One self-describing file for a trained model.

In: a tree with array leaves, a header of plain data. Out: `model.eqx`, and the tree again.
Axis: none. May import: runtime's files only.
File: magic line with the format, SHA-256 of the header, header as one JSON line, array bytes.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejax_merl.runtime.files import atomic_write

FORMAT = 1
_MAGIC = b"purejax_merl model, format "
_PACKAGES = ("purejax-merl", "jax", "jaxlib", "equinox", "numpy")
_OWN_KEYS = ("format", "packages", "leaves", "payload")
_MAX_LISTED = 6


class ModelFileError(ValueError):
    """A model file cannot be written, read, or fitted to the model that should take it."""


def save_model(
    path: str | Path, tree: Any, header: Mapping[str, Any], *, overwrite: bool = False
) -> Path:
    """Writes the array leaves of `tree`, whole or not at all; no code is ever stored.

    **Arguments**: `header`: plain JSON data kept beside the arrays, such as
    `{"config": {...}}`; `format`, `packages`, `leaves` and `payload` are added here.
    **Returns**: `path`.
    **Raises**: `ModelFileError` if the file exists and `overwrite` is false, if it cannot be
    written, or if a leaf is a typed random key.
    """
    arrays = {name: _to_bytes_order(name, leaf) for name, leaf in _array_leaves(tree)}
    payload = b"".join(array.tobytes() for array in arrays.values())
    head = _encode_header(path, header, arrays, payload)
    digest = hashlib.sha256(head).hexdigest().encode()
    data = _MAGIC + b"%d\n" % FORMAT + digest + b"\n" + head + b"\n" + payload
    try:
        atomic_write(Path(path), data, overwrite=overwrite)
    except FileExistsError:
        raise ModelFileError(
            f"`{path}` exists already and was left as it is; "
            "choose another name or pass `overwrite=True`."
        ) from None
    except OSError as error:
        raise ModelFileError(f"`{path}` cannot be written ({error.strerror}).") from error
    return Path(path)


def load_header(path: str | Path) -> dict[str, Any]:
    """What the file says of itself; no array is turned into anything.

    **Returns**: the saved header, with `packages` (versions that wrote it), `leaves` (path,
    shape and dtype of each array) and `payload` (`bytes`, `sha256`).
    **Raises**: `ModelFileError` if the file is missing, foreign, newer, cut short or changed.
    """
    return _read(path)[0]


def load_model(path: str | Path, template: Any) -> Any:
    """Fills `template` with the arrays of the file.

    **Arguments**: `template`: a tree of the same structure; its array leaves (or
    `jax.ShapeDtypeStruct`s, as from `eqx.filter_eval_shape`) say what is expected, and all its
    other leaves are kept.
    **Returns**: the filled tree, with JAX arrays (NumPy ones where the template has NumPy's).
    **Raises**: `ModelFileError` if the file is not sound, or if leaves are missing, left over or
    of another shape or dtype; each is named.
    """
    header, payload = _read(path)
    expected = dict(_array_leaves(template))
    _check_fit(path, {entry["path"]: entry for entry in header["leaves"]}, expected)
    saved = _split(header["leaves"], payload)

    def fill(place: Any, leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        array = saved[jax.tree_util.keystr(place)]
        return array.copy() if isinstance(leaf, np.ndarray | np.generic) else jnp.asarray(array)

    return jax.tree_util.tree_map_with_path(fill, template)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _array_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Path and leaf of every array, in tree order."""
    for place, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not _is_array(leaf):
            continue
        name = jax.tree_util.keystr(place)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ModelFileError(
                f"leaf `{name}` is a typed random key, which a model file does not hold; "
                "leave it out, or store `jax.random.key_data(key)`."
            )
        yield name, leaf


def _to_bytes_order(name: str, leaf: Any) -> np.ndarray:
    """The leaf as a little-endian C-ordered host array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ModelFileError(f"leaf `{name}` is only a shape; save a tree that holds numbers.")
    array = np.asarray(leaf, order="C")
    if array.dtype.hasobject:
        raise ModelFileError(f"leaf `{name}` holds Python objects; only numbers can be saved.")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _encode_header(
    path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], payload: bytes
) -> bytes:
    if taken := [key for key in _OWN_KEYS if key in header]:
        raise ModelFileError(f"header key `{taken[0]}` is written by `save_model` itself; rename.")
    full = dict(header) | {
        "format": FORMAT,
        "packages": {name: _version(name) for name in _PACKAGES},
        "leaves": [
            {"path": name, "shape": list(array.shape), "dtype": array.dtype.name}
            for name, array in arrays.items()
        ],
        "payload": {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()},
    }
    try:
        return json.dumps(full, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the header of `{path}` is not plain JSON data: {error}") from error


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return None


def _read(path: str | Path) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a file whose every byte was checked."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"`{path}` cannot be read ({error.strerror}).") from error
    head, payload = _split_header(path, data)
    size, digest = head["payload"]["bytes"], head["payload"]["sha256"]
    if len(payload) < size:
        raise ModelFileError(
            f"`{path}` is cut short: {len(payload)} of {size} bytes of numbers; copy it again."
        )
    if len(payload) > size or hashlib.sha256(payload).hexdigest() != digest:
        raise _damaged(path)
    return head, payload


def _split_header(path: str | Path, data: bytes) -> tuple[dict[str, Any], bytes]:
    magic, *rest = data.split(b"\n", 3)
    if magic[: len(_MAGIC)] != _MAGIC[: len(magic)] or not data:
        raise ModelFileError(f"`{path}` is not a purejax_merl model file.")
    if len(rest) < 3:
        raise ModelFileError(f"`{path}` is cut short in its header; copy it again.")
    version = magic[len(_MAGIC) :]
    if not version.isdigit() or int(version) < 1:
        raise _damaged(path)
    if int(version) > FORMAT:
        raise ModelFileError(
            f"`{path}` has format {int(version)}, this version reads up to {FORMAT}; "
            "upgrade purejax-merl."
        )
    digest, head, payload = rest
    if hashlib.sha256(head).hexdigest().encode() != digest:
        raise _damaged(path)
    return json.loads(head), payload


def _damaged(path: str | Path) -> ModelFileError:
    return ModelFileError(f"`{path}` is damaged: its checksum does not match; copy it again.")


def _split(leaves: list[dict[str, Any]], payload: bytes) -> dict[str, np.ndarray]:
    """Cuts the payload into read-only arrays by the leaf table."""
    arrays, start = {}, 0
    for leaf in leaves:
        # jnp knows bfloat16 and the other small floats by name, NumPy alone does not.
        dtype = jnp.dtype(leaf["dtype"]).newbyteorder("<")
        count = math.prod(leaf["shape"])
        flat = np.frombuffer(payload, dtype, count, start)
        native = flat.astype(dtype.newbyteorder("="), copy=False)
        arrays[leaf["path"]] = native.reshape(leaf["shape"])
        start += count * dtype.itemsize
    return arrays


def _check_fit(
    path: str | Path, saved: Mapping[str, dict[str, Any]], expected: Mapping[str, Any]
) -> None:
    """Names every leaf in which file and model differ."""
    faults = [f"`{name}` is missing from the file" for name in expected if name not in saved]
    faults += [f"`{name}` is in the file only" for name in saved if name not in expected]
    for name in expected.keys() & saved.keys():
        was = (tuple(saved[name]["shape"]), saved[name]["dtype"])
        now = (tuple(expected[name].shape), np.dtype(expected[name].dtype).name)
        if was != now:
            faults.append(f"`{name}` is saved as {was[1]}{was[0]}, expected {now[1]}{now[0]}")
    if faults:
        more = f"; and {len(faults) - _MAX_LISTED} more" if len(faults) > _MAX_LISTED else ""
        raise ModelFileError(
            f"`{path}` holds another architecture: {'; '.join(faults[:_MAX_LISTED])}{more}. "
            'Build the model from the configuration in the file: `load_header(path)["config"]`.'
        )
