"""Scripted teams for the coverage world: how little and how much can be had without learning.

In: a world and its start. Out: everybody's moves, one step at a time.
Axis: none of the program's (one world); the search maps over its own candidates.
May import: the coverage world.

`Frontier` knows what an agent knows. `Voronoi` and `Sweep` see the whole true map: they say what
is possible, not what a team could find out.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from purejax_merl.envs.coverage import CoverageEnv, bits, comms, movement
from purejax_merl.envs.coverage.types import CoverageState

Cells = UInt32[Array, "row word"]
Moves = Int[Array, "agent"]


class AbstractPlanner(eqx.Module):
    """A team that is not learned: `init` once per episode, `act` in every step."""

    def init(self, env: CoverageEnv, start: CoverageState, *, key: PRNGKeyArray) -> Any:
        """What is decided before the first move."""
        del env, start, key

    @abc.abstractmethod
    def act(self, env: CoverageEnv, plan: Any, state: CoverageState, *, key: PRNGKeyArray) -> Moves:
        """Everybody's next move."""


class Random(AbstractPlanner):
    """Uniform over the legal moves."""

    def act(self, env: CoverageEnv, plan: Any, state: CoverageState, *, key: PRNGKeyArray) -> Moves:
        del plan
        return jax.random.categorical(key, jnp.where(env.legal(state), 0.0, -jnp.inf))


class Frontier(AbstractPlanner):
    """Each agent walks to the nearest cell it does not know, leaving alone what a teammate in
    range is nearer to; equal distances go to the lower index. Reads its own belief only."""

    def act(self, env: CoverageEnv, plan: Any, state: CoverageState, *, key: PRNGKeyArray) -> Moves:
        del plan, key
        known_walls = state.belief & state.wall
        ground = bits.full(env.grid, env.grid)
        return _walk(
            state.position, env.graph(state), ground & ~state.belief, ground & ~known_walls
        )


class Voronoi(AbstractPlanner):
    """Each agent walks to the nearest uncovered cell of its own region of the true map, or, once
    that is done, to the nearest at all. Does not care about staying connected."""

    def act(self, env: CoverageEnv, plan: Any, state: CoverageState, *, key: PRNGKeyArray) -> Moves:
        del plan, key
        free = bits.full(env.grid, env.grid) & ~state.wall
        everybody = ~jnp.eye(env.num_agents, dtype=bool)
        uncovered = free & ~bits.union(state.seen)
        shape = state.seen.shape
        return _walk(
            state.position,
            everybody,
            jnp.broadcast_to(uncovered, shape),
            jnp.broadcast_to(free, shape),
        )


def _walk(
    position: Int[Array, "agent 2"],
    rivals: Bool[Array, "agent agent"],
    targets: UInt32[Array, "agent row word"],
    passable: UInt32[Array, "agent row word"],
) -> Moves:
    """One step of every agent to the nearest of its targets that no rival is nearer to."""
    size, height = position.shape[0], targets.shape[-2]
    index = jnp.arange(size)
    # The words hold whole columns: what lies past the grid is in no `passable`.
    here = bits.window(position, 0, height, height)

    def one(agent: Int[Array, ""], targets: Cells, passable: Cells) -> Int[Array, ""]:
        def of(who: Bool[Array, "agent"]) -> Cells:
            return bits.union(jnp.where(who[:, None, None], here, jnp.uint32(0)))

        mine = territory(
            here[agent],
            of(rivals[agent] & (index < agent)),
            of(rivals[agent] & (index > agent)),
            passable,
        )
        share = jnp.where(bits.count(targets & mine) > 0, targets & mine, targets)
        return step_towards(position[agent], share, passable)

    return jax.vmap(one)(index, targets, passable)


def territory(own: Cells, before: Cells, after: Cells, passable: Cells) -> Cells:
    """Cells that `own` reaches sooner than `before` and no later than `after`: all three flood
    the ground at one cell per turn."""

    def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        _, sets = carry
        first, mine, last = sets
        first = first | (bits.spread(first) & passable & ~(mine | last))
        mine = mine | (bits.spread(mine) & passable & ~(first | last))
        last = last | (bits.spread(last) & passable & ~(first | mine))
        return sets, jnp.stack([first, mine, last])

    start = jnp.stack([before, own, after])
    _, sets = lax.while_loop(_grows, turn, (jnp.zeros_like(start), start))
    return sets[1]


