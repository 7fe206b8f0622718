"""Layers shared by actors and critics.

In: `(*batch, features)`. Out: `(*batch, features)`. Batch axes pass through without a vmap.
Axis: none.
May import: nothing of ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def linear(fan_in: int, fan_out: int, *, scale: float, key: PRNGKeyArray) -> eqx.nn.Linear:
    """A linear layer with orthogonal weights of gain `scale` and zero bias (Saxe et al. 2014)."""
    shape_key, weight_key = jax.random.split(key)
    layer = eqx.nn.Linear(fan_in, fan_out, key=shape_key)
    weight = jax.nn.initializers.orthogonal(scale)(weight_key, (fan_out, fan_in), jnp.float32)
    return eqx.tree_at(lambda m: (m.weight, m.bias), layer, (weight, jnp.zeros(fan_out)))


def apply(layer: eqx.nn.Linear, x: Float[Array, "*batch fan_in"]) -> Float[Array, "*batch fan_out"]:
    """The layer on any number of batch axes, as one matrix product."""
    out = x @ layer.weight.T
    return out if layer.bias is None else out + layer.bias


class Trunk(eqx.Module):
    """A stack of tanh layers."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, fan_in: int, width: int, depth: int, *, key: PRNGKeyArray):
        """**Arguments:** `depth` layers of `width` units over `fan_in` features."""
        sizes = [fan_in] + [width] * depth
        keys = jax.random.split(key, depth)
        self.layers = tuple(
            linear(a, b, scale=2**0.5, key=k)
            for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )

    def __call__(self, x: Float[Array, "*batch fan_in"]) -> Float[Array, "*batch width"]:
        for layer in self.layers:
            x = jnp.tanh(apply(layer, x))
        return x
