"""How long until the first round: a first start, and a second one with the compilation cache.

    python benchmarks/startup.py --json benchmarks/results/startup.json

Every sample is one run of the command line in a process of its own: cold with an empty cache, warm
with the cache that a cold one left. Times count from the start of the process.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

ROOT = Path(__file__).resolve().parent.parent
COMPILED = re.compile(r"compiled in ([\d.]+) s")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is started."""

    flags: tuple[str, ...]
    repeats: int
    """Starts of each kind."""


FULL = Size(flags=("--outer", "5", "--episodes", "8"), repeats=3)
QUICK = Size(
    flags=tuple(
        "--outer 5 --episodes 2 --grid 8 --n-agents 2 --horizon 5 --rollouts 2 --minibatches 2 "
        "--ppo-epochs 1 --pop 2 --eval-worlds 1 --grad-steps 1 --width 8".split()
    ),
    repeats=1,
)


def start(flags: tuple[str, ...], cache: Path) -> dict[str, float]:
    """One run of the command line; seconds of its milestones, and its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "purejax_merl.train", *flags, "--run-dir", str(run_dir)]
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(cache), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        said, compiled = [], None
        for line in process.stderr:
            said.append(line)
            if compiled is None and (match := COMPILED.search(line)):
                compiled = (time.perf_counter() - started, float(match[1]))
        _, status, usage = os.wait4(process.pid, 0)
        ended = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or compiled is None:
            raise RuntimeError(f"{' '.join(command)} failed:\n{''.join(said)}")
        first = json.loads((run_dir / "history.jsonl").read_text().splitlines()[0])
    return {
        "compile_s": compiled[1],
        "until_compiled_s": compiled[0],
        "round_s": first["seconds"],
        "until_first_round_s": compiled[0] + first["seconds"],
        "until_end_s": ended,
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def _environment(cache: Path) -> dict[str, str]:
    """The caller's, with the compilation cache in a folder of its own."""
    ours = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | ours | {"PYTHONPATH": path}


def measure(size: Size) -> dict[str, Any]:
    """Cold and warm starts by turns: a cold one fills the cache of the warm one after it."""
    samples: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(size.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in samples:
                samples[kind].append(start(size.flags, Path(cache)))
    return {kind: _table(taken) for kind, taken in samples.items()}


def _table(taken: list[dict[str, float]]) -> dict[str, Any]:
    """Quantity → its summary over the starts."""
    seconds = [name for name in taken[0] if name.endswith("_s")]
    table: dict[str, Any] = {n: common.summary([start[n] for start in taken]) for n in seconds}
    return table | {"peak_bytes": max(start["peak_bytes"] for start in taken)}


def show(measured: dict[str, Any]) -> None:
    for kind, table in measured.items():
        for name, row in table.items():
            if name.endswith("_s"):
                spread = f"[{row['min_s']:.1f}, {row['max_s']:.1f}]"
                print(f"{kind:6s}{name:22s}{row['median_s']:8.1f} s {spread}")


def main() -> int:
    args = common.arguments(__doc__, "small sizes; a smoke test")
    size = QUICK if args.quick else FULL
    report = common.head("startup", args, size)
    starts = measure(size)
    show(starts)
    common.write(args.json, report | {"starts": starts})
    return 0


if __name__ == "__main__":
    sys.exit(main())
