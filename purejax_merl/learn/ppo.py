"""PPO with local actors and a central critic (CTDE; MAPPO, arXiv 2103.01955).

In: a `Rollout`. Out: the next `LearnerState`, a `PPOLog`.
Axes: epochs and minibatches are scanned; rows are team steps, agents pass through.
May import: types, agents and the other files of this room.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from purejax_merl.agents import policy as policies
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.learn import advantages, losses
from purejax_merl.learn.dual import Dual, DualState
from purejax_merl.learn.value_norm import ValueNorm
from purejax_merl.types import Policy, Rollout, Step


class LearnerState(eqx.Module):
    """Everything that the gradient half carries from step to step."""

    # Changed by every minibatch.
    actor: AbstractActor
    critic: AbstractCritic
    executor_moments: PyTree[Any]
    """Adam's moments of every actor leaf but the selector's."""
    selector_moments: PyTree[Any]
    """Kept apart so that they can be reset when evolution replaces the selector."""
    critic_moments: PyTree[Any]
    # Changed once per rollout.
    value_norm: ValueNorm
    dual: DualState


class PPOLog(eqx.Module):
    """Scalars of one train step, means over its minibatches; entropies in nats."""

    skill_loss: Float[Array, "*steps"]
    move_loss: Float[Array, "*steps"]
    value_loss: Float[Array, "*steps"]
    auxiliary_loss: Float[Array, "*steps"]
    """Of the actor's estimate of `Transition.target`; 0 where it makes none."""
    skill_entropy: Float[Array, "*steps"]
    move_entropy: Float[Array, "*steps"]
    approx_kl: Float[Array, "*steps"]
    """mean(old − new log-probability) of the joint choice over the last epoch's minibatches."""


class _Batch(eqx.Module):
    """Rows of a rollout with their targets; leaves `(rows, ...)`."""

    step: Step
    advantage: Float[Array, "*rows agent"]
    target: Float[Array, "*rows agent"]


class _Networks(eqx.Module):
    executor: PyTree[Any]
    selector: PyTree[Any]
    critic: PyTree[Any]


