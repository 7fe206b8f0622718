"""One evolution step around a plain host function.

In: genome, a function that scores one genome (it may be impure), a key. Out: the next genome.
Axis: member P, as a Python loop: the function runs once per member, in row order.
May import: this folder.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .base import AbstractStrategy, antithetic_noise, check_population_size, check_range
from .cem import CEM, check_elite_frac, fit_elites, num_elites
from .nes import NES, ascend, nes_gradient
from .ranking import finite_summary, settle, shape, weigh_elites

EvalFn = Callable[[Float[Array, " dim"]], Any]
"""`eval_fn(theta) -> fitness`, one number, higher is better."""


@dataclasses.dataclass(frozen=True)
class ESConfig:
    """Numbers of one evolution step.

    **Arguments:**

    - `pop_size`: members P, even.
    - `sigma`: standard deviation of the noise.
    - `lr`, `weight_decay`: used by `"nes"`.
    - `kind`: `"nes"` or `"cem"`.
    - `elite_frac`: part of P that makes the elite, used by `"cem"`.

    **Errors:** `ValueError` for a value out of range.
    """

    pop_size: int = 16
    sigma: float = 0.05
    lr: float = 0.05
    kind: Literal["nes", "cem"] = "nes"
    elite_frac: float = 0.25
    weight_decay: float = 0.0

    def __post_init__(self):
        check_population_size("ESConfig", "pop_size", self.pop_size)
        check_range("ESConfig", "sigma", self.sigma, above=0.0)
        check_range("ESConfig", "lr", self.lr, minimum=0.0)
        check_range("ESConfig", "weight_decay", self.weight_decay, minimum=0.0)
        check_elite_frac("ESConfig", self.elite_frac)
        if self.kind not in ("nes", "cem"):
            raise ValueError(f"`ESConfig(kind={self.kind!r})` must be 'nes' or 'cem'.")

    @property
    def sigma_floor(self) -> float:
        """Where a carried cem sigma stops shrinking: a fifth of its start."""
        return self.sigma / 5.0


def make_strategy(es_cfg: ESConfig) -> AbstractStrategy[Any]:
    """The strategy object with these numbers (plain ascent for `"nes"`)."""
    if es_cfg.kind == "cem":
        return CEM(
            population_size=es_cfg.pop_size,
            elite_frac=es_cfg.elite_frac,
            sigma=es_cfg.sigma,
            sigma_floor=es_cfg.sigma_floor,
        )
    return NES(
        population_size=es_cfg.pop_size,
        sigma=es_cfg.sigma,
        lr=es_cfg.lr,
        weight_decay=es_cfg.weight_decay,
    )


def es_step(
    theta: Float[Array, " dim"],
    eval_fn: EvalFn,
    es_cfg: ESConfig,
    key: PRNGKeyArray,
    *,
    compat: bool = False,
) -> tuple[Float[Array, " dim"], dict[str, float]]:
    """Perturbs, evaluates and updates once. Stateless: sigma is `es_cfg.sigma` at every call.

    **Arguments:**

    - `theta`: `(D,)`.
    - `eval_fn`: `theta_i -> fitness`, maximised; called once per member, in order, on the host.
    - `es_cfg`: the numbers.
    - `key`: of the noise; pair `i` draws from `fold_in(key, i)`.
    - `compat`: rank by a plain stable sort (ties by row index, NaN best, constant fitness moves),
      with `info` over all members.

    **Returns:** `(theta_next, info)`; `info` has `best_fitness` and `mean_fitness` over the
    finite members (NaN if there is none), for `"cem"` also `sigma`, the spread of the elites
    before any floor. A failed member ranks worst and is reported by one warning per call.
    """
    theta = jnp.asarray(theta)
    noise, candidates = _propose(theta, key, es_cfg.sigma, pop_size=es_cfg.pop_size)
    scores = [float(eval_fn(candidate)) for candidate in candidates]
    fitness = jnp.asarray(scores, theta.dtype)
    info = summarise(fitness, compat=compat)
    if es_cfg.kind == "cem":
        theta_next, spread = _cem_update(
            theta,
            noise,
            fitness,
            sigma=es_cfg.sigma,
            elite_frac=es_cfg.elite_frac,
            compat=compat,
        )
        return theta_next, info | {"sigma": float(spread)}
    theta_next = _nes_update(
        theta,
        noise,
        fitness,
        sigma=es_cfg.sigma,
        lr=es_cfg.lr,
        weight_decay=es_cfg.weight_decay,
        compat=compat,
    )
    return theta_next, info


def nes_update(
    theta: Float[Array, " dim"],
    noise: Float[Array, "member dim"],
    fitness: Float[Array, " member"],
    *,
    sigma: ArrayLike,
    lr: ArrayLike,
    weight_decay: ArrayLike = 0.0,
    compat: bool = False,
) -> Float[Array, " dim"]:
    """One NES step (arXiv 1703.03864): `theta + lr * g - lr * weight_decay * theta`.

    **Arguments:** `theta`: `(D,)`; `noise`: `(P, D)`, the standard normal rows of the candidates
    `theta + sigma * noise`; `fitness`: `(P,)`.

    **Returns:** `(D,)`; `theta` itself if the fitness tells nothing (not in `compat`).
    """
    gradient = nes_gradient(noise, shape(fitness, compat=compat), sigma=sigma)
    moved = ascend(theta, gradient, lr=lr, weight_decay=weight_decay)
    return settle(fitness, theta, moved, compat=compat)


def cem_update(
    theta: Float[Array, " dim"],
    noise: Float[Array, "member dim"],
    fitness: Float[Array, " member"],
    *,
    sigma: ArrayLike,
    elite_frac: float,
    compat: bool = False,
) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
    """One CEM step (arXiv 1810.01222, eq. 1 with uniform weights).

    **Arguments:** as [`nes_update`][]; `elite_frac`: part of P that makes the elite.

    **Returns:** `(elite mean (D,), spread ())`; the old pair if the fitness tells nothing (not
    in `compat`), the old sigma if there is one elite.
    """
    elites = num_elites(elite_frac, fitness.shape[0])
    weights = weigh_elites(fitness, elites, compat=compat)
    fitted = fit_elites(theta + sigma * noise, weights, sigma=sigma)
    return settle(fitness, (theta, jnp.asarray(sigma, theta.dtype)), fitted, compat=compat)


def summarise(fitness: Float[Array, " member"], *, compat: bool = False) -> dict[str, float]:
    """`best_fitness` and `mean_fitness` of one generation as Python floats.

    **Arguments:** `fitness`: `(P,)`, raw. `compat`: plain maximum and mean, NaN if any is NaN.

    **Returns:** the two numbers; warns once if a member failed (not in `compat`).
    """
    if compat:
        return {
            "best_fitness": float(jnp.max(fitness)),
            "mean_fitness": float(jnp.mean(fitness)),
        }
    failed = int(np.sum(~np.isfinite(np.asarray(fitness))))
    if failed:
        warnings.warn(
            f"{failed} of {fitness.shape[0]} members had a non-finite fitness; they rank worst.",
            RuntimeWarning,
            stacklevel=3,
        )
    best, mean = _finite_summary(fitness)
    return {"best_fitness": float(best), "mean_fitness": float(mean)}


def _candidates(
    theta: Float[Array, " dim"], key: PRNGKeyArray, sigma: ArrayLike, *, pop_size: int
) -> tuple[Float[Array, "member dim"], Float[Array, "member dim"]]:
    noise = antithetic_noise(key, pop_size, theta.size, theta.dtype)
    return noise, theta + sigma * noise


# The step runs on the host and calls these four from there; rates are traced, so a sigma that
# changes every round costs no compilation.
_propose = jax.jit(_candidates, static_argnames="pop_size")
_nes_update = jax.jit(nes_update, static_argnames="compat")
_cem_update = jax.jit(cem_update, static_argnames=("elite_frac", "compat"))
_finite_summary = jax.jit(finite_summary)
