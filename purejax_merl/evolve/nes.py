"""Natural evolution strategy with a fixed step size (OpenAI-ES).

In: genome, fitness. Out: populations, the mean moved along a rank-weighted sum of its noise.
Axis: member P.
May import: `base`, `ranking`.
Source: Salimans, Ho, Chen, Sidor, Sutskever 2017, arXiv 1703.03864, algorithm 1.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from .base import (
    AbstractStrategy,
    antithetic_noise,
    as_rate,
    check_population_size,
    check_range,
    replace_mean,
)
from .ranking import settle, shape


class AdamMoments(eqx.Module):
    """Running moments of the search gradient (Kingma & Ba 2015, arXiv 1412.6980)."""

    first: Float[Array, " dim"]
    second: Float[Array, " dim"]
    count: Int[Array, ""]


class NESState(eqx.Module):
    """Where the search stands; changes once per generation that told members apart."""

    mean: Float[Array, " dim"]
    moments: AdamMoments | None
    """None under plain gradient ascent."""


class NES(AbstractStrategy[NESState]):
    """Ascends `g = sum_i rank_i eps_i / (P sigma)` with mirrored noise and centred ranks.

    The step is `theta + lr * u - lr * weight_decay * theta`, with `u = g` for `"sgd"` and Adam's
    normalised `g` for `"adam"`. Ranks make the length of `g` nearly independent of how much
    signal the fitness holds, so with `"sgd"` keep `lr` well below `sigma`.
    """

    # Counts and choices: static.
    population_size: int = eqx.field(static=True)
    optimizer: Literal["sgd", "adam"] = eqx.field(static=True)
    compat: bool = eqx.field(static=True)
    b1: float = eqx.field(static=True)
    b2: float = eqx.field(static=True)
    eps: float = eqx.field(static=True)
    # Rates: array leaves, to be swept with `vmap`.
    sigma_init: Float[Array, ""]
    lr: Float[Array, ""]
    weight_decay: Float[Array, ""]

    def __init__(
        self,
        *,
        population_size: int,
        sigma: ArrayLike = 0.05,
        lr: ArrayLike = 0.05,
        weight_decay: ArrayLike = 0.0,
        optimizer: Literal["sgd", "adam"] = "sgd",
        compat: bool = False,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
    ):
        """**Arguments:**

        - `population_size`: P, even.
        - `sigma`: standard deviation of the noise, in units of the genome; it never changes.
        - `lr`: step size; `weight_decay`: decoupled, scaled by `lr`.
        - `optimizer`: `"sgd"` or `"adam"`, the latter with `b1`, `b2`, `eps`.
        - `compat`: rank by a plain stable sort (ties by row index, NaN best), so that constant
          fitness moves the mean. Only for comparisons.

        **Errors:** `ValueError` for an odd population or a number out of range.
        """
        self.population_size = check_population_size("NES", "population_size", population_size)
        check_range("NES", "sigma", sigma, above=0.0)
        check_range("NES", "lr", lr, minimum=0.0)
        check_range("NES", "weight_decay", weight_decay, minimum=0.0)
        if optimizer not in ("sgd", "adam"):
            raise ValueError(f"`NES(optimizer={optimizer!r})` must be 'sgd' or 'adam'.")
        self.optimizer, self.compat = optimizer, compat
        self.b1, self.b2, self.eps = b1, b2, eps
        self.sigma_init, self.lr = as_rate(sigma), as_rate(lr)
        self.weight_decay = as_rate(weight_decay)

    def init(self, theta: Float[Array, " dim"]) -> NESState:
        mean = jnp.asarray(theta, theta.dtype)  # an explicit dtype drops the weak type
        if self.optimizer == "sgd":
            return NESState(mean=mean, moments=None)
        zeros = jnp.zeros(mean.shape, mean.dtype)
        return NESState(mean=mean, moments=AdamMoments(zeros, zeros, jnp.zeros((), jnp.int32)))

    def ask(
        self, state: NESState, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "member dim"], NESState]:
        mean = state.mean
        noise = antithetic_noise(key, self.population_size, mean.size, mean.dtype)
        return mean + self.sigma(state) * noise, state

    def tell(
        self,
        state: NESState,
        population: Float[Array, "member dim"],
        fitness: Float[Array, " member"],
    ) -> NESState:
        sigma = self.sigma(state)
        noise = (population - state.mean) / sigma
        gradient = nes_gradient(noise, shape(fitness, compat=self.compat), sigma=sigma)
        direction, moments = self._direct(gradient, state.moments)
        mean = ascend(state.mean, direction, lr=self.lr, weight_decay=self.weight_decay)
        moved = NESState(mean=mean, moments=moments)
        return settle(fitness, state, moved, compat=self.compat)

    def inject(self, state: NESState, theta: Float[Array, " dim"]) -> NESState:
        return NESState(mean=replace_mean("NES.inject", state.mean, theta), moments=state.moments)

    def mean(self, state: NESState) -> Float[Array, " dim"]:
        return state.mean

    def sigma(self, state: NESState) -> Float[Array, ""]:
        return self.sigma_init.astype(state.mean.dtype)

    def _direct(
        self, gradient: Float[Array, " dim"], moments: AdamMoments | None
    ) -> tuple[Float[Array, " dim"], AdamMoments | None]:
        if moments is None:
            return gradient, None
        count = moments.count + 1
        first = self.b1 * moments.first + (1.0 - self.b1) * gradient
        second = self.b2 * moments.second + (1.0 - self.b2) * gradient**2
        power = count.astype(gradient.dtype)
        unbiased_first = first / (1.0 - self.b1**power)
        unbiased_second = second / (1.0 - self.b2**power)
        direction = unbiased_first / (jnp.sqrt(unbiased_second) + self.eps)
        return direction, AdamMoments(first, second, count)


def nes_gradient(
    noise: Float[Array, "member dim"], shaped: Float[Array, " member"], *, sigma: ArrayLike
) -> Float[Array, " dim"]:
    """Score-function estimate of the ascent direction (arXiv 1703.03864, eq. in sec. 2).

    **Arguments:** `noise`: `(P, D)` standard normal rows; `shaped`: `(P,)`; `sigma`: scalar.

    **Returns:** `(D,)`: `sum_i shaped_i noise_i / (P sigma)`.
    """
    # Accelerators round matmul inputs to ~10 bits unless told otherwise.
    total = jnp.matmul(shaped.astype(noise.dtype), noise, precision="highest")
    return total / (noise.shape[0] * sigma)


def ascend(
    theta: Float[Array, " dim"],
    direction: Float[Array, " dim"],
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
) -> Float[Array, " dim"]:
    """`theta + lr * direction - lr * weight_decay * theta`, in the dtype of `theta`."""
    lr = jnp.asarray(lr, theta.dtype)
    decay = jnp.asarray(weight_decay, theta.dtype)
    return theta + lr * direction - lr * decay * theta
