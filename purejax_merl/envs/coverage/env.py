"""The coverage world's rules: move, cover, sense, gossip, pay.

In: a state and moves (STAY, NORTH, EAST, SOUTH, WEST). Out: the next state and its `Transition`.
Axis: none. One world, N agents as rows.
May import: types, envs/base and the world's own files.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from purejax_merl.envs.base import AbstractTeamEnv, ScriptedSkill
from purejax_merl.envs.coverage import bits, comms, movement, reward, skills, terrain, view
from purejax_merl.envs.coverage.types import (
    CompactView,
    CoverageScore,
    CoverageState,
    CoverageTeamView,
    CoverageTerms,
)
from purejax_merl.types import PackedBits, Transition


class CoverageEnv(AbstractTeamEnv):
    """N agents on an H×H grid cover free cells and must stay connected. Sizes and rules are
    static."""

    num_agents: int = eqx.field(static=True, default=4)
    num_moves: int = eqx.field(static=True, default=5)
    horizon: int = eqx.field(static=True, default=100)
    grid: int = eqx.field(static=True, default=16)
    comm_r: int = eqx.field(static=True, default=5)
    sense_r: int = eqx.field(static=True, default=1)
    cover_r: int = eqx.field(static=True, default=0)
    sense_walls: bool = eqx.field(static=True, default=True)
    sense_free: bool = eqx.field(static=True, default=False)
    terrain: str = eqx.field(static=True, default="open")
    n_obstacles: int = eqx.field(static=True, default=0)
    rooms: int = eqx.field(static=True, default=3)
    pillar_spacing: int = eqx.field(static=True, default=4)
    pillar_size: int = eqx.field(static=True, default=2)
    spawn: Literal["cluster", "scatter"] = eqx.field(static=True, default="cluster")
    spawn_radius: int = eqx.field(static=True, default=2)
    collision: Literal["claim", "share"] = eqx.field(static=True, default="claim")
    credit: Literal["first", "each"] = eqx.field(static=True, default="first")
    w_coverage: float = eqx.field(static=True, default=1.0)
    w_connectivity: float = eqx.field(static=True, default=0.0)
    w_collision: float = eqx.field(static=True, default=0.0)
    w_overlap: float = eqx.field(static=True, default=0.0)
    cost: Literal["bar", "hinge", "margin"] = eqx.field(static=True, default="bar")
    cost_threshold: float = eqx.field(static=True, default=0.5)
    lambda2_sharp: float = eqx.field(static=True, default=2.0)
    crop_radius: int = eqx.field(static=True, default=5)
    teammate_slots: int = eqx.field(static=True, default=5)
    views: Literal["absolute", "relative"] = eqx.field(static=True, default="absolute")

    def reset(self, *, key: PRNGKeyArray) -> CoverageState:
        """Fresh walls and spawn cells; the spawn cells are covered and pay nothing."""
        wall_key, spawn_key = jax.random.split(key)
        spec = terrain.TerrainSpec(
            height=self.grid,
            width=self.grid,
            n_obstacles=self.n_obstacles,
            rooms=self.rooms,
            pillar_spacing=self.pillar_spacing,
            pillar_size=self.pillar_size,
        )
        wall = terrain.make_walls(self.terrain, spec, self.num_agents, key=wall_key)
        if self.spawn == "cluster":
            position = terrain.cluster_spawn(
                wall, self.num_agents, self.spawn_radius, key=spawn_key
            )
        else:
            position = terrain.scatter_spawn(wall, self.num_agents, key=spawn_key)
        return self.start(wall, position)

    def start(self, wall: Bool[Array, "row col"], position: Int[Array, "agent 2"]) -> CoverageState:
        """The state of an episode that begins on given ground at given cells."""
        walls = bits.pack(wall)
        seen = self._footprint(position, walls)
        return CoverageState(
            wall=walls,
            position=position,
            seen=seen,
            belief=seen | self._sensed(position, walls),
            lambda2=self._lambda2(position),
            step_count=jnp.zeros((), jnp.int32),
        )

    def step(
        self, state: CoverageState, moves: Int[Array, "agent"], *, key: PRNGKeyArray
    ) -> tuple[CoverageState, Transition]:
        """Everyone moves, covers, senses and hears its neighbours' previous knowledge."""
        del key
        options = movement.options(state.position, state.wall, self.grid)
        target = jnp.take_along_axis(options.target, moves[:, None, None], axis=1)[:, 0]
        position, blocked = movement.resolve(state.position, target, rule=self.collision)
        footprint = self._footprint(position, state.wall)
        seen = state.seen | footprint
        outbox = seen | self._sensed(position, state.wall)
        new_state = CoverageState(
            wall=state.wall,
            position=position,
            seen=seen,
            belief=comms.gossip(outbox, state.belief, comms.adjacency(position, self.comm_r)),
            lambda2=self._lambda2(position),
            step_count=state.step_count + 1,
        )
        return new_state, self._transition(state, new_state, footprint, blocked)

    def _transition(
        self,
        before: CoverageState,
        after: CoverageState,
        footprint: UInt32[Array, "agent row word"],
        blocked: Bool[Array, "agent"],
    ) -> Transition:
        linked = comms.adjacency(after.position, self.comm_r)
        shared = reward.shared_cells(after.position)
        collisions = jnp.sum(blocked if self.collision == "claim" else shared > 0)
        terms = CoverageTerms(
            lambda2=after.lambda2,
            conn_1e3=(after.lambda2 > 1e-3).astype(jnp.float32),
            conn_05=(after.lambda2 > 0.5).astype(jnp.float32),
            conn_hard=comms.in_one_piece(linked).astype(jnp.float32),
            collisions=collisions.astype(jnp.float32),
        )
        return Transition(
            reward=self._reward(before, after, footprint, linked),
            cost=self._cost(after),
            terms=terms,
            terminated=jnp.zeros((), bool),
            truncated=after.step_count >= self.horizon,
            target=after.lambda2,
        )

    def _reward(
        self,
        before: CoverageState,
        after: CoverageState,
        footprint: UInt32[Array, "agent row word"],
        linked: Bool[Array, "agent agent"],
    ) -> Float[Array, "agent"]:
        """Weighted sum of the terms that have a weight; the others are not computed."""
        covered = bits.union(before.seen)
        total = self.w_coverage * reward.new_cells(footprint, covered, credit=self.credit)
        if self.w_connectivity:
            total += self.w_connectivity * reward.reach_fraction(linked)
        if self.w_collision:
            total += self.w_collision * reward.shared_cells(after.position)
        if self.w_overlap:
            total -= self.w_overlap * reward.overlap(footprint)
        return total

    def _cost(self, state: CoverageState) -> Float[Array, "agent"]:
        """0 where connected: a bar on λ₂, its shortfall, or each agent's own missing degree."""
        if self.cost == "margin":
            weights = comms.soft_weights(state.position, self.comm_r, self.lambda2_sharp)
            return comms.edge_margin(weights, 1.0)
        shortfall = jnp.maximum(self.cost_threshold - state.lambda2, 0)
        signal = shortfall if self.cost == "hinge" else state.lambda2 <= self.cost_threshold
        return jnp.broadcast_to(signal.astype(jnp.float32), (self.num_agents,))

    def view(self, state: CoverageState) -> CompactView:
        """The compact view: belief and in-range teammates only."""
        in_range = shown = self.graph(state)
        if self.views == "relative":
            # A team of four has no more; the links to the farthest would break first.
            shown = view.farthest(state.position, in_range, 3)
        window = bits.crop_mask(state.position, self.crop_radius, self.grid, self.grid)
        known = bits.crop(state.belief, state.position, self.crop_radius)
        passable = window
        if self.terrain != "open":
            walls = bits.crop(state.belief & state.wall, state.position, self.crop_radius)
            passable = window & ~walls
        planes = jnp.concatenate([window & ~known, passable], axis=-1)
        unknown = bits.full(self.grid, self.grid) & ~state.belief
        time_left = 1 - state.step_count / self.horizon
        return CompactView(
            crop=PackedBits(planes, 2 * self.crop_radius + 1),
            sectors=view.rings(
                unknown, state.position, self._radii, self.grid, far_scale=self._far_scale
            ),
            share=view.rings(
                unknown & view.own_regions(state.position, in_range, self.grid, self.grid),
                state.position,
                (-1, *self._radii),
                self.grid,
                far_scale=self._far_scale,
            ),
            teammates=view.nearest_teammates(
                state.position, self.comm_r, self.teammate_slots, shown
            ),
            time=jnp.full((self.num_agents, 1), time_left, jnp.float32),
        )

    def planes(
        self, state: CoverageState, *, boundary: bool = False
    ) -> UInt32[Array, "agent channel row word"]:
        """The published, grid-shaped view as bit rows; see `view.planes`."""
        return view.planes(
            position=state.position,
            belief=state.belief,
            wall=state.wall,
            width=self.grid,
            comm_r=self.comm_r,
            sense_r=self.sense_r,
            sense_free=self.sense_free,
            boundary=boundary,
        )

    def central_planes(self, state: CoverageState) -> UInt32[Array, "3 row word"]:
        """The published critic's view as bit rows; see `view.central_planes`."""
        covered = bits.union(state.seen)
        return view.central_planes(state.position, covered, state.wall, self.grid)

    def team_view(self, state: CoverageState) -> CoverageTeamView:
        """The true map around each agent, every teammate, and how the team stands."""
        free = bits.full(self.grid, self.grid) & ~state.wall
        covered = bits.union(state.seen)
        uncovered = jnp.broadcast_to(free & ~covered, state.seen.shape)
        others = ~jnp.eye(self.num_agents, dtype=bool)
        linked = comms.adjacency(state.position, self.comm_r)
        team = jnp.stack(
            [
                bits.count(covered) / bits.count(free),
                view.squash(state.lambda2, 0.5),
                (state.lambda2 > self.cost_threshold).astype(jnp.float32),
                comms.giant_fraction(linked),
            ]
        )
        return CoverageTeamView(
            sectors=view.rings(uncovered, state.position, (-1, *self._radii), self.grid),
            teammates=view.nearest_teammates(
                state.position, self.comm_r, self.teammate_slots, others
            ),
            team=jnp.broadcast_to(team, (self.num_agents, 4)),
        )

    def legal(self, state: CoverageState) -> Bool[Array, "agent 5"]:
        """Moves that stay on the grid and off the walls that the agent knows of."""
        walls = None if self.terrain == "open" else state.belief & state.wall
        return movement.legal(state.position, walls, self.grid)

    def graph(self, state: CoverageState) -> Bool[Array, "agent agent"]:
        """Teammates within `comm_r`, the agent itself excluded."""
        linked = comms.adjacency(state.position, self.comm_r)
        return linked & ~jnp.eye(self.num_agents, dtype=bool)

    def score(self, state: CoverageState, mean_terms: CoverageTerms) -> CoverageScore:
        """Coverage of the final state beside the shares of steps at which the team was
        connected."""
        free = bits.full(self.grid, self.grid) & ~state.wall
        covered = bits.count(bits.union(state.seen) & free)
        coverage = covered / bits.count(free)
        return CoverageScore(
            fitness=jnp.minimum(coverage, mean_terms.conn_05),
            coverage=coverage,
            conn_05=mean_terms.conn_05,
            conn_1e3=mean_terms.conn_1e3,
            conn_hard=mean_terms.conn_hard,
            lambda2=mean_terms.lambda2,
            redundancy=jnp.sum(bits.count(state.seen & free)) / covered,
            collisions=mean_terms.collisions,
            passed=((coverage >= 0.9) & (mean_terms.conn_05 >= 0.9)).astype(jnp.float32),
        )

    def skills(self) -> dict[str, ScriptedSkill]:
        """`flock` closes up, `hold` stays while it is linked."""
        hold = skills.Hold(comm_r=self.comm_r, sharpness=self.lambda2_sharp)
        return {"flock": skills.Flock(), "hold": hold}

    @property
    def _radii(self) -> tuple[int, int]:
        return self.crop_radius, 2 * self.crop_radius

    @property
    def _far_scale(self) -> float:
        return (self.grid / 16) ** 2 if self.views == "relative" else 1.0

    def _lambda2(self, position: Int[Array, "agent 2"]) -> Float[Array, ""]:
        weights = comms.soft_weights(position, self.comm_r, self.lambda2_sharp)
        return comms.algebraic_connectivity(weights)

    def _footprint(
        self, position: Int[Array, "agent 2"], wall: UInt32[Array, "row word"]
    ) -> UInt32[Array, "agent row word"]:
        return bits.window(position, self.cover_r, self.grid, self.grid) & ~wall

    def _sensed(
        self, position: Int[Array, "agent 2"], wall: UInt32[Array, "row word"]
    ) -> UInt32[Array, "agent row word"]:
        """What the belief gains at `position`: everything in sight, its walls, or nothing."""
        sight = bits.window(position, self.sense_r, self.grid, self.grid)
        if self.sense_free:
            return sight
        return sight & wall if self.sense_walls else jnp.zeros_like(sight)
