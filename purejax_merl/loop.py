"""The host's part of training: compile one chunk, call it until the rounds are done.

In: a `Run`. Out: states and history records, chunk by chunk.
Axis: wall-clock.
May import: build and below, mesh.
"""

import contextlib
import dataclasses
import functools
import gc
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Int, Key, PRNGKeyArray

from purejax_merl import mesh
from purejax_merl.build import Run
from purejax_merl.config import ConfigError, RunConfig
from purejax_merl.rounds import Hybrid, RoundLog, RoundState, run_rounds

TreeT = TypeVar("TreeT")


class Study(eqx.Module):
    """One run, or several that share a program: their leaves are stacked along a leading axis."""

    hybrid: Hybrid
    state: RoundState
    root: Key[Array, "*members"]
    members: int = eqx.field(static=True)
    devices: Mesh | None = eqx.field(static=True, default=None)
    """Over which the members are spread, or the work of one run; None: one device."""

    def member(self, tree: TreeT, index: int) -> TreeT:
        """The part of a state or log that belongs to one run."""
        return tree if self.members == 1 else jax.tree.map(lambda x: x[index], tree)

    @property
    def layout(self) -> NamedSharding | None:
        """How arguments and results of the program lie on the devices: one share of the members
        each, or the one run whole on each; None: on the default device."""
        if self.devices is None:
            return None
        return mesh.copies(self.devices) if self.members == 1 else mesh.shares(self.devices)

    def place(self, tree: TreeT) -> TreeT:
        """State, parts or keys where the program expects them."""
        return tree if self.layout is None else jax.device_put(tree, self.layout)

    def collect(self, tree: TreeT) -> TreeT:
        """The same on a single device, for what comes after training."""
        if self.devices is None:
            return tree
        return jax.device_put(tree, self.devices.devices.flat[0])


def gather(
    runs: Sequence[Run], roots: Sequence[PRNGKeyArray], *, devices: Mesh | None = None
) -> Study:
    """Puts runs side by side; one run alone keeps its shapes, and so its bits.

    **Arguments:** `devices`: from `build.make_mesh`.

    **Errors:** `ConfigError` if the runs differ in more than seeds and rates.
    """
    if len(runs) == 1:
        hybrid = dataclasses.replace(runs[0].hybrid, devices=devices)
        return Study(hybrid=hybrid, state=runs[0].state, root=roots[0], members=1, devices=devices)
    if len({jax.tree.structure(run) for run in runs}) > 1:
        raise ConfigError(
            "`--sweep` cannot reach a number that is part of the program; with an evosax strategy "
            "that is the case of sigma and es_lr: run its values one after the other."
        )
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)
    return Study(
        hybrid=stacked.hybrid,
        state=stacked.state,
        root=jnp.stack(roots),  # pyright: ignore[reportArgumentType]
        members=len(runs),
        devices=devices,
    )


class Program:
    """One chunk of rounds, compiled once; the number of rounds of a run is not part of it.

    The members of a study advance together as one mapped axis, or, `members_at_once` being 1 on one
    device, one after the other through the same program.
    """

    def __init__(self, study: Study, chunk: int, *, members_at_once: int = 0):
        """Compiles. `seconds` is what that took, `compiled` the executable.

        **Arguments:** `members_at_once`: on one device; bounds the memory of a study. 0: all of
        them on an accelerator; 1 on a CPU, which small products per member only slow down.
        """
        if members_at_once == 0:
            members_at_once = 1 if jax.default_backend() == "cpu" else study.members
        parts = (study.hybrid, study.state, study.root)
        self.study = eqx.tree_at(lambda s: (s.hybrid, s.state, s.root), study, study.place(parts))
        self.chunk = chunk
        self._alone = members_at_once == 1 and study.devices is None
        started = time.perf_counter()
        call = jax.jit(
            functools.partial(
                _advance, chunk=chunk, at_once=members_at_once, devices=study.devices
            ),
            donate_argnames="state",
            out_shardings=study.layout,
        )
        first = self._member(0, self.study.state)
        with _collector_paused():
            self.compiled = call.lower(*first, self._active(chunk)).compile()
        self.seconds = time.perf_counter() - started

    def __call__(self, state: RoundState, rounds: int) -> tuple[RoundState, RoundLog]:
        """Runs `rounds` ≤ chunk rounds. The state passed in is donated: use the one returned."""
        active = self._active(rounds)
        if self.study.members == 1 or not self._alone:
            return self.compiled(*self._member(0, state), active)
        ends = [self.compiled(*self._member(m, state), active) for m in range(self.study.members)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *ends)

    def _active(self, rounds: int) -> Int[Array, ""]:
        devices = self.study.devices
        active = jnp.int32(rounds)
        return active if devices is None else jax.device_put(active, mesh.copies(devices))

    def _member(
        self, index: int, state: RoundState
    ) -> tuple[Hybrid, RoundState, Key[Array, "..."]]:
        """What the program takes: one member's parts, or everybody's."""
        parts = (self.study.hybrid, state, self.study.root)
        return self.study.member(parts, index) if self._alone else parts


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Tracing makes many objects and hardly any garbage: looking for it takes a tenth of a
    start with a warm compilation cache."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _advance(
    hybrid: Hybrid,
    state: RoundState,
    root: Key[Array, "*members"],
    active: Int[Array, ""],
    *,
    chunk: int,
    at_once: int,
    devices: Mesh | None,
) -> tuple[RoundState, RoundLog]:
    """The chunk for one member (a single root key), or mapped over all, `at_once` at a time on
    every device."""

    def one(member: tuple[Hybrid, RoundState, PRNGKeyArray]) -> tuple[RoundState, RoundLog]:
        return run_rounds(*member, active, chunk=chunk)

    everybody = (hybrid, state, root)
    if root.ndim == 0:
        return one(everybody)
    return mesh.map_rows(one, everybody, devices, at_once=min(at_once, root.shape[0]))


