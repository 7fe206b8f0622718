"""What can be had in the coverage world without learning? Scripted teams, from chance to a search.

    python benchmarks/ceilings.py --json benchmarks/results/ceilings.json

The worlds, the metrics and the intervals are those of `python -m purejax_merl.evaluate`: world i
of a rung is test world i of every model. `random` and `frontier` act on what an agent knows;
`voronoi` and `sweep` see the whole map. `sweep` keeps λ₂ > 0.5 in every step. What it finds is a
lower bound of what is possible, not the optimum. It takes about a second a world, so it meets the
first `--planned` worlds only.
"""

import argparse
import dataclasses
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import page
from jax import lax
from jaxtyping import Array, Key, PRNGKeyArray
from planners import AbstractPlanner, Frontier, Random, Sweep, Voronoi

from purejax_merl import build, evaluation, rollout
from purejax_merl.config import EnvConfig, preset
from purejax_merl.envs.coverage import CoverageEnv
from purejax_merl.envs.coverage.types import CoverageScore, CoverageState, CoverageTerms

_24 = EnvConfig(grid=24, n_agents=6)
RUNGS = {
    "16x4": EnvConfig(),
    "24x6": _24,
    "32x10": EnvConfig(grid=32, n_agents=10),
    "16x4-r7": EnvConfig(comm_r=7),
    "24x6-r7": dataclasses.replace(_24, comm_r=7),
    "32x10-r7": EnvConfig(grid=32, n_agents=10, comm_r=7),
    "24x6-clutter": dataclasses.replace(_24, terrain="clutter"),
    "24x6-pillars": dataclasses.replace(_24, terrain="pillars"),
    "24x6-mixed": dataclasses.replace(_24, terrain="mixed", n_obstacles=43),
}
PLANNERS: dict[str, AbstractPlanner] = {
    "random": Random(),
    "frontier": Frontier(),
    "voronoi": Voronoi(),
    "sweep": Sweep(),
}
BATCH = 32
"""Worlds of one call. Calls run side by side, one per core."""


def play(env: CoverageEnv, planner: AbstractPlanner, key: PRNGKeyArray) -> CoverageScore:
    """One episode, in the world that an evaluation builds from this key."""
    reset_key, plan_key, step_key = jax.random.split(key, 3)
    start = env.reset(key=reset_key)
    plan = planner.init(env, start, key=plan_key)

    def step(state: CoverageState, key: PRNGKeyArray) -> tuple[CoverageState, CoverageTerms]:
        act_key, world_key = jax.random.split(key)
        moves = planner.act(env, plan, state, key=act_key)
        state, paid = env.step(state, moves, key=world_key)
        return state, paid.terms

    final, terms = lax.scan(step, start, jax.random.split(step_key, env.horizon))
    return env.score(final, jax.tree.map(jnp.mean, terms))


@eqx.filter_jit
def _batch(env: CoverageEnv, planner: AbstractPlanner, keys: Key[Array, "world"]) -> CoverageScore:
    """A search is its own batch and keeps to the cache world by world; the others are mapped."""
    at_once = 1 if isinstance(planner, Sweep) else len(keys)
    return lax.map(lambda key: play(env, planner, key), keys, batch_size=at_once)


def episode_scores(
    env: CoverageEnv, planner: AbstractPlanner, episodes: int, *, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """Every metric of every episode; world i is `fold_in(key, i)`."""
    size = min(BATCH, episodes)
    # The last batch is filled up with further worlds, so that one program serves all batches.
    keys = rollout.world_keys(key, -(-episodes // size) * size)
    parts = [keys[i : i + size] for i in range(0, len(keys), size)]
    first = jax.block_until_ready(_batch(env, planner, parts[0]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rest = pool.map(lambda part: jax.block_until_ready(_batch(env, planner, part)), parts[1:])
        scores = jax.tree.map(lambda *x: np.concatenate(x)[:episodes], first, *rest)
    return {name: np.asarray(value) for name, value in vars(scores).items()}


def world(config: EnvConfig) -> CoverageEnv:
    """The coverage world of a rung."""
    return build.make_coverage(dataclasses.replace(preset("compact"), env=config))


def measure(config: EnvConfig, episodes: int, planned: int, *, key: PRNGKeyArray) -> dict[str, Any]:
    """Planner → number of worlds, and mean with interval of every metric."""
    table: dict[str, Any] = {}
    for name, planner in PLANNERS.items():
        number = min(planned, episodes) if isinstance(planner, Sweep) else episodes
        scores = episode_scores(world(config), planner, number, key=key)
        table[name] = {"episodes": number, **evaluation.summary(scores)}
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=512, help="test worlds")
    parser.add_argument("--planned", type=int, default=128, help="test worlds of the sweep")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS), metavar="RUNG")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: one rung, four worlds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    args = parser.parse_args()
    if min(args.episodes, args.planned) < 1:
        parser.error("`--episodes` and `--planned` must be at least 1.")
    if args.quick:
        args.episodes, args.planned, args.rungs = 4, 4, args.rungs[:1]
    size = {"episodes": args.episodes, "planned": args.planned}
    report = common.head("ceilings", args, size) | {"planners": PLANNERS, "rungs": {}}
    key = build.stream(report["seed"], build.TEST)
    for name in args.rungs:
        table = measure(RUNGS[name], args.episodes, args.planned, key=key)
        report["rungs"][name] = {"env": dataclasses.asdict(RUNGS[name]), "planners": table}
        common.write(args.json, report)
        print(f"{name} done", file=sys.stderr, flush=True)
    print(page.markdown([("ceilings", "", page.ceilings(report))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
