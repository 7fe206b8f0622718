"""The coverage world as the reference system's agents live in it: K goal cells instead of five moves.

In: a `CoverageEnv` and goal indices. Out: the same states and payments, grid-shaped views.
Axis: none. One world, N agents as rows.
May import: types, envs/base and the world's own files.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from purejax_merl.envs.base import AbstractTeamEnv, ScriptedSkill
from purejax_merl.envs.coverage import bits, controller, goal_skills, goal_views, movement, view
from purejax_merl.envs.coverage.env import CoverageEnv
from purejax_merl.envs.coverage.goal_views import GoalView, Planes
from purejax_merl.envs.coverage.types import CoverageScore, CoverageState, CoverageTerms
from purejax_merl.types import Transition


class GoalCoverageEnv(AbstractTeamEnv):
    """Wraps a `CoverageEnv`: a move is the index of a goal cell, and a fixed controller takes one step
    toward it. States, payments and scores are those of the wrapped world."""

    inner: CoverageEnv
    num_goals: int = eqx.field(static=True, default=9)
    """K ≤ 9: here, N, E, S, W, NE, SE, SW, NW."""
    stride: int = eqx.field(static=True, default=3)
    """Cells between the agent and a goal, along each axis."""
    metric: controller.Metric = eqx.field(static=True, default="l1_tiebreak")
    """`chebyshev` is the recorded behaviour, in which diagonal goals stand still."""
    collision_mask: bool = eqx.field(static=True, default=True)
    """The controller does not enter a cell that a teammate holds at the start of the step."""
    boundary: bool = eqx.field(static=True, default=False)
    """Adds the border plane."""

    def __check_init__(self) -> None:
        if not 1 <= self.num_goals <= len(controller.DIRECTIONS):
            raise ValueError(
                f"`GoalCoverageEnv(num_goals={self.num_goals})` must be between 1 and "
                f"{len(controller.DIRECTIONS)}."
            )

    @property
    def num_agents(self) -> int:
        """N of the wrapped world."""
        return self.inner.num_agents

    @property
    def num_moves(self) -> int:
        """K."""
        return self.num_goals

    @property
    def horizon(self) -> int:
        """T of the wrapped world."""
        return self.inner.horizon

    @property
    def num_channels(self) -> int:
        """Planes of an agent's view."""
        return 5 + self.inner.sense_free + self.boundary

    def reset(self, *, key: PRNGKeyArray) -> CoverageState:
        """Of the wrapped world."""
        return self.inner.reset(key=key)

    def step(
        self, state: CoverageState, moves: Int[Array, "agent"], *, key: PRNGKeyArray
    ) -> tuple[CoverageState, Transition]:
        """One step of every agent toward the goal it chose."""
        return self.inner.step(state, self.control(state, moves), key=key)

    def control(self, state: CoverageState, goals: Int[Array, "agent"]) -> Int[Array, "agent"]:
        """Goal indices → moves of the wrapped world."""
        options = movement.options(state.position, state.wall, self.inner.grid)
        offsets = controller.stencil(self.num_goals, self.stride)
        cells = controller.goal_cells(state.position, offsets, self.inner.grid)
        goal = jnp.take_along_axis(cells, goals[:, None, None], axis=1)[:, 0]
        avoid = controller.occupied(state.position, options.target) if self.collision_mask else None
        return controller.greedy(goal, options, avoid, metric=self.metric)

    def view(self, state: CoverageState) -> GoalView:
        """Grid planes, frontier features and bearings of every agent."""
        inner = self.inner
        planes = view.planes(
            position=state.position,
            belief=state.belief,
            wall=state.wall,
            width=inner.grid,
            comm_r=inner.comm_r,
            sense_r=inner.sense_r,
            sense_free=inner.sense_free,
            boundary=self.boundary,
        )
        return GoalView(
            planes=Planes(bits.pack(planes), inner.grid),
            frontier=goal_views.sector_frontier(~planes[:, 0], state.position, self.num_goals),
            bearings=goal_views.bearings(state.position, inner.comm_r, inner.lambda2_sharp),
        )

    def team_view(self, state: CoverageState) -> Planes:
        """The central planes: covered, any agent here, wall. One image for the team, no agent axis."""
        covered = bits.union(state.seen)
        planes = view.central_planes(state.position, covered, state.wall, self.inner.grid)
        return Planes(bits.pack(planes), self.inner.grid)

    def legal(self, state: CoverageState) -> Bool[Array, "agent goal"]:
        """Every goal: one that cannot be approached means waiting."""
        del state
        return jnp.ones((self.num_agents, self.num_goals), bool)

    def graph(self, state: CoverageState) -> Bool[Array, "agent agent"]:
        """Of the wrapped world."""
        return self.inner.graph(state)

    def score(self, state: CoverageState, mean_terms: CoverageTerms) -> CoverageScore:
        """Of the wrapped world."""
        return self.inner.score(state, mean_terms)

    def skills(self) -> dict[str, ScriptedSkill]:
        """`flock` and `hold` over goals, as the reference system scripts them."""
        hold = goal_skills.Hold(num_goals=self.num_goals, alone=self.num_agents == 1)
        return {"flock": goal_skills.Flock(num_goals=self.num_goals), "hold": hold}