class PPO(eqx.Module):
    """The learner. Rates are arrays and may be swept; counts are static."""

    lr: Float[Array, ""]
    clip: Float[Array, ""]
    discount: Float[Array, ""]
    trace_decay: Float[Array, ""]
    skill_entropy: Float[Array, ""]
    move_entropy: Float[Array, ""]
    max_grad_norm: Float[Array, ""]
    dual: Dual
    epochs: int = eqx.field(static=True)
    minibatches: int = eqx.field(static=True)
    train_selector: bool = eqx.field(static=True)
    """False: the selector is frozen under the gradient, so the two halves touch disjoint leaves."""
    value_weight: float = eqx.field(static=True, default=1.0)
    auxiliary_weight: float = eqx.field(static=True, default=0.0)
    """Of the loss of the actor's estimate of `Transition.target`; 0 does not compute it."""
    auxiliary_huber: float | None = eqx.field(static=True, default=None)
    """Error beyond which that loss turns linear; None: squared throughout."""
    weight_decay: float = eqx.field(static=True, default=0.0)
    """Decoupled (AdamW, Loshchilov & Hutter 2019, arXiv 1711.05101), on every trained leaf."""
    adam_eps: float = eqx.field(static=True, default=1e-5)
    # The published system's loss is the other value of each of these.
    team_reward: bool = eqx.field(static=True, default=False)
    """True: every agent is paid the team's mean, so that all share one advantage."""
    count_scripted: bool = eqx.field(static=True, default=False)
    """True: moves of scripted skills count in the move loss and entropy, which dilutes them."""
    normalise_minibatch: bool = eqx.field(static=True, default=False)
    """True: advantages are normalised within each minibatch. False: once, over the rollout."""
    normalise_value: bool = eqx.field(static=True, default=True)
    """False: the critic regresses raw returns."""
    joint_clip: bool = eqx.field(static=True, default=False)
    """True: one norm over actor and critic, in which the critic's far larger gradient dominates."""

    def init(self, actor: AbstractActor, critic: AbstractCritic) -> LearnerState:
        """Fresh moments around given networks."""
        nets = _split(actor, critic)
        return LearnerState(
            actor=actor,
            critic=critic,
            executor_moments=self._adam.init(nets.executor),
            selector_moments=self._adam.init(nets.selector),
            critic_moments=self._adam.init(nets.critic),
            value_norm=ValueNorm.init(),
            dual=self.dual.init(),
        )

    def annealed(self, factor: Float[Array, ""]) -> "PPO":
        """The same learner with its learning rate and entropy weights times `factor`."""
        rates = (self.lr, self.skill_entropy, self.move_entropy)
        scaled = tuple(rate * factor for rate in rates)
        return eqx.tree_at(lambda p: (p.lr, p.skill_entropy, p.move_entropy), self, scaled)

    def reset_selector_moments(self, state: LearnerState) -> LearnerState:
        """Moments of a selector that evolution has just replaced belong to another point: start
        afresh."""
        fresh = self._adam.init(_split(state.actor, state.critic).selector)
        return eqx.tree_at(lambda s: s.selector_moments, state, fresh)

    def update(
        self, state: LearnerState, rollout: Rollout, *, key: PRNGKeyArray
    ) -> tuple[LearnerState, PPOLog]:
        """`epochs` passes over the rollout in `minibatches` steps each, then the dual update.

        The price in force during the rollout is the one before the update.
        """
        batch, value_norm = self._targets(state, rollout)
        state = eqx.tree_at(lambda s: s.value_norm, state, value_norm)
        rows = batch.advantage.shape[0]

        def epoch(state: LearnerState, epoch_key: PRNGKeyArray) -> tuple[LearnerState, PPOLog]:
            # argsort of random words is one sort; random.permutation takes several.
            order = jnp.argsort(jax.random.bits(epoch_key, (rows,)))
            return lax.scan(
                lambda s, index: self._minibatch(s, jax.tree.map(lambda x: x[index], batch)),
                state,
                order.reshape(self.minibatches, -1),
            )

        state, logs = lax.scan(epoch, state, jax.random.split(key, self.epochs))
        weight = rollout.steps.alive.astype(jnp.float32)
        mean_cost = losses.weighted_mean(jnp.mean(rollout.steps.cost, axis=-1), weight)
        dual = self.dual.update(state.dual, mean_cost - self.dual.limit)
        log = jax.tree.map(jnp.mean, logs)
        log = eqx.tree_at(lambda m: m.approx_kl, log, jnp.mean(logs.approx_kl[-1]))
        return eqx.tree_at(lambda s: s.dual, state, dual), log

    def _targets(self, state: LearnerState, rollout: Rollout) -> tuple[_Batch, ValueNorm]:
        """Advantages and value targets of all rows, with the price of the cost charged."""
        steps = rollout.steps
        values = state.critic(steps.view, steps.team_view)
        last = state.critic(rollout.last_view, rollout.last_team_view)
        agents = steps.reward.shape[-1]
        alive = _per_agent(steps.alive, agents)
        reward = steps.reward - state.dual.price * steps.cost
        if self.team_reward:
            reward = _per_agent(jnp.mean(reward, axis=-1), agents)
        advantage, target = advantages.gae(
            reward,
            state.value_norm.restore(values),
            state.value_norm.restore(last),
            discount=self.discount,
            trace_decay=self.trace_decay,
            terminated=_per_agent(steps.terminated, agents),
            alive=alive,
        )
        value_norm = state.value_norm
        if self.normalise_value:
            value_norm = value_norm.update(target, alive)
        if not self.normalise_minibatch:
            advantage = losses.normalise(advantage, alive)
        batch = _Batch(step=steps, advantage=advantage, target=value_norm.normalise(target))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch), value_norm

    def _minibatch(self, state: LearnerState, batch: _Batch) -> tuple[LearnerState, PPOLog]:
        nets = _split(state.actor, state.critic)
        (_, log), grads = jax.value_and_grad(self._loss, has_aux=True)(nets, batch)
        grads = self._clipped(grads)
        update = self._adam.update
        executor_step, executor_moments = update(grads.executor, state.executor_moments)
        selector_step, selector_moments = update(grads.selector, state.selector_moments)
        critic_step, critic_moments = update(grads.critic, state.critic_moments)
        moved = _Networks(
            executor=self._moved(nets.executor, executor_step),
            selector=self._moved(nets.selector, selector_step)
            if self.train_selector
            else nets.selector,
            critic=self._moved(nets.critic, critic_step),
        )
        return LearnerState(
            actor=_join(moved),
            critic=moved.critic,
            executor_moments=executor_moments,
            selector_moments=selector_moments,
            critic_moments=critic_moments,
            value_norm=state.value_norm,
            dual=state.dual,
        ), log

    def _loss(self, nets: _Networks, batch: _Batch) -> tuple[Float[Array, ""], PPOLog]:
        step, actor = batch.step, _join(nets)
        policy = actor(step.view, step.graph, step.legal)
        seen = policies.assess(policy, step.action)
        value = nets.critic(step.view, step.team_view)
        alive = _per_agent(step.alive, step.reward.shape[-1])
        advantage = batch.advantage
        if self.normalise_minibatch:
            advantage = losses.normalise(advantage, alive)
        # Moves of scripted skills have no weights behind them; averaging them in would only dilute.
        learned = jnp.asarray(actor.learned)[step.action.skill] * alive
        move_weight = alive if self.count_scripted else learned
        skill_weight = alive if self.train_selector else jnp.zeros_like(alive)
        kl = (step.action.skill_logp - seen.skill_logp) + (step.action.move_logp - seen.move_logp)
        log = PPOLog(
            skill_loss=losses.clipped_surrogate(
                seen.skill_logp,
                step.action.skill_logp,
                advantage,
                skill_weight,
                clip=self.clip,
            ),
            move_loss=losses.clipped_surrogate(
                seen.move_logp, step.action.move_logp, advantage, move_weight, clip=self.clip
            ),
            value_loss=losses.value_loss(value, batch.target, alive),
            auxiliary_loss=self._auxiliary_loss(policy, step, alive),
            skill_entropy=losses.weighted_mean(seen.skill_entropy, alive),
            move_entropy=losses.weighted_mean(seen.move_entropy, move_weight),
            approx_kl=losses.weighted_mean(kl, alive),
        )
        skill_bonus = self.skill_entropy * log.skill_entropy if self.train_selector else 0.0
        bonus = skill_bonus + self.move_entropy * log.move_entropy
        regression = self.value_weight * log.value_loss + self.auxiliary_weight * log.auxiliary_loss
        return log.skill_loss + log.move_loss + regression - bonus, log

    def _auxiliary_loss(
        self, policy: Policy, step: Step, alive: Float[Array, "*rows agent"]
    ) -> Float[Array, ""]:
        if policy.estimate is None or not self.auxiliary_weight:
            return jnp.zeros(())
        if step.target is None:
            raise ValueError(
                "The actor makes an estimate, but the environment's `Transition.target` is None: "
                "set it in `step`, or build `PPO(auxiliary_weight=0.0)`."
            )
        target = _per_agent(step.target, alive.shape[-1])
        return losses.regression_loss(policy.estimate, target, alive, huber=self.auxiliary_huber)

    def _clipped(self, grads: _Networks) -> _Networks:
        if self.joint_clip:
            return _clip(grads, self.max_grad_norm)
        # Actor and critic are clipped apart: the critic's gradient is far larger.
        executor, selector = _clip((grads.executor, grads.selector), self.max_grad_norm)
        critic = _clip(grads.critic, self.max_grad_norm)
        return _Networks(executor=executor, selector=selector, critic=critic)

    def _moved(self, weights: PyTree[Any], step: PyTree[Any]) -> PyTree[Any]:
        return jax.tree.map(lambda w, s: w - self.lr * (s + self.weight_decay * w), weights, step)

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(b1=0.9, b2=0.999, eps=self.adam_eps)


def _clip(grads: PyTree[Any], max_norm: Float[Array, ""]) -> PyTree[Any]:
    norm = optax.tree.norm(grads)
    scale = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * scale, grads)


def _split(actor: AbstractActor, critic: AbstractCritic) -> _Networks:
    """Float leaves by owner: executor, selector, critic."""
    executor = eqx.tree_at(lambda a: a.selector, actor, None)
    return _Networks(executor=executor, selector=actor.selector, critic=critic)


def _join(nets: _Networks) -> AbstractActor:
    return eqx.tree_at(
        lambda a: a.selector, nets.executor, nets.selector, is_leaf=lambda leaf: leaf is None
    )


def _per_agent(x: Array, agents: int) -> Float[Array, "*rows agent"]:
    """A team quantity as one float per agent."""
    return jnp.broadcast_to(x[..., None], (*x.shape, agents)).astype(jnp.float32)
