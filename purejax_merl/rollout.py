"""Where actors and environments meet.

In: an environment, an actor, one key per world. Out: a `Rollout`, only its `Outcome`, or one
world's `Episode` to look at.
Axes: time T (one scan) and worlds B (one vmap). Members are mapped by `rounds`.
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
from purejax_merl.types import Action, Episode, Outcome, Rollout, Step

Kept = TypeVar("Kept")


class _Carry(eqx.Module):
    state: PyTree[Any]
    alive: Bool[Array, ""]


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

    def one_world(key: PRNGKeyArray) -> tuple[Step, Any, Any, Outcome]:
        final, (steps, trace) = _episode(env, actor, sampler, lambda _, step: step, key=key)
        return steps, env.view(final), env.team_view(final), _outcome(env, final, trace)

    steps, last_view, last_team_view, outcome = jax.vmap(one_world, out_axes=(1, 0, 0, 0))(keys)
    return Rollout(steps=steps, last_view=last_view, last_team_view=last_team_view, outcome=outcome)


def outcomes(
    env: AbstractTeamEnv, actor: AbstractActor, sampler: Sampler, *, keys: Key[Array, "world"]
) -> Outcome:
    """The same episodes, keeping only what they came to: leaves `(B,)`."""

    def one_world(key: PRNGKeyArray) -> Outcome:
        final, (_, trace) = _episode(env, actor, sampler, lambda *_: None, key=key)
        return _outcome(env, final, trace)

    return jax.vmap(one_world)(keys)


def episode(
    env: AbstractTeamEnv, actor: AbstractActor, sampler: Sampler, *, key: PRNGKeyArray
) -> Episode:
    """The same episode of one world, keeping its states and actions to look at."""
    final, ((states, actions), trace) = _episode(
        env, actor, sampler, lambda state, step: (state, step.action), key=key
    )
    states = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), states, final)
    return Episode(
        states=states, action=actions, alive=trace.alive, outcome=_outcome(env, final, trace)
    )


class _Trace(eqx.Module):
    """What every step adds to the outcome."""

    reward: Float[Array, "*time"]
    cost: Float[Array, "*time"]
    terms: PyTree[Float[Array, "*time"]]
    alive: Bool[Array, "*time"]


def _episode(
    env: AbstractTeamEnv,
    actor: AbstractActor,
    sampler: Sampler,
    keep: Callable[[PyTree[Any], Step], Kept],
    *,
    key: PRNGKeyArray,
) -> tuple[PyTree[Any], tuple[Kept, _Trace]]:
    """One world until the horizon. After the episode's end its state stands still."""
    reset_key, draw_key, step_key = jax.random.split(key, 3)

    def body(carry: _Carry, time: Int[Array, ""]) -> tuple[_Carry, tuple[Kept, _Trace]]:
        view, graph, legal = env.view(carry.state), env.graph(carry.state), env.legal(carry.state)
        policy = actor(view, graph, legal)
        action = policies.sample(policy, _draws(draw_key, time, env.num_agents))
        if sampler.greedy is not None:
            pick = functools.partial(jnp.where, sampler.greedy)
            action = jax.tree.map(pick, policies.greedy(policy), action)
        moved, paid = env.step(carry.state, action.move, key=jax.random.fold_in(step_key, time))
        reward = paid.reward - _crowding(env, moved, action, sampler.congestion_weight)
        step = Step(
            view=view,
            team_view=env.team_view(carry.state),
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
            reward=jnp.mean(reward), cost=jnp.mean(paid.cost), terms=paid.terms, alive=carry.alive
        )
        state = jax.tree.map(lambda new, old: jnp.where(carry.alive, new, old), moved, carry.state)
        alive = carry.alive & ~paid.terminated & ~paid.truncated
        return _Carry(state=state, alive=alive), (keep(carry.state, step), trace)

    start = _Carry(state=env.reset(key=reset_key), alive=jnp.ones((), bool))
    final, outputs = lax.scan(body, start, jnp.arange(env.horizon))
    return final.state, outputs


def _draws(key: PRNGKeyArray, time: Int[Array, ""], num_agents: int) -> Float[Array, "agent 2"]:
    """Two uniforms per agent, keyed by world, step and agent: the team's size moves nobody's
    draws."""
    step_key = jax.random.fold_in(key, time)
    agent_keys = jax.vmap(lambda agent: jax.random.fold_in(step_key, agent))(jnp.arange(num_agents))
    return jax.vmap(lambda k: jax.random.uniform(k, (2,)))(agent_keys)


def _crowding(
    env: AbstractTeamEnv, state: PyTree[Any], action: Action, weight: float
) -> Float[Array, "agent"]:
    """Price of in-range teammates that chose the same skill; `weight` 0 is not computed."""
    if not weight:
        return jnp.zeros(env.num_agents)
    same = env.graph(state) & (action.skill[:, None] == action.skill[None])
    return weight * jnp.sum(same, axis=1).astype(jnp.float32)


def _outcome(env: AbstractTeamEnv, final: PyTree[Any], trace: _Trace) -> Outcome:
    alive = trace.alive.astype(jnp.float32)
    length = jnp.sum(alive)
    mean_terms = jax.tree.map(lambda term: jnp.sum(term * alive) / length, trace.terms)
    return Outcome(
        score=env.score(final, mean_terms),
        reward_sum=jnp.sum(trace.reward * alive),
        cost_sum=jnp.sum(trace.cost * alive),
        steps=length,
    )
