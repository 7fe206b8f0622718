"""A run that is killed again and again ends as the run that was left alone, bit for bit.

    python benchmarks/kill_and_resume.py --kills 10 --json kill-and-resume.json

A tiny run is trained straight, then once more with SIGKILL at random moments: after a random round
and a random pause, or at the sight of a file that is just being written, the last time during
the final evaluation. After each it goes on with `--resume`. Weights, history (wall-clock aside)
and evaluation must be equal, and whatever checkpoint a kill leaves behind must be sound. Exit
code 1 if not.
"""

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

TINY = (
    "--grid 8 --n-agents 2 --horizon 8 --rollouts 4 --minibatches 2 --pop 4 --eval-worlds 2 "
    "--width 16 --depth 1 --grad-steps 1 --chunk 1 --checkpoint-every 2 --episodes 4"
).split()
TIMING = {"seconds"}
PATIENCE_S = 300.0
LONGEST_PAUSE_S = 0.02


def history(folder: Path) -> list[dict[str, Any]]:
    """The records of a run, without what a clock decides."""
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


def payload(folder: Path) -> bytes:
    """The model's numbers; its header names the run directory."""
    return (folder / "model.eqx").read_bytes().split(b"\n", 3)[3]


def differences(straight: Path, other: Path) -> list[str]:
    """What two finished runs do not have in common."""
    evaluations = [json.loads((f / "evaluation.json").read_text()) for f in (straight, other)]
    same = {
        "weights": payload(straight) == payload(other),
        "history": history(straight) == history(other),
        "evaluation": evaluations[0] == evaluations[1],
        "set of half-written files": _torn(straight) == _torn(other),
    }
    return [name for name, equal in same.items() if not equal]


@dataclasses.dataclass(frozen=True)
class Moment:
    """When to kill: once the history has `round` records, after `pause` seconds, or, if that is
    None, as soon as a file is half written."""

    round: int
    pause: float | None


@dataclasses.dataclass(frozen=True)
class Kill:
    """What a kill left behind."""

    moment: Moment
    records: int
    """Records in the history."""
    checkpoints: list[str]
    unsound: list[str]
    """Checkpoints that cannot be read."""
    torn: list[str]
    """Files that were being written."""
    seconds: float
    """From the start of the process to its death."""


def moments(kills: int, outer: int, seed: int) -> list[Moment]:
    """In the order of the rounds; every other one waits for a half-written file, and the last
    falls into the final evaluation."""
    draw = random.Random(seed)
    rounds = [*sorted(draw.sample(range(1, outer), kills - 1)), outer]
    return [
        Moment(round_, draw.uniform(0, LONGEST_PAUSE_S) if n % 2 or round_ == outer else None)
        for n, round_ in enumerate(rounds)
    ]


def command(*flags: object) -> list[str]:
    """The command line's own door, as a user goes through it."""
    return [sys.executable, "-m", "purejax_merl.train", *map(str, flags)]


def finish(flags: Sequence[object]) -> float:
    """Trains to the end; seconds."""
    started = time.perf_counter()
    done = subprocess.run(command(*flags), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the run failed:\n{done.stderr}")
    return time.perf_counter() - started


def kill_at(moment: Moment, folder: Path, flags: Sequence[object]) -> Kill:
    """Starts or resumes the run and kills it at `moment`."""
    started, before = time.perf_counter(), _torn(folder)
    log = folder.parent / "last.log"
    with open(log, "w") as output:
        run = subprocess.Popen(command(*flags), stdout=output, stderr=output)
        try:
            _wait(run, log, lambda: _records(folder) >= moment.round)
            if moment.pause is None:
                _wait(run, log, lambda: bool(_torn(folder) - before))
            else:
                time.sleep(moment.pause)
        finally:
            run.kill()
            run.wait()
    found = sorted(folder.glob("checkpoints/round-*.eqx"))
    return Kill(
        moment=moment,
        records=_records(folder),
        checkpoints=[path.name for path in found],
        unsound=[path.name for path in found if not _sound(path)],
        torn=sorted(_torn(folder) - before),
        seconds=time.perf_counter() - started,
    )


def _wait(run: subprocess.Popen, log: Path, until: Callable[[], bool]) -> None:
    """Looks as often as it can: a checkpoint is written within milliseconds."""
    deadline = time.perf_counter() + PATIENCE_S
    while not until():
        if run.poll() is not None:
            sys.exit(f"the run ended before it was killed ({run.returncode}):\n{log.read_text()}")
        if time.perf_counter() > deadline:
            sys.exit(f"nothing to kill after {PATIENCE_S:g} s:\n{log.read_text()}")
        time.sleep(2e-4)


def _records(folder: Path) -> int:
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _torn(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob(".*.tmp")}


def _sound(path: Path) -> bool:
    from purejax_merl.runtime.modelfile import ModelFileError, load_header

    try:
        return load_header(path)["round"] == int(path.stem.removeprefix("round-"))
    except ModelFileError:
        return False


def measure(work: Path, *, kills: int, outer: int, seed: int) -> dict[str, Any]:
    """Both runs in `work`, a row per kill on the way."""
    straight, killed = work / "straight", work / "killed"
    flags = [*TINY, "--outer", outer]
    seconds = finish([*flags, "--run-dir", straight])
    print(f"straight: {outer} rounds in {seconds:.1f} s", flush=True)
    print("| kill | records | newest checkpoint | unsound | half written | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    rows = []
    for number, moment in enumerate(moments(kills, outer, seed), start=1):
        start = [*flags, "--run-dir", killed] if number == 1 else ["--resume", killed]
        row = kill_at(moment, killed, start)
        rows.append(row)
        newest = row.checkpoints[-1] if row.checkpoints else "–"
        cells = (number, row.records, newest, len(row.unsound), len(row.torn), f"{row.seconds:.1f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    finish(["--resume", killed])
    return {
        "benchmark": "kill_and_resume",
        "seed": seed,
        "machine": common.machine(),
        "outer": outer,
        "flags": TINY,
        "straight_s": seconds,
        "kills": [dataclasses.asdict(row) for row in rows],
        "different": differences(straight, killed),
    }


def failures(report: dict[str, Any]) -> list[str]:
    """Empty if all is as promised."""
    unsound = [name for row in report["kills"] for name in row["unsound"]]
    return [f"another {name} than the straight run" for name in report["different"]] + [
        f"a kill left a damaged {name}" for name in unsound
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="times that the run is killed")
    parser.add_argument("--outer", type=int, default=60, help="rounds of the run")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    args = parser.parse_args(argv)
    if not 1 <= args.kills <= args.outer:
        parser.error(f"`--kills {args.kills}` must lie in 1..{args.outer}, the rounds.")
    if args.json is not None and args.json.exists():
        parser.error(f"`--json {args.json}` exists already; name another file.")
    with tempfile.TemporaryDirectory() as work:
        report = measure(Path(work), kills=args.kills, outer=args.outer, seed=args.seed)
    common.write(args.json, report)
    faults = failures(report)
    print("\n".join(faults) or "weights, history and evaluation are those of the straight run")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
