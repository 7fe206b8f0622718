"""Drawing from a policy and scoring what was drawn.

In: a `Policy`, uniforms or an `Action`. Out: an `Action`, log-probabilities, entropies.
Axes: agent and batch axes pass through; skill K and move A are reduced.
May import: types.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from purejax_merl.types import Action, Policy


def sample(policy: Policy, uniform: Float[Array, "*batch agent 2"]) -> Action:
    """One skill, then one of its moves, by inverse distribution function.

    **Arguments:** `uniform`: two numbers in [0, 1) per agent. The same numbers give two nearby
    policies the same action almost everywhere, which is what common random numbers are for.
    """
    skill, skill_logp = _draw(policy.skill_logits, uniform[..., 0])
    move, move_logp = _draw(_of_skill(policy, skill), uniform[..., 1])
    return Action(skill=skill, move=move, skill_logp=skill_logp, move_logp=move_logp)


def greedy(policy: Policy) -> Action:
    """The likeliest skill, and its likeliest move."""
    skill = jnp.argmax(policy.skill_logits, axis=-1)
    moves = _of_skill(policy, skill)
    move = jnp.argmax(moves, axis=-1)
    return Action(
        skill=skill,
        move=move,
        skill_logp=_pick(jax.nn.log_softmax(policy.skill_logits), skill),
        move_logp=_pick(jax.nn.log_softmax(moves), move),
    )


class Assessment(eqx.Module):
    """A stored action under a policy: log-probabilities and entropies of both choices, per
    agent."""

    skill_logp: Float[Array, "*batch agent"]
    move_logp: Float[Array, "*batch agent"]
    skill_entropy: Float[Array, "*batch agent"]
    move_entropy: Float[Array, "*batch agent"]


def assess(policy: Policy, action: Action) -> Assessment:
    """Scores `action`; the move entropy is that of the drawn skill."""
    skills = jax.nn.log_softmax(policy.skill_logits)
    moves = jax.nn.log_softmax(_of_skill(policy, action.skill))
    return Assessment(
        skill_logp=_pick(skills, action.skill),
        move_logp=_pick(moves, action.move),
        skill_entropy=-jnp.sum(jnp.exp(skills) * skills, axis=-1),
        move_entropy=-jnp.sum(jnp.exp(moves) * moves, axis=-1),
    )


def _of_skill(
    policy: Policy, skill: Int[Array, "*batch agent"]
) -> Float[Array, "*batch agent move"]:
    chosen = jax.nn.one_hot(skill, policy.skill_logits.shape[-1])[..., None] > 0
    return jnp.sum(jnp.where(chosen, policy.move_logits, 0.0), axis=-2)


def _pick(
    logp: Float[Array, "*batch choice"], index: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    # A masked sum: a gather (and the scatter that is its gradient) is slower over a few choices.
    chosen = jnp.arange(logp.shape[-1]) == index[..., None]
    return jnp.sum(jnp.where(chosen, logp, 0.0), axis=-1)


def _draw(
    logits: Float[Array, "*batch choice"], uniform: Float[Array, "*batch"]
) -> tuple[Int[Array, "*batch"], Float[Array, "*batch"]]:
    logp = jax.nn.log_softmax(logits)
    probs = jnp.exp(logp)
    cumulative = [probs[..., 0]]
    for k in range(1, logits.shape[-1]):
        cumulative.append(cumulative[-1] + probs[..., k])
    # Counting "≤" skips choices of probability 0, also at uniform = 0; the last total is never
    # counted.
    threshold = uniform * cumulative[-1]
    index = jnp.zeros(uniform.shape, jnp.int32)
    for total in cumulative[:-1]:
        index = index + (total <= threshold)
    return index, _pick(logp, index)
