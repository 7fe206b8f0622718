"""Command lines from typed configs, and the one way a command fails on bad input.

In: argv. Out: a `RunConfig`, or exit code 2 with one message.
Axis: none.
May import: config.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from purejax_merl.config import PRESETS, ConfigError, RunConfig, Terrain, Views, preset


@dataclasses.dataclass(frozen=True)
class WorldChange:
    """What of a saved model's world the flags may change; the weights fit any of it."""

    grid: int | None = None
    """Another grid than the one trained on."""
    n_agents: int | None = None
    """Another team size."""
    comm_r: int | None = None
    """Another communication range."""
    horizon: int | None = None
    """Another episode length."""
    terrain: Terrain | None = None
    """Another terrain."""
    n_obstacles: int | None = None
    """Another number of obstacles."""
    rooms: int | None = None
    """Another number of rooms."""
    pillar_spacing: int | None = None
    """Another period of the pillars."""
    pillar_size: int | None = None
    """Another side of the pillars."""
    views: Views | None = None
    """relative: a team that was trained on 16² cells with 4 agents sees other worlds like those."""

    def given(self) -> dict[str, Any]:
        """Field → value of what was set."""
        return {name: value for name, value in vars(self).items() if value is not None}


AS_TRAINED = WorldChange()


def parse_run(
    argv: Sequence[str] | None, *, prog: str, description: str, default: RunConfig | None = None
) -> RunConfig:
    """A config from flags. Those left unset take the value of `default`, or else of `--preset`.

    An unknown flag or a value of the wrong type exits with code 2.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="compact")
    known, _ = first.parse_known_args(argv)
    names = f"Presets: {', '.join(PRESETS)}. `--resume RUN_DIR` goes on with an interrupted run."
    return tyro.cli(
        tyro.conf.configure(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff)(RunConfig),
        prog=prog,
        description=f"{description} {names}",
        args=argv,
        default=default or preset(known.preset),
    )


def parse_resume(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The run directory after `--resume` and the other flags; None where it is not given."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--resume", type=Path)
    known, rest = first.parse_known_args(argv)
    return known.resume, rest


@contextlib.contextmanager
def one_clear_error() -> Iterator[None]:
    """Turns a refused value into one line on stderr and exit code 2, without a traceback."""
    try:
        yield
    except ConfigError as error:
        _fail(error)
    except ValueError as error:
        # Errors of the run directory and of model files; they live in runtime and say it all as
        # well.
        if type(error) is ValueError:
            raise
        _fail(error)


def _fail(error: Exception) -> None:
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(2) from None
