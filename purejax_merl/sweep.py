"""One command, many runs: seeds and rates become members of one program.

In: a `RunConfig` with `seeds` and `sweep`. Out: one plain config per member, by name.
Axis: none.
May import: config.
"""

import dataclasses
import itertools

from purejax_merl.config import ConfigError, RunConfig

PPO_RATES = ("lr", "clip", "gamma", "gae_lambda", "skill_entropy", "move_entropy")
PPO_RATES += ("max_grad_norm", "price", "price_lr", "cost_limit")
ES_RATES = ("sigma", "es_lr", "weight_decay", "sigma_floor")


def members(config: RunConfig) -> dict[str, RunConfig]:
    """Every combination of seed and swept values.

    **Returns:** name (`seed3`, `seed3-es.sigma=0.05`) → the config of that run alone.

    **Errors:** `ConfigError` names a sweep that is no list of numbers for a rate.
    """
    axes = [_axis(entry) for entry in config.sweep]
    runs = {}
    for seed in range(config.seed, config.seed + config.seeds):
        for values in itertools.product(*(values for _, values in axes)):
            run = dataclasses.replace(config, seed=seed, seeds=1, sweep=())
            name = f"seed{seed}"
            for (path, _), value in zip(axes, values, strict=True):
                run = _with(run, path, value)
                name += f"-{'.'.join(path)}={value:g}"
            runs[name] = run
    return runs


def _axis(entry: str) -> tuple[tuple[str, str], list[float]]:
    """`es.sigma=0.02,0.05` → (("es", "sigma"), [0.02, 0.05])."""
    path, _, values = entry.partition("=")
    section, _, field = path.partition(".")
    known = section in ("ppo", "es") and field in _rates(section)
    if not known:
        names = [f"{s}.{name}" for s in ("ppo", "es") for name in _rates(s)]
        raise ConfigError(f"`--sweep {entry}` must name one of {', '.join(names)}.")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        raise ConfigError(f"`--sweep {entry}` must end in numbers: `{path}=0.1,0.2`.") from None
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"`--sweep {entry}` must not name a value twice.")
    return (section, field), numbers


def _rates(section: str) -> tuple[str, ...]:
    """What can differ between members without another program: the rates, which are arrays."""
    return {"ppo": PPO_RATES, "es": ES_RATES}[section]


def _with(config: RunConfig, path: tuple[str, str], value: float) -> RunConfig:
    section = dataclasses.replace(getattr(config, path[0]), **{path[1]: value})
    return dataclasses.replace(config, **{path[0]: section})
