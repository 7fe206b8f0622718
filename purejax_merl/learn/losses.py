"""PPO's terms, pure (Schulman et al. 2017, arXiv 1707.06347, eq. 7 and 9).

In: log-probabilities, advantages, values, weights. Out: scalars.
Axes: rows and agents are reduced by a weighted mean.
May import: nothing of ours.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def weighted_mean(x: Float[Array, "*rows"], weight: Float[Array, "*rows"]) -> Float[Array, ""]:
    """Σ w x / Σ w; 0 when all weights are 0."""
    return jnp.sum(x * weight) / jnp.maximum(jnp.sum(weight), 1e-8)


def clipped_surrogate(
    logp: Float[Array, "*rows"],
    old_logp: Float[Array, "*rows"],
    advantage: Float[Array, "*rows"],
    weight: Float[Array, "*rows"],
    *,
    clip: float | Float[Array, ""],
) -> Float[Array, ""]:
    """−mean min(ρA, clip(ρ, 1±ε)A), to be minimised."""
    ratio = jnp.exp(logp - old_logp)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -weighted_mean(jnp.minimum(ratio * advantage, clipped * advantage), weight)


def value_loss(
    value: Float[Array, "*rows"], target: Float[Array, "*rows"], weight: Float[Array, "*rows"]
) -> Float[Array, ""]:
    """Mean squared error, unclipped, without the half."""
    return weighted_mean((value - target) ** 2, weight)


def regression_loss(
    estimate: Float[Array, "*rows"],
    target: Float[Array, "*rows"],
    weight: Float[Array, "*rows"],
    *,
    huber: float | None,
) -> Float[Array, ""]:
    """Mean squared error, or the Huber loss that turns linear beyond an error of `huber` (Huber
    1964)."""
    error = jnp.abs(estimate - target)
    if huber is None:
        return weighted_mean(error**2, weight)
    linear = huber * (error - huber / 2)
    return weighted_mean(jnp.where(error <= huber, error**2 / 2, linear), weight)


def normalise(x: Float[Array, "*rows"], weight: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Zero mean and unit (population) standard deviation over the weighted rows."""
    mean = weighted_mean(x, weight)
    deviation = jnp.sqrt(weighted_mean((x - mean) ** 2, weight))
    return (x - mean) / (deviation + 1e-8)
