"""Which skill, when: the part of the actor that evolution owns.

In: the trunk's features of each agent. Out: skill logits.
Axes: agent and batch axes pass through; skill K is trailing.
May import: agents/networks.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from purejax_merl.agents import networks


class Selector(eqx.Module):
    """One linear head over K skills. Its flat genome is the weight `(K, W)` row by row, then the
    bias."""

    head: eqx.nn.Linear

    def __init__(self, width: int, num_skills: int, *, first_bias: float, key: PRNGKeyArray):
        """**Arguments:** `first_bias`: logit by which the first skill leads at the start."""
        head = networks.linear(width, num_skills, scale=0.01, key=key)
        bias = first_bias * (jnp.arange(num_skills) == 0)
        self.head = eqx.tree_at(lambda m: m.bias, head, bias.astype(jnp.float32))

    def __call__(self, features: Float[Array, "*batch width"]) -> Float[Array, "*batch skill"]:
        return networks.apply(self.head, features)
