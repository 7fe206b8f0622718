"""The outer round as a loop on the host, over the same parts and the same keys.

`host_round` is the literal form: one dispatch and one `float()` per gradient step and per member.
`batched_round` is what a careful loop does: one dispatch per phase, members in one `vmap`, and
only the fitness read back.
"""

import jax
import jax.numpy as jnp
import numpy as np

from purejax_merl import rollout
from purejax_merl.evolve.genome import module_theta
from purejax_merl.evolve.ranking import failures_last
from purejax_merl.rounds import Hybrid, RoundState

# One jitted function per dispatch. The hybrid is a pytree, so that its rates are arguments.
_train_step = jax.jit(lambda hybrid, learner, key: hybrid.train_step(learner, key=key))
_train = jax.jit(lambda hybrid, learner, key: hybrid.train(learner, key=key)[0])
_inject = jax.jit(
    lambda hybrid, strategy, actor: hybrid.strategy.inject(
        strategy, module_theta(hybrid.evolved(actor))
    )
)
_ask = jax.jit(lambda hybrid, strategy, key: hybrid.strategy.ask(strategy, key=key))
_tell = jax.jit(
    lambda hybrid, strategy, population, fitness: hybrid.strategy.tell(
        strategy, population, fitness
    )
)


@jax.jit
def _fitness(hybrid, learner, genomes, key):
    return hybrid.fitness(hybrid.play(learner.actor, genomes, key=key), learner)


@jax.jit
def _write_back(hybrid, learner, strategy, theta):
    return hybrid.write_back(learner, theta), hybrid.strategy.inject(strategy, theta)


def host_round(hybrid: Hybrid, state: RoundState, root: jax.Array) -> RoundState:
    """`hybrid.outer_round` for every arm but `gradient`, as Python loops over steps and members."""

    def train(hybrid, learner, key):
        if hybrid.evolution.arm == "evolution":
            return learner
        for step_key in rollout.world_keys(key, hybrid.grad_steps):
            learner, log = _train_step(hybrid, learner, step_key)
            float(log.reward)
        return learner

    def score(learner, genomes, key):
        return [float(_fitness(hybrid, learner, theta[None], key)[0]) for theta in genomes]

    return _round(hybrid, state, root, train, score)


def batched_round(hybrid: Hybrid, state: RoundState, root: jax.Array) -> RoundState:
    """The same round with a dispatch per phase: a scan of steps, a vmap of members."""

    def train(hybrid, learner, key):
        return _train(hybrid, learner, key)

    def score(learner, genomes, key):
        return np.asarray(_fitness(hybrid, learner, genomes, key))

    return _round(hybrid, state, root, train, score)


def _round(hybrid, state, root, train, score) -> RoundState:
    """Train, inject, ask, play, tell, judge, write back; `train` and `score` are the loops."""
    train_key, evolve_key = jax.random.split(jax.random.fold_in(root, state.round))
    noise_key, fitness_key, judge_key = jax.random.split(evolve_key, 3)
    learner = train(hybrid.annealed(state.round), state.learner, train_key)
    strategy = state.strategy
    if hybrid.evolution.arm == "merl":
        strategy = _inject(hybrid, strategy, learner.actor)
    before = hybrid.strategy.mean(strategy)
    population, strategy = _ask(hybrid, strategy, noise_key)
    fitness = score(learner, population, fitness_key)
    strategy = _tell(hybrid, strategy, population, jnp.asarray(fitness, jnp.float32))
    after = hybrid.strategy.mean(strategy)
    judged = failures_last(jnp.asarray(score(learner, jnp.stack([before, after]), judge_key)))
    worse = hybrid.evolution.accept and bool(judged[1] < judged[0])
    learner, strategy = _write_back(hybrid, learner, strategy, before if worse else after)
    return RoundState(learner=learner, strategy=strategy, round=state.round + 1)
