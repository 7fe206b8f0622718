"""Gradient and evolution on disjoint parts of one model: the loop alone, around any callables.

In: functions that train, score and carry weights across; a genome. Out: the last genome, a history.
Axes: round R, as a Python loop or one compiled scan; in the compiled form also member P, by `vmap`.
May import: `evolve`.
Source: MERL, Majumdar, Khadka, Miret, McAleer, Tumer 2020, arXiv 1906.07315.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .evolve.base import AbstractStrategy
from .evolve.ranking import finite_summary
from .evolve.seed import ESConfig, es_step, make_strategy

GState = PyTree[Any]
"""What the gradient half owns; any pytree, or None if the callables keep it themselves."""


class CoexistLog(eqx.Module):
    """One row per round, stacked to `(R,)`; scalars only, never genomes."""

    best_fitness: Float[Array, "*round"]
    """Over the finite members, raw; NaN if a round had none."""
    mean_fitness: Float[Array, "*round"]
    """Over the finite members, raw; NaN if a round had none."""
    sigma: Float[Array, "*round"]
    """Step size after the round."""


class _Carry(eqx.Module):
    """What one round hands to the next."""

    theta: Float[Array, " dim"]
    search: PyTree[Array]
    gstate: PyTree[Array]


def merl_coexist(
    *,
    theta0: Float[Array, " dim"],
    eval_fn: Callable[[Float[Array, " dim"]], Any],
    gradient_step_fn: Callable[[GState], GState],
    sync_in: Callable[[GState, Float[Array, " dim"]], Float[Array, " dim"]],
    sync_out: Callable[[GState, Float[Array, " dim"]], GState],
    n_outer: int,
    grad_steps_per_outer: int,
    es_cfg: ESConfig,
    key: PRNGKeyArray,
    gstate0: GState = None,
) -> tuple[Float[Array, " dim"], GState, list[tuple[int, dict[str, float]]]]:
    """Alternates gradient steps and one evolution step, on the host.

    Nothing here is compiled: the callables run as plain Python in a fixed order, so they may keep
    state in closures and change it every round. For pure callables see
    [`merl_coexist_compiled`][].

    **Arguments:**

    - `theta0`: genome `(D,)` of the evolved half.
    - `eval_fn`: `theta_i -> fitness`, maximised; once per member and round.
    - `gradient_step_fn`: `gstate -> gstate`; `grad_steps_per_outer` times per round.
    - `sync_in`: `(gstate, theta) -> theta`, after the gradient steps: what evolution starts from.
    - `sync_out`: `(gstate, theta) -> gstate`, after the evolution step: writes the genome back.
    - `n_outer`: rounds R.
    - `es_cfg`: see [`es_step`][]. For `"cem"` each round samples with the sigma that the last one
      fitted, never below `es_cfg.sigma_floor`.
    - `key`: of the noise; round `t` uses `fold_in(key, t)`.
    - `gstate0`: None if the callables keep their state in closures.

    **Returns:** `(theta, gstate, history)`; `history` is a list of `(outer, info)`.

    **Errors:** `ValueError` for negative counts.
    """
    _check_counts("merl_coexist", n_outer, grad_steps_per_outer)
    theta, gstate, history = theta0, gstate0, []
    sigma_floor = es_cfg.sigma_floor
    for outer in range(n_outer):
        for _ in range(grad_steps_per_outer):
            gstate = gradient_step_fn(gstate)
        theta = sync_in(gstate, theta)
        noise_key, _, _ = round_keys(key, outer)
        theta, info = es_step(theta, eval_fn, es_cfg, noise_key)
        if "sigma" in info:
            es_cfg = dataclasses.replace(es_cfg, sigma=max(info["sigma"], sigma_floor))
        gstate = sync_out(gstate, theta)
        history.append((outer, info))
    return theta, gstate, history


def merl_coexist_compiled(
    *,
    theta0: Float[Array, " dim"],
    eval_fn: Callable[[Float[Array, " dim"], GState, PRNGKeyArray], Float[Array, ""]],
    gradient_step_fn: Callable[[GState, PRNGKeyArray], GState],
    sync_in: Callable[[GState, Float[Array, " dim"]], Float[Array, " dim"]],
    sync_out: Callable[[GState, Float[Array, " dim"]], GState],
    n_outer: int,
    grad_steps_per_outer: int,
    strategy: AbstractStrategy | ESConfig,
    key: PRNGKeyArray,
    gstate0: GState = None,
) -> tuple[Float[Array, " dim"], GState, CoexistLog]:
    """The same loop for pure callables: one program, a scan over rounds, a `vmap` over members.

    The callables are traced once: what they read from a closure is frozen at its first value, so
    everything that changes must travel in `gstate`. All members of a round are scored with the
    same key (common random numbers). With the same `key` and callables that ignore theirs, the
    rounds equal those of [`merl_coexist`][] up to rounding.

    **Arguments:** as [`merl_coexist`][], except

    - `eval_fn`: `(theta_i, gstate, key) -> fitness ()`.
    - `gradient_step_fn`: `(gstate, key) -> gstate`, same structure, shapes and dtypes.
    - `strategy`: any strategy, or an `ESConfig` for [`make_strategy`][]; its state (sigma,
      moments, paths) goes from round to round.

    **Returns:** `(theta, gstate, log)`; the log's leaves are `(R,)`.

    **Errors:** `ValueError` for negative counts.
    """
    _check_counts("merl_coexist_compiled", n_outer, grad_steps_per_outer)
    search = make_strategy(strategy) if isinstance(strategy, ESConfig) else strategy
    arrays, fixed = eqx.partition(jax.tree.map(_strong, gstate0), eqx.is_array)
    theta = jnp.asarray(theta0)
    carry = _Carry(theta=_strong(theta), search=search.init(theta), gstate=arrays)
    parts = (eval_fn, gradient_step_fn, sync_in, sync_out)
    carry, log = _run_rounds(carry, key, search, fixed, parts, n_outer, grad_steps_per_outer)
    return carry.theta, eqx.combine(carry.gstate, fixed), log


def round_keys(
    key: PRNGKeyArray, outer: int | Array
) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """`(noise, evaluation, gradient)` keys of one round, the same in both loops."""
    noise, evaluation, gradient = jax.random.split(jax.random.fold_in(key, outer), 3)
    return noise, evaluation, gradient


@eqx.filter_jit
def _run_rounds(
    carry: _Carry,
    key: PRNGKeyArray,
    search: AbstractStrategy,
    fixed: PyTree[Any],
    parts: tuple[Callable[..., Any], ...],
    n_outer: int,
    grad_steps_per_outer: int,
) -> tuple[_Carry, CoexistLog]:
    eval_fn, gradient_step_fn, sync_in, sync_out = parts

    def gradient_step(gstate, key):
        stepped = gradient_step_fn(eqx.combine(gstate, fixed), key)
        return eqx.filter(jax.tree.map(_strong, stepped), eqx.is_array), None

    def play_round(carry, outer):
        noise_key, eval_key, gradient_key = round_keys(key, outer)
        step_keys = jax.random.split(gradient_key, grad_steps_per_outer)
        trained, _ = jax.lax.scan(gradient_step, carry.gstate, step_keys)
        gstate = eqx.combine(trained, fixed)
        state = search.inject(carry.search, sync_in(gstate, carry.theta))
        population, state = search.ask(state, key=noise_key)
        fitness = jax.vmap(eval_fn, in_axes=(0, None, None))(population, gstate, eval_key)
        state = search.tell(state, population, fitness)
        theta = search.mean(state)
        written = jax.tree.map(_strong, sync_out(gstate, theta))
        best, mean = finite_summary(fitness)
        row = CoexistLog(best_fitness=best, mean_fitness=mean, sigma=search.sigma(state))
        return _Carry(theta, state, eqx.filter(written, eqx.is_array)), row

    return jax.lax.scan(play_round, carry, jnp.arange(n_outer))


def _strong(leaf: Any) -> Any:
    """Numbers become arrays without weak type, so that a scan carry keeps its type."""
    if not eqx.is_array_like(leaf):
        return leaf
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return jnp.asarray(array, array.dtype)


def _check_counts(call: str, n_outer: int, grad_steps_per_outer: int) -> None:
    for field, count in (("n_outer", n_outer), ("grad_steps_per_outer", grad_steps_per_outer)):
        if count < 0:
            raise ValueError(f"`{call}({field}={count})` must be at least 0.")
