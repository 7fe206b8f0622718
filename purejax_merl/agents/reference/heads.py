"""What hangs on the belief: goal logits of the disperse skill, with its pull toward the unknown.

In: beliefs, frontier features. Out: goal logits.
Axes: agent and batch axes pass through; goal K is trailing.
May import: agents/networks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from purejax_merl.agents import networks

ATTENTION_WIDTH = 32


class FrontierAttention(eqx.Module):
    """Attention of the belief over goal directions, paying each by its unknown share."""

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    log_alpha: Float[Array, ""]
    """Softplus of it is the strength, 1 at the start."""

    def __init__(self, width: int, *, key: PRNGKeyArray):
        query_key, key_key = jax.random.split(key)
        self.query = eqx.nn.Linear(width, ATTENTION_WIDTH, key=query_key)
        self.key = eqx.nn.Linear(2, ATTENTION_WIDTH, key=key_key)
        self.log_alpha = jnp.log(jnp.expm1(jnp.ones(())))

    def __call__(
        self, belief: Float[Array, "*batch width"], frontier: Float[Array, "*batch goal 2"]
    ) -> Float[Array, "*batch goal"]:
        """**Arguments:** `frontier`: per goal, the unknown share of its direction, and of the
        grid."""
        query, key = networks.apply(self.query, belief), networks.apply(self.key, frontier)
        scores = jnp.einsum("...d,...kd->...k", query, key) / ATTENTION_WIDTH**0.5
        attention = jax.nn.softmax(scores, axis=-1) * frontier.shape[-2]
        return jax.nn.softplus(self.log_alpha) * attention * frontier[..., 0]


class Disperse(eqx.Module):
    """The learned exploring skill: a linear head and the frontier's pull."""

    goal: eqx.nn.Linear
    frontier: FrontierAttention

    def __init__(self, width: int, num_goals: int, *, key: PRNGKeyArray):
        goal_key, frontier_key = jax.random.split(key)
        self.goal = eqx.nn.Linear(width, num_goals, key=goal_key)
        self.frontier = FrontierAttention(width, key=frontier_key)

    def __call__(
        self, belief: Float[Array, "*batch width"], frontier: Float[Array, "*batch goal 2"]
    ) -> Float[Array, "*batch goal"]:
        return networks.apply(self.goal, belief) + self.frontier(belief, frontier)
