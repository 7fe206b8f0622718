"""`python -m purejax_merl.train`: train a team, write a run directory; or resume one.

In: flags. Out: config.json, history.jsonl, checkpoints/, model.eqx, evaluation.json.
Axis: wall-clock.
May import: everything.
"""

import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from purejax_merl.config import ConfigError, RunConfig
from purejax_merl.flags import one_clear_error, parse_resume, parse_run

if TYPE_CHECKING:
    from purejax_merl.build import Run


def main(argv: Sequence[str] | None = None) -> Path:
    """Parses, checks, trains. Bad input exits with code 2 before anything is compiled or
    written."""
    with one_clear_error():
        folder, argv = parse_resume(sys.argv[1:] if argv is None else argv)
        if folder is not None:
            return resume(folder, argv)
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
    from purejax_merl.runtime import rundir

    run = _build(config)
    hint = f"{config.env.terrain}{config.env.grid}x{config.env.n_agents}-{config.es.arm}"
    folder = rundir.create_run_dir(config.run_dir, name_hint=f"{hint}-seed{config.seed}")
    rundir.write_json(folder / "config.json", config.to_dict())
    return _finish(config, run, folder)


def resume(folder: Path, argv: Sequence[str]) -> Path:
    """Goes on with an interrupted run from its newest sound checkpoint, bit for bit.

    Flags given beside `--resume` must agree with the run's own config.

    **Errors:** `ConfigError` names the fields that differ; `ModelFileError` if nothing is sound.
    """
    import equinox as eqx

    from purejax_merl.runtime import checkpoint, rundir

    config = _stored_config(folder, argv)
    run = _build(config)
    if checkpoint.found(folder / "checkpoints"):
        state, done, notes = checkpoint.restore(folder / "checkpoints", run.state)
        run = eqx.tree_at(lambda r: r.state, run, state)
    else:
        done, notes = 0, ["no checkpoint was written yet: starting from round 0"]
    for note in notes:
        _say(note)
    rundir.truncate_history(folder / "history.jsonl", done)
    _say(f"resuming {folder} after round {done} of {config.outer}")
    return _finish(config, run, folder)


def _stored_config(folder: Path, argv: Sequence[str]) -> RunConfig:
    try:
        stored = RunConfig.from_dict(json.loads((folder / "config.json").read_text()))
    except OSError as error:
        raise ConfigError(f"`--resume {folder}` holds no config.json ({error.strerror}).") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"`--resume {folder}`: config.json is damaged ({error}).") from None
    asked = parse_run(argv, prog="python -m purejax_merl.train", description="", default=stored)
    if fields := _differences(stored.to_dict(), asked.to_dict()):
        raise ConfigError(
            f"`--resume {folder}` was started otherwise: {', '.join(fields)}. Leave these flags "
            "out, or start a new run with `--init-from`."
        )
    return stored


def _differences(stored: dict, asked: dict, where: str = "") -> list[str]:
    """`name: stored, not asked` of every field that differs."""
    lines = []
    for name, value in stored.items():
        if isinstance(value, dict):
            lines += _differences(value, asked[name], f"{where}{name}.")
        elif value != asked[name]:
            lines.append(f"{where}{name} is {value}, not {asked[name]}")
    return lines


def _build(config: RunConfig) -> "Run":
    # Heavy imports wait until the flags are known to be good.
    from purejax_merl import build, model
    from purejax_merl.runtime import cache

    cache.enable_compilation_cache()
    env = build.make_env(config)
    start = model.warm_start(config.init_from, config, env) if config.init_from else (None, None)
    return build.build_run(config, env=env, actor=start[0], critic=start[1])


def _finish(config: RunConfig, run: "Run", folder: Path) -> Path:
    """Compiles, trains from the run's state on, saves and evaluates."""
    from purejax_merl import build, loop
    from purejax_merl.runtime import describe, progress, rundir

    _say(f"run directory: {folder}")
    for line in loop.first_lines(run.hybrid, config):
        _say(line)
    _say(describe.device_line())
    program = loop.Program(run, build.stream(config.seed, build.TRAINING), config.chunk)
    _say(describe.compile_line(program.seconds))
    _say(describe.memory_line(describe.memory_plan(program.compiled)))
    started, done = time.perf_counter(), int(run.state.round)
    with (
        _Interrupt() as interrupt,
        rundir.HistoryWriter(folder / "history.jsonl", append=True) as history,
        progress.ProgressReporter(config.outer, initial=done) as bar,
    ):
        state = _rounds(config, run, program, folder, history, bar, interrupt)
    if int(state.round) < config.outer:
        _say(f"stopped after round {int(state.round)}; go on with `--resume {folder}`")
        raise SystemExit(128 + interrupt.number)
    _say(f"trained in {time.perf_counter() - started:.1f} s")
    _deliver(config, run, state, folder)
    return folder


def _rounds(config, run, program, folder, history, bar, interrupt):
    """All chunks: record, show, checkpoint; stops early, and saved, when asked to."""
    from purejax_merl import loop
    from purejax_merl.runtime import checkpoint, rundir

    state = run.state
    env_steps = rundir.last_value(folder / "history.jsonl", "env_steps", 0)
    saved = int(state.round)
    for chunk in loop.train(program, state, config.outer, env_steps=env_steps):
        state, done = chunk.state, int(chunk.state.round)
        for record in chunk.records:
            history.append(record)
        history.flush()
        bar.update(len(chunk.records), chunk.records[-1])
        stop = interrupt.number != 0
        if stop or done - saved >= config.checkpoint_every or done == config.outer:
            checkpoint.save(folder / "checkpoints", state, done)
            saved = done
        if stop:
            break
    return state


def _deliver(config, run, state, folder: Path) -> None:
    """The model and its evaluation on fresh worlds; a resumed run writes only what is missing."""
    from purejax_merl import build, evaluation, model
    from purejax_merl.runtime import rundir

    learner = state.learner
    if not (folder / "model.eqx").exists():
        model.save(folder / "model.eqx", config, learner.actor, learner.critic, round=config.outer)
    if (folder / "evaluation.json").exists():
        return
    key = build.stream(config.seed, build.TEST)
    table = evaluation.report(run.hybrid.env, learner.actor, config.episodes, key=key)
    rundir.write_json(folder / "evaluation.json", {"seed": config.seed, **table})
    _say(f"evaluation of the returned policy on {config.episodes} fresh worlds")
    for line in evaluation.lines(table):
        _say(line)


class _Interrupt:
    """SIGINT and SIGTERM let the chunk end instead of tearing it apart; a second one is obeyed."""

    def __init__(self) -> None:
        self.number = 0
        self._before = {}

    def __enter__(self) -> "_Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: signals are somebody else's
                continue
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = number
        signal.signal(number, self._before[number])
        _say("finishing the chunk, then saving; once more to stop at once")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