def step_towards(position: Int[Array, "2"], targets: Cells, passable: Cells) -> Int[Array, ""]:
    """The move that begins a shortest way to the nearest target; STAY where none can be
    reached."""
    size = passable.shape[0]
    cells = jnp.clip(position + movement.DELTAS, 0, size - 1)

    def turn(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, reached, waited = carry
        wider = (reached | bits.spread(reached)) & passable
        return reached, wider, waited + ~bits.contains(wider, cells)

    start = targets & passable
    waited = (~bits.contains(start, cells)).astype(jnp.int32)
    *_, waited = lax.while_loop(
        lambda carry: _grows(carry[:2]), turn, (jnp.zeros_like(start), start, waited)
    )
    return jnp.argmin(waited)


def _grows(carry: tuple[Array, ...]) -> Bool[Array, ""]:
    return jnp.any(carry[0] != carry[1])


class _Nodes(eqx.Module):
    """Unfinished plans, side by side."""

    position: Int[Array, "node agent 2"]
    covered: UInt32[Array, "node row word"]
    value: Float[Array, "node"]
    """Covered cells, less what the rest will cost; −inf for a plan that must not be."""


class Sweep(AbstractPlanner):
    """A beam search over joint moves on the true map that keeps λ₂ above the bar.

    From each of `nodes` plans it tries `proposals` joint moves: the team as one, and the team as
    one but for some agents that would rather take an uncovered cell or go at random. It keeps the
    plans that cover most, counting against a plan the border between covered and uncovered ground
    (ragged borders leave holes) and every uncovered cell by how far it is from the team.
    """

    nodes: int = eqx.field(static=True, default=64)
    proposals: int = eqx.field(static=True, default=32)
    bar: float = eqx.field(static=True, default=0.5)
    border_price: float = eqx.field(static=True, default=0.05)
    """Cells per border edge."""
    pull: float = eqx.field(static=True, default=0.05)
    """Cells per uncovered cell and step away from it; `fade` to the power of the step."""
    fade: float = eqx.field(static=True, default=0.8)
    sight: int = eqx.field(static=True, default=12)
    """Steps that the pull looks ahead."""
    follow: float = eqx.field(static=True, default=4.0)
    """Logit of the team's common move in a proposal."""
    fresh: float = eqx.field(static=True, default=1.5)
    """Logit of a move to an uncovered cell."""
    closing: float = eqx.field(static=True, default=0.1)
    """Share of the episode at whose end prices fall to zero: what cannot be reached any more
    costs nothing."""

    def init(
        self, env: CoverageEnv, start: CoverageState, *, key: PRNGKeyArray
    ) -> Int[Array, "time agent"]:
        """The whole episode's moves."""
        base_key, noise_key, hash_key = jax.random.split(key, 3)
        bases = jax.random.randint(base_key, (self.proposals,), 1, env.num_moves)
        bases = jnp.concatenate([jnp.arange(env.num_moves), bases])[: self.proposals]
        noise = jax.random.gumbel(
            noise_key, (env.horizon, self.proposals, env.num_agents, env.num_moves)
        )
        lean = self.follow * jax.nn.one_hot(bases, env.num_moves)
        # The first proposals are the pure common moves.
        lean = jnp.where(jnp.arange(self.proposals)[:, None] < env.num_moves, 1e3 * lean, lean)
        salt = jax.random.bits(hash_key, (env.grid + 2 * env.num_agents,))

        def extend(nodes: _Nodes, at: tuple[Array, Array]) -> tuple[_Nodes, tuple[Array, Array]]:
            time, noise = at
            moves = self._propose(env, start.wall, nodes, lean[:, None] + noise)
            remaining = 1 - (time + 1) / env.horizon
            weight = jnp.minimum(1.0, remaining / self.closing)
            found = self._follow_up(env, start.wall, nodes, moves, weight)
            kept, values = best_distinct(found.value, _fingerprint(found, salt), self.nodes)
            nodes = jax.tree.map(lambda x: x[kept], found)
            nodes = eqx.tree_at(lambda n: n.value, nodes, values)
            return nodes, (kept // self.proposals, moves.reshape(-1, env.num_agents)[kept])

        nodes, (parents, moves) = lax.scan(
            extend, self._root(env, start), (jnp.arange(env.horizon), noise)
        )
        covered = bits.count(nodes.covered)
        best = jnp.argmax(jnp.where(jnp.isfinite(nodes.value), covered, -1))
        _, plan = lax.scan(
            lambda node, at: (at[0][node], at[1][node]), best, (parents, moves), reverse=True
        )
        return plan

    def act(self, env: CoverageEnv, plan: Any, state: CoverageState, *, key: PRNGKeyArray) -> Moves:
        del env, key
        return plan[state.step_count]

    def _root(self, env: CoverageEnv, start: CoverageState) -> _Nodes:
        """The start, and empty places."""
        first = jnp.arange(self.nodes) == 0
        covered = bits.union(start.seen)
        return _Nodes(
            position=jnp.broadcast_to(start.position, (self.nodes, env.num_agents, 2)),
            covered=jnp.broadcast_to(covered, (self.nodes, *covered.shape)),
            value=jnp.where(first, 0.0, -jnp.inf),
        )

    def _propose(
        self, env: CoverageEnv, wall: Cells, nodes: _Nodes, logits: Float[Array, "proposal agent 5"]
    ) -> Int[Array, "node proposal agent"]:
        def one(position: Int[Array, "agent 2"], covered: Cells) -> Int[Array, "proposal agent"]:
            target = movement.options(position, wall, env.grid).target
            return jnp.argmax(logits + self.fresh * ~bits.contains(covered, target), axis=-1)

        return jax.vmap(one)(nodes.position, nodes.covered)

    def _follow_up(
        self,
        env: CoverageEnv,
        wall: Cells,
        nodes: _Nodes,
        moves: Int[Array, "node proposal agent"],
        weight: Float[Array, ""],
    ) -> _Nodes:
        """Every proposal carried out, the proposals of the first node first."""
        free = bits.full(env.grid, env.grid) & ~wall

        def one(
            position: Int[Array, "agent 2"],
            targets: Int[Array, "agent 5 2"],
            covered: Cells,
            moves: Moves,
        ) -> tuple[Array, Array, Array]:
            target = jnp.take_along_axis(targets, moves[:, None, None], axis=1)[:, 0]
            position, _ = movement.resolve(position, target, rule=env.collision)
            covered = covered | (
                bits.union(bits.window(position, env.cover_r, env.grid, env.grid)) & free
            )
            return (
                position,
                covered,
                bits.count(covered) - weight * self._price(position, covered, free),
            )

        def all_of(node: _Nodes, moves: Int[Array, "proposal agent"]) -> tuple[Array, ...]:
            targets = movement.options(node.position, wall, env.grid).target
            return jax.vmap(lambda move: one(node.position, targets, node.covered, move))(moves)

        found = jax.vmap(all_of)(nodes, moves)
        position, covered, value = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)
        possible = jnp.repeat(jnp.isfinite(nodes.value), self.proposals)
        possible &= holds(env, position, self.bar)
        value = jnp.where(possible, value, -jnp.inf)
        return _Nodes(position=position, covered=covered, value=value)

    def _price(
        self, position: Int[Array, "agent 2"], covered: Cells, free: Cells
    ) -> Float[Array, ""]:
        """What the uncovered rest is expected to cost, in cells."""
        uncovered = free & ~covered

        def wait(step: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
            reached, waiting = carry
            waiting += self.fade**step * bits.count(uncovered & ~reached)
            return bits.spread(reached) & free, waiting

        team = bits.union(bits.window(position, 0, free.shape[0], free.shape[0]))
        _, waiting = lax.fori_loop(0, self.sight, wait, (team, jnp.zeros(())))
        return self.border_price * border(uncovered, free & covered) + self.pull * waiting


def border(one: Cells, other: Cells) -> Int[Array, ""]:
    """Cells of `other` next to `one`."""
    return bits.count(bits.spread(one) & other)


def holds(
    env: CoverageEnv, position: Int[Array, "node agent 2"], bar: float
) -> Bool[Array, "node"]:
    """Whether λ₂ of the soft graph is above the bar.

    λ₂ > bar exactly if L − bar·I + 1·1ᵀ is positive definite (for bar < N), that is, if all
    pivots of its elimination are positive: much less work than λ₂ itself. Nodes come last, so
    that the elimination is elementwise over them.
    """
    size = env.num_agents
    weights = jax.vmap(lambda p: comms.soft_weights(p, env.comm_r, env.lambda2_sharp))(position)
    weights = jnp.moveaxis(weights, 0, -1)
    eye = jnp.eye(size)[:, :, None]
    # A little above the bar: the world's own λ₂ is rounded otherwise.
    matrix = eye * jnp.sum(weights, axis=1) - weights - (bar + 1e-4) * eye + 1
    positive = jnp.ones(position.shape[0], bool)
    for _ in range(size):
        pivot = matrix[0, 0]
        positive &= pivot > 0
        row = matrix[0, 1:] / jnp.where(pivot > 0, pivot, 1)
        matrix = matrix[1:, 1:] - matrix[1:, :1] * row[None]
    return positive


def _fingerprint(nodes: _Nodes, salt: UInt32[Array, "salt"]) -> UInt32[Array, "node"]:
    """Equal for equal plans' ends, different for nearly all others."""
    number, height, words = nodes.covered.shape
    mixed = (nodes.covered * salt[:height, None]) ^ (nodes.covered >> jnp.uint32(15))
    cells = jnp.sum(mixed * (2 * jnp.arange(words, dtype=jnp.uint32) + 1), axis=(1, 2))
    places = (nodes.position.reshape(number, -1) + 1).astype(jnp.uint32)
    where = jnp.sum(places * salt[height:], axis=1)
    mix = (cells ^ where) * jnp.uint32(2654435761)
    return mix ^ (mix >> jnp.uint32(15))


def best_distinct(
    value: Float[Array, "candidate"], fingerprint: UInt32[Array, "candidate"], number: int
) -> tuple[Int[Array, "number"], Float[Array, "number"]]:
    """The best candidates, none of them twice, and their values.

    A small term from the fingerprint decides between equals and puts copies side by side.
    """
    value = value + 0.01 * (fingerprint >> jnp.uint32(8)).astype(jnp.float32) / 2**24
    top, index = lax.top_k(value, min(4 * number, value.shape[0]))
    copy = (top[1:] == top[:-1]) & (fingerprint[index[1:]] == fingerprint[index[:-1]])
    top = jnp.where(jnp.concatenate([jnp.zeros(1, bool), copy]), -jnp.inf, top)
    top, place = lax.top_k(top, number)
    return index[place], top
