"""Trained models as one file: save, load, and start the next run from them.

In: a config and networks, or a path. Out: `model.eqx`, or the networks in it.
Axis: none.
May import: build and below, config, runtime.
"""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from purejax_merl import build
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.config import ConfigError, RunConfig, flag
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.runtime import modelfile


class Model(eqx.Module):
    """A deployable policy with the world that it was trained in."""

    actor: AbstractActor
    critic: AbstractCritic
    env: AbstractTeamEnv
    config: RunConfig = eqx.field(static=True)


def save(path: str | Path, config: RunConfig, actor: Any, critic: Any, **facts: Any) -> None:
    """Writes actor and critic with the config that rebuilds them; never overwrites.

    **Arguments:** `facts`: anything JSON that the header should carry as well.
    """
    header = {"config": config.to_dict(), "skills": list(actor.skill_names), **facts}
    modelfile.save_model(path, {"actor": actor, "critic": critic}, header)


ZOO = Path(__file__).parent / "zoo"
"""Run directories of trained teams that come with the package, without their histories."""


def zoo() -> list[str]:
    """Names of the models that come with the package, as `load` takes them."""
    return sorted(f"zoo:{path.parent.name}" for path in ZOO.glob("*/model.eqx"))


def find(path: str | Path) -> Path:
    """The model file: `path` itself, the `model.eqx` in a run directory, or `zoo:<name>`.

    **Errors:** `ConfigError` lists the names in the zoo.
    """
    scheme, _, name = str(path).partition(":")
    if scheme == "zoo":
        if str(path) not in zoo():
            raise ConfigError(f"`{path}` is not in the zoo, which holds {', '.join(zoo())}.")
        return ZOO / name / "model.eqx"
    path = Path(path)
    return path / "model.eqx" if path.is_dir() else path


def read_config(path: str | Path) -> RunConfig:
    """The config of the run that made the model."""
    header = modelfile.load_header(path)
    try:
        return RunConfig.from_dict(header.get("config"))  # type: ignore[arg-type]
    except ConfigError as error:
        raise modelfile.ModelFileError(f"`{path}` holds no usable config: {error}") from None


def load(path: str | Path, **world: Any) -> Model:
    """The model with the world it was trained in.

    **Arguments:** `world`: fields of `EnvConfig` to change, such as `grid=24`; the weights fit any
    grid, team size and terrain.

    **Errors:** `ModelFileError` for a file that is truncated, foreign, damaged or of another shape;
    `ConfigError` for a field that does not exist or does not fit.
    """
    path = find(path)
    config = read_config(path)
    env = build.make_env(config)
    actor, critic = networks_like(config, env)
    loaded = modelfile.load_model(path, {"actor": actor, "critic": critic})
    if world:
        config = _changed(config, world)
        env = build.make_env(config)
    return Model(actor=loaded["actor"], critic=loaded["critic"], env=env, config=config)


def _changed(config: RunConfig, world: dict[str, Any]) -> RunConfig:
    """The config with another world."""
    names = {field.name for field in dataclasses.fields(config.env)}
    if unknown := sorted(set(world) - names):
        raise ConfigError(
            f"`load(..., {unknown[0]}=...)` is no field of the world: {sorted(names)}"
        )
    return dataclasses.replace(config, env=dataclasses.replace(config.env, **world))


def networks_like(config: RunConfig, env: AbstractTeamEnv) -> tuple[Any, Any]:
    """Actor and critic of the config, shapes only."""
    key = jax.random.key(0)
    actor = eqx.filter_eval_shape(lambda: build.make_actor(config, env, key=key))
    critic = eqx.filter_eval_shape(lambda: build.make_critic(config, env, key=key))
    return actor, critic


def warm_start(path: str | Path, config: RunConfig, env: AbstractTeamEnv) -> tuple[Any, Any]:
    """Actor and critic of a saved model for another run, on any grid and team size.

    **Errors:** `ConfigError` names the first architecture field that differs, before any weight is
    read.
    """
    path = find(path)
    saved = read_config(path)
    names = ("network", "width", "depth", "flock", "selector")
    names += ("mp_rounds", "aggregator") if config.agent.network == "reference" else ()
    for name in names:
        theirs, ours = getattr(saved.agent, name), getattr(config.agent, name)
        if theirs != ours:
            raise ConfigError(
                f"`--init-from {path}` was trained with {name} {theirs}, this run has {ours}; "
                f"pass `{flag(name)} {theirs}`."
            )
    actor, critic = networks_like(config, env)
    loaded = modelfile.load_model(path, {"actor": actor, "critic": critic})
    return loaded["actor"], loaded["critic"]
