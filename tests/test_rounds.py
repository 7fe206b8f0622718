"""The promises of the round: one program, streams that never meet, and the host loop's numbers."""

import collections

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Probe, everything
from small import f32, make_hybrid, make_networks, make_ppo, opinionated, run_chunk

from purejax_merl import rollout
from purejax_merl.agents.compact import CompactActor
from purejax_merl.envs.coverage import CoverageEnv
from purejax_merl.evolve import (
    NES,
    AbstractStrategy,
    antithetic_noise,
    module_theta,
    set_module_theta,
)
from purejax_merl.learn.dual import Dual
from purejax_merl.rounds import run_rounds

ROOT = jax.random.key(7)
COVERAGE = CoverageEnv(num_agents=3, grid=8, horizon=4)
"""One world whose programs are large; the round does not know the difference."""


def small_run(env=None, **changes):
    """A tiny run with a moving price."""
    env = everything() if env is None else env
    ppo = make_ppo(dual=Dual("lagrangian", f32(0.5), f32(0.1), f32(0.1)))
    strategy = NES(population_size=4, sigma=1.0, lr=0.1)
    parts = {"ppo": ppo, "strategy": strategy, "grad_steps": 2}
    hybrid = make_hybrid(env, **(parts | changes))
    skills = {"one": None, "two": None, **env.skills()}
    actor, critic = make_networks(env, skills=skills, width=8)
    return hybrid, hybrid.init(opinionated(actor), critic)


def run(hybrid, state, *, rounds=1, chunk=None, root=ROOT):
    return run_chunk(hybrid, state, root, jnp.int32(rounds), chunk=chunk or rounds)


def population(state, size, key=0):
    theta = module_theta(state.learner.actor.selector)
    return theta + antithetic_noise(jax.random.key(key), size, theta.size, theta.dtype)


@eqx.filter_jit
def play(hybrid, state, genomes, key):
    return hybrid.play(state.learner.actor, genomes, key=key)


@eqx.filter_jit
def fitness_of(hybrid, state, genomes, key):
    return hybrid.fitness(hybrid.play(state.learner.actor, genomes, key=key), state.learner)


# One program


def test_one_trace_one_call_and_donated_state():
    hybrid, state = small_run()
    traced_once = chex.assert_max_traces(run_rounds, n=1)
    program = jax.jit(traced_once, static_argnames="chunk", donate_argnames="state")
    before = jax.tree.leaves(state)
    for active in (2, 2, 1, 2):
        state, log = program(hybrid, state, ROOT, jnp.int32(active), chunk=2)
    assert int(state.round) == 7
    assert all(leaf.is_deleted() for leaf in before), "the state is not donated"
    assert all(x.size <= 2 * 2 for x in jax.tree.leaves(log)), "a log holds scalars"


