"""Fitness to weights: what a generation learned, free of scale, ties and failures.

In: `fitness (P,)`, maximised, possibly with NaN or infinities. Out: one weight per member.
Axis: member P, reduced by counting, never by order of arrival.
May import: nothing of ours.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

StateT = TypeVar("StateT")

# Up to here P² comparisons beat a sort on CPU, and they fuse into one loop without a P² buffer.
_MAX_PAIRWISE = 2048


def failures_last(fitness: Float[Array, " member"]) -> Float[Array, " member"]:
    """Maps every non-finite fitness to -inf. +inf too: no episode pays it, so it is an overflow."""
    return jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)


def informative(fitness: Float[Array, " member"]) -> Bool[Array, ""]:
    """Whether any two members can be told apart; if not, no strategy may move."""
    cleaned = failures_last(fitness)
    return jnp.max(cleaned) != jnp.min(cleaned)


def rank_counts(
    values: Float[Array, " member"],
) -> tuple[Int[Array, " member"], Int[Array, " member"]]:
    """How many members lie strictly below and strictly above each member.

    **Arguments:** `values`: `(P,)`, no NaN (infinities are fine).

    **Returns:** `(below, above)`, each `(P,)` int32; equal values get equal counts.
    """
    size = values.shape[0]
    if size <= _MAX_PAIRWISE:
        below = jnp.sum(values[:, None] > values[None, :], axis=1, dtype=jnp.int32)
        above = jnp.sum(values[:, None] < values[None, :], axis=1, dtype=jnp.int32)
        return below, above
    ordered = jnp.sort(values)
    below = jnp.searchsorted(ordered, values, side="left")
    above = size - jnp.searchsorted(ordered, values, side="right")
    return below.astype(jnp.int32), above.astype(jnp.int32)


def centre_counts(
    below: Int[Array, " member"], above: Int[Array, " member"], dtype: DTypeLike
) -> Float[Array, " member"]:
    """Average rank, centred: `rank/(P-1) - 1/2` written as `(below - above) / (2(P-1))`.

    The difference of two integers makes a tie of all members exactly 0, on any backend.
    """
    size = below.shape[0]
    # Cast first: a quotient of int32 is float32, even where double precision is on.
    return (below - above).astype(dtype) / max(2 * (size - 1), 1)


def centered_ranks(fitness: Float[Array, " member"]) -> Float[Array, " member"]:
    """Average ranks in [-0.5, 0.5], best highest (Salimans et al. 2017, arXiv 1703.03864).

    **Arguments:** `fitness`: `(P,)`, maximised. Non-finite members share the worst rank.

    **Returns:** `(P,)`. Ties share their mean rank, so constant fitness gives exact zeros; an
    order by row index would turn it into a full-size step made of noise.
    """
    return centre_counts(*rank_counts(failures_last(fitness)), fitness.dtype)


def elite_weights(fitness: Float[Array, " member"], num_elites: int) -> Float[Array, " member"]:
    """Weight of each member in an elite mean; sums to 1 whatever the ties.

    Members tied across the elite edge share what is left of the elite equally.

    **Arguments:**

    - `fitness`: `(P,)`, maximised. A non-finite member gets no weight while a finite one exists,
      even if fewer than `num_elites` are finite.
    - `num_elites`: how many members make the elite, in `[1, P]`.

    **Returns:** `(P,)`, non-negative. If nothing is finite: 1/P each (see [`informative`][]).
    """
    below, above = rank_counts(failures_last(fitness))
    tied = fitness.shape[0] - below - above
    num_finite = jnp.sum(jnp.isfinite(fitness), dtype=jnp.int32)
    places = jnp.clip(jnp.where(num_finite > 0, num_finite, num_elites), 1, num_elites)
    share = jnp.clip((places - above).astype(fitness.dtype) / tied, 0.0, 1.0)
    return share / places


def table_weights(
    better: Int[Array, " member"],
    worse: Int[Array, " member"],
    failed: Bool[Array, " member"],
    table: Float[Array, " member"],
) -> Float[Array, " member"]:
    """Reads a table of rank weights (best first) so that ties average over the places they fill.

    A failed member keeps a negative weight but never a positive one; what it would have held goes
    to the others in proportion.

    **Arguments:** `better`, `worse`: `(P,)` counts per member; `failed`: `(P,)`; `table`: `(P,)`.

    **Returns:** `(P,)` with the table's sum (while no member failed) and its positive sum.
    """
    size = table.shape[0]
    place = jnp.arange(size)[None, :]
    fills = (place >= better[:, None]) & (place < (size - worse)[:, None])
    averaged = jnp.sum(jnp.where(fills, table, 0.0), axis=1) / jnp.sum(fills, axis=1)
    positive = jnp.maximum(averaged, 0.0)
    earned = jnp.where(failed, 0.0, positive)
    total = jnp.sum(earned)
    gain = jnp.where(
        jnp.any(failed) & (total > 0.0),
        jnp.sum(positive) / jnp.where(total > 0.0, total, 1.0),
        1.0,
    )
    return jnp.minimum(averaged, 0.0) + gain * earned


def compat_order(fitness: Float[Array, " member"]) -> Int[Array, " member"]:
    """Rows from worst to best by a plain stable sort: ties by row, NaN last (= best)."""
    return jnp.argsort(fitness, stable=True)


def compat_shaped(fitness: Float[Array, " member"]) -> Float[Array, " member"]:
    """Ranks of a plain stable sort: ties broken by row index, NaN best. Only for comparisons.

    **Arguments:** `fitness`: `(P,)`.

    **Returns:** `(P,)` in [-0.5, 0.5], all different even for constant fitness.
    """
    size = fitness.shape[0]
    order = compat_order(fitness)
    ranks = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    return ranks.astype(fitness.dtype) / max(size - 1, 1) - 0.5


def compat_elite_weights(
    fitness: Float[Array, " member"], num_elites: int
) -> Float[Array, " member"]:
    """Uniform weight on the last `num_elites` rows of [`compat_order`][]."""
    elites = compat_order(fitness)[fitness.shape[0] - num_elites :]
    return jnp.zeros_like(fitness).at[elites].set(1.0 / num_elites)


def shape(fitness: Float[Array, " member"], *, compat: bool = False) -> Float[Array, " member"]:
    """Centred ranks `(P,)`: averaged over ties, or in `compat` broken by row index."""
    return compat_shaped(fitness) if compat else centered_ranks(fitness)


def weigh_elites(
    fitness: Float[Array, " member"], num_elites: int, *, compat: bool = False
) -> Float[Array, " member"]:
    """[`elite_weights`][], or in `compat` [`compat_elite_weights`][]."""
    return (compat_elite_weights if compat else elite_weights)(fitness, num_elites)


def finite_summary(
    fitness: Float[Array, " member"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Best and mean raw fitness over the finite members; NaN when there is none.

    **Arguments:** `fitness`: `(P,)`, raw: shaped ranks would hide the scale.

    **Returns:** `(best, mean)` scalars.
    """
    finite = jnp.isfinite(fitness)
    count = jnp.sum(finite)
    best = jnp.max(failures_last(fitness))
    mean = jnp.sum(jnp.where(finite, fitness, 0.0)) / jnp.maximum(count, 1)
    return jnp.where(count > 0, best, jnp.nan), jnp.where(count > 0, mean, jnp.nan)


def keep_unless_informative(fitness: Float[Array, " member"], old: StateT, new: StateT) -> StateT:
    """`new` if the fitness told members apart, else `old` bit for bit.

    Without this, Adam's moments, an evolution path or weight decay would move the mean on a
    generation from which nothing was learned.
    """
    learned = informative(fitness)
    return jax.tree.map(lambda a, b: jnp.where(learned, b, a), old, new)


def settle(
    fitness: Float[Array, " member"], old: StateT, new: StateT, *, compat: bool = False
) -> StateT:
    """[`keep_unless_informative`][], or in `compat` always `new`."""
    return new if compat else keep_unless_informative(fitness, old, new)
