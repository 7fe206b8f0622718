"""Reward terms, unweighted: each `(N,)` float32, all taken after the move.

In: footprints, positions, graphs. Out: one number per agent.
Axis: none (agents are rows).
May import: the world's own files.
"""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from purejax_merl.envs.coverage import bits, comms


def new_cells(
    footprint: UInt32[Array, "agent row word"],
    covered: UInt32[Array, "row word"],
    *,
    credit: Literal["first", "each"],
) -> Float[Array, "agent"]:
    """Cells covered for the first time. `first`: a cell that several reach at once pays the lowest
    index."""
    fresh = footprint & ~covered
    if credit == "first":
        taken, rows = covered, []
        for i in range(footprint.shape[0]):
            rows.append(footprint[i] & ~taken)
            taken = taken | footprint[i]
        fresh = jnp.stack(rows)
    return bits.count(fresh).astype(jnp.float32)


def reach_fraction(linked: Bool[Array, "agent agent"]) -> Float[Array, "agent"]:
    """Share of the teammates that each agent can reach over any number of hops."""
    others = max(linked.shape[0] - 1, 1)
    return (jnp.sum(comms.reach(linked), axis=1) - 1).astype(jnp.float32) / others


def shared_cells(position: Int[Array, "agent 2"]) -> Float[Array, "agent"]:
    """Number of other agents on each agent's cell."""
    return jnp.sum(comms.distance(position) == 0, axis=1).astype(jnp.float32) - 1


def overlap(footprint: UInt32[Array, "agent row word"]) -> Float[Array, "agent"]:
    """Cells of each footprint that lie in another agent's current footprint as well."""
    size = footprint.shape[0]
    others = [bits.union(jnp.delete(footprint, i, axis=0)) for i in range(size)]
    return bits.count(footprint & jnp.stack(others)).astype(jnp.float32)
