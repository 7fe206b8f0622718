"""The outer round: train by gradient, inject, ask, roll the teams out, tell, write back.

In: a `Hybrid` (the parts) and a `RoundState`. Out: the next `RoundState` and a `RoundLog`.
Axes: rounds R (one scan) and members P (one vmap over the rollouts of B worlds).
May import: types, envs, agents, learn, evolve, rollout, mesh.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from purejax_merl import mesh, rollout
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.evolve.base import AbstractStrategy
from purejax_merl.evolve.genome import module_theta, set_module_theta
from purejax_merl.evolve.ranking import failures_last
from purejax_merl.learn.ppo import PPO, LearnerState, PPOLog
from purejax_merl.types import AbstractScore, Outcome, Rollout

Played = TypeVar("Played", Outcome, Rollout)
Arm = Literal["merl", "gradient", "evolution", "no_injection"]


class Evolution(eqx.Module):
    """How a round evolves; all static."""

    arm: Arm = eqx.field(static=True, default="merl")
    """`merl`: both halves. `gradient`: PPO alone. `evolution`: the strategy alone, on the whole
    actor.
    `no_injection`: both halves, but the strategy's mean never takes the learner's selector in."""
    fitness: Literal["graded", "return"] = eqx.field(static=True, default="graded")
    """`graded`: the episode score. `return`: the return that PPO maximises, price included."""
    worlds: int = eqx.field(static=True, default=16)
    """Worlds that every member meets, and worlds of the judging."""
    accept: bool = eqx.field(static=True, default=False)
    """Keep the evolved genome only if it does at least as well as the one before on the judging
    worlds."""
    reuse: bool = eqx.field(static=True, default=False)
    """The population's episodes train the executor as well, as MERL's shared replay does (arXiv
    1906.07315): one more PPO step per round, on every member's actions with its own
    log-probabilities."""
    reset_moments: bool = eqx.field(static=True, default=True)
    """Adam's moments of a selector that was replaced start afresh; False keeps the stale ones."""
    member_chunk: int | None = eqx.field(static=True, default=None)
    """Members rolled out at once on a device; None: all. Bounds memory, changes nothing else."""


class RoundState(eqx.Module):
    """Everything that changes from round to round. It holds no key: a round's key is
    `fold_in(root, round)`."""

    # Changed by both halves.
    learner: LearnerState
    # Changed once per round.
    strategy: PyTree[Any]
    round: Int[Array, ""]


class EvolutionLog(eqx.Module):
    """Scalars of one ES step, in units of the fitness unless said otherwise."""

    best: Float[Array, "*rounds"]
    mean: Float[Array, "*rounds"]
    std: Float[Array, "*rounds"]
    non_finite: Float[Array, "*rounds"]
    """Members whose fitness was not a number; they never win."""
    before: Float[Array, "*rounds"]
    """The injected genome on the judging worlds."""
    after: Float[Array, "*rounds"]
    """The evolved genome on the same worlds."""
    accepted: Float[Array, "*rounds"]
    sigma: Float[Array, "*rounds"]
    step_norm: Float[Array, "*rounds"]
    """L2 distance that the round moved the genome."""
    score: AbstractScore
    """Mean score of the genome that was written back, on the judging worlds."""
    env_steps: Float[Array, "*rounds"]


class TrainLog(eqx.Module):
    """Scalars of one PPO step; the rollout is that of the policy before the step's update."""

    ppo: PPOLog
    score: AbstractScore
    """Mean over worlds."""
    skill_use: Float[Array, "*rounds skill"]
    """Share of choices that went to each skill."""
    reward: Float[Array, "*rounds"]
    """Mean over worlds of the sum over time of the team-mean reward, cost not charged."""
    cost: Float[Array, "*rounds"]
    """The same of the cost."""
    price: Float[Array, "*rounds"]
    """Price of the cost after the step."""
    env_steps: Float[Array, "*rounds"]


