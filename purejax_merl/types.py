"""Nouns that cross rooms.

In: nothing. Out: the named types that one room produces and another reads.
Axes, outermost first: member P, time T, world B, agent N; skill K and move A are trailing.
May import: nothing of ours.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

View = PyTree[Any]
"""What each agent can know: any pytree whose leaves carry the agent axis right after the batch
axes."""


class PackedBits(eqx.Module):
    """Binary features kept `width` to a word, so that a stored view is 30 times smaller than its
    floats."""

    words: UInt32[Array, "*batch words"]
    width: int = eqx.field(static=True)

    def unpack(self) -> Float[Array, "*batch features"]:
        """The bits as 0.0 / 1.0, lowest bit of the first word first: `features = words * width`."""
        bits = (self.words[..., None] >> jnp.arange(self.width, dtype=jnp.uint32)) & jnp.uint32(1)
        return bits.reshape(*self.words.shape[:-1], -1).astype(jnp.float32)


def features(view: View) -> Float[Array, "*batch features"]:
    """Flattens any view to one float row per agent.

    **Arguments:** `view`: leaves are [`PackedBits`][] or arrays `(*batch, f)`.

    **Returns:** `(*batch, sum of f)` in leaf order.
    """
    leaves = jax.tree.leaves(view, is_leaf=lambda leaf: isinstance(leaf, PackedBits))
    rows = [
        leaf.unpack() if isinstance(leaf, PackedBits) else leaf.astype(jnp.float32)
        for leaf in leaves
    ]
    return jnp.concatenate(rows, axis=-1)


class AbstractScore(eqx.Module):
    """How one episode went for the team. Subclasses add metrics; every field is a scalar per
    episode."""

    fitness: eqx.AbstractVar[Float[Array, "*batch"]]
    """What evolution maximises."""


class Transition(eqx.Module):
    """What one step paid and whether it ended the episode."""

    reward: Float[Array, "*batch agent"]
    """Dense reward of each agent."""
    cost: Float[Array, "*batch agent"]
    """Constraint signal of each agent, 0 where the constraint holds; the learner sets its price."""
    terms: PyTree[Float[Array, "*batch"]]
    """Team quantities whose mean over the episode enters the score."""
    terminated: Bool[Array, "*batch"]
    """The task itself ended: no value after it."""
    truncated: Bool[Array, "*batch"]
    """Time ran out: the value of the last state is bootstrapped."""
    target: Float[Array, "*batch"] | None = None
    """A team quantity after the step that an actor may learn to predict; None where there is
    none."""


class Policy(eqx.Module):
    """A team's action distribution: which skill, and each skill's moves."""

    skill_logits: Float[Array, "*batch agent skill"]
    move_logits: Float[Array, "*batch agent skill move"]
    """Illegal moves already hold a large negative number."""
    estimate: Float[Array, "*batch agent"] | None = None
    """Each agent's guess at `Transition.target`, trained beside the policy and never acted on."""


class Action(eqx.Module):
    """What each agent did, with the log-probabilities under the policy that drew it."""

    skill: Int[Array, "*batch agent"]
    move: Int[Array, "*batch agent"]
    skill_logp: Float[Array, "*batch agent"]
    move_logp: Float[Array, "*batch agent"]


class Step(eqx.Module):
    """One row of a rollout: what was seen, done and paid. Views are those before the action."""

    view: View
    team_view: View
    legal: Bool[Array, "*batch agent move"]
    graph: Bool[Array, "*batch agent agent"]
    action: Action
    reward: Float[Array, "*batch agent"]
    cost: Float[Array, "*batch agent"]
    terminated: Bool[Array, "*batch"]
    alive: Bool[Array, "*batch"]
    """False on the rows after the episode ended: they carry no weight anywhere."""
    target: Float[Array, "*batch"] | None = None
    """What the actor's estimate, if it has one, is regressed on."""


class Outcome(eqx.Module):
    """What an episode came to; all that evolution needs to keep of it."""

    score: AbstractScore
    reward_sum: Float[Array, "*batch"]
    """Sum over time of the mean over agents of the reward."""
    cost_sum: Float[Array, "*batch"]
    """The same of the cost."""
    steps: Float[Array, "*batch"]
    """Length of the episode."""


class Rollout(eqx.Module):
    """Whole episodes of B worlds."""

    steps: Step
    """Leaves `(T, B, ...)`."""
    last_view: View
    last_team_view: View
    """Views of the final state, `(B, ...)`, for the bootstrap."""
    outcome: Outcome
    """Leaves `(B,)`."""


class Episode(eqx.Module):
    """One world from start to end, to be looked at."""

    states: PyTree[Any]
    """Leaves `(T+1, ...)`; after the end the last state stands still."""
    action: Action
    """Leaves `(T, ...)`: what was done in state t."""
    alive: Bool[Array, "time"]
    """False on the rows after the episode ended."""
    outcome: Outcome
    """Scalars."""


class Scene(eqx.Module):
    """An episode as host data that any renderer can draw; a world's viewer makes it. F frames are
    the T+1 states."""

    wall: Bool[np.ndarray, "row col"]
    covered_at: Int[np.ndarray, "row col"]
    """Frame at which the cell was first covered; -1: never."""
    position: Int[np.ndarray, "frame agent 2"]
    """(row, col) of every agent; rows grow downwards."""
    linked: Bool[np.ndarray, "frame agent agent"]
    """Who hears whom, diagonal False."""
    skill: Int[np.ndarray, "frame agent"]
    """The skill chosen in each state; the last frame repeats the one before it."""
    coverage: Float[np.ndarray, "frame"]
    """Covered free cells / free cells."""
    lambda2: Float[np.ndarray, "frame"]
    """Second smallest eigenvalue of the soft communication graph's Laplacian."""
    skill_names: tuple[str, ...] = eqx.field(static=True)
    bar: float = eqx.field(static=True)
    """λ₂ above this counts as connected."""
