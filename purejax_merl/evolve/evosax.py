"""Adapter to evosax's distribution-based strategies; evosax is imported only when one is built.

In: genome, fitness, maximised. Out: populations. The fitness sign flips here, on one line.
Axis: member P.
May import: `base`, `ranking`, and evosax inside functions.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt32

from .base import AbstractStrategy, check_population_size, check_range, replace_mean
from .ranking import (
    centre_counts,
    failures_last,
    keep_unless_informative,
    rank_counts,
    table_weights,
)

Optimizer = Literal["sgd", "adam"]


class EvosaxState(eqx.Module):
    """evosax's own state, every leaf strongly typed and in the dtype of the genome."""

    inner: PyTree[Any]
    tell_seed: UInt32[Array, ""]
    """Randomness for `tell`, drawn in `ask`. Plain bits: a checkpoint cannot hold typed keys."""


class EvosaxStrategy(AbstractStrategy[EvosaxState]):
    """One evosax strategy behind [`AbstractStrategy`][]; build it with [`make_evosax`][].

    What differs from bare evosax: equal fitness gives equal weights (its weight tables can sum to
    2 on ties), fitness that cannot tell two members apart changes nothing, failures never win,
    and no metrics are computed, since the default ones stack whole genomes.
    """

    # A description, not the evosax object: equal descriptions share one trace.
    name: str = eqx.field(static=True)
    population_size: int = eqx.field(static=True)
    sigma_init: float = eqx.field(static=True)
    lr: float = eqx.field(static=True)
    optimizer: Optimizer = eqx.field(static=True)
    init_seed: int = eqx.field(static=True)

    def init(self, theta: Float[Array, " dim"]) -> EvosaxState:
        algorithm, config = self._build(theta)
        inner = algorithm.init(jax.random.key(self.init_seed), theta, config)
        inner = _scale_start(self.name, inner, self.sigma_init)
        # evosax leaves weakly typed scalars, which would cost the second round a new trace.
        return EvosaxState(
            inner=jax.tree.map(functools.partial(_strong, theta.dtype), inner),
            tell_seed=jnp.zeros((), jnp.uint32),
        )

    def ask(
        self, state: EvosaxState, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "member dim"], EvosaxState]:
        algorithm, config = self._build(state.inner.mean)
        ask_key, tell_key = jax.random.split(key)
        population, inner = algorithm.ask(ask_key, state.inner, config)
        return population.astype(state.inner.mean.dtype), EvosaxState(
            inner=_like(state.inner, inner),
            tell_seed=jax.random.bits(tell_key, (), jnp.uint32),
        )

    def tell(
        self,
        state: EvosaxState,
        population: Float[Array, "member dim"],
        fitness: Float[Array, " member"],
    ) -> EvosaxState:
        algorithm, config = self._build(state.inner.mean)
        cost = -failures_last(fitness)  # evosax minimises
        key = jax.random.key(state.tell_seed)
        inner, _ = algorithm.tell(key, population, cost, state.inner, config)
        inner = keep_unless_informative(fitness, state.inner, _like(state.inner, inner))
        return EvosaxState(inner=inner, tell_seed=state.tell_seed)

    def inject(self, state: EvosaxState, theta: Float[Array, " dim"]) -> EvosaxState:
        """Also forgets the incumbents that some strategies return to: a new genome brings a new
        fitness landscape, and the next `tell` would put the old one back.
        """
        mean = replace_mean("EvosaxStrategy.inject", state.inner.mean, theta)
        unknown = jnp.full((), jnp.inf, mean.dtype)
        fresh = {
            "mean": mean,
            "best_solution_shaped": mean,  # GradientlessDescent, HillClimbing and others
            "best_fitness_shaped": unknown,
            "epoch_best_fitness": unknown,  # CMAAnchoredLES
            "fitness": unknown,  # SimulatedAnnealing
        }
        changes = {name: value for name, value in fresh.items() if name in _fields(state.inner)}
        return EvosaxState(inner=state.inner.replace(**changes), tell_seed=state.tell_seed)

    def mean(self, state: EvosaxState) -> Float[Array, " dim"]:
        return state.inner.mean

    def sigma(self, state: EvosaxState) -> Float[Array, ""]:
        """The mean of evosax's `std`; strategies that learn a covariance scale it further."""
        if "std" in _fields(state.inner):
            return jnp.mean(state.inner.std)
        return jnp.asarray(self.sigma_init, state.inner.mean.dtype)

    def _build(self, theta: Float[Array, " dim"]) -> tuple[Any, Any]:
        return _build(
            self.name,
            self.population_size,
            self.sigma_init,
            self.lr,
            self.optimizer,
            theta.size,
            theta.dtype.name,
        )


def make_evosax(
    name: str,
    population_size: int,
    sigma: float,
    lr: float,
    *,
    optimizer: Optimizer = "adam",
    init_seed: int = 0,
) -> EvosaxStrategy:
    """Builds an evosax strategy by its registry name.

    **Arguments:**

    - `name`: one of [`valid_names`][].
    - `population_size`: P, even and at least 4.
    - `sigma`: initial standard deviation; constant in strategies that only follow a schedule.
    - `lr`: of the optax optimizer. Not used by strategies without one (the CMA family and those
      that adopt their best member); SimpleES, SNES, xNES and DES expect about 1.0 with `"sgd"`.
    - `optimizer`: `"sgd"` or `"adam"`, where the strategy takes one.
    - `init_seed`: for the few strategies with a random initial state.

    **Returns:** the strategy. Its numbers are static: they cannot be swept with `vmap`.

    **Errors:** `ValueError` for an unknown name or a number out of range, `ImportError` if evosax
    is missing.
    """
    if name not in valid_names():
        raise ValueError(f"`make_evosax(name={name!r})` must be one of {', '.join(valid_names())}.")
    size = check_population_size("make_evosax", "population_size", population_size, minimum=4)
    check_range("make_evosax", "sigma", sigma, above=0.0)
    check_range("make_evosax", "lr", lr, minimum=0.0)
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"`make_evosax(optimizer={optimizer!r})` must be 'sgd' or 'adam'.")
    return EvosaxStrategy(
        name=name,
        population_size=size,
        sigma_init=float(sigma),
        lr=float(lr),
        optimizer=optimizer,
        init_seed=int(init_seed),
    )