@pytest.mark.parametrize(
    "env", [everything(), pytest.param(COVERAGE, marks=pytest.mark.slow)], ids=["probe", "coverage"]
)
def test_no_host_callback_in_the_program(env):
    hybrid, state = small_run(env)
    text = run_chunk.lower(hybrid, state, ROOT, jnp.int32(2), chunk=2).as_text().lower()
    for word in ("callback", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv"):
        assert word not in text, word


def test_partial_chunk_is_fewer_rounds():
    hybrid, state = small_run()
    partial, log = run(hybrid, state, rounds=2, chunk=3)
    straight, _ = run(hybrid, run(hybrid, state, rounds=1, chunk=3)[0], rounds=1, chunk=3)
    chex.assert_trees_all_equal(partial, straight)
    assert (log.env_steps[:2] > 0).all() and log.env_steps[2] == 0


# Streams


def recorded_keys(monkeypatch, hybrid, state, rounds):
    """Every key that a draw consumed at run time, with the shape drawn."""
    used = collections.Counter()

    def recording(draw):
        def wrapped(key, *args, **kwargs):
            drawn = draw(key, *args, **kwargs)
            jax.debug.callback(
                lambda data: used.update([tuple(np.asarray(data).tolist())]),
                jax.random.key_data(key),
            )
            return drawn

        return wrapped

    for name in ("uniform", "normal", "bits", "randint", "rademacher"):
        monkeypatch.setattr(jax.random, name, recording(getattr(jax.random, name)))
    program = jax.jit(lambda s: run_rounds(hybrid, s, ROOT, jnp.int32(rounds), chunk=rounds))
    jax.block_until_ready(program(state))
    jax.effects_barrier()
    return used


def test_no_two_draws_share_a_key(monkeypatch):
    env = everything()
    rounds, grad_steps, worlds, size, epochs = 3, 2, 3, 4, 2
    hybrid = make_hybrid(
        env,
        ppo=make_ppo(epochs=epochs),
        strategy=NES(population_size=size, sigma=0.1),
        grad_steps=grad_steps,
        worlds=worlds,
    )
    state = hybrid.init(*make_networks(env))
    used = recorded_keys(monkeypatch, hybrid, state, rounds)
    # An episode draws its start, then per step the contexts and one pair of uniforms per agent.
    episode = 1 + env.horizon * (1 + env.num_agents)
    per_round = (
        grad_steps * (hybrid.worlds * episode + epochs)
        + size // 2
        + 2 * hybrid.evolution.worlds * episode
    )
    assert len(used) == rounds * per_round, "two draws share a key, or a stream went missing"
    assert set(used.values()) == {1}, "members or the judged pair draw for themselves"


def test_members_meet_the_same_worlds_with_the_same_noise():
    hybrid, state = small_run()
    theta = module_theta(state.learner.actor.selector)
    outcome = play(hybrid, state, jnp.stack([theta] * 5), ROOT)
    for leaf in jax.tree.leaves(outcome):
        np.testing.assert_array_equal(leaf, jnp.broadcast_to(leaf[:1], leaf.shape))
    assert len(np.unique(outcome.reward_sum[0])) > 1, "all worlds are the same"


def test_a_larger_population_leaves_the_members_that_were_there():
    hybrid, state = small_run()
    small, large = population(state, 4), population(state, 12)
    kept = jnp.array([0, 1, 6, 7])
    np.testing.assert_array_equal(small, large[kept])
    few, many = (fitness_of(hybrid, state, genomes, ROOT) for genomes in (small, large))
    np.testing.assert_allclose(few, many[kept], rtol=1e-6)
    assert len(np.unique(few)) > 1


def test_more_worlds_leave_the_worlds_that_were_there():
    hybrid, state = small_run()
    collect = eqx.filter_jit(rollout.collect)
    few, many = (
        collect(hybrid.env, state.learner.actor, hybrid.sampler, keys=rollout.world_keys(ROOT, n))
        for n in (3, 7)
    )
    first = jax.tree.map(lambda x: x[:, :3], many.steps)
    chex.assert_trees_all_close(few.steps, first, rtol=1e-6)


# The host's numbers


@pytest.mark.parametrize(
    "env",
    [everything(), pytest.param(COVERAGE, marks=pytest.mark.slow)],
    ids=["probe", "coverage"],
)
def test_fused_fitness_is_that_of_each_member_on_its_own(env):
    hybrid, state = small_run(env)
    genomes, learner = population(state, 6), state.learner
    fused = fitness_of(hybrid, state, genomes, ROOT)
    keys = rollout.world_keys(ROOT, hybrid.evolution.worlds)
    alone = eqx.filter_jit(rollout.outcomes)
    for theta, fitness in zip(genomes, fused, strict=True):
        selector = set_module_theta(learner.actor.selector, theta)
        actor = eqx.tree_at(lambda a: a.selector, learner.actor, selector)
        outcome = alone(env, actor, hybrid.sampler, keys=keys)
        np.testing.assert_allclose(fitness, jnp.mean(outcome.score.fitness), rtol=1e-6)
    assert len(np.unique(fused)) > 1


@pytest.mark.parametrize("member_chunk", [1, 4])
def test_member_chunks_change_nothing(member_chunk):
    hybrid, state = small_run()
    chunked, _ = small_run(member_chunk=member_chunk)
    genomes = population(state, 6)
    np.testing.assert_allclose(
        fitness_of(chunked, state, genomes, ROOT),
        fitness_of(hybrid, state, genomes, ROOT),
        rtol=1e-6,
    )


def test_return_is_what_the_gradient_maximises_with_the_price_charged():
    hybrid, state = small_run(fitness="return")
    genomes = population(state, 4)
    outcome = play(hybrid, state, genomes, ROOT)
    expected = outcome.reward_sum - 0.5 * outcome.cost_sum
    np.testing.assert_allclose(
        hybrid.fitness(outcome, state.learner), expected.mean(axis=1), rtol=1e-6
    )


# Arms


def same(a, b):
    return bool(eqx.tree_equal(a, b))


@pytest.fixture(scope="module")
def arms():
    """Two rounds of each arm from one start: the state after, and the log."""
    done = {}
    for arm in ("merl", "gradient", "evolution", "no_injection"):
        hybrid, state = small_run(arm=arm)
        done[arm] = (state, *run(hybrid, state, rounds=2))
    return done


def test_gradient_arm_does_not_evolve(arms):
    start, state, log = arms["gradient"]
    assert log.evolution is None and log.train is not None
    assert same(state.strategy, start.strategy)
    assert not same(state.learner.actor.selector, start.learner.actor.selector)


def test_evolution_arm_does_not_train(arms):
    start, state, log = arms["evolution"]
    assert log.train is None and log.evolution is not None
    assert same(state.learner.critic, start.learner.critic)
    assert same(state.learner.executor_moments, start.learner.executor_moments)
    # The genome is the whole actor, and what was written back is the strategy's mean.
    assert not same(state.learner.actor.trunk, start.learner.actor.trunk)
    np.testing.assert_array_equal(state.strategy.mean, module_theta(state.learner.actor))


@pytest.mark.parametrize("arm", ["merl", "no_injection"])
def test_both_halves_leave_their_mark_and_the_mean_is_written_back(arms, arm):
    start, state, log = arms[arm]
    assert log.train is not None and log.evolution is not None
    assert not same(state.learner.actor.trunk, start.learner.actor.trunk)
    selector = module_theta(state.learner.actor.selector)
    np.testing.assert_array_equal(state.strategy.mean, selector)
    assert (log.evolution.step_norm > 0).all()
    assert (log.env_steps == log.train.env_steps + log.evolution.env_steps).all()


def test_injection_takes_the_trained_selector_in(arms):
    start = arms["merl"][0]
    for arm, injected in (("merl", True), ("no_injection", False)):
        hybrid, _ = small_run(arm=arm, strategy=NES(population_size=4, sigma=0.1, lr=0.0))
        state, _ = run(hybrid, start)
        moved = not same(state.learner.actor.selector, start.learner.actor.selector)
        assert moved == injected, arm


# Acceptance and failures


def test_acceptance_never_lowers_the_judged_fitness():
    wild = NES(population_size=4, sigma=1.0, lr=2.0)
    hybrid, state = small_run(accept=True, grad_steps=0, strategy=wild)
    _, log = run(hybrid, state, rounds=20)
    evolution = log.evolution
    kept = np.where(evolution.accepted, evolution.after, evolution.before)
    assert (kept >= evolution.before).all()
    assert 0 < evolution.accepted.sum() < 20, "the test met only one kind of verdict"
    np.testing.assert_array_equal(evolution.accepted, evolution.after >= evolution.before)
    np.testing.assert_allclose(evolution.score.fitness, kept, rtol=1e-6)
    assert (np.asarray(evolution.step_norm)[evolution.accepted == 0] == 0).all()


def failing_run(rounds, lr=0.3, key=ROOT, **evolution):
    """One agent, one step: move 0 scores 0 and move 1 has no score at all."""
    env = Probe(num_agents=1, pay=lambda state, moves: jnp.zeros(1), goal=_fails_on_move_one)
    actor, critic = make_networks(env)
    strategy = NES(population_size=8, sigma=0.5, lr=lr)
    hybrid = make_hybrid(env, strategy=strategy, grad_steps=0, eval_worlds=1, **evolution)
    state, log = run(hybrid, hybrid.init(opinionated(actor), critic), rounds=rounds, root=key)
    view = env.view(env.reset(key=ROOT))
    logits = state.learner.actor(view, jnp.zeros((1, 1), bool), jnp.ones((1, 2), bool))
    return jax.nn.softmax(logits.skill_logits)[0, 0], log.evolution


def _fails_on_move_one(state, moves):
    del state
    return jnp.where(moves[0] == 1, jnp.nan, 0.0)


def test_a_member_without_fitness_never_wins():
    safe, log = failing_run(30)
    failed = np.asarray(log.non_finite)
    assert ((failed > 0) & (failed < 8)).any(), "no generation could tell"
    assert np.isfinite(np.asarray(log.best)[failed < 8]).all()
    assert safe > 0.8, f"the skill that scores has probability {float(safe):.2f}"


class Mirror(AbstractStrategy):
    """Proposes the opposite of the genome it was given, whatever the fitness."""

    population_size: int = eqx.field(static=True, default=2)

    def init(self, theta):
        return theta

    def ask(self, state, *, key):
        return jnp.stack([state, state]), state

    def tell(self, state, population, fitness):
        return -state

    def inject(self, state, theta):
        return theta

    def mean(self, state):
        return state

    def sigma(self, state):
        return jnp.zeros(())


@pytest.mark.parametrize("safe_first", [True, False])
def test_acceptance_leaves_a_genome_without_fitness_and_never_takes_one(safe_first):
    env = Probe(num_agents=1, pay=lambda state, moves: jnp.zeros(1), goal=_fails_on_move_one)
    actor, critic = make_networks(env)
    lead = jnp.array([20.0, -20.0]) * (1 if safe_first else -1)
    actor = eqx.tree_at(lambda a: a.selector.head.bias, opinionated(actor), lead)
    hybrid = make_hybrid(env, strategy=Mirror(), grad_steps=0, eval_worlds=1, accept=True)
    _, log = run(hybrid, hybrid.init(actor, critic), rounds=20)
    before, after = np.isfinite(log.evolution.before), np.isfinite(log.evolution.after)
    accepted = np.asarray(log.evolution.accepted) > 0
    gained, lost = ~before & after, before & ~after
    assert lost.any(), "no safe genome met a failing proposal"
    assert gained.any() or safe_first, "no failing genome met a safe proposal"
    assert accepted[gained].all()
    assert not accepted[lost].any()


# The population's episodes


def test_reuse_is_a_ppo_step_on_every_members_own_episodes():
    hybrid, start = small_run(reuse=True, grad_steps=0)
    state, log = run(hybrid, start)
    plain, plain_log = run(*small_run(grad_steps=0))
    assert log.env_steps == plain_log.env_steps, "the episodes are played once"
    assert same(trunk(plain.learner), trunk(start.learner))
    expected = by_hand(hybrid, start)
    assert not same(trunk(expected), trunk(start.learner))
    chex.assert_trees_all_close(state.learner, expected, atol=1e-6)


def trunk(learner):
    actor = learner.actor
    assert isinstance(actor, CompactActor)
    return actor.trunk


def by_hand(hybrid, state):
    """Round 0 without PPO steps of its own: evolve, then learn from all members' worlds at once."""
    _, evolve_key = jax.random.split(jax.random.fold_in(ROOT, 0))
    noise_key, fitness_key, _, shuffle_key = jax.random.split(evolve_key, 4)
    members, strategy = hybrid.strategy.ask(state.strategy, key=noise_key)
    worlds = rollout.world_keys(fitness_key, hybrid.evolution.worlds)
    actor = state.learner.actor
    episodes = [
        rollout.collect(
            hybrid.env,
            eqx.tree_at(lambda a: a.selector, actor, set_module_theta(actor.selector, theta)),
            hybrid.sampler,
            keys=worlds,
        )
        for theta in members
    ]
    joined = rollout.Rollout(
        steps=jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *[e.steps for e in episodes]),
        last_view=jax.tree.map(lambda *x: jnp.concatenate(x), *[e.last_view for e in episodes]),
        last_team_view=jax.tree.map(
            lambda *x: jnp.concatenate(x), *[e.last_team_view for e in episodes]
        ),
        outcome=jax.tree.map(lambda *x: jnp.concatenate(x), *[e.outcome for e in episodes]),
    )
    outcomes = jax.tree.map(lambda *x: jnp.stack(x), *[e.outcome for e in episodes])
    fitness = hybrid.fitness(outcomes, state.learner)
    mean = hybrid.strategy.mean(hybrid.strategy.tell(strategy, members, fitness))
    evolved = eqx.tree_at(
        lambda s: s.actor.selector, state.learner, set_module_theta(actor.selector, mean)
    )
    # 4 members × 4 worlds against 4 worlds of a PPO step: four times the 2 minibatches.
    learner = make_ppo(dual=hybrid.learner.dual, minibatches=8)
    return eqx.filter_jit(learner.update)(evolved, joined, key=shuffle_key)[0]
