"""What an actor and a critic are.

In: views, graph, legal moves. Out: a `Policy`, values.
Axes: agent N and skill K; leading batch axes pass through.
May import: types.
"""

import abc

import equinox as eqx
from jaxtyping import Array, Bool, Float

from purejax_merl.types import Policy, View


class AbstractActor(eqx.Module):
    """One shared set of weights for all agents of a team.

    A new actor is one file: subclass, give it a `selector` (the module that evolution owns) and a
    `__call__`, and pass it to `purejax_merl.build.build_run(config, actor=...)`.
    """

    selector: eqx.AbstractVar[eqx.Module]
    """The small head that decides which skill, when. Evolution searches its float leaves."""
    skill_names: eqx.AbstractVar[tuple[str, ...]]
    """The K skills, in the order of the selector's logits."""
    learned: eqx.AbstractVar[tuple[bool, ...]]
    """Which skills have weights. The moves of the others carry no gradient."""

    @abc.abstractmethod
    def __call__(
        self,
        view: View,
        graph: Bool[Array, "*batch agent agent"],
        legal: Bool[Array, "*batch agent move"],
    ) -> Policy:
        """The team's action distribution; row i may use view i and messages from its graph
        neighbours."""


class AbstractCritic(eqx.Module):
    """Centralised value function; used in training only."""

    @abc.abstractmethod
    def __call__(self, view: View, team_view: View) -> Float[Array, "*batch agent"]:
        """V_i(team state, own view), in normalised units."""
