"""One GPU or TPU in about five minutes: fusion, evaluation, seeds and the roofline at sizes that
fill it.

    python benchmarks/accelerator.py --json benchmarks/results/accelerator.json

Products are made in float32 and, where they weigh (evaluation, roofline), with
`jax_default_matmul_precision` at bfloat16 as well. The report is written after every section, so
that a run that is cut short keeps what it has. Without an accelerator only `--quick` runs.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import common
import environment
import fusion
import jax
import roofline
import seeds

from purejax_merl.config import RunConfig, preset

PRECISIONS = ("float32", "bfloat16")


def sized(population: int, eval_worlds: int, rollouts: int, horizon: int = 100) -> RunConfig:
    """The default preset with more of everything."""
    base = preset("compact")
    return dataclasses.replace(
        base,
        env=dataclasses.replace(base.env, horizon=horizon),
        ppo=dataclasses.replace(base.ppo, rollouts=rollouts),
        es=dataclasses.replace(base.es, pop=population, eval_worlds=eval_worlds),
    )


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    loops: fusion.Row
    study: fusion.Row
    evaluation: environment.Size
    phases: roofline.Size


FULL = Size(
    # A single round of the literal loop dispatches a few thousand programs.
    loops=fusion.Row(sized(256, 16, 64), rounds=2, repeats=3, seeds=8, literal_up_to=256),
    study=fusion.Row(sized(32, 16, 64), rounds=5, repeats=3, seeds=8),
    evaluation=dataclasses.replace(environment.FULL, members=1024, eval_worlds=16),
    phases=roofline.Size(config=sized(1024, 16, 1024), matmul=8192, copy=2**29, repeats=7),
)
QUICK = Size(
    loops=fusion.QUICK[0],
    study=seeds.QUICK,
    evaluation=environment.QUICK,
    phases=roofline.QUICK,
)


def by_precision(section: Callable[[], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The section once for each precision of products."""
    measured = {}
    for precision in PRECISIONS:
        with jax.default_matmul_precision(precision):
            measured[precision] = section()
    return measured


def measure(size: Size, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All sections, the cheapest first; `keep` is handed what there is after each."""
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "evaluation": lambda: by_precision(lambda: environment.evaluation(size.evaluation)),
        "roofline": lambda: by_precision(lambda: roofline.measure(size.phases)),
        "fusion": lambda: _in_float32(lambda: fusion.measure(size.loops)),
        "seeds": lambda: _in_float32(lambda: seeds.measure(size.study)),
    }
    measured = {}
    for name, section in sections.items():
        measured[name] = section()
        keep(measured)
    return measured


def _in_float32(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with jax.default_matmul_precision("float32"):
        return section()


def show(measured: dict[str, Any]) -> None:
    for precision in PRECISIONS:
        speed = measured["evaluation"][precision]["agent_steps_per_s"]
        print(f"{precision}: evaluation {speed / 1e6:.2f} M agent steps/s")
        roofline.show(measured["roofline"][precision])
    fusion.show(measured["fusion"])
    seeds.show(measured["seeds"])


def main() -> int:
    args = common.arguments(__doc__, "small sizes, on any device; a smoke test")
    if jax.default_backend() == "cpu" and not args.quick:
        print("error: there is no accelerator here; `--quick` runs on a CPU.", file=sys.stderr)
        return 2
    size = QUICK if args.quick else FULL
    report = common.head("accelerator", args, size)
    measured = measure(size, lambda sections: common.write(args.json, report | sections))
    show(measured)
    return 0 if measured["fusion"]["check"]["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
