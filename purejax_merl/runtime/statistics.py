"""How sure a mean over episodes or seeds is: bootstrap intervals and the IQM.

In: plain arrays of scores. Out: numbers, and `(low, high)` pairs.
Axis: E episodes (or tasks), S seeds. May import: nothing of this package, nor JAX.
The intervals are percentile ones: BCa breaks down on the near-constant scores of a good policy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Values = np.ndarray | Sequence[Any]
Interval = tuple[float, float]

# Bounds the memory of one block of resamples to some tens of megabytes.
_MAX_DRAWS_PER_BLOCK = 2_000_000


def bootstrap_interval(
    values: Values, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The percentile bootstrap interval of a mean.

    **Arguments**: `values`: `(E,)`, one finite number an episode. `level`: its coverage.
    **Returns**: `(low, high)`; twice the value itself where all are equal.
    **Raises**: `ValueError` for no values, values that are not finite, or a bad level.
    """
    scores = _checked(values, ndim=1)
    _check_level(level, resamples)
    if np.all(scores == scores[0]):
        return float(scores[0]), float(scores[0])
    from scipy import stats  # slow to import, and wanted only at a run's end

    result = stats.bootstrap(
        (scores,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, _MAX_DRAWS_PER_BLOCK // scores.size),
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def paired_bootstrap(
    a: Values, b: Values, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of the mean of `a - b`, where entry i of both comes from the same world.

    Zero outside it says that the two differ; pairing leaves the worlds' own spread out.

    **Arguments**: `a`, `b`: `(E,)` each.
    **Raises**: `ValueError` as `bootstrap_interval`, or if the lengths differ.
    """
    first, second = _checked(a, ndim=1), _checked(b, ndim=1)
    if first.shape != second.shape:
        raise ValueError(
            f"`paired_bootstrap(a, b)` needs one pair a world, got {first.size} and {second.size}."
        )
    return bootstrap_interval(first - second, level=level, resamples=resamples, seed=seed)


def iqm(values: Values) -> float:
    """The interquartile mean: the mean of the middle half of all values, whatever the shape.

    Less noisy than the median, less moved by outliers than the mean (Agarwal et al. 2021,
    arXiv 2108.13264, section 4.3).
    """
    from scipy import stats

    return float(stats.trim_mean(_checked(values, ndim=None).ravel(), 0.25))


def stratified_bootstrap(
    values: Values, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of the IQM over seeds and tasks, seeds redrawn within each task.

    **Arguments**: `values`: `(S, E)`; rows are independent runs, columns are tasks (the strata:
    grid sizes, terrains). Episodes of one run are not strata: see `seed_bootstrap`.
    **Returns**: `(low, high)`.
    **Raises**: `ValueError` as `bootstrap_interval`.
    """
    scores = _checked(values, ndim=2)
    columns = np.arange(scores.shape[1])

    def redraw(generator: np.random.Generator) -> float:
        return iqm(scores[generator.integers(0, len(scores), scores.shape), columns])

    return _percentiles(redraw, level, resamples, seed)


def seed_bootstrap(
    values: Values, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of the IQM over seeds of each seed's mean over its episodes.

    Seeds are redrawn first and episodes within each drawn seed, since episodes of one training
    run are not independent evidence about training.

    **Arguments**: `values`: `(S, E)`; rows are training runs, columns their episodes.
    **Returns**: `(low, high)`.
    **Raises**: `ValueError` as `bootstrap_interval`.
    """
    scores = _checked(values, ndim=2)
    num_seeds, num_episodes = scores.shape

    def redraw(generator: np.random.Generator) -> float:
        rows = generator.integers(0, num_seeds, num_seeds)
        episodes = generator.integers(0, num_episodes, scores.shape)
        return iqm(scores[rows[:, None], episodes].mean(axis=1))

    return _percentiles(redraw, level, resamples, seed)


def _percentiles(
    redraw: Callable[[np.random.Generator], float], level: float, resamples: int, seed: int
) -> Interval:
    _check_level(level, resamples)
    generator = np.random.default_rng(seed)
    draws = [redraw(generator) for _ in range(resamples)]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _check_level(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"`level={level}` must lie between 0 and 1, for example 0.95.")
    if resamples < 1:
        raise ValueError(f"`resamples={resamples}` must be at least 1; 2000 is usual.")


def _checked(values: Values, *, ndim: int | None) -> np.ndarray:
    """The values as float64, of the asked number of axes (None: any), none missing."""
    scores = np.asarray(values, dtype=np.float64)
    if ndim is not None and scores.ndim != ndim:
        raise ValueError(f"scores need {ndim} axis(es), got shape {scores.shape}.")
    if scores.size == 0:
        raise ValueError("scores are empty; evaluate at least one episode.")
    if not np.all(np.isfinite(scores)):
        raise ValueError("scores are not all finite; an interval over them would mean nothing.")
    return scores