def valid_names() -> list[str]:
    """The distribution-based strategies that need nothing but a population size and a genome."""
    return [name for name, cls in _registry().items() if not _extra_arguments(cls)]


def _registry() -> dict[str, type]:
    try:
        from evosax.algorithms import distribution_based_algorithms
    except ImportError as error:
        raise ImportError("evosax strategies need evosax: `pip install evosax`.") from error
    return distribution_based_algorithms


def _extra_arguments(cls: type) -> list[str]:
    arguments = list(inspect.signature(cls).parameters.values())
    given = ("population_size", "solution")
    return [a.name for a in arguments if a.default is a.empty and a.name not in given]


# Cached because evosax jits with the object itself as a static argument: a new object retraces.
@functools.cache
def _build(
    name: str,
    population_size: int,
    sigma: float,
    lr: float,
    optimizer: Optimizer,
    dim: int,
    dtype: str,
) -> tuple[Any, Any]:
    """The evosax object and its settings for genomes of one length."""
    if name == "LM_MA_ES" and population_size > dim:
        # Its path rates are P/D: above 1 they oscillate, above 2 their square root is NaN.
        raise ValueError(
            f"`make_evosax('LM_MA_ES', population_size={population_size})` needs a population no "
            f"larger than the genome (D={dim}). Use MA_ES for small genomes."
        )
    cls = _registry()[name]
    defaults = {k: p.default for k, p in inspect.signature(cls).parameters.items()}
    options: dict[str, Any] = {
        "metrics_fn": _no_metrics,
        "fitness_shaping_fn": _shaping(defaults["fitness_shaping_fn"]),
    }
    if "optimizer" in defaults:
        options["optimizer"] = {"sgd": optax.sgd, "adam": optax.adam}[optimizer](lr)
    if "std_schedule" in defaults:
        options["std_schedule"] = optax.constant_schedule(sigma)
    # The first call may come from inside a trace; a cached tracer would outlive it.
    with jax.ensure_compile_time_eval():
        algorithm = cls(population_size, jnp.zeros(dim, dtype), **options)
        config = algorithm.default_params
        if "std_init" in _fields(config):
            config = config.replace(std_init=jnp.asarray(sigma, dtype))
        if name == "GradientlessDescent":  # searches a range of radii; keep evosax's ratio
            config = config.replace(radius_max=sigma, radius_min=sigma / 200.0)
    return algorithm, config


def _shaping(default: Callable[..., Any]) -> Callable[..., Any]:
    """Our tie-safe counterpart of the shaping that a strategy would use by itself."""
    from evosax.core import fitness_shaping

    ours = {
        fitness_shaping.centered_rank_fitness_shaping_fn: _centred_costs,
        fitness_shaping.weights_fitness_shaping_fn: _weights_from_table,
        fitness_shaping.identity_fitness_shaping_fn: _finite_costs,
    }
    return ours[default]


def _centred_costs(population, cost, state, config):
    del population, state, config
    return centre_counts(*rank_counts(cost), cost.dtype)


def _weights_from_table(population, cost, state, config):
    del population, state
    lower, higher = rank_counts(cost)
    return table_weights(lower, higher, jnp.isinf(cost), config.weights).astype(cost.dtype)


def _finite_costs(population, cost, state, config):
    """Raw costs enter sums, so a failure pays a finite price: as far behind the worst finite
    member as that is behind the best, and at least its own size or 1.
    """
    del population, state, config
    finite = jnp.isfinite(cost)
    worst = jnp.max(jnp.where(finite, cost, -jnp.inf))
    best = jnp.min(jnp.where(finite, cost, jnp.inf))
    margin = jnp.where(worst > best, worst - best, jnp.maximum(jnp.abs(worst), 1.0))
    price = jnp.minimum(worst + margin, jnp.finfo(cost.dtype).max)
    return jnp.where(finite, cost, price)


def _no_metrics(key, population, fitness, state, config):
    del key, population, fitness, state, config
    return {}


def _scale_start(name: str, inner: Any, sigma: float) -> Any:
    """Gives `sigma` one meaning where an initial state counts it twice or not at all."""
    if name == "xNES":  # samples with std * B and starts both at std_init
        return inner.replace(B=jnp.eye(inner.mean.size))
    if name in ("iAMaLGaM_Full", "iAMaLGaM_Univariate"):  # starts from unit variances
        return inner.replace(C=inner.C * sigma**2)
    return inner


def _fields(dataclass: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(dataclass)}


def _strong(dtype: Any, leaf: Any) -> Array:
    array = jnp.asarray(leaf)
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.asarray(array, dtype if floating else array.dtype)


def _like(old: PyTree[Any], new: PyTree[Any]) -> PyTree[Any]:
    """`new` with the dtypes of `old`: evosax computes in the default dtype."""
    return jax.tree.map(lambda o, n: jnp.asarray(n, o.dtype), old, new)