class Chunk(eqx.Module):
    """What one call gave."""

    state: RoundState
    records: list[list[dict[str, Any]]]
    """For every member, one record per round."""


def train(
    program: Program, state: RoundState, outer: int, *, env_steps: int = 0
) -> Iterator[Chunk]:
    """Calls the program until `outer` rounds are done, yielding after every call.

    **Arguments:** `env_steps`: team steps of one member in the rounds before `state`.

    The state of a chunk is donated to the next one: take what you need of it before going on.
    """
    study, skills = program.study, skill_names(state)
    done, before = rounds_done(study, state), [env_steps] * study.members
    while done < outer:
        rounds = min(program.chunk, outer - done)
        started = time.perf_counter()
        state, log = program(state, rounds)
        state = jax.block_until_ready(state)
        seconds = time.perf_counter() - started
        host = jax.tree.map(np.asarray, log)
        rows = [
            records(study.member(host, m), rounds, first=done, env_steps=before[m], skills=skills)
            for m in range(study.members)
        ]
        for row in (row for member in rows for row in member):
            row["seconds"] = seconds / rounds
        before = [member[-1]["env_steps"] for member in rows]
        done += rounds
        yield Chunk(state=state, records=rows)


def rounds_done(study: Study, state: RoundState) -> int:
    """Rounds behind a state; all members are at the same one."""
    return int(study.member(state.round, 0))


def skill_names(state: RoundState) -> tuple[str, ...]:
    """Names of the actor's skills, in the order of its selector."""
    return state.learner.actor.skill_names


def records(
    log: RoundLog, rounds: int, *, first: int, env_steps: int, skills: tuple[str, ...]
) -> list[dict[str, Any]]:
    """One flat record per round.

    `best`, `mean`: fitness over the population, NaN (null in JSON) in the gradient arm. `grad_cov`,
    `grad_conn5`: coverage and share of steps with λ₂ > 0.5 of the last PPO step's rollout, in
    percent, 0 without PPO steps. `train_*`: metrics of that rollout. `score_*`: metrics of the
    policy written back, on the judging worlds. `env_steps`:
    team steps since the start.
    """
    rows = []
    for i in range(rounds):
        here = jax.tree.map(lambda x, i=i: x[i], log)
        env_steps += int(here.env_steps)
        rows.append({"outer": first + i, **_flat(here, skills), "env_steps": env_steps})
    return rows


def _flat(log: RoundLog, skills: tuple[str, ...]) -> dict[str, float]:
    record = {"best": math.nan, "mean": math.nan}
    if log.evolution is not None:
        record = {"best": float(log.evolution.best), "mean": float(log.evolution.mean)}
    if log.train is None:
        record |= {"grad_cov": 0.0, "grad_conn5": 0.0}
    else:
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
    if log.reuse is not None:
        record |= {f"reuse_{k}": v for k, v in _scalars(log.reuse).items()}
    return record


def _scalars(module: eqx.Module) -> dict[str, float]:
    """A log's fields as floats, in their order."""
    return {name: float(value) for name, value in vars(module).items()}


def devices_used(study: Study) -> int:
    """On how many devices it trains."""
    return 1 if study.devices is None else study.devices.size


def average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The members' mean of every field, for a glance at a study."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def first_lines(study: Study, config: RunConfig) -> list[str]:
    """What is about to be trained, and the search's numbers, which decide more than any others."""
    hybrid = study.hybrid
    env, es = hybrid.env, config.es
    ppo = f"{hybrid.grad_steps} PPO steps × {hybrid.worlds} worlds"
    search = f"{hybrid.strategy.population_size} members × {hybrid.evolution.worlds} worlds"
    parts = {"gradient": ppo, "evolution": search}.get(es.arm, f"{ppo}, then {search}")
    lines = [
        f"training {es.arm}: {config.outer} rounds of {parts}"
        + (f"; {study.members} runs side by side" if study.members > 1 else ""),
        f"world: {type(env).__name__}, {env.num_agents} agents, {env.horizon} steps an episode",
    ]
    if study.devices is not None:
        lines.append(f"on {study.devices.size} devices, on each: {_share(study)}")
    if es.arm != "gradient":
        rates = f"sigma {es.sigma:g}, lr {es.es_lr:g} ({es.es_optimizer}), fitness {es.fitness}"
        lines.append(f"evolution: {es.es_kind}, population {es.pop}, {rates}")
    return lines


def _share(study: Study) -> str:
    """What each of several devices does."""
    hybrid, number = study.hybrid, devices_used(study)
    if study.members > 1:
        return f"{study.members // number} of the runs"
    parts = []
    if hybrid.evolution.arm != "evolution" and hybrid.grad_steps:
        parts.append(f"{hybrid.worlds // number} of the PPO worlds")
    if hybrid.evolution.arm != "gradient":
        parts.append(f"{hybrid.strategy.population_size // number} of the members")
    return ", ".join(parts)
