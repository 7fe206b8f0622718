"""What does it buy to compile the outer round? Checks that all loops agree, then times them.

    python benchmarks/fusion.py --quick --json fusion.json

Arms: `literal` (Python over steps and members), `batched` (one dispatch per phase), `evosax`
(batched, with evosax's Open_ES), `round` (one program per round), `chunk` (one program for all
rounds). Times are seconds per round after a first call; what that took longer is compilation.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from host_loop import batched_round, host_round

from purejax_merl.build import build_run
from purejax_merl.config import EnvConfig, preset
from purejax_merl.evolve import module_theta
from purejax_merl.rounds import Hybrid, RoundState, run_rounds

TOLERANCE = 1e-4
"""On every weight, after the checked rounds. The programs do the same sums in another order."""

Advance = Callable[[Hybrid, RoundState, jax.Array, int], RoundState]
"""`(hybrid, state, root, rounds) -> state`."""


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    populations: tuple[int, ...]
    arms: tuple[str, ...]
    agents: int
    grid: int
    horizon: int
    grad_steps: int
    worlds: int
    eval_worlds: int
    width: int
    rounds: int
    repeats: int


def make_run(size: Size, population: int, *, evosax_name: str | None = None, seed: int = 0):
    """The parts and the first state of one run: the default preset at this size."""
    base = preset("compact")
    config = dataclasses.replace(
        base,
        seed=seed,
        grad_steps=size.grad_steps,
        env=EnvConfig(grid=size.grid, n_agents=size.agents, horizon=size.horizon),
        agent=dataclasses.replace(base.agent, width=size.width),
        ppo=dataclasses.replace(base.ppo, rollouts=size.worlds),
        es=dataclasses.replace(
            base.es, pop=population, eval_worlds=size.eval_worlds, es_kind=evosax_name or "nes"
        ),
    )
    run = build_run(config)
    return run.hybrid, run.state


_one_round = jax.jit(lambda hybrid, state, root: hybrid.outer_round(state, root=root)[0])
_chunk = functools.partial(jax.jit, static_argnames="chunk")(run_rounds)


def _repeat(one: Callable[[Hybrid, RoundState, jax.Array], RoundState]) -> Advance:
    def advance(hybrid: Hybrid, state: RoundState, root: jax.Array, rounds: int) -> RoundState:
        for _ in range(rounds):
            state = one(hybrid, state, root)
        return state

    return advance


def _fused_chunk(hybrid: Hybrid, state: RoundState, root: jax.Array, rounds: int) -> RoundState:
    return _chunk(hybrid, state, root, jnp.int32(rounds), chunk=rounds)[0]


ARMS: dict[str, Advance] = {
    "literal": _repeat(host_round),
    "batched": _repeat(batched_round),
    "evosax": _repeat(batched_round),
    "round": _repeat(_one_round),
    "chunk": _fused_chunk,
}

FULL = Size(
    populations=(8, 32, 128),
    arms=tuple(ARMS),
    agents=4,
    grid=16,
    horizon=100,
    grad_steps=5,
    worlds=16,
    eval_worlds=8,
    width=96,
    rounds=3,
    repeats=4,
)
# Nearly all of it is compilation, hence one population, three arms and a small team.
QUICK = dataclasses.replace(
    FULL,
    populations=(16,),
    arms=("literal", "batched", "chunk"),
    agents=2,
    grid=8,
    horizon=20,
    worlds=8,
    width=32,
)


def measure(size: Size, population: int) -> dict[str, Any]:
    """First calls, whether they agree, then seconds per round of every arm.

    The order of the samples is A B … B A, so that drift cancels.
    """
    root, runs, first, ends = jax.random.key(1), {}, {}, {}
    for name in size.arms:
        evosax_name = "Open_ES" if name == "evosax" else None
        hybrid, state = make_run(size, population, evosax_name=evosax_name)
        runs[name] = functools.partial(ARMS[name], hybrid, state, root, size.rounds)
        first[name], ends[name] = timed(runs[name])
    check = compare(make_run(size, population)[1], ends)
    samples: dict[str, list[float]] = {name: [] for name in size.arms}
    for repeat in range(size.repeats if check["same"] else 0):
        for name in size.arms if repeat % 2 == 0 else reversed(size.arms):
            samples[name].append(timed(runs[name])[0] / size.rounds)
    rows = {
        name: summary(first[name], size.rounds, taken) for name, taken in samples.items() if taken
    }
    return {"check": check, "arms": rows}


def compare(start: RoundState, ends: dict[str, RoundState]) -> dict[str, Any]:
    """Largest difference of any weight of the actor between each arm and the fused chunk."""
    differences = {
        name: max_difference(end.learner.actor, ends["chunk"].learner.actor)
        for name, end in ends.items()
        if name != "evosax"
    }
    moved = max_difference(ends["chunk"].learner.actor.selector, start.learner.actor.selector)
    return {
        "max_abs_difference": differences,
        "selector_moved_by": moved,
        "tolerance": TOLERANCE,
        "same": all(difference <= TOLERANCE for difference in differences.values()),
    }


def max_difference(one: eqx.Module, other: eqx.Module) -> float:
    """max |a − b| over the float leaves."""
    return float(jnp.max(jnp.abs(module_theta(one) - module_theta(other))))


def timed(run: Callable[[], RoundState]) -> tuple[float, RoundState]:
    """Wall-clock seconds, and what was computed."""
    started = time.perf_counter()
    end = jax.block_until_ready(run())
    return time.perf_counter() - started, end


def summary(first: float, rounds: int, samples: list[float]) -> dict[str, Any]:
    median = statistics.median(samples)
    return {
        "compile_s": max(first - rounds * median, 0.0),
        "median_s": median,
        "min_s": min(samples),
        "max_s": max(samples),
        "samples_s": samples,
    }


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    versions = {
        "python": platform.python_version(),
    } | {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "equinox", "evosax")}
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": f"{jax.devices()[0].platform}: {jax.devices()[0].device_kind}",
        "versions": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def show(population: int, measured: dict[str, Any]) -> None:
    check, arms = measured["check"], measured["arms"]
    worst = max(check["max_abs_difference"].values())
    verdict = "same" if check["same"] else "NOT THE SAME"
    print(f"population {population}: {verdict}, max |Δweight| {worst:.1e} <= {TOLERANCE:g}?")
    for name, row in arms.items():
        gain = arms["literal"]["median_s"] / row["median_s"]
        print(
            f"  {name:8s} {row['median_s'] * 1e3:9.1f} ms/round"
            f"  [{row['min_s'] * 1e3:.1f}, {row['max_s'] * 1e3:.1f}]"
            f"  x{gain:.1f}  first call {row['compile_s']:.1f} s longer",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    parser.add_argument("--quick", action="store_true", help="small sizes; two minutes on 2 cores")
    args = parser.parse_args()
    # A compiled program from an earlier run would hide what compiling costs.
    jax.config.update("jax_enable_compilation_cache", False)
    size = QUICK if args.quick else FULL
    report: dict[str, Any] = {"machine": machine(), "size": dataclasses.asdict(size), "seed": 0}
    report["populations"] = {}
    for population in size.populations:
        measured = report["populations"][str(population)] = measure(size, population)
        show(population, measured)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    same = all(measured["check"]["same"] for measured in report["populations"].values())
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
