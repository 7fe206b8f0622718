"""The seed's door to a whole training run: `merl_train`.

In: an environment, a config, counts, ES numbers, a key. Out: the final state and the history.
Axis: none.
May import: everything above the scripts.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from purejax_merl import build, loop, model
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.config import ConfigError, RunConfig
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.evolve.base import AbstractStrategy
from purejax_merl.evolve.seed import ESConfig
from purejax_merl.learn.dual import DualState
from purejax_merl.rounds import RoundState


class FinalState(eqx.Module):
    """What a training run leaves."""

    actor: AbstractActor
    critic: AbstractCritic
    optimizer: PyTree[Any]
    """Adam's moments of executor, selector and critic."""
    dual: DualState
    round_state: RoundState
    """Everything, as the compiled round carries it."""


def merl_train(
    env: AbstractTeamEnv | None,
    cfg: RunConfig,
    *,
    key: PRNGKeyArray,
    n_outer: int,
    grad_steps: int,
    es_cfg: ESConfig,
    log_fn: Callable[[int, dict[str, Any]], None] | None = None,
    init_from: str | Path | None = None,
    actor: AbstractActor | None = None,
    critic: AbstractCritic | None = None,
    strategy: AbstractStrategy | None = None,
) -> tuple[FinalState, list[dict[str, Any]]]:
    """Trains a team by `n_outer` compiled rounds of PPO and evolution.

    **Arguments:**

    - `env`: any team environment, or None for the coverage world of `cfg.env`.
    - `cfg`: everything that the other arguments do not say; its selector must be on.
    - `key`: root of all randomness; old-style and new-style keys both work.
    - `grad_steps`: PPO steps per round.
    - `es_cfg`: population, σ, step size and kind; nes ascends by plain gradient here, as published.
    - `log_fn`: called as `log_fn(outer, record)` once per round, after its chunk.
    - `init_from`: a saved `model.eqx` to start from.
    - `actor`, `critic`, `strategy`: parts of one's own, instead of those that `cfg` and `es_cfg`
      describe.

    **Returns:** the final state, and the history: one record per round.

    **Errors:** `ConfigError` (a `ValueError`) before anything is compiled.
    """
    cfg = _configure(cfg, n_outer, grad_steps, es_cfg)
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    root = key if typed else jax.random.wrap_key_data(key)
    init_key, root = jax.random.split(root)
    env = build.make_env(cfg) if env is None else env
    if init_from is not None:
        if actor is not None or critic is not None:
            raise ConfigError("`init_from` brings actor and critic: leave it out to pass your own.")
        actor, critic = model.warm_start(init_from, cfg, env)
    devices = build.make_mesh(cfg)
    run = build.build_run(cfg, env=env, actor=actor, critic=critic, strategy=strategy, key=init_key)
    program = loop.Program(loop.gather([run], [root], devices=devices), cfg.chunk)
    state, history = program.study.state, []
    for chunk in loop.train(program, state, n_outer):
        state = chunk.state
        history += chunk.records[0]
        if log_fn is not None:
            for record in chunk.records[0]:
                log_fn(record["outer"], record)
    return _final(program.study.collect(state)), history


def _configure(cfg: RunConfig, n_outer: int, grad_steps: int, es_cfg: ESConfig) -> RunConfig:
    """The config with the explicit arguments written into it, checked again."""
    if cfg.agent.selector == "off":
        raise ConfigError("`cfg.agent.selector` is off; `merl_train` evolves it: set it to 'on'.")
    es = dataclasses.replace(
        cfg.es,
        pop=es_cfg.pop_size,
        sigma=es_cfg.sigma,
        es_lr=es_cfg.lr,
        es_kind=es_cfg.kind,
        es_optimizer="sgd",
        elite_frac=es_cfg.elite_frac,
        weight_decay=es_cfg.weight_decay,
    )
    return dataclasses.replace(cfg, outer=n_outer, grad_steps=grad_steps, es=es)


def _final(state: RoundState) -> FinalState:
    learner = state.learner
    return FinalState(
        actor=learner.actor,
        critic=learner.critic,
        optimizer=(
            learner.executor_moments,
            learner.selector_moments,
            learner.critic_moments,
        ),
        dual=learner.dual,
        round_state=state,
    )