class RoundLog(eqx.Module):
    """Scalars of one round; no genome is kept."""

    train: TrainLog | None
    """The last PPO step; None where there is none."""
    evolution: EvolutionLog | None
    """None in the gradient-only arm."""
    reuse: PPOLog | None
    """The PPO step on the population's episodes; None where they are not reused."""
    env_steps: Float[Array, "*rounds"]
    """Team steps of this round: PPO, population and judging."""


class Hybrid(eqx.Module):
    """The parts of a run. Nothing in it changes while it runs."""

    env: AbstractTeamEnv
    learner: PPO
    strategy: AbstractStrategy
    evolution: Evolution
    sampler: rollout.Sampler
    grad_steps: int = eqx.field(static=True)
    worlds: int = eqx.field(static=True)
    """Worlds of a PPO rollout."""
    anneal_rounds: Float[Array, ""] | None = None
    """Rounds over which learning rate and entropy weights fall to a tenth; None: constant."""
    devices: Mesh | None = eqx.field(static=True, default=None)
    """Over which the members of the population, and the worlds of PPO and of the judging, are
    spread; None: one device. The update from a rollout is computed on each of them."""

    def init(self, actor: AbstractActor, critic: AbstractCritic) -> RoundState:
        """Round 0 around given networks."""
        state = RoundState(
            learner=self.learner.init(actor, critic),
            strategy=self.strategy.init(module_theta(self.evolved(actor))),
            round=jnp.zeros((), jnp.int32),
        )
        # Every leaf its own buffer, so that all can be donated, and no weak type, so that the
        # second chunk has the types of the first.
        return jax.tree.map(lambda x: jnp.array(x, x.dtype, copy=True), state)

    def outer_round(self, state: RoundState, *, root: PRNGKeyArray) -> tuple[RoundState, RoundLog]:
        """One round, as one pure function of the state and the run's root key."""
        key = jax.random.fold_in(root, state.round)
        train_key, evolve_key = jax.random.split(key)
        now = self.annealed(state.round)
        learner, train_log = now.train(state.learner, key=train_key)
        learner, strategy, evolution_log, reuse_log = now._evolve(
            learner, state.strategy, key=evolve_key
        )
        log = RoundLog(
            train=train_log,
            evolution=evolution_log,
            reuse=reuse_log,
            env_steps=sum(
                (part.env_steps for part in (train_log, evolution_log) if part is not None),
                jnp.zeros(()),
            ),
        )
        return RoundState(learner=learner, strategy=strategy, round=state.round + 1), log

    def annealed(self, round_: Int[Array, ""]) -> "Hybrid":
        """The parts as round `round_` uses them."""
        if self.anneal_rounds is None:
            return self
        factor = jnp.clip(1 - 0.9 * round_ / self.anneal_rounds, 0.1, 1.0)
        return eqx.tree_at(lambda h: h.learner, self, self.learner.annealed(factor))

    def train(
        self, learner: LearnerState, *, key: PRNGKeyArray
    ) -> tuple[LearnerState, TrainLog | None]:
        """(a) `grad_steps` PPO steps, each on fresh worlds; none in the `evolution` arm.

        **Returns:** the learner, and the log of the last step, or None where there was none.
        """
        if self.grad_steps == 0 or self.evolution.arm == "evolution":
            return learner, None
        step_keys = rollout.world_keys(key, self.grad_steps)
        learner, logs = lax.scan(lambda s, k: self.train_step(s, key=k), learner, step_keys)
        last = jax.tree.map(lambda x: x[-1], logs)
        return learner, eqx.tree_at(lambda log: log.env_steps, last, jnp.sum(logs.env_steps))

    def train_step(
        self, learner: LearnerState, *, key: PRNGKeyArray
    ) -> tuple[LearnerState, TrainLog]:
        """One rollout and one PPO update."""
        world_key, shuffle_key = jax.random.split(key)
        worlds = mesh.split(rollout.world_keys(world_key, self.worlds), self.devices)
        data = rollout.collect(self.env, learner.actor, self.sampler, keys=worlds)
        data = mesh.gather(data, self.devices)
        learner, ppo_log = self.learner.update(learner, data, key=shuffle_key)
        alive = data.steps.alive.astype(jnp.float32)[..., None, None]
        chosen = jax.nn.one_hot(data.steps.action.skill, len(learner.actor.skill_names)) * alive
        outcome = data.outcome
        return learner, TrainLog(
            ppo=ppo_log,
            score=jax.tree.map(jnp.mean, outcome.score),
            skill_use=jnp.sum(chosen, axis=(0, 1, 2)) / jnp.sum(chosen),
            reward=jnp.mean(outcome.reward_sum),
            cost=jnp.mean(outcome.cost_sum),
            price=learner.dual.price,
            env_steps=jnp.sum(outcome.steps),
        )

    def _evolve(
        self, learner: LearnerState, strategy: PyTree[Any], *, key: PRNGKeyArray
    ) -> tuple[LearnerState, PyTree[Any], EvolutionLog | None, PPOLog | None]:
        """(b) inject, (c) one ES step under common random numbers, (d) write back, and, with
        `reuse`, a PPO step on what the population went through."""
        if self.evolution.arm == "gradient":
            return learner, strategy, None, None
        noise_key, fitness_key, judge_key, *shuffle_key = jax.random.split(
            key, 4 if self.evolution.reuse else 3
        )
        if self.evolution.arm == "merl":
            strategy = self.strategy.inject(strategy, module_theta(self.evolved(learner.actor)))
        before = self.strategy.mean(strategy)
        population, strategy = self.strategy.ask(strategy, key=noise_key)
        episodes = None
        if self.evolution.reuse:
            episodes = self.collect(learner.actor, population, key=fitness_key)
            tried = episodes.outcome
        else:
            tried = self.play(learner.actor, population, key=fitness_key)
        fitness = self.fitness(tried, learner)
        strategy = self.strategy.tell(strategy, population, fitness)
        pair = jnp.stack([before, self.strategy.mean(strategy)])
        judged = self.play(learner.actor, pair, key=judge_key)
        verdict = self.fitness(judged, learner)
        ranked = failures_last(verdict)
        keep = (ranked[1] >= ranked[0]) | (not self.evolution.accept)
        kept = jnp.where(keep, pair[1], pair[0])
        log = EvolutionLog(
            best=jnp.max(jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)),
            mean=jnp.mean(fitness),
            std=jnp.std(fitness),
            non_finite=jnp.sum(~jnp.isfinite(fitness)).astype(jnp.float32),
            before=verdict[0],
            after=verdict[1],
            accepted=keep.astype(jnp.float32),
            sigma=self.strategy.sigma(strategy),
            step_norm=jnp.linalg.norm(kept - before),
            score=jax.tree.map(
                lambda x: jnp.where(keep, jnp.mean(x[1]), jnp.mean(x[0])), judged.score
            ),
            env_steps=jnp.sum(tried.steps) + jnp.sum(judged.steps),
        )
        learner, reuse_log = self.write_back(learner, kept), None
        if episodes is not None:
            learner, reuse_log = self._learner_of(population.shape[0]).update(
                learner, _joined(episodes), key=shuffle_key[0]
            )
        return learner, self.strategy.inject(strategy, kept), log, reuse_log

    def play(
        self, actor: AbstractActor, genomes: Float[Array, "member dim"], *, key: PRNGKeyArray
    ) -> Outcome:
        """Every genome on the same worlds with the same noise; leaves `(P, B)`.

        Only the evolved leaves carry the member axis: the rest of the actor is shared.
        """
        return self._each(rollout.outcomes, actor, genomes, key)

    def collect(
        self, actor: AbstractActor, genomes: Float[Array, "member dim"], *, key: PRNGKeyArray
    ) -> Rollout:
        """The same episodes with everything that the learner needs: the leaves of a `Rollout`,
        each with a leading axis P."""
        return self._each(rollout.collect, actor, genomes, key)

    def _each(
        self,
        roll_out: Callable[..., Played],
        actor: AbstractActor,
        genomes: Float[Array, "member dim"],
        key: PRNGKeyArray,
    ) -> Played:
        worlds = rollout.world_keys(key, self.evolution.worlds)

        def member(theta: Float[Array, "dim"]) -> Played:
            candidate = self.with_genome(actor, theta)
            return roll_out(self.env, candidate, self.sampler, keys=worlds)

        at_once, devices = self.evolution.member_chunk, self.devices
        if devices is not None and genomes.shape[0] % devices.size:
            # Too few members to share out (the judged pair): the devices share the worlds, or,
            # where these do not divide either, each plays all of this little.
            worlds = worlds if self.evolution.worlds % devices.size else mesh.split(worlds, devices)
            devices = None
        played = mesh.map_rows(member, genomes, devices, at_once=at_once)
        return mesh.gather(played, self.devices)

    def _learner_of(self, members: int) -> PPO:
        """The learner for the population's episodes: its minibatches keep their size, or the
        nearest one that divides the rows."""
        episodes = members * self.evolution.worlds
        rows = episodes * self.env.horizon
        wanted = self.learner.minibatches * episodes / self.worlds
        divisors = (number for number in range(1, rows + 1) if rows % number == 0)
        minibatches = min(divisors, key=lambda number: abs(number - wanted))
        return dataclasses.replace(self.learner, minibatches=minibatches)

    def fitness(self, outcome: Outcome, learner: LearnerState) -> Float[Array, "member"]:
        """One number per member: the mean over its worlds."""
        if self.evolution.fitness == "graded":
            return jnp.mean(outcome.score.fitness, axis=-1)
        return jnp.mean(outcome.reward_sum - learner.dual.price * outcome.cost_sum, axis=-1)

    def evolved(self, actor: AbstractActor) -> eqx.Module:
        """The part of the actor that is the genome: its selector, or all of it in the `evolution`
        arm."""
        return actor if self.evolution.arm == "evolution" else actor.selector

    def with_genome(self, actor: AbstractActor, theta: Float[Array, "dim"]) -> AbstractActor:
        """The actor with the numbers of `theta` in its evolved part; the rest is shared."""
        if self.evolution.arm == "evolution":
            return set_module_theta(actor, theta)
        return eqx.tree_at(lambda a: a.selector, actor, set_module_theta(actor.selector, theta))

    def write_back(self, learner: LearnerState, theta: Float[Array, "dim"]) -> LearnerState:
        """(d) The learner goes on with this genome. Adam's moments of what was replaced start
        afresh, unless `reset_moments` is off."""
        actor = self.with_genome(learner.actor, theta)
        learner = eqx.tree_at(lambda s: s.actor, learner, actor)
        if not self.evolution.reset_moments:
            return learner
        return self.learner.reset_selector_moments(learner)


