"""`python -m purejax_merl.render RUN_OR_MODEL`: one episode as a page or a GIF.

In: a model file, flags. Out: episode.html or episode.gif.
Axis: none.
May import: everything.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from purejax_merl.config import ConfigError, refuse
from purejax_merl.flags import AS_TRAINED, WorldChange, one_clear_error

if TYPE_CHECKING:
    from purejax_merl.types import Scene


@dataclasses.dataclass(frozen=True)
class RenderArgs:
    """Show one episode of a saved model, sampled unless --greedy."""

    model: tyro.conf.Positional[Path]
    """A model.eqx, the run directory that holds one, or a model of the zoo: zoo:NAME."""
    out: Path = Path("episode.html")
    """An .html page that plays and scrubs (needs nothing), or a .gif (needs the extra `render`)."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an existing file."""
    seed: int = 0
    """Root of the test worlds, as in `evaluate`."""
    world_index: int = 0
    """Which of the test worlds."""
    greedy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Take the likeliest skill and move instead of drawing them."""
    fps: int = 10
    """Steps per second of a GIF."""
    world: Annotated[WorldChange, tyro.conf.OmitArgPrefixes] = AS_TRAINED
    """What to change of the world."""


def main(argv: Sequence[str] | None = None) -> Path:
    """Writes the picture. Bad input exits with code 2."""
    with one_clear_error():
        args = tyro.cli(RenderArgs, prog="python -m purejax_merl.render", args=argv)
        path = render(args)
    print(path)
    return path


def render(args: RenderArgs) -> Path:
    """Plays the episode and draws it. **Returns:** the file."""
    from purejax_merl.runtime import page, render_gif, render_html

    _check(args)
    scene, title, subtitle = play(args)
    if args.out.suffix == ".gif":
        data = render_gif.episode_gif(scene, title, fps=args.fps)
    else:
        data = render_html.episode_page(scene, title, subtitle).encode()
    return page.write(args.out, data, overwrite=args.overwrite)


def _check(args: RenderArgs) -> None:
    """Everything that can be refused before a model is loaded and compiled."""
    from purejax_merl.runtime import page, render_gif

    if args.out.suffix not in (".html", ".gif"):
        raise ConfigError(f"`--out {args.out}` must end in .html or .gif.")
    if not 1 <= args.fps <= 50:
        refuse("fps", args.fps, "lie between 1 and 50.")
    if args.world_index < 0:
        refuse("world_index", args.world_index, "be at least 0.")
    page.refuse_existing(args.out, args.overwrite)
    if args.out.suffix == ".gif":
        render_gif.need_packages()


def play(args: RenderArgs) -> tuple["Scene", str, str]:
    """The episode's scene, a title, and a line about the world and how it went."""
    import jax
    import jax.numpy as jnp

    from purejax_merl import build, model, rollout
    from purejax_merl.envs.coverage import viewer
    from purejax_merl.runtime import cache

    cache.enable_compilation_cache()
    trained = model.load(args.model, **args.world.given())
    key = jax.random.fold_in(build.stream(args.seed, build.TEST), args.world_index)
    sampler = rollout.Sampler(greedy=jnp.asarray(args.greedy))
    episode = jax.jit(rollout.episode)(trained.env, trained.actor, sampler, key=key)
    # A model file describes a coverage world, with or without goals.
    scene = viewer.scene(trained.env, episode, trained.actor.skill_names)  # type: ignore[arg-type]
    env, score = trained.config.env, episode.outcome.score
    acted = "greedy" if args.greedy else "sampled"
    title = f"{env.n_agents} agents on {env.terrain} {env.grid}×{env.grid}"
    subtitle = (
        f"{args.model}, {acted}, test world {args.world_index} of seed {args.seed}, range "
        f"{env.comm_r} cells. At the end: coverage {score.coverage:.1%}, connected (λ₂ > "  # type: ignore[attr-defined]
        f"{scene.bar:g}) in {score.conn_05:.1%} of {len(scene.position) - 1} steps."  # type: ignore[attr-defined]
    )
    return scene, title, subtitle


if __name__ == "__main__":
    main(sys.argv[1:])
