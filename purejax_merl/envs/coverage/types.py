"""What the coverage world is made of.

In: nothing. Out: its state, its views, its score.
Axis: none (one world, N agents as rows).
May import: types.
"""

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, UInt32

from purejax_merl.types import AbstractScore, PackedBits


class CoverageState(eqx.Module):
    """One world between two steps. Cell sets are bit rows (`bits.py`)."""

    # Fixed within an episode.
    wall: UInt32[Array, "row word"]
    # Changed by every step.
    position: Int[Array, "agent 2"]
    """(row, col); rows grow southwards."""
    seen: UInt32[Array, "agent row word"]
    """Cells each agent itself has covered."""
    belief: UInt32[Array, "agent row word"]
    """Cells each agent knows: covered, sensed or heard of."""
    lambda2: Float[Array, ""]
    """Second smallest eigenvalue of the soft communication graph at `position`."""
    step_count: Int[Array, ""]


class CompactView(eqx.Module):
    """What one agent knows, free of grid size, team size and absolute position."""

    crop: PackedBits
    """Window around the agent, one word per row: first the unknown cells, then the passable ones
    (in bounds and not a known wall). Two planes on every terrain, so that weights carry over."""
    sectors: Float[Array, "*agent 16"]
    """Unknown cells in 8 compass octants × {near, far} beyond the window, squashed to [0, 1)."""
    share: Float[Array, "*agent 24"]
    """The unknown cells that are nearer to the agent than to any teammate in range, in 8 octants
    × {window, near, far}."""
    teammates: Float[Array, "*agent slots"]
    """(Δrow/comm_r, Δcol/comm_r, present) of in-range teammates, nearest first, then zeros: of the
    five nearest or, in `relative` views, of the three farthest."""
    time: Float[Array, "*agent 1"]
    """Share of the episode that is left."""


class CoverageTeamView(eqx.Module):
    """What the central critic may know on top: the true map around each agent and the whole
    team."""

    sectors: Float[Array, "agent 24"]
    """Cells nobody has covered yet, in 8 octants × {window, near, far}."""
    teammates: Float[Array, "agent slots"]
    """As in the own view, but without the range limit."""
    team: Float[Array, "agent 4"]
    """Coverage so far, λ₂ squashed, whether λ₂ is above the bar, largest connected share."""


class CoverageTerms(eqx.Module):
    """Team quantities of one step, at the positions after the move."""

    lambda2: Float[Array, ""]
    conn_1e3: Float[Array, ""]
    conn_05: Float[Array, ""]
    conn_hard: Float[Array, ""]
    collisions: Float[Array, ""]


class CoverageScore(AbstractScore):
    """One episode. Shares are in [0, 1]."""

    fitness: Float[Array, "*batch"]
    """min(coverage, conn_05)."""
    coverage: Float[Array, "*batch"]
    """Covered free cells / free cells at the end."""
    conn_05: Float[Array, "*batch"]
    """Share of steps with λ₂ > 0.5."""
    conn_1e3: Float[Array, "*batch"]
    """Share of steps with λ₂ > 1e-3, which holds even with agents three cells out of range."""
    conn_hard: Float[Array, "*batch"]
    """Share of steps at which the graph of distances ≤ comm_r is in one piece."""
    lambda2: Float[Array, "*batch"]
    """Mean λ₂."""
    redundancy: Float[Array, "*batch"]
    """Cells covered, summed over agents / cells covered by the team; 1 is no overlap."""
    collisions: Float[Array, "*batch"]
    """Agents blocked (claim) or sharing a cell (share), mean per step."""
    passed: Float[Array, "*batch"]
    """1 where coverage ≥ 0.9 and conn_05 ≥ 0.9."""


class Moves(eqx.Module):
    """Where each move leads."""

    target: Int[Array, "agent 5 2"]
    valid: Bool[Array, "agent 5"]
