"""Where actors and environments meet.

In: an environment, an actor, one key per world. Out: a `Rollout`, only its `Outcome`, or one
world's `Episode` to look at.
Axes: time T (one scan) and, inside it, worlds B. Members are mapped by `rounds`.
May import: types, envs, agents.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from purejax_merl.agents import policy as policies
from purejax_merl.agents.base import AbstractActor
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.types import Episode, Outcome, Rollout, Step

Kept = TypeVar("Kept")


class _Carry(eqx.Module):
    states: PyTree[Any]
    alive: Bool[Array, "world"]


class _Drawn(eqx.Module):
    """What chance decides in every step."""

    uniform: Float[Array, "*time_world agent 2"]
    """Two per agent: one for the skill, one for its move."""
    key: Key[Array, "*time_world"]
    """The world's own."""


class Sampler(eqx.Module):
    """How a rollout acts and what it charges for crowding."""

    greedy: Bool[Array, ""] | None = None
    """None: sample. A traced flag decides between sampled and likeliest, so that one program
    evaluates both."""
    congestion_weight: float = eqx.field(static=True, default=0.0)


def world_keys(key: PRNGKeyArray, number: int) -> Key[Array, "world"]:
    """One key per world by its index, so that more worlds leave the earlier ones as they were."""
    return jax.vmap(lambda world: jax.random.fold_in(key, world))(jnp.arange(number))


def collect(
    env: AbstractTeamEnv, actor: AbstractActor, sampler: Sampler, *, keys: Key[Array, "world"]
) -> Rollout:
    """Whole episodes with everything that the learner needs.

    **Arguments:** `keys`: `(B,)`, one per world.

    **Returns:** a `Rollout`; rows after an episode's end are kept, with `alive` False.
    """
    final, (steps, trace) = _episodes(env, actor, sampler, lambda _, step: step, keys=keys)
    return Rollout(
        steps=steps,
        last_view=jax.vmap(env.view)(final),
        last_team_view=jax.vmap(env.team_view)(final),
        outcome=_outcome(env, final, trace),
    )


def outcomes(
    env: AbstractTeamEnv, actor: AbstractActor, sampler: Sampler, *, keys: Key[Array, "world"]
) -> Outcome:
    """The same episodes, keeping only what they came to: leaves `(B,)`."""
    final, (_, trace) = _episodes(env, actor, sampler, lambda *_: None, keys=keys)
    return _outcome(env, final, trace)


def episode(
    env: AbstractTeamEnv, actor: AbstractActor, sampler: Sampler, *, key: PRNGKeyArray
) -> Episode:
    """The same episode of one world, keeping its states and actions to look at."""
    final, ((states, actions), trace) = _episodes(
        env, actor, sampler, lambda states, step: (states, step.action), keys=key[None]
    )
    states = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), states, final)
    states, actions, alive = jax.tree.map(lambda x: x[:, 0], (states, actions, trace.alive))
    outcome = jax.tree.map(lambda x: x[0], _outcome(env, final, trace))
    return Episode(states=states, action=actions, alive=alive, outcome=outcome)


class _Trace(eqx.Module):
    """What every step adds to the outcome."""

    reward: Float[Array, "*time_world"]
    cost: Float[Array, "*time_world"]
    terms: PyTree[Float[Array, "*time_world"]]
    alive: Bool[Array, "*time_world"]


