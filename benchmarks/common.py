"""What every benchmark shares: flags, runs of a given size, fair samples, where they were taken.

In: functions to time. Out: seconds, bytes, JSON.
Axis: wall-clock.
May import: the whole package.

All arms are timed in one process, in the order A B … B A, after a first call that is not counted;
compilation is timed apart and without JAX's cache.
"""

import argparse
import dataclasses
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

import jax
import jax.numpy as jnp

from purejax_merl.build import Run, build_run
from purejax_merl.config import RunConfig
from purejax_merl.runtime import describe
from purejax_merl.runtime.files import plain

Arms = dict[str, Callable[[], Any]]


def arguments(doc: str | None, quick: str) -> argparse.Namespace:
    """The flags of every benchmark; a report that exists is never overwritten."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    parser.add_argument("--quick", action="store_true", help=quick)
    args = parser.parse_args()
    if args.json is not None and args.json.exists():
        parser.error(f"`--json {args.json}` exists already; name another file.")
    if args.quick:
        # Nearly all of a smoke test is compilation, and unoptimised code is as right.
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    # A compiled program from an earlier run would hide what compiling costs.
    jax.config.update("jax_enable_compilation_cache", False)
    return args


def head(benchmark: str, args: argparse.Namespace, size: Any) -> dict[str, Any]:
    """How every report begins."""
    return {
        "benchmark": benchmark,
        "quick": args.quick,
        "seed": 0,
        "machine": machine(),
        "size": plain(size),
    }


def write(path: Path | None, report: dict[str, Any]) -> None:
    """The report so far, with the memory that it took; `path` None writes nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = report | {"peak_process_bytes": peak_process_bytes()}
    path.write_text(json.dumps(plain(whole), indent=2, allow_nan=False) + "\n")


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds until all of the result is there, and the result."""
    started = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - started, result


def interleaved(arms: Arms, repeats: int, *, warm: bool = True) -> dict[str, list[float]]:
    """Seconds of every arm, `repeats` times in the order A B … B A, so that drift cancels."""
    for call in arms.values() if warm else ():
        timed(call)
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats):
        for name in arms if repeat % 2 == 0 else reversed(arms):
            samples[name].append(timed(arms[name])[0])
    return samples


def summary(samples: list[float]) -> dict[str, Any]:
    """Seconds: median, extremes, and every sample."""
    return {
        "median_s": statistics.median(samples),
        "min_s": min(samples),
        "max_s": max(samples),
        "samples_s": samples,
    }


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program made ahead of time, so that its compilation is timed apart."""

    call: jax.stages.Compiled
    seconds: float
    """Tracing, lowering and compiling."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that XLA plans for one call."""
        return describe.memory_plan(self.call)

    @property
    def cost(self) -> dict[str, Any]:
        """What it took to make the program, as a report has it."""
        return {"compile_s": self.seconds, "memory_bytes": self.memory}


def compiled(function: Callable[..., Any], *args: Any) -> Compiled:
    """The function for arguments of these shapes."""
    started = time.perf_counter()
    call = jax.jit(function).lower(*args).compile()
    return Compiled(call=call, seconds=time.perf_counter() - started)


def run_of(config: RunConfig, **sections: dict[str, Any]) -> Run:
    """The parts of a run of `config`, with fields of its sections (`env`, `ppo`, `es`, …)
    replaced."""
    changed = {
        name: dataclasses.replace(getattr(config, name), **fields)
        for name, fields in sections.items()
    }
    return build_run(dataclasses.replace(config, **changed))


def max_difference(one: Any, other: Any) -> float:
    """max |a − b| over all leaves."""
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), one, other)
    return max(float(gap) for gap in jax.tree.leaves(gaps))


def peak_process_bytes() -> int | None:
    """Most memory that this process has held so far; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def machine() -> dict[str, Any]:
    """Where and with what this is measured."""
    packages = ("jax", "jaxlib", "equinox", "optax", "evosax", "numpy")
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": f"{jax.devices()[0].platform}: {jax.devices()[0].device_kind}",
        "devices": jax.device_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
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
