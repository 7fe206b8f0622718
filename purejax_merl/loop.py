"""The host's part of training: compile one chunk, call it until the rounds are done.

In: a `Run`. Out: states and history records, chunk by chunk.
Axis: wall-clock.
May import: build and below, runtime.
"""

import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from purejax_merl.build import Run
from purejax_merl.config import RunConfig
from purejax_merl.rounds import Hybrid, RoundLog, RoundState, run_rounds


class Program:
    """One chunk of rounds, compiled once; the number of rounds of a run is not part of it."""

    def __init__(self, run: Run, root: PRNGKeyArray, chunk: int):
        """Compiles. `seconds` is what that took, `compiled` the executable."""
        self._hybrid, self._root, self.chunk = run.hybrid, root, chunk
        started = time.perf_counter()
        call = jax.jit(run_rounds, static_argnames="chunk", donate_argnames="state")
        lowered = call.lower(run.hybrid, run.state, root, jnp.int32(chunk), chunk=chunk)
        self.compiled = lowered.compile()
        self.seconds = time.perf_counter() - started

    def __call__(self, state: RoundState, rounds: int) -> tuple[RoundState, RoundLog]:
        """Runs `rounds` ≤ chunk rounds. The state passed in is donated: use the one returned."""
        return self.compiled(self._hybrid, state, self._root, jnp.int32(rounds))


class Chunk(eqx.Module):
    """What one call gave."""

    state: RoundState
    records: list[dict[str, Any]]


def train(
    program: Program, state: RoundState, outer: int, *, env_steps: int = 0
) -> Iterator[Chunk]:
    """Calls the program until `outer` rounds are done, yielding after every call.

    **Arguments:** `env_steps`: team steps that the rounds before `state` took.

    The state of a chunk is donated to the next one: take what you need of it before going on.
    """
    done = int(state.round)
    while done < outer:
        rounds = min(program.chunk, outer - done)
        started = time.perf_counter()
        state, log = program(state, rounds)
        state = jax.block_until_ready(state)
        seconds = time.perf_counter() - started
        rows = records(log, rounds, first=done, env_steps=env_steps, skills=skill_names(state))
        for row in rows:
            row["seconds"] = seconds / rounds
        env_steps = rows[-1]["env_steps"]
        done += rounds
        yield Chunk(state=state, records=rows)


def skill_names(state: RoundState) -> tuple[str, ...]:
    """Names of the actor's skills, in the order of its selector."""
    return state.learner.actor.skill_names


def records(
    log: RoundLog, rounds: int, *, first: int, env_steps: int, skills: tuple[str, ...]
) -> list[dict[str, Any]]:
    """One flat record per round.

    `best`, `mean`: fitness over the population. `grad_cov`, `grad_conn5`: coverage and share of
    steps with λ₂ > 0.5 of the last PPO step's rollout, in percent. `train_*`: metrics of that
    rollout. `score_*`: metrics of the policy written back, on the judging worlds. `env_steps`:
    team steps since the start.
    """
    host = jax.tree.map(np.asarray, log)
    rows = []
    for i in range(rounds):
        here = jax.tree.map(lambda x, i=i: x[i], host)
        env_steps += int(here.env_steps)
        rows.append({"outer": first + i, **_flat(here, skills), "env_steps": env_steps})
    return rows


def _flat(log: RoundLog, skills: tuple[str, ...]) -> dict[str, float]:
    record: dict[str, float] = {}
    if log.evolution is not None:
        record |= {"best": float(log.evolution.best), "mean": float(log.evolution.mean)}
    if log.train is not None:
        score = {f"train_{k}": v for k, v in _scalars(log.train.score).items()}
        if "train_coverage" in score and "train_conn_05" in score:
            record["grad_cov"] = 100 * score["train_coverage"]
            record["grad_conn5"] = 100 * score["train_conn_05"]
        record |= score | _scalars(log.train.ppo)
        use = zip(skills, log.train.skill_use, strict=True)
        record |= {f"skill_{name}": float(share) for name, share in use}
        record |= {name: float(getattr(log.train, name)) for name in ("reward", "cost", "price")}
    if log.evolution is not None:
        names = ("std", "non_finite", "before", "after", "accepted", "sigma", "step_norm")
        record |= {f"es_{name}": float(getattr(log.evolution, name)) for name in names}
        record |= {f"score_{k}": v for k, v in _scalars(log.evolution.score).items()}
    return record


def _scalars(module: eqx.Module) -> dict[str, float]:
    """A log's fields as floats, in their order."""
    return {name: float(value) for name, value in vars(module).items()}


def first_lines(hybrid: Hybrid, config: RunConfig) -> list[str]:
    """What is about to be trained, and the search's numbers, which decide more than any others."""
    env, es = hybrid.env, config.es
    ppo = f"{hybrid.grad_steps} PPO steps × {hybrid.worlds} worlds"
    search = f"{hybrid.strategy.population_size} members × {hybrid.evolution.worlds} worlds"
    parts = {"gradient": ppo, "evolution": search}.get(es.arm, f"{ppo}, then {search}")
    lines = [
        f"training {es.arm}: {config.outer} rounds of {parts}",
        f"world: {type(env).__name__}, {env.num_agents} agents, {env.horizon} steps an episode",
    ]
    if es.arm != "gradient":
        rates = f"sigma {es.sigma:g}, lr {es.es_lr:g} ({es.es_optimizer}), fitness {es.fitness}"
        lines.append(f"evolution: {es.es_kind}, population {es.pop}, {rates}")
    return lines
