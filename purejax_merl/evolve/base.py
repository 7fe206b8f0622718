"""The seam between evolution and everything else: ask for genomes, tell their fitness.

In: a genome `theta (D,)`, then `fitness (P,)`, maximised. Out: a population `(P, D)`, a new state.
Axis: member P. The caller maps its evaluation over P; nothing here knows what a genome is for.
May import: `ranking`.
"""

import abc
import math
from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PRNGKeyArray

StateT = TypeVar("StateT", bound=eqx.Module)


class AbstractStrategy(eqx.Module, Generic[StateT]):
    """Black-box search over a flat genome by `ask` and `tell`; fitness is maximised.

    Every method is pure, so it can be jitted, scanned and vmapped. A state has the dtype of
    `theta` and no weakly typed leaf, so that a second jitted round finds the first one's trace.
    Fitness that cannot tell two members apart leaves the state as it was, bit for bit; a
    non-finite fitness ranks worst.
    """

    population_size: eqx.AbstractVar[int]
    """Members per generation P; a static count."""

    @abc.abstractmethod
    def init(self, theta: Float[Array, " dim"]) -> StateT:
        """The state of a search that starts at `theta` `(D,)`."""

    @abc.abstractmethod
    def ask(self, state: StateT, *, key: PRNGKeyArray) -> tuple[Float[Array, "member dim"], StateT]:
        """Draws the population `(P, D)` to evaluate."""

    @abc.abstractmethod
    def tell(
        self,
        state: StateT,
        population: Float[Array, "member dim"],
        fitness: Float[Array, " member"],
    ) -> StateT:
        """Learns from the fitness `(P,)` of the population that the same state was asked for."""

    @abc.abstractmethod
    def inject(self, state: StateT, theta: Float[Array, " dim"]) -> StateT:
        """Puts `theta` `(D,)` in place of the mean; sigma, moments, paths and counters stay."""

    @abc.abstractmethod
    def mean(self, state: StateT) -> Float[Array, " dim"]:
        """The current answer `(D,)`."""

    @abc.abstractmethod
    def sigma(self, state: StateT) -> Float[Array, ""]:
        """The current step size, one number for the log."""


def antithetic_noise(
    key: PRNGKeyArray, population_size: int, dim: int, dtype: DTypeLike = float
) -> Float[Array, "member dim"]:
    """Mirrored standard normal noise: row `P/2 + i` is minus row `i`.

    Pair `i` draws from `fold_in(key, i)`, so a larger population keeps the pairs of a smaller one.
    (That holds for threefry keys; the `rbg` generator ignores all but one key under `vmap`.)

    **Arguments:** `key`; `population_size`: even P; `dim`: D; `dtype`: of the result.

    **Returns:** `(P, D)`.
    """

    def draw(pair):
        return jax.random.normal(jax.random.fold_in(key, pair), (dim,), dtype)

    half = jax.vmap(draw)(jnp.arange(population_size // 2))
    return jnp.concatenate([half, -half])


def check_population_size(call: str, field: str, population_size: int, *, minimum: int = 2) -> int:
    """Refuses a population that mirrored pairs cannot fill.

    **Errors:** `ValueError` if it is no integer, odd, or smaller than `minimum`.
    """
    if isinstance(population_size, bool) or not isinstance(population_size, (int, np.integer)):
        raise ValueError(f"`{call}({field}={population_size!r})` must be an integer.")
    if population_size < minimum or population_size % 2:
        cure = max(minimum, int(population_size) + int(population_size) % 2)
        raise ValueError(
            f"`{call}({field}={population_size})` must be even and at least {minimum}: members "
            f"come in mirrored pairs. Try `{field}={cure}`."
        )
    return int(population_size)


def check_range(
    call: str, field: str, value: ArrayLike, *, above: float = -math.inf, minimum: float = -math.inf
) -> None:
    """Refuses a number outside its range; a tracer has no value to check and passes.

    **Errors:** `ValueError` unless the value is finite, `> above` and `>= minimum`.
    """
    if isinstance(value, Tracer):
        return
    if np.ndim(value) != 0:
        raise ValueError(
            f"`{call}({field}=...)` must be one number, got shape {np.shape(value)}. "
            "To sweep it, build the strategy inside `eqx.filter_vmap`."
        )
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number <= above or number < minimum:
        bound = f"greater than {above:g}" if above > -math.inf else f"at least {minimum:g}"
        raise ValueError(f"`{call}({field}={number:g})` must be finite and {bound}.")


def as_rate(value: ArrayLike) -> Float[Array, ""]:
    """A float array leaf without weak type: one trace serves every value of a sweep."""
    dtype = jnp.result_type(value)
    return jnp.asarray(value, dtype if jnp.issubdtype(dtype, jnp.floating) else float)


def replace_mean(
    call: str, mean: Float[Array, " dim"], theta: Float[Array, " other"]
) -> Float[Array, " dim"]:
    """`theta` in the dtype of the mean that it replaces.

    **Errors:** `ValueError` if the lengths differ.
    """
    if theta.shape != mean.shape:
        raise ValueError(
            f"`{call}` got a genome of shape {theta.shape} for a search over {mean.shape}. "
            "Call `init` for another genome."
        )
    return theta.astype(mean.dtype)