def _joined(episodes: Rollout) -> Rollout:
    """Members and worlds as one axis of worlds."""

    def merge(axis: int, tree: PyTree[Any]) -> PyTree[Any]:
        def one(x: Array) -> Array:
            x = jnp.moveaxis(x, 0, axis)
            return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

        return jax.tree.map(one, tree)

    return Rollout(
        steps=merge(1, episodes.steps),
        last_view=merge(0, episodes.last_view),
        last_team_view=merge(0, episodes.last_team_view),
        outcome=merge(0, episodes.outcome),
    )


def run_rounds(
    hybrid: Hybrid, state: RoundState, root: PRNGKeyArray, active: Int[Array, ""], *, chunk: int
) -> tuple[RoundState, RoundLog]:
    """A chunk of rounds as one scan.

    **Arguments:** `active`: how many of the `chunk` rounds to run; the last chunk of a run may be
    shorter, and a traced count keeps it the same program.

    **Returns:** the state, and logs `(chunk, ...)` of which the first `active` rows are meant.
    """

    # jit only so that the shapes below and the loop body share one trace.
    @jax.jit
    def one(state: RoundState) -> tuple[RoundState, RoundLog]:
        return hybrid.outer_round(state, root=root)

    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, state)[1])

    def body(state: RoundState, index: Int[Array, ""]) -> tuple[RoundState, RoundLog]:
        return lax.cond(index < active, one, lambda s: (s, blank), state)

    return lax.scan(body, state, jnp.arange(chunk))
