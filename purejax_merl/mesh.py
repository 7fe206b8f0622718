"""Several devices as one axis, and which array axes lie along it.

In: arrays, and a mesh or None (one device: nothing is touched). Out: the same arrays, laid out.
Axis: devices. The compiler splits the work by the layouts and adds what must be sent.
May import: nothing of ours.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

TreeT = TypeVar("TreeT")
OutT = TypeVar("OutT")

AXIS = "devices"


def make_mesh(number: int) -> Mesh:
    """The first `number` visible devices in a row."""
    # `jax.make_mesh` would look for a whole block of a TPU's grid, which five devices are not.
    return Mesh(np.array(jax.devices()[:number]), (AXIS,), axis_types=(AxisType.Auto,))


def shares(mesh: Mesh) -> NamedSharding:
    """Layout of an array whose leading axis is cut into one piece per device."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def copies(mesh: Mesh) -> NamedSharding:
    """Layout of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def split(tree: TreeT, mesh: Mesh | None) -> TreeT:
    """Inside a program: the leading axis, which the devices must divide, in equal shares."""
    return tree if mesh is None else lax.with_sharding_constraint(tree, shares(mesh))


def gather(tree: TreeT, mesh: Mesh | None) -> TreeT:
    """Inside a program: everything on every device."""
    return tree if mesh is None else lax.with_sharding_constraint(tree, copies(mesh))


def map_rows(
    function: Callable[[Any], OutT], rows: PyTree[Any], mesh: Mesh | None, *, at_once: int | None
) -> OutT:
    """`function` of every row, the rows in equal shares over the devices.

    **Arguments:** `at_once`: rows that one device computes at once; None: its whole share.
    """
    if at_once is None:
        return jax.vmap(function)(split(rows, mesh))
    if mesh is None:
        return lax.map(function, rows, batch_size=at_once)
    own = jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), rows)
    done = jax.vmap(lambda share: lax.map(function, share, batch_size=at_once))(split(own, mesh))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), done)
