"""The team-environment protocol.

In: a key or a state and one move per agent. Out: a state, a `Transition`, views.
Axis: none. One world, N agents as rows; whoever calls maps over worlds.
May import: types.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from purejax_merl.types import AbstractScore, Transition, View

ScriptedSkill = Callable[[View], Float[Array, "move"]]
"""A skill that the world itself offers: one agent's own view → move logits `(A,)`."""


class AbstractTeamEnv(eqx.Module):
    """A world for N agents. Every method is pure and sees one world; sizes are static.

    A new environment is one file: subclass, fill the methods in, pass it to
    `purejax_merl.build.build_run(config, env=...)`. Nothing outside the class needs to know
    what the world is made of.
    """

    num_agents: eqx.AbstractVar[int]
    """N."""
    num_moves: eqx.AbstractVar[int]
    """A: each agent picks one of A moves per step."""
    horizon: eqx.AbstractVar[int]
    """T: the longest an episode can be, in steps."""

    @abc.abstractmethod
    def reset(self, *, key: PRNGKeyArray) -> PyTree[Any]:
        """A fresh state."""

    @abc.abstractmethod
    def step(
        self, state: PyTree[Any], moves: Int[Array, "agent"], *, key: PRNGKeyArray
    ) -> tuple[PyTree[Any], Transition]:
        """One step of the world. Submitting an illegal move is allowed and must be harmless."""

    @abc.abstractmethod
    def view(self, state: PyTree[Any]) -> View:
        """What each agent knows: leaves `(N, f)`. Row i must depend on nothing agent i cannot
        know."""

    @abc.abstractmethod
    def team_view(self, state: PyTree[Any]) -> View:
        """What the central critic may know on top of each agent's own view: leaves `(N, f)`."""

    @abc.abstractmethod
    def legal(self, state: PyTree[Any]) -> Bool[Array, "agent move"]:
        """Moves worth considering; at least one per agent."""

    @abc.abstractmethod
    def graph(self, state: PyTree[Any]) -> Bool[Array, "agent agent"]:
        """Who hears whom, diagonal False."""

    @abc.abstractmethod
    def score(self, state: PyTree[Any], mean_terms: PyTree[Float[Array, ""]]) -> AbstractScore:
        """The episode's metrics, from its final state and the mean over its steps of
        `Transition.terms`."""

    @abc.abstractmethod
    def skills(self) -> dict[str, ScriptedSkill]:
        """The world's own scripted skills by name; empty where it has none."""
