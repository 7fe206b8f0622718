"""`python -m purejax_merl.train`: train a team, write a run directory.

In: flags. Out: config.json, history.jsonl, model.eqx, evaluation.json.
Axis: wall-clock.
May import: everything.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from purejax_merl.config import RunConfig
from purejax_merl.flags import one_clear_error, parse_run


def main(argv: Sequence[str] | None = None) -> Path:
    """Parses, checks, trains. Bad input exits with code 2 before anything is compiled or
    written."""
    with one_clear_error():
        config = parse_run(
            argv,
            prog="python -m purejax_merl.train",
            description="Train a team by PPO and evolution, one XLA program per round.",
        )
        return train(config)


def train(config: RunConfig) -> Path:
    """Runs one training from config to evaluated model.

    **Returns:** the run directory. **Errors:** `ConfigError`, `RunDirError`, `ModelFileError`.
    """
    # Heavy imports wait until the flags are known to be good.
    from purejax_merl import build, loop, model
    from purejax_merl.runtime import cache, describe, progress, rundir

    cache.enable_compilation_cache()
    env = build.make_env(config)
    actor, critic = (
        model.warm_start(config.init_from, config, env) if config.init_from else (None, None)
    )
    run = build.build_run(config, env=env, actor=actor, critic=critic)
    hint = f"{config.env.terrain}{config.env.grid}x{config.env.n_agents}-{config.es.arm}"
    folder = rundir.create_run_dir(config.run_dir, name_hint=f"{hint}-seed{config.seed}")
    rundir.write_json(folder / "config.json", config.to_dict())
    _say(f"run directory: {folder}")
    for line in loop.first_lines(run.hybrid, config):
        _say(line)
    _say(describe.device_line())
    program = loop.Program(run, build.stream(config.seed, build.TRAINING), config.chunk)
    _say(describe.compile_line(program.seconds))
    _say(describe.memory_line(describe.memory_plan(program.compiled)))
    state, started = run.state, time.perf_counter()
    with (
        rundir.HistoryWriter(folder / "history.jsonl") as history,
        progress.ProgressReporter(config.outer) as bar,
    ):
        for chunk in loop.train(program, state, config.outer):
            state = chunk.state
            for record in chunk.records:
                history.append(record)
            history.flush()
            bar.update(len(chunk.records), chunk.records[-1])
    _say(f"trained in {time.perf_counter() - started:.1f} s")
    learner = state.learner
    model.save(folder / "model.eqx", config, learner.actor, learner.critic, round=config.outer)
    _evaluate(config, env, learner.actor, folder)
    return folder


def _evaluate(config: RunConfig, env: Any, actor: Any, folder: Path) -> None:
    from purejax_merl import build, evaluation
    from purejax_merl.runtime import rundir

    key = build.stream(config.seed, build.TEST)
    table = evaluation.report(env, actor, config.episodes, key=key)
    rundir.write_json(folder / "evaluation.json", {"seed": config.seed, **table})
    _say(f"evaluation of the returned policy on {config.episodes} fresh worlds")
    for line in evaluation.lines(table):
        _say(line)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
