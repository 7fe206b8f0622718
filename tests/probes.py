"""Probe worlds: each isolates one thing that a learner must be able to do.

They are foreign environments, written against `AbstractTeamEnv` alone, and bring no skills.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from purejax_merl.envs.base import AbstractTeamEnv, ScriptedSkill
from purejax_merl.types import AbstractScore, Transition


class ProbeScore(AbstractScore):
    """The mean over steps of the team's goal."""

    fitness: Float[Array, "*batch"]


class ProbeState(eqx.Module):
    """A context of −1 or 1 per agent, and the time."""

    context: Float[Array, "agent"]
    time: Int[Array, ""]


Pay = Callable[[ProbeState, Int[Array, "agent"]], Float[Array, "agent"]]
Goal = Callable[[ProbeState, Int[Array, "agent"]], Float[Array, ""]]


def no_goal(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, ""]:
    del state, moves
    return jnp.zeros(())


def no_charge(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    del state
    return jnp.zeros(moves.shape)


class Probe(AbstractTeamEnv):
    """Contexts are drawn afresh every step, whatever the agents do.

    Probes differ in what they `pay` and `charge`, in the team's `goal`, and in how they end.
    """

    num_agents: int = eqx.field(static=True, default=2)
    num_moves: int = eqx.field(static=True, default=2)
    horizon: int = eqx.field(static=True, default=1)
    pay: Pay = eqx.field(static=True, kw_only=True)
    goal: Goal = eqx.field(static=True, default=no_goal)
    charge: Pay = eqx.field(static=True, default=no_charge)
    terminates_after: int | None = eqx.field(static=True, default=None)
    """The task itself ends with this step."""
    truncates_after: int | None = eqx.field(static=True, default=None)
    """Time runs out with this step; None: at the horizon."""

    def reset(self, *, key: PRNGKeyArray) -> ProbeState:
        return ProbeState(context=self._draw(key), time=jnp.zeros((), jnp.int32))

    def step(
        self, state: ProbeState, moves: Int[Array, "agent"], *, key: PRNGKeyArray
    ) -> tuple[ProbeState, Transition]:
        time = state.time + 1
        never = self.horizon + 1
        paid = Transition(
            reward=self.pay(state, moves),
            cost=self.charge(state, moves),
            terms=self.goal(state, moves),
            terminated=time == (self.terminates_after or never),
            truncated=time == (self.truncates_after or self.horizon),
        )
        return ProbeState(context=self._draw(key), time=time), paid

    def view(self, state: ProbeState) -> Float[Array, "agent 3"]:
        """Own context, time and a name tag."""
        time = jnp.full(self.num_agents, state.time / self.horizon)
        tag = jnp.linspace(-1.0, 1.0, self.num_agents)
        return jnp.stack([state.context, time, tag], axis=-1)

    def team_view(self, state: ProbeState) -> Float[Array, "agent 1"]:
        return jnp.full((self.num_agents, 1), jnp.mean(state.context))

    def legal(self, state: ProbeState) -> Bool[Array, "agent move"]:
        del state
        return jnp.ones((self.num_agents, self.num_moves), bool)

    def graph(self, state: ProbeState) -> Bool[Array, "agent agent"]:
        del state
        return ~jnp.eye(self.num_agents, dtype=bool)

    def score(self, state: ProbeState, mean_terms: Float[Array, ""]) -> ProbeScore:
        del state
        return ProbeScore(fitness=mean_terms)

    def skills(self) -> dict[str, ScriptedSkill]:
        return {}

    def _draw(self, key: PRNGKeyArray) -> Float[Array, "agent"]:
        return jax.random.rademacher(key, (self.num_agents,), jnp.float32)


def _constant(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    del state
    return jnp.full(moves.shape, 3.0)


def _context(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    del moves
    return state.context


def _late(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    return jnp.full(moves.shape, 1.0) * (state.time == 2)


def _wanted(state: ProbeState) -> Int[Array, "agent"]:
    return (state.context > 0).astype(jnp.int32)


def _choice(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    return (moves == _wanted(state)).astype(jnp.float32)


def _agree(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    del state
    return jnp.full(moves.shape, jnp.all(moves == moves[0]).astype(jnp.float32))


def _not_the_last_move(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    del state
    return (moves != 2).astype(jnp.float32)


def _first_move(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, "agent"]:
    del state
    return (moves == 0).astype(jnp.float32)


def _share_as_wanted(state: ProbeState, moves: Int[Array, "agent"]) -> Float[Array, ""]:
    return jnp.mean((moves == _wanted(state)).astype(jnp.float32))


def constant() -> Probe:
    """Pays 3 and ends: V = 3."""
    return Probe(pay=_constant, terminates_after=1)


def endless() -> Probe:
    """Pays 3 until time runs out: V = 3 / (1 − γ), by the bootstrap alone."""
    return Probe(pay=_constant, horizon=4)


def observed() -> Probe:
    """Pays what the agent sees and ends: V = own context."""
    return Probe(pay=_context, terminates_after=1)


def delayed() -> Probe:
    """Pays 1 with the third step, which ends the task before the horizon: V = γ², γ, 1."""
    return Probe(pay=_late, horizon=5, terminates_after=3)


def choice() -> Probe:
    """A contextual bandit: the right move is in the view."""
    return Probe(pay=_choice, horizon=4)


def agreement() -> Probe:
    """Pays both agents when they do the same."""
    return Probe(pay=_agree, horizon=4)


def hidden_goal() -> Probe:
    """The dense reward says what not to do; what the team wants shows in its score alone."""
    return Probe(pay=_not_the_last_move, goal=_share_as_wanted, num_moves=3, horizon=4)


def everything() -> Probe:
    """A reward, a cost and a team goal at once, none of them easy to guess."""
    return Probe(pay=_choice, goal=_share_as_wanted, charge=_first_move, num_moves=3, horizon=4)
