"""The coverage world as the reference system's agents live in it: K goal cells, not five moves.

In: a `CoverageEnv` and goal indices. Out: the same states and payments, grid-shaped views.
Axis: none. One world, N agents as rows.
May import: types, envs/base and the world's own files.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from purejax_merl.envs.base import AbstractTeamEnv, ScriptedSkill
from purejax_merl.envs.coverage import bits, controller, goal_skills, goal_views, movement
from purejax_merl.envs.coverage.env import CoverageEnv
from purejax_merl.envs.coverage.goal_views import GoalView, Planes
from purejax_merl.envs.coverage.types import CoverageScore, CoverageState, CoverageTerms
from purejax_merl.types import Transition


class GoalCoverageEnv(AbstractTeamEnv):
    """Wraps a `CoverageEnv`: a move is the index of a goal cell, and a fixed controller takes one
    step toward it. States, payments and scores are those of the wrapped world."""

    inner: CoverageEnv
    num_agents: int = eqx.field(static=True)
    num_moves: int = eqx.field(static=True)
    """K: here, N, E, S, W, NE, SE, SW, NW, as many as there are."""
    horizon: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)
    metric: controller.Metric = eqx.field(static=True)
    collision_mask: bool = eqx.field(static=True)
    boundary: bool = eqx.field(static=True)

    def __init__(
        self,
        inner: CoverageEnv,
        *,
        num_goals: int = 9,
        stride: int = 3,
        metric: controller.Metric = "l1_tiebreak",
        collision_mask: bool = True,
        boundary: bool = False,
    ):
        """**Arguments:**

        - `num_goals`: K in 1..9.
        - `stride`: cells between the agent and a goal, along each axis.
        - `metric`: `chebyshev` is the recorded behaviour, in which diagonal goals stand still.
        - `collision_mask`: the controller does not enter a cell that a teammate holds at the start
          of the step.
        - `boundary`: adds the border plane to the view.
        """
        if not 1 <= num_goals <= len(controller.DIRECTIONS):
            raise ValueError(
                f"`GoalCoverageEnv(num_goals={num_goals})` must be between 1 and "
                f"{len(controller.DIRECTIONS)}."
            )
        self.inner = inner
        self.num_agents, self.horizon = inner.num_agents, inner.horizon
        self.num_moves, self.stride = num_goals, stride
        self.metric, self.collision_mask = metric, collision_mask
        self.boundary = boundary

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
        offsets = controller.stencil(self.num_moves, self.stride)
        cells = controller.goal_cells(state.position, offsets, self.inner.grid)
        goal = jnp.take_along_axis(cells, goals[:, None, None], axis=1)[:, 0]
        avoid = controller.occupied(state.position, options.target) if self.collision_mask else None
        return controller.greedy(goal, options, avoid, metric=self.metric)

    def view(self, state: CoverageState) -> GoalView:
        """Grid planes, frontier features and bearings of every agent."""
        inner = self.inner
        unknown = ~bits.unpack(state.belief, inner.grid)
        return GoalView(
            planes=Planes(inner.planes(state, boundary=self.boundary), inner.grid),
            frontier=goal_views.sector_frontier(unknown, state.position, self.num_moves),
            bearings=goal_views.bearings(state.position, inner.comm_r, inner.lambda2_sharp),
        )

    def team_view(self, state: CoverageState) -> Planes:
        """The central planes: covered, any agent here, wall. One image per team, no agent axis."""
        return Planes(self.inner.central_planes(state), self.inner.grid)

    def legal(self, state: CoverageState) -> Bool[Array, "agent goal"]:
        """Every goal: one that cannot be approached means waiting."""
        del state
        return jnp.ones((self.num_agents, self.num_moves), bool)

    def graph(self, state: CoverageState) -> Bool[Array, "agent agent"]:
        """Of the wrapped world."""
        return self.inner.graph(state)

    def score(self, state: CoverageState, mean_terms: CoverageTerms) -> CoverageScore:
        """Of the wrapped world."""
        return self.inner.score(state, mean_terms)

    def skills(self) -> dict[str, ScriptedSkill]:
        """`flock` and `hold` over goals, as the reference system scripts them."""
        hold = goal_skills.Hold(num_goals=self.num_moves, alone=self.num_agents == 1)
        return {"flock": goal_skills.Flock(num_goals=self.num_moves), "hold": hold}
