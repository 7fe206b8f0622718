"""The reference system's central critic: one value for the team from the true map.

In: a team view whose `image()` is `(*batch, row, col, channel)`. Out: `(*batch, agent)` values.
Axes: batch axes pass through; the team's value is repeated for every agent.
May import: types and the other agent files.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from purejax_merl.agents import networks
from purejax_merl.agents.base import AbstractCritic
from purejax_merl.agents.reference.backbone import LayerNorm
from purejax_merl.agents.reference.conv import ConvStack
from purejax_merl.types import View


class ReferenceCritic(AbstractCritic):
    """Convolutions over the central planes, layer normalisation, a linear head."""

    convolutions: ConvStack
    norm: LayerNorm
    head: eqx.nn.Linear

    def __init__(
        self,
        channels: int = 3,
        *,
        width: int = 64,
        depth: int = 2,
        chunk: int | None = 64,
        key: PRNGKeyArray,
    ):
        """**Arguments:** `channels`: central planes (covered, agents, walls); `chunk`: as in the
        actor."""
        conv_key, head_key = jax.random.split(key)
        self.convolutions = ConvStack(channels, width, depth, chunk=chunk, key=conv_key)
        self.norm = LayerNorm(width)
        self.head = eqx.nn.Linear(width, 1, key=head_key)

    def __call__(self, view: View, team_view: View) -> Float[Array, "*batch agent"]:
        value = networks.apply(self.head, self.norm(self.convolutions(team_view.image())))
        # The own views only say how many agents there are.
        return jnp.broadcast_to(value, view.frontier.shape[:-2])
