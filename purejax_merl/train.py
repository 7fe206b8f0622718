"""`python -m purejax_merl.train`: train a team, write a run directory; or resume one.

In: flags. Out: config.json, history.jsonl, checkpoints/, model.eqx, evaluation.json,
report.html.
Axis: wall-clock.
May import: everything.
"""

import contextlib
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from purejax_merl.config import ConfigError, RunConfig
from purejax_merl.flags import one_clear_error, parse_resume, parse_run

if TYPE_CHECKING:
    from purejax_merl.build import Run
    from purejax_merl.loop import Program, Study
    from purejax_merl.rounds import RoundState

Runs: TypeAlias = "dict[str, tuple[RunConfig, Run]]"


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
    """Runs one training, or a study of several side by side, from config to evaluated models.

    **Returns:** the run directory; the members of a study have a folder each in it.

    **Errors:** `ConfigError`, `RunDirError`, `ModelFileError`.
    """
    from purejax_merl.runtime import rundir

    runs, study = _build(config)
    hint = f"{config.env.terrain}{config.env.grid}x{config.env.n_agents}-{config.es.arm}"
    seeds = f"seed{config.seed}" if config.seeds == 1 else f"{config.seeds}seeds"
    folder = rundir.create_run_dir(config.run_dir, name_hint=f"{hint}-{seeds}")
    rundir.write_json(folder / "config.json", config.to_dict())
    if study.members > 1:
        for name, (member, _) in runs.items():
            rundir.write_json(rundir.subfolder(folder, name) / "config.json", member.to_dict())
    return _finish(config, runs, study, folder)


def resume(folder: Path, argv: Sequence[str]) -> Path:
    """Goes on with an interrupted run from its newest sound checkpoint, bit for bit on as many
    devices.

    Flags given beside `--resume` must agree with the run's own config; `--devices` and `--tracker`
    need not.

    **Errors:** `ConfigError` names the fields that differ; `ModelFileError` if nothing is sound.
    """
    import equinox as eqx

    from purejax_merl.runtime import checkpoint, rundir

    config = _stored_config(folder, argv)
    runs, study = _build(config)
    if checkpoint.found(folder / "checkpoints"):
        state, done, notes = checkpoint.restore(folder / "checkpoints", study.state)
        study = eqx.tree_at(lambda s: s.state, study, state)
    else:
        done, notes = 0, ["no checkpoint was written yet: starting from round 0"]
    for note in notes:
        _say(note)
    rundir.remove_torn(folder)
    for place in _places(folder, runs):
        rundir.truncate_history(place / "history.jsonl", done)
    _say(f"resuming {folder} after round {done} of {config.outer}")
    return _finish(config, runs, study, folder)


def _stored_config(folder: Path, argv: Sequence[str]) -> RunConfig:
    try:
        stored = RunConfig.from_dict(json.loads((folder / "config.json").read_text()))
    except OSError as error:
        raise ConfigError(f"`--resume {folder}` holds no config.json ({error.strerror}).") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"`--resume {folder}`: config.json is damaged ({error}).") from None
    asked = parse_run(argv, prog="python -m purejax_merl.train", description="", default=stored)
    stored = dataclasses.replace(stored, devices=asked.devices, tracker=asked.tracker)
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


def _build(config: RunConfig) -> tuple[Runs, "Study"]:
    """Every member's config and parts, by name; and all of them side by side."""
    # Heavy imports wait until the flags are known to be good.
    from purejax_merl import build, loop, model, sweep
    from purejax_merl.runtime import cache, trackers

    trackers.check(config.tracker)
    cache.enable_compilation_cache()
    members = sweep.members(config)
    devices = build.make_mesh(config, len(members))
    env = build.make_env(config)
    start = model.warm_start(config.init_from, config, env) if config.init_from else (None, None)
    runs = {
        name: (member, build.build_run(member, env=env, actor=start[0], critic=start[1]))
        for name, member in members.items()
    }
    roots = [build.stream(member.seed, build.TRAINING) for member in members.values()]
    return runs, loop.gather([run for _, run in runs.values()], roots, devices=devices)


