"""Every strategy on three plain landscapes: does it find the top, stand noise, leave a plateau?

    python benchmarks/strategies.py --json strategies.json

All start at the same point, one unit of σ = 0.1 in every coordinate, and see the same number of
evaluations. The number is the distance of the mean to the optimum over the distance at the start,
median over seeds: 0 is the optimum, 1 is where it began, above 1 is farther away. Learning rates
are not tuned per strategy: a table of what runs and how it behaves, not a ranking.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from purejax_merl.evolve import CEM, NES
from purejax_merl.evolve.base import AbstractStrategy
from purejax_merl.evolve.evosax import make_evosax, valid_names

DIM, MEMBERS, GENERATIONS, SEEDS = 20, 16, 200, 5
SIGMA, LR = 0.1, 0.02

Fitness = Callable[[Float[Array, "member dim"], PRNGKeyArray], Float[Array, "member"]]


def sphere(x: Float[Array, "member dim"], key: PRNGKeyArray) -> Float[Array, "member"]:
    """−‖x‖²."""
    del key
    return -jnp.sum(x**2, axis=-1)


def noisy_sphere(x: Float[Array, "member dim"], key: PRNGKeyArray) -> Float[Array, "member"]:
    """−‖x‖² plus noise as large as the spread of a population at the start."""
    return sphere(x, key) + 0.9 * jax.random.normal(key, x.shape[:1])


def plateau(x: Float[Array, "member dim"], key: PRNGKeyArray) -> Float[Array, "member"]:
    """−‖x‖² in steps of 1: most differences between members are ties."""
    return jnp.floor(sphere(x, key))


LANDSCAPES: dict[str, Fitness] = {
    "sphere": sphere,
    "noisy sphere": noisy_sphere,
    "plateau": plateau,
}


def distance(strategy: AbstractStrategy, fitness: Fitness, key: PRNGKeyArray) -> Float[Array, ""]:
    """Of the mean after all generations, over that of the start."""
    start = jnp.ones(DIM)

    def generation(state, key):
        ask_key, noise_key = jax.random.split(key)
        population, state = strategy.ask(state, key=ask_key)
        return strategy.tell(state, population, fitness(population, noise_key)), None

    keys = jax.random.split(key, GENERATIONS)
    state, _ = lax.scan(generation, strategy.init(start), keys)
    return jnp.linalg.norm(strategy.mean(state)) / jnp.linalg.norm(start)


def make(name: str) -> AbstractStrategy:
    """The strategy by the name that `--es-kind` takes."""
    if name == "nes":
        return NES(population_size=MEMBERS, sigma=SIGMA, lr=LR, optimizer="adam")
    if name == "cem":
        return CEM(population_size=MEMBERS, sigma=SIGMA)
    return make_evosax(name, population_size=MEMBERS, sigma=SIGMA, lr=LR)


def measure(name: str) -> dict[str, float]:
    """Landscape → median distance over seeds."""
    strategy, keys = make(name), jax.random.split(jax.random.key(0), SEEDS)
    row = {}
    for landscape, fitness in LANDSCAPES.items():
        run = functools.partial(distance, strategy, fitness)
        row[landscape] = float(np.median(jax.jit(lambda k, run=run: lax.map(run, k))(keys)))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the table; must not exist")
    args = parser.parse_args()
    if args.json is not None and args.json.exists():
        sys.exit(f"error: `--json {args.json}` exists already; name another file.")
    table = {}
    print(f"| strategy | {' | '.join(LANDSCAPES)} | seconds, compilation included |")
    print(f"|---|{'---|' * (len(LANDSCAPES) + 1)}", flush=True)
    for name in ["nes", "cem", *valid_names()]:
        started = time.perf_counter()
        table[name] = measure(name)
        cells = " | ".join(f"{value:.3f}" for value in table[name].values())
        print(f"| {name} | {cells} | {time.perf_counter() - started:.1f} |", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
