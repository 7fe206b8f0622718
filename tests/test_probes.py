"""Can the learner do this one thing? A failure here names the room that broke."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from small import f32, make_hybrid, make_networks, make_ppo, opinionated, run_chunk

from purejax_merl import rollout
from purejax_merl.agents.base import AbstractCritic
from purejax_merl.evolve import NES
from purejax_merl.types import features

DISCOUNT = 0.9


def learn(env, *, steps=100, **changes):
    """`steps` PPO steps as one gradient-only round: the learner after it, and its last log."""
    hybrid = make_hybrid(env, ppo=make_ppo(**changes), grad_steps=steps, worlds=64, arm="gradient")
    start = hybrid.init(*make_networks(env))
    state, log = run_chunk(hybrid, start, jax.random.key(0), jnp.int32(1), chunk=1)
    return state.learner, log.train


def value(env, learner, context, time):
    state = probes.ProbeState(context=f32(context), time=jnp.int32(time))
    raw = learner.critic(env.view(state), env.team_view(state))
    return np.asarray(learner.value_norm.restore(raw))


# Values


def test_value_of_a_constant():
    env = probes.constant()
    learner, _ = learn(env, steps=30)
    np.testing.assert_allclose(value(env, learner, [1, -1], 0), 3.0, atol=0.1)


def test_value_of_a_constant_that_the_time_limit_cuts():
    env = probes.endless()
    learner, _ = learn(env, steps=200)
    for time in range(env.horizon):
        np.testing.assert_allclose(
            value(env, learner, [1, -1], time), 3 / (1 - DISCOUNT), rtol=0.05
        )


def test_value_from_observation():
    env = probes.observed()
    learner, _ = learn(env)
    for context in ([1, -1], [-1, 1], [1, 1], [-1, -1]):
        np.testing.assert_allclose(value(env, learner, context, 0), context, atol=0.1)


def test_discounting_until_an_early_end():
    env = probes.delayed()
    learner, _ = learn(env, steps=150)
    for time, expected in enumerate([DISCOUNT**2, DISCOUNT, 1.0]):
        np.testing.assert_allclose(value(env, learner, [1, -1], time), expected, atol=0.05)


# Choices


@pytest.mark.parametrize("probe", [probes.choice, probes.agreement])
def test_policy_learns_to_choose(probe):
    env = probe()
    _, log = learn(env)
    reward = float(log.reward[0])
    assert reward > 0.95 * env.horizon, f"{reward:.2f} of {env.horizon}"


def played_score(arm, rounds=40):
    """Team score and mean dense reward per step on fresh worlds after a run of one arm."""
    env = probes.hidden_goal()
    hybrid = make_hybrid(
        env,
        ppo=make_ppo(lr=f32(3e-3)),
        strategy=NES(population_size=16, sigma=0.3, lr=0.2, optimizer="adam"),
        grad_steps=2,
        worlds=16,
        arm=arm,
    )
    actor, critic = make_networks(env, first_bias=2.0)
    start = hybrid.init(opinionated(actor), critic)
    state, _ = run_chunk(hybrid, start, jax.random.key(1), jnp.int32(rounds), chunk=rounds)
    keys = rollout.world_keys(jax.random.key(2), 256)
    outcome = rollout.outcomes(env, state.learner.actor, hybrid.sampler, keys=keys)
    score, reward = jnp.mean(outcome.score.fitness), jnp.mean(outcome.reward_sum) / env.horizon
    return float(score), float(reward)


def test_only_evolution_finds_the_goal_that_the_dense_reward_hides():
    blind, blind_reward = played_score("gradient")
    found, found_reward = played_score("merl")
    assert blind < 0.7 and found > 0.9, f"gradient {blind:.2f}, merl {found:.2f}"
    assert min(blind_reward, found_reward) > 0.95, "the gradient half did not do its own part"


# Ends, with numbers written out


class TimeCritic(AbstractCritic):
    """V(t) = scale · t / horizon: 0, 10, 20, 30 at t = 0…3."""

    scale: jax.Array

    def __call__(self, view, team_view):
        del team_view
        return self.scale * features(view)[..., 1]


def _counting(state, moves):
    """Rewards 1, 2, 3, 4."""
    return jnp.full(moves.shape, 1.0 + state.time)


ENDS = {
    # γ = λ = ½. δ₀ = 1 + 5 − 0 = 6; row 1 closes the episode.
    # terminated: δ₁ = 2 − 10 = −8, A₀ = 6 − 2 = 4. Targets A + V.
    "terminated": ({"terminates_after": 2}, [4.0, 2.0], 2),
    # truncated: δ₁ = 2 + 10 − 10 = 2 (the final state's V is 20), A₀ = 6 + ½.
    "truncated": ({"truncates_after": 2}, [6.5, 12.0], 2),
    # horizon: δ₁ = 2 + 10 − 10, δ₂ = 3 + 15 − 20 = −2, δ₃ = 4 + 20 − 30 = −6;
    # A₂ = −3.5, A₁ = 1.125, A₀ = 6.28125.
    "horizon": ({}, [6.28125, 11.125, 16.5, 24.0], 4),
}


@eqx.filter_jit
def targets(env, ppo, learner, sampler, keys):
    data = rollout.collect(env, learner.actor, sampler, keys=keys)
    return data, *ppo._targets(learner, data)


@pytest.mark.parametrize("ends", ENDS)
def test_value_targets_of_every_way_to_end(ends):
    changes, expected, length = ENDS[ends]
    env = probes.Probe(pay=_counting, horizon=4, **changes)
    ppo = make_ppo(discount=f32(0.5), trace_decay=f32(0.5))
    actor, _ = make_networks(env)
    learner = ppo.init(actor, TimeCritic(f32(40.0)))
    keys = rollout.world_keys(jax.random.key(0), 3)
    data, batch, norm = targets(env, ppo, learner, rollout.Sampler(), keys)
    target = norm.restore(batch.target).reshape(4, 3 * 2)
    np.testing.assert_allclose(target[:length], np.repeat(expected, 6).reshape(-1, 6), rtol=1e-5)
    np.testing.assert_array_equal(data.steps.alive[:, 0], np.arange(4) < length)
    np.testing.assert_array_equal(data.outcome.steps, length)
    np.testing.assert_allclose(data.outcome.reward_sum, sum(range(1, length + 1)))
    # The running scale saw the rows that count and no other.
    np.testing.assert_allclose(norm.mean / norm.weight, np.mean(expected), rtol=1e-5)
