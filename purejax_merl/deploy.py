"""Use a trained model: load, act, step.

In: a path. Out: a policy with the world that it was trained in.
Axis: none. One world, N agents as rows.
May import: model and below.
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray, PyTree

from purejax_merl import model
from purejax_merl.agents import policy as policies
from purejax_merl.agents.base import AbstractActor
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.types import Action, Transition


class TeamPolicy(eqx.Module):
    """A trained team and its world. Everything is a pure function: map and compile it at will.

    `reset`, `act` and `step` are compiled, once for all policies of one shape; `env` is the world
    itself, for what else it tells (`view`, `graph`, `score`).
    """

    actor: AbstractActor
    env: AbstractTeamEnv

    @property
    def skill_names(self) -> tuple[str, ...]:
        """Names of the skills, in the order of `Action.skill`."""
        return self.actor.skill_names

    @eqx.filter_jit
    def reset(self, *, key: PRNGKeyArray) -> PyTree[Any]:
        """A fresh state of the world."""
        return self.env.reset(key=key)

    @eqx.filter_jit
    def step(
        self, state: PyTree[Any], action: Action, *, key: PRNGKeyArray
    ) -> tuple[PyTree[Any], Transition]:
        """The world after everybody's move, and what the step paid."""
        return self.env.step(state, action.move, key=key)

    @eqx.filter_jit
    def act(
        self, state: PyTree[Any], *, key: PRNGKeyArray | None = None, greedy: bool = False
    ) -> Action:
        """What every agent does next, each from its own view and its neighbours' messages.

        **Arguments:** `key`: draws skill and move, as in training. `greedy`: take the likeliest of
        both instead, without a key.

        **Returns:** an `Action` with leaves `(N,)`, as `step` takes it.
        """
        env = self.env
        policy = self.actor(env.view(state), env.graph(state), env.legal(state))
        if greedy:
            return policies.greedy(policy)
        if key is None:
            raise ValueError("`act(state)` samples and needs `key=...`, or pass `greedy=True`.")
        return policies.sample(policy, jax.random.uniform(key, (env.num_agents, 2)))


def load(path: str | Path, **world: Any) -> TeamPolicy:
    """A trained team, from a `model.eqx`, the run directory that holds one, or the zoo by name
    (`zoo:coverage-16x16-4`).

    **Arguments:** `world`: fields of `EnvConfig` to change, such as `grid=24, n_agents=6`.

    **Errors:** `ValueError` for a file that is not sound, or a field that does not fit.
    """
    trained = model.load(path, **world)
    return TeamPolicy(actor=trained.actor, env=trained.env)