def _places(folder: Path, runs: Runs) -> list[Path]:
    """Where each member writes: the run directory itself if there is only one."""
    return [folder] if len(runs) == 1 else [folder / name for name in runs]


def _finish(config: RunConfig, runs: Runs, study: "Study", folder: Path) -> Path:
    """Trains what is left from the study's state on, saves and evaluates."""
    from purejax_merl import loop, report

    state = study.state
    _say(f"run directory: {folder}")
    if loop.rounds_done(study, state) < config.outer:
        state = _train_on(config, study, _places(folder, runs), folder)
    state = study.collect(state)
    for m, ((member, run), place) in enumerate(
        zip(runs.values(), _places(folder, runs), strict=True)
    ):
        _deliver(member, run, study.member(state, m), place)
    _say(f"report: {report.write([folder])}")
    return folder


def _train_on(config: RunConfig, study: "Study", places: list[Path], folder: Path) -> "RoundState":
    """Compiles, says what trains and where, and runs the rounds that are left."""
    from purejax_merl import loop
    from purejax_merl.runtime import describe

    for line in loop.first_lines(study, config):
        _say(line)
    _say(describe.device_line(loop.devices_used(study)))
    program = loop.Program(study, config.chunk, members_at_once=config.members_at_once)
    plan = describe.memory_plan(program.compiled)
    _say(describe.compile_line(program.seconds))
    _say(describe.memory_line(plan))
    _refuse_if_too_large(plan)
    started = time.perf_counter()
    with _Interrupt() as interrupt:
        state = _rounds(config, program, places, folder, interrupt)
    if (done := loop.rounds_done(study, state)) < config.outer:
        _say(f"stopped after round {done}; go on with `--resume {folder}`")
        raise SystemExit(128 + interrupt.number)
    _say(f"trained in {time.perf_counter() - started:.1f} s")
    return state


def _refuse_if_too_large(plan: dict[str, int]) -> None:
    from purejax_merl.runtime import describe

    limit = describe.device_memory()
    if plan and limit and plan["planned"] > limit:
        raise ConfigError(
            f"the program plans {describe.human_bytes(plan['planned'])}, the device has "
            f"{describe.human_bytes(limit)}: lower `--member-chunk` (or `--members-at-once` for "
            "several seeds), which changes no result, or `--rollouts`."
        )


def _rounds(
    config: RunConfig,
    program: "Program",
    places: list[Path],
    folder: Path,
    interrupt: "_Interrupt",
) -> "RoundState":
    """All chunks: record, show, checkpoint; stops early, and saved, when asked to."""
    from purejax_merl import loop
    from purejax_merl.runtime import checkpoint, progress, rundir, trackers

    study, state = program.study, program.study.state
    saved = done = loop.rounds_done(study, state)
    env_steps = rundir.last_value(places[0] / "history.jsonl", "env_steps", 0)
    with contextlib.ExitStack() as stack:
        histories = [
            stack.enter_context(rundir.HistoryWriter(place / "history.jsonl", append=True))
            for place in places
        ]
        live = [
            stack.enter_context(contextlib.closing(tracker))
            for tracker in trackers.open_trackers(config.tracker, places, done)
        ]
        bar = stack.enter_context(progress.ProgressReporter(config.outer, initial=done))
        for chunk in loop.train(program, state, config.outer, env_steps=env_steps):
            state, done = chunk.state, done + len(chunk.records[0])
            for history, records in zip(histories, chunk.records, strict=True):
                for record in records:
                    history.append(record)
                history.flush()
            for tracker, records in zip(live, chunk.records, strict=False):  # none, or all
                tracker.append(records)
                tracker.flush()
            bar.update(len(chunk.records[0]), loop.average([rows[-1] for rows in chunk.records]))
            stop = interrupt.number != 0
            if stop or done - saved >= config.checkpoint_every or done == config.outer:
                checkpoint.save(folder / "checkpoints", state, done)
                saved = done
            if stop:
                break
    return state


def _deliver(config: RunConfig, run: "Run", state: "RoundState", folder: Path) -> None:
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
    _say(f"{folder.name}: the returned policy on {config.episodes} fresh worlds")
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
