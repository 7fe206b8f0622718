"""How good a frozen policy is on fresh worlds.

In: an environment, an actor, a key. Out: per-episode scores, and means with intervals.
Axis: worlds, in batches that bound memory.
May import: rollout and below, runtime.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from purejax_merl import rollout
from purejax_merl.agents.base import AbstractActor
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.runtime.statistics import bootstrap_interval
from purejax_merl.types import AbstractScore

BATCH = 256
"""Worlds rolled out at once."""


@jax.jit
def _batch(
    env: AbstractTeamEnv, actor: AbstractActor, sampler: rollout.Sampler, keys: Key[Array, "world"]
) -> AbstractScore:
    return rollout.outcomes(env, actor, sampler, keys=keys).score


def episode_scores(
    env: AbstractTeamEnv,
    actor: AbstractActor,
    episodes: int,
    *,
    key: PRNGKeyArray,
    greedy: bool = False,
) -> dict[str, np.ndarray]:
    """Every metric of every episode.

    **Arguments:** `key`: world i is `fold_in(key, i)`, whatever the number of episodes.

    **Returns:** metric name → `(episodes,)`.
    """
    sampler = rollout.Sampler(greedy=jnp.asarray(greedy))
    size = min(BATCH, episodes)
    # The last batch is filled up with further worlds, so that one program serves all batches.
    keys = rollout.world_keys(key, -(-episodes // size) * size)
    parts = [_batch(env, actor, sampler, keys[i : i + size]) for i in range(0, len(keys), size)]
    scores = jax.tree.map(lambda *x: np.asarray(jnp.concatenate(x))[:episodes], *parts)
    return {name: np.asarray(value) for name, value in vars(scores).items()}


def summary(scores: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Mean and 95 % bootstrap interval over episodes of every metric."""
    table = {}
    for name, values in scores.items():
        low, high = bootstrap_interval(values)
        table[name] = {"mean": float(np.mean(values)), "low": low, "high": high}
    return table


def report(
    env: AbstractTeamEnv, actor: AbstractActor, episodes: int, *, key: PRNGKeyArray
) -> dict[str, Any]:
    """Both ways to act: `sampled` is the headline, `greedy` stands beside it.

    The trained policy is stochastic, and it is the sampled one that evolution judged.
    """
    table: dict[str, Any] = {"episodes": episodes}
    for name, greedy in (("sampled", False), ("greedy", True)):
        table[name] = summary(episode_scores(env, actor, episodes, key=key, greedy=greedy))
    return table


def lines(table: dict[str, Any]) -> list[str]:
    """The report as text, one metric to a line, sampled beside greedy."""
    rows = [f"{'metric':<14}{'sampled':>9}  {'95 % interval':<20}{'greedy':>9}"]
    for name, cell in table["sampled"].items():
        interval = f"[{cell['low']:.3f}, {cell['high']:.3f}]"
        greedy = table["greedy"][name]["mean"]
        rows.append(f"{name:<14}{cell['mean']:>9.3f}  {interval:<20}{greedy:>9.3f}")
    return rows
