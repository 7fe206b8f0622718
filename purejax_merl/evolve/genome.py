"""Pytree to flat genome and back.

In: any pytree, or a module of which only the floating-point arrays evolve. Out: `theta (D,)`.
Axis: none.
May import: nothing of ours.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

ModuleT = TypeVar("ModuleT", bound=PyTree[Any])


def flatten(
    pytree: PyTree[Any],
) -> tuple[Float[Array, " dim"], Callable[[Float[Array, " dim"]], PyTree[Any]]]:
    """Ravels every leaf, in tree order, into one float vector.

    **Arguments:** `pytree`: leaves are arrays or numbers.

    **Returns:** `(theta, unflatten)`; `unflatten(theta)` rebuilds the pytree, each leaf in its own
    shape and dtype.

    **Errors:** `TypeError` for a leaf that is no number (a function, a string): use
    [`module_theta`][] for a module that holds such leaves.
    """
    leaves, treedef = jax.tree.flatten(pytree)
    for leaf in leaves:
        if not eqx.is_array_like(leaf):
            raise TypeError(
                f"`flatten` found a leaf of type `{type(leaf).__name__}`. "
                "Use `module_theta`, which skips what is not a floating-point array."
            )
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    return _ravel(arrays), lambda theta: treedef.unflatten(_unravel("unflatten", arrays, theta))


def module_theta(module: PyTree[Any]) -> Float[Array, " dim"]:
    """Ravels the inexact-array leaves of a module, in tree order.

    **Arguments:** `module`: any pytree; integers, booleans, static fields and functions are
    not part of the genome.

    **Returns:** `theta`, `(D,)`.
    """
    return _ravel(_weights(module))


def set_module_theta(module: ModuleT, theta: Float[Array, " dim"]) -> ModuleT:
    """A copy of `module` whose inexact-array leaves come from `theta`.

    `set_module_theta(module, module_theta(module))` is the identity.

    **Arguments:** `module`: any pytree; `theta`: `(D,)` as [`module_theta`][] orders it.

    **Returns:** the copy; every other leaf is the very same object.

    **Errors:** `ValueError` if `theta` has another length.
    """
    weights, rest = eqx.partition(module, eqx.is_inexact_array)
    leaves, treedef = jax.tree.flatten(weights)
    return eqx.combine(treedef.unflatten(_unravel("set_module_theta", leaves, theta)), rest)


def _weights(module: PyTree[Any]) -> list[Array]:
    return jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))


def _ravel(leaves: list[Array]) -> Float[Array, " dim"]:
    floats = [leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    dtype = jnp.result_type(*floats) if floats else jnp.result_type(float)
    parts = [jnp.ravel(leaf).astype(dtype) for leaf in leaves]
    return jnp.concatenate([jnp.zeros(0, dtype), *parts])


def _unravel(call: str, leaves: list[Array], theta: Float[Array, " dim"]) -> list[Array]:
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    if theta.shape != (sum(sizes),):
        raise ValueError(
            f"`{call}` got theta of shape {theta.shape}, but this genome has "
            f"D={sum(sizes)} numbers. Take it from the same architecture."
        )
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [
        theta[end - size : end].reshape(leaf.shape).astype(leaf.dtype)
        for leaf, size, end in zip(leaves, sizes, ends, strict=True)
    ]
