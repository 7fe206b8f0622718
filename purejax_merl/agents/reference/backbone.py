"""From grid planes to a belief per agent: convolutions, then messages between linked agents.

In: images, graph. Out: `(*batch, agent, W)`.
Axes: agent and batch axes pass through; messages mix agents along the graph only.
May import: agents/networks and this folder's files.

The architecture follows LPAC (Agarwal et al. 2024, arXiv 2401.04855).
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from purejax_merl.agents import networks
from purejax_merl.agents.reference.conv import ConvStack

Aggregator = Literal["max", "mean", "multihead"]
Features = Float[Array, "*batch agent width"]
Graph = Bool[Array, "*batch agent agent"]


class LayerNorm(eqx.Module):
    """Over the last axis (Ba et al. 2016, arXiv 1607.06450), with a learned scale and shift."""

    scale: Float[Array, "width"]
    shift: Float[Array, "width"]

    def __init__(self, width: int):
        self.scale, self.shift = jnp.ones(width), jnp.zeros(width)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return centred / jnp.sqrt(variance + 1e-5) * self.scale + self.shift


class MessagePassing(eqx.Module):
    """One round: every agent sends a linear image of its features and folds in what it hears."""

    message: eqx.nn.Linear
    update: eqx.nn.Linear
    query: eqx.nn.Linear
    """Used by `multihead` only; built for every aggregator, so that all have the same weights."""
    key: eqx.nn.Linear
    aggregator: Aggregator = eqx.field(static=True)
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, aggregator: Aggregator, heads: int, *, key: PRNGKeyArray):
        message_key, update_key, query_key, key_key = jax.random.split(key, 4)
        self.message = eqx.nn.Linear(width, width, key=message_key)
        self.update = eqx.nn.Linear(2 * width, width, key=update_key)
        self.query = eqx.nn.Linear(width, width, key=query_key)
        self.key = eqx.nn.Linear(width, width, key=key_key)
        self.aggregator = aggregator
        self.heads = heads

    def __call__(self, x: Features, graph: Graph) -> Features:
        sent = networks.apply(self.message, x)
        if self.aggregator == "max":
            heard = hear_max(sent, graph)
        elif self.aggregator == "mean":
            heard = hear_mean(sent, graph)
        else:
            query, key = networks.apply(self.query, x), networks.apply(self.key, x)
            heard = hear_attended(query, key, sent, graph, self.heads)
        return jax.nn.relu(networks.apply(self.update, jnp.concatenate([x, heard], axis=-1)))


def hear_max(sent: Features, graph: Graph) -> Features:
    """Elementwise maximum over neighbours; 0 without any."""
    reaching = jnp.where(graph[..., None], sent[..., None, :, :], -jnp.inf)
    linked = jnp.any(graph, axis=-1)[..., None]
    # The inner `where` keeps the unused branch finite: 0 · ∞ in its gradient would be nan.
    return jnp.where(linked, jnp.max(jnp.where(linked[..., None], reaching, 0.0), axis=-2), 0.0)


def hear_mean(sent: Features, graph: Graph) -> Features:
    """Mean over neighbours; 0 without any."""
    links = graph.astype(sent.dtype)
    degree = jnp.sum(links, axis=-1, keepdims=True)
    return links @ sent / jnp.maximum(degree, 1)


def hear_attended(
    query: Features, key: Features, sent: Features, graph: Graph, heads: int
) -> Features:
    """Scaled dot-product attention over neighbours (Vaswani et al. 2017); 0 without any."""
    query, key, value = (x.reshape(*x.shape[:-1], heads, -1) for x in (query, key, sent))
    scores = jnp.einsum("...ihd,...jhd->...hij", query, key) / query.shape[-1] ** 0.5
    links = graph[..., None, :, :]
    # Finite, so that a row without neighbours has a gradient; its weights are zeroed after.
    weights = jax.nn.softmax(jnp.where(links, scores, -1e9), axis=-1) * links
    return jnp.einsum("...hij,...jhd->...ihd", weights, value).reshape(sent.shape)


class Backbone(eqx.Module):
    """Convolutions per agent, rounds of messages, layer normalisation."""

    convolutions: ConvStack
    rounds: tuple[MessagePassing, ...]
    norm: LayerNorm

    def __init__(
        self,
        channels: int,
        *,
        width: int,
        depth: int,
        rounds: int,
        aggregator: Aggregator,
        heads: int,
        chunk: int | None,
        key: PRNGKeyArray,
    ):
        """**Arguments:** `channels`: planes of a view; `heads` of `multihead` must divide
        `width`."""
        if width % heads:
            raise ValueError(
                f"`ReferenceActor(width={width})` must be divisible by `heads={heads}`."
            )
        conv_key, message_key = jax.random.split(key)
        self.convolutions = ConvStack(channels, width, depth, chunk=chunk, key=conv_key)
        self.rounds = tuple(
            MessagePassing(width, aggregator, heads, key=k)
            for k in jax.random.split(message_key, rounds)
        )
        self.norm = LayerNorm(width)

    def __call__(
        self, image: Float[Array, "*batch agent row col channel"], graph: Graph
    ) -> Features:
        x = self.convolutions(image)
        for one_round in self.rounds:
            x = one_round(x, graph)
        return self.norm(x)