def _episodes(
    env: AbstractTeamEnv,
    actor: AbstractActor,
    sampler: Sampler,
    keep: Callable[[PyTree[Any], Step], Kept],
    *,
    keys: Key[Array, "world"],
) -> tuple[PyTree[Any], tuple[Kept, _Trace]]:
    """All worlds until the horizon. After an episode's end its state stands still.

    The world's methods are mapped; the actor sees all worlds as one batch: its layers are then
    plain products of rows, which a compiler fuses, while mapped ones are reshaped in between.
    """
    reset_keys, draw_keys, step_keys = jnp.moveaxis(jax.vmap(_three)(keys), 1, 0)

    def body(carry: _Carry, drawn: _Drawn) -> tuple[_Carry, tuple[Kept, _Trace]]:
        states = carry.states
        view, graph, legal = (jax.vmap(see)(states) for see in (env.view, env.graph, env.legal))
        policy = actor(view, graph, legal)
        action = policies.sample(policy, drawn.uniform)
        if sampler.greedy is not None:
            pick = functools.partial(jnp.where, sampler.greedy)
            action = jax.tree.map(pick, policies.greedy(policy), action)
        moved, paid = jax.vmap(lambda state, move, key: env.step(state, move, key=key))(
            states, action.move, drawn.key
        )
        reward = paid.reward
        if sampler.congestion_weight:
            crowd = crowding(jax.vmap(env.graph)(moved), action.skill)
            reward = reward - sampler.congestion_weight * crowd
        step = Step(
            view=view,
            team_view=jax.vmap(env.team_view)(states),
            legal=legal,
            graph=graph,
            action=action,
            reward=reward,
            cost=paid.cost,
            terminated=paid.terminated,
            alive=carry.alive,
            target=paid.target,
        )
        trace = _Trace(
            reward=jnp.mean(reward, axis=-1),
            cost=jnp.mean(paid.cost, axis=-1),
            terms=paid.terms,
            alive=carry.alive,
        )
        stand = jax.vmap(
            lambda go, new, old: jax.tree.map(lambda a, b: jnp.where(go, a, b), new, old)
        )
        alive = carry.alive & ~paid.terminated & ~paid.truncated
        return _Carry(stand(carry.alive, moved, states), alive), (keep(states, step), trace)

    start = _Carry(
        states=jax.vmap(lambda key: env.reset(key=key))(reset_keys),
        alive=jnp.ones(keys.shape, bool),
    )
    final, outputs = lax.scan(body, start, _draw(draw_keys, step_keys, env))
    return final.states, outputs


def _three(key: PRNGKeyArray) -> Key[Array, "3"]:
    return jax.random.split(key, 3)


def _draw(
    draw_keys: Key[Array, "world"], step_keys: Key[Array, "world"], env: AbstractTeamEnv
) -> _Drawn:
    """All chance of the episodes at once: random bits inside a loop are a loop of their own.

    Uniforms are keyed by world, step and agent: neither the team's size nor the horizon moves
    anybody's draws.
    """
    times, agents = jnp.arange(env.horizon), jnp.arange(env.num_agents)

    def one_agent(key: PRNGKeyArray, agent: Int[Array, ""]) -> Float[Array, "2"]:
        return jax.random.uniform(jax.random.fold_in(key, agent), (2,))

    def one_step(draw_key: PRNGKeyArray, step_key: PRNGKeyArray, time: Int[Array, ""]) -> _Drawn:
        key = jax.random.fold_in(draw_key, time)
        uniform = jax.vmap(one_agent, in_axes=(None, 0))(key, agents)
        return _Drawn(uniform=uniform, key=jax.random.fold_in(step_key, time))

    one_time = jax.vmap(one_step, in_axes=(0, 0, None))
    return jax.vmap(one_time, in_axes=(None, None, 0))(draw_keys, step_keys, times)


def crowding(
    graph: Bool[Array, "*batch agent agent"], skill: Int[Array, "*batch agent"]
) -> Float[Array, "*batch agent"]:
    """Number of teammates in range that chose the same skill.

    **Arguments:** `graph`: who is in range of whom, nobody of itself.
    """
    alike = graph & (skill[..., :, None] == skill[..., None, :])
    return jnp.sum(alike, axis=-1).astype(jnp.float32)


def _outcome(env: AbstractTeamEnv, final: PyTree[Any], trace: _Trace) -> Outcome:
    """Leaves `(B,)`."""
    alive = trace.alive.astype(jnp.float32)
    length = jnp.sum(alive, axis=0)
    mean_terms = jax.tree.map(lambda term: jnp.sum(term * alive, axis=0) / length, trace.terms)
    return Outcome(
        score=jax.vmap(env.score)(final, mean_terms),
        reward_sum=jnp.sum(trace.reward * alive, axis=0),
        cost_sum=jnp.sum(trace.cost * alive, axis=0),
        steps=length,
    )
