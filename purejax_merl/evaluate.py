"""`python -m purejax_merl.evaluate MODEL`: how good a saved policy is on fresh worlds.

In: a model file, flags. Out: a table, or JSON.
Axis: none.
May import: everything.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from purejax_merl.config import ConfigError
from purejax_merl.flags import AS_TRAINED, WorldChange, one_clear_error


@dataclasses.dataclass(frozen=True)
class EvaluateArgs:
    """Evaluate a saved model on fresh test worlds; sampled is the headline, greedy beside it."""

    model: tyro.conf.Positional[Path]
    """A model.eqx, the run directory that holds one, or a model of the zoo: zoo:NAME."""
    episodes: int = 512
    """Fresh worlds."""
    seed: int = 0
    """Root of the test worlds, a stream of its own that no training meets."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""
    world: Annotated[WorldChange, tyro.conf.OmitArgPrefixes] = AS_TRAINED
    """What to change of the world."""


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the report. Bad input exits with code 2."""
    with one_clear_error():
        args = tyro.cli(EvaluateArgs, prog="python -m purejax_merl.evaluate", args=argv)
        table = evaluate(args)
    if args.json:
        print(json.dumps(table, indent=2))
        return
    from purejax_merl import evaluation

    print(f"{args.model}: {table['episodes']} fresh worlds, seed {args.seed}")
    print("\n".join(evaluation.lines(table)))


def evaluate(args: EvaluateArgs) -> dict:
    """The report of one model, as JSON data."""
    if args.episodes < 1:
        raise ConfigError(f"`--episodes {args.episodes}` must be at least 1.")
    from purejax_merl import build, evaluation, model
    from purejax_merl.runtime import cache

    cache.enable_compilation_cache()
    trained = model.load(args.model, **args.world.given())
    key = build.stream(args.seed, build.TEST)
    return {
        "model": str(args.model),
        "seed": args.seed,
        "env": dataclasses.asdict(trained.config.env),
        **evaluation.report(trained.env, trained.actor, args.episodes, key=key),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
