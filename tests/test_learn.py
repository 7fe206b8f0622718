"""The gradient half, with numbers written out."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from probes import choice
from small import f32, make_hybrid, make_networks, make_ppo, run_chunk

from purejax_merl import rollout
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.learn import advantages, losses
from purejax_merl.learn.dual import Dual
from purejax_merl.learn.ppo import _Batch, _split
from purejax_merl.learn.value_norm import ValueNorm
from purejax_merl.types import Action, Policy, Step

# Generalised advantages: γ = λ = ½, rewards 1, 2, 3, values 0.5, 1, 1.5, last value 2

GAE_CASES = {
    # δ = 1 + 0.5 − 0.5, 2 + 0.75 − 1, 3 + 1 − 1.5 = 1, 1.75, 2.5; A₁ = 1.75 + 2.5/4 …
    "time limit": (None, None, [1.59375, 2.375, 2.5]),
    # δ₂ = 3 − 1.5: nothing after the end.
    "terminated with the last row": ([0, 0, 1], None, [1.53125, 2.125, 1.5]),
    # δ₁ = 2 − 1; the dead row is zero.
    "terminated early": ([0, 1, 0], [1, 1, 0], [1.25, 1.0, 0.0]),
    # δ₁ = 2 + 0.75 − 1 bootstraps from the dead row's value, but no trace crosses the end.
    "truncated early": (None, [1, 1, 0], [1.4375, 1.75, 0.0]),
}


@pytest.mark.parametrize("case", GAE_CASES)
def test_advantages_by_hand(case):
    terminated, alive, expected = GAE_CASES[case]
    value = f32([0.5, 1.0, 1.5])
    advantage, target = advantages.gae(
        f32([1, 2, 3]),
        value,
        f32(2),
        discount=0.5,
        trace_decay=0.5,
        terminated=None if terminated is None else f32(terminated),
        alive=None if alive is None else f32(alive),
    )
    np.testing.assert_allclose(advantage, expected, rtol=1e-6)
    np.testing.assert_allclose(target, np.add(expected, value), rtol=1e-6)


def test_rewards_of_dead_rows_do_not_matter():
    def run(dead):
        alive = f32([1, 1, 0, 0])
        reward = f32([1, 2, dead, dead])
        return advantages.gae(
            reward, f32([1, 1, 4, 4]), f32(4), discount=0.9, trace_decay=0.9, alive=alive
        )[0]

    np.testing.assert_array_equal(run(0.0), run(1e6))


# Loss terms


def test_clipped_surrogate_by_hand():
    # Ratios 1.5, 0.5, 1.1 of advantages 1, −1, 2: min(1.5, 1.2) − max(0.5, 0.8) + 2.2 = 2.6.
    logp, old = jnp.log(f32([0.75, 0.25, 0.55])), jnp.log(f32([0.5, 0.5, 0.5]))
    loss = losses.clipped_surrogate(logp, old, f32([1, -1, 2]), jnp.ones(3), clip=0.2)
    np.testing.assert_allclose(loss, -2.6 / 3, rtol=1e-6)
    weighted = losses.clipped_surrogate(logp, old, f32([1, -1, 2]), f32([1, 1, 0]), clip=0.2)
    np.testing.assert_allclose(weighted, -0.2, rtol=1e-6)


def test_normalise_counts_only_rows_with_weight():
    x, weight = f32([1, 3, 1e6]), f32([1, 1, 0])
    np.testing.assert_allclose(losses.normalise(x, weight)[:2], [-1, 1], rtol=1e-6)
    np.testing.assert_array_equal(losses.normalise(jnp.ones(3), jnp.ones(3)), 0)


def test_no_weight_at_all_is_zero_and_not_nan():
    assert losses.weighted_mean(jnp.ones(3), jnp.zeros(3)) == 0


class Table(AbstractActor):
    """The same logits whatever is seen; the first skill is learned, the second is not."""

    moves: jax.Array
    selector: eqx.nn.Linear
    skill_names: tuple[str, ...] = eqx.field(static=True, default=("learned", "scripted"))
    learned: tuple[bool, ...] = eqx.field(static=True, default=(True, False))

    def __call__(self, view, graph, legal):
        del graph, legal
        logits = self.selector.weight[:, 0]
        return Policy(
            skill_logits=jnp.broadcast_to(logits, (*view.shape[:-1], 2)),
            move_logits=jnp.broadcast_to(self.moves, (*view.shape[:-1], 2, 2)),
        )


class Level(AbstractCritic):
    """One value for everything."""

    value: jax.Array

    def __call__(self, view, team_view):
        del team_view
        return jnp.broadcast_to(self.value, view.shape[:-1])


def table_networks():
    """Skill probabilities ¾, ¼; moves of the learned skill 0.8, 0.2, of the scripted one ½, ½."""
    selector = eqx.nn.Linear(1, 2, key=jax.random.key(0))
    selector = eqx.tree_at(lambda m: m.weight, selector, jnp.log(f32([[0.75], [0.25]])))
    moves = jnp.log(f32([[0.8, 0.2], [0.5, 0.5]]))
    return Table(moves=moves, selector=selector), Level(f32(0.5))


def two_rows(dead_target=1e6, dead_advantage=-1e6):
    """Agent 0 chose learned/0, agent 1 scripted/0, at old probabilities ½ each; row 1 is dead."""
    half = jnp.log(jnp.full((2, 2), 0.5))
    step = Step(
        view=jnp.zeros((2, 2, 1)),
        team_view=jnp.zeros((2, 2, 1)),
        legal=jnp.ones((2, 2, 2), bool),
        graph=jnp.zeros((2, 2, 2), bool),
        action=Action(
            skill=jnp.array([[0, 1], [0, 1]]),
            move=jnp.zeros((2, 2), jnp.int32),
            skill_logp=half,
            move_logp=half,
        ),
        reward=jnp.zeros((2, 2)),
        cost=jnp.zeros((2, 2)),
        terminated=jnp.zeros(2, bool),
        alive=jnp.array([True, False]),
    )
    return _Batch(
        step=step,
        advantage=f32([[1, -1], [dead_advantage, dead_advantage]]),
        target=f32([[1, 0], [dead_target, dead_target]]),
    )


def test_ppo_loss_by_hand():
    ppo = make_ppo(skill_entropy=f32(0.01), move_entropy=f32(0.02))
    loss, log = ppo._loss(_split(*table_networks()), two_rows())
    # Skill ratios 1.5 (A = 1) and 0.5 (A = −1): −(1.2 − 0.8) / 2.
    np.testing.assert_allclose(log.skill_loss, -0.2, rtol=1e-5)
    # Move ratio 1.6 (A = 1), clipped; the scripted skill's move has no weight.
    np.testing.assert_allclose(log.move_loss, -1.2, rtol=1e-5)
    np.testing.assert_allclose(log.value_loss, (0.5**2 + 0.5**2) / 2, rtol=1e-5)
    # −¾ ln ¾ − ¼ ln ¼ and −0.8 ln 0.8 − 0.2 ln 0.2.
    np.testing.assert_allclose(log.skill_entropy, 0.5623351, rtol=1e-5)
    np.testing.assert_allclose(log.move_entropy, 0.5004024, rtol=1e-5)
    # ln(½/¾) + ln(½/0.8) for one agent and ln(½/¼) + ln(½/½) for the other, halved.
    np.testing.assert_allclose(log.approx_kl, (-0.4054651 - 0.4700036 + 0.6931472) / 2, rtol=1e-5)
    np.testing.assert_allclose(
        loss, -0.2 - 1.2 + 0.25 - 0.01 * 0.5623351 - 0.02 * 0.5004024, rtol=1e-5
    )


def test_dead_rows_carry_no_weight_in_the_loss():
    ppo, nets = make_ppo(), _split(*table_networks())
    one, _ = ppo._loss(nets, two_rows())
    other, _ = ppo._loss(nets, two_rows(dead_target=0.0, dead_advantage=3.0))
    assert one == other


def test_actor_and_critic_are_clipped_apart():
    ppo = make_ppo(max_grad_norm=f32(0.1))
    learner = ppo.init(*table_networks())

    def first_moments(target):
        batch = dataclasses.replace(two_rows(), target=jnp.full((2, 2), target))
        return jax.jit(ppo.__class__._minibatch)(ppo, learner, batch)[0]

    near, far = first_moments(1.0), first_moments(1e4)
    assert eqx.tree_equal(near.executor_moments, far.executor_moments)
    assert eqx.tree_equal(near.selector_moments, far.selector_moments)
    # Adam's first moment after one step is a tenth of the clipped gradient.
    for state in (near, far):
        actor = (state.executor_moments.mu, state.selector_moments.mu)
        assert optax.tree.norm(actor) <= 0.1 * 0.1 * 1.0001
        np.testing.assert_allclose(optax.tree.norm(state.critic_moments.mu), 0.01, rtol=1e-4)


# Value scale


def test_value_norm_round_trip():
    norm, value = ValueNorm.init(), f32([-3.0, 0.0, 50.0])
    np.testing.assert_array_equal(norm.normalise(value), value)
    for k in range(5):
        norm = norm.update(f32([10.0, 20.0, 30.0]) + k, jnp.ones(3))
    np.testing.assert_allclose(norm.restore(norm.normalise(value)), value, rtol=1e-4, atol=1e-4)


def test_value_norm_is_unbiased_from_the_first_update_and_skips_dead_rows():
    norm = ValueNorm.init().update(f32([1.0, 3.0, 1e6]), f32([1, 1, 0]))
    np.testing.assert_allclose(norm.normalise(f32([1.0, 3.0])), [-1, 1], rtol=1e-5)


# Price of the constraint


@pytest.mark.parametrize("mechanism", ["lagrangian", "pid_lagrangian"])
def test_price_falls_when_the_constraint_holds(mechanism):
    dual = Dual(mechanism, f32(0.1), f32(0.0), f32(0.05))
    state = dual.init()
    prices = []
    for violation in [1.0, 1.0, -0.5, -0.5, -5.0, -50.0]:
        state = dual.update(state, f32(violation))
        prices.append(float(state.price))
    assert prices[1] > 0.1 and prices[2] < prices[1] and prices[-1] == 0.0, prices


def rollout_of(env, actor, worlds=4):
    keys = rollout.world_keys(jax.random.key(3), worlds)
    return eqx.filter_jit(rollout.collect)(env, actor, rollout.Sampler(), keys=keys)


@jax.jit
def update(ppo, state, data):
    return ppo.update(state, data, key=jax.random.key(0))[0]


def test_update_moves_the_price_by_the_signed_error():
    env = choice()
    ppo = make_ppo(dual=Dual("lagrangian", f32(1.0), f32(0.3), f32(0.05)))
    actor, critic = make_networks(env)
    data = rollout_of(env, actor)
    for cost, price in [(0.1, 1 - 0.05 * 0.2), (0.5, 1 + 0.05 * 0.2)]:
        costly = eqx.tree_at(lambda d: d.steps.cost, data, jnp.full_like(data.steps.cost, cost))
        state = update(ppo, ppo.init(actor, critic), costly)
        np.testing.assert_allclose(state.dual.price, price, rtol=1e-6)


def test_price_times_cost_is_charged():
    env = choice()
    ppo = make_ppo(dual=Dual("soft_lambda", f32(2.0), f32(0.0), f32(0.0)))
    learner = ppo.init(*make_networks(env))
    data = rollout_of(env, learner.actor)
    cost = jax.random.uniform(jax.random.key(1), data.steps.cost.shape)
    charged = eqx.tree_at(lambda d: d.steps.cost, data, cost)
    paid = eqx.tree_at(lambda d: d.steps.reward, data, data.steps.reward - 2 * cost)
    a, _ = ppo._targets(learner, charged)
    b, _ = ppo._targets(learner, paid)
    np.testing.assert_allclose(a.target, b.target, atol=1e-5)


# Who trains the selector


def executor(actor):
    return actor.trunk, actor.skills


@pytest.mark.parametrize("train_selector", [True, False])
def test_selector_moves_only_where_the_gradient_owns_it(train_selector):
    env = choice()
    ppo = make_ppo(train_selector=train_selector, skill_entropy=f32(0.1))
    learner = ppo.init(*make_networks(env))
    data = rollout_of(env, learner.actor)
    moved = update(ppo, learner, data)
    assert eqx.tree_equal(moved.actor.selector, learner.actor.selector) != train_selector
    for before, after in zip(executor(learner.actor), executor(moved.actor), strict=True):
        assert not eqx.tree_equal(before, after)


def test_selector_moments_start_afresh_after_the_write_back():
    env = choice()
    hybrid = make_hybrid(env)
    start = hybrid.init(*make_networks(env))
    trained = update(hybrid.learner, start.learner, rollout_of(env, start.learner.actor))
    assert optax.tree.norm(trained.selector_moments) > 0
    state, _ = run_chunk(hybrid, start, jax.random.key(0), jnp.int32(1), chunk=1)
    assert eqx.tree_equal(state.learner.selector_moments, start.learner.selector_moments)
    assert optax.tree.norm(state.learner.executor_moments) > 0
