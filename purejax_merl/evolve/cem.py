"""Cross-entropy method with one step size: move to the elite, keep the elite's spread.

In: genome, fitness. Out: populations, the elite mean, a sigma carried from round to round.
Axis: member P.
May import: `base`, `ranking`.
Source: Rubinstein 1999; as CEM-RL uses it, Pourchot & Sigaud 2019, arXiv 1810.01222, eq. 1.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .base import (
    AbstractStrategy,
    antithetic_noise,
    as_rate,
    check_population_size,
    check_range,
    replace_mean,
)
from .ranking import settle, weigh_elites


class CEMState(eqx.Module):
    """Where the search stands; changes once per generation that told members apart."""

    mean: Float[Array, " dim"]
    step: Float[Array, ""]
    """Standard deviation of the next population."""


class CEM(AbstractStrategy[CEMState]):
    """Fits an isotropic Gaussian to the best members of each generation.

    The mean becomes that of the elites, sigma the mean over dimensions of their standard
    deviation (around the new mean, ddof 0), never below `sigma_floor`. One elite has no spread:
    sigma then stays.
    """

    # Counts and choices: static.
    population_size: int = eqx.field(static=True)
    elite_frac: float = eqx.field(static=True)
    compat: bool = eqx.field(static=True)
    # Rates: array leaves, to be swept with `vmap`.
    sigma_init: Float[Array, ""]
    sigma_floor: Float[Array, ""]

    def __init__(
        self,
        *,
        population_size: int,
        elite_frac: float = 0.25,
        sigma: ArrayLike = 0.05,
        sigma_floor: ArrayLike = 0.01,
        compat: bool = False,
    ):
        """**Arguments:**

        - `population_size`: P, even.
        - `elite_frac`: part of P that makes the elite, in (0, 1]; see [`num_elites`][].
        - `sigma`: initial standard deviation, in units of the genome.
        - `sigma_floor`: sigma never falls below it, or the search would stop for good.
        - `compat`: rank by a plain stable sort (ties by row index, NaN best) and keep sigma where
          it started. Only for comparisons.

        **Errors:** `ValueError` for an odd population or a number out of range.
        """
        self.population_size = check_population_size("CEM", "population_size", population_size)
        check_elite_frac("CEM", elite_frac)
        check_range("CEM", "sigma", sigma, above=0.0)
        check_range("CEM", "sigma_floor", sigma_floor, minimum=0.0)
        self.elite_frac, self.compat = float(elite_frac), compat
        self.sigma_init, self.sigma_floor = as_rate(sigma), as_rate(sigma_floor)

    def init(self, theta: Float[Array, " dim"]) -> CEMState:
        mean = jnp.asarray(theta, theta.dtype)  # an explicit dtype drops the weak type
        return CEMState(mean=mean, step=self.sigma_init.astype(mean.dtype))

    def ask(
        self, state: CEMState, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "member dim"], CEMState]:
        mean = state.mean
        noise = antithetic_noise(key, self.population_size, mean.size, mean.dtype)
        return mean + state.step * noise, state

    def tell(
        self,
        state: CEMState,
        population: Float[Array, "member dim"],
        fitness: Float[Array, " member"],
    ) -> CEMState:
        elites = num_elites(self.elite_frac, self.population_size)
        weights = weigh_elites(fitness, elites, compat=self.compat)
        mean, spread = fit_elites(population, weights, sigma=state.step)
        step = jnp.maximum(spread, self.sigma_floor.astype(spread.dtype))
        moved = CEMState(mean=mean, step=state.step if self.compat else step)
        return settle(fitness, state, moved, compat=self.compat)

    def inject(self, state: CEMState, theta: Float[Array, " dim"]) -> CEMState:
        return CEMState(mean=replace_mean("CEM.inject", state.mean, theta), step=state.step)

    def mean(self, state: CEMState) -> Float[Array, " dim"]:
        return state.mean

    def sigma(self, state: CEMState) -> Float[Array, ""]:
        return state.step


def check_elite_frac(call: str, elite_frac: float) -> None:
    """**Errors:** `ValueError` outside (0, 1]."""
    if not 0.0 < elite_frac <= 1.0:
        raise ValueError(
            f"`{call}(elite_frac={elite_frac})` must lie in (0, 1]; it is a part of the population."
        )


def num_elites(elite_frac: float, population_size: int) -> int:
    """`max(1, round(elite_frac * P))`, halves to even (10 members at 0.25 make 2 elites)."""
    return max(1, round(elite_frac * population_size))


def fit_elites(
    candidates: Float[Array, "member dim"], weights: Float[Array, " member"], *, sigma: ArrayLike
) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
    """Weighted mean and mean standard deviation of the elites.

    **Arguments:** `candidates`: `(P, D)`; `weights`: `(P,)`, sum 1; `sigma`: returned as the
    spread when a single member holds all the weight.

    **Returns:** `(mean (D,), spread ())`, the spread around that mean, ddof 0.
    """
    weights = weights.astype(candidates.dtype)
    # Accelerators round matmul inputs to ~10 bits unless told otherwise: too coarse for a genome.
    mean = jnp.matmul(weights, candidates, precision="highest")
    variance = jnp.matmul(weights, (candidates - mean) ** 2, precision="highest")
    alone = jnp.count_nonzero(weights) == 1
    kept = jnp.asarray(sigma, candidates.dtype)
    return mean, jnp.where(alone, kept, jnp.mean(jnp.sqrt(variance)))
