"""What does evolution add? Every arm at equal environment steps, paired by seed.

    python benchmarks/ablation.py runs/ablation                  # everything; hours on a laptop
    python benchmarks/ablation.py runs/ablation --cells 16x4/scratch
    python benchmarks/ablation.py runs/ablation --summary        # tables from what is there

A cell is rung/start/arm; its seeds train with one program. A cell that was interrupted goes on
where it stopped, one that is done is left alone.

Protocol (fixed before the first run; a change of it is a new folder):

* An arm trains as many rounds as fit into the rung's budget of environment steps: PPO, population
  and judging steps count, the final evaluation does not. Rates anneal over the arm's own rounds.
* All arms of a cell's rung and start share initial weights and test worlds seed by seed. Nothing
  is tuned per arm, and nothing was tuned on these seeds.
* The score is min(coverage, share of steps with λ₂ > 0.5), the mean over 512 fresh test worlds of
  the sampled policy at the end of training.
* `scratch` starts from fresh weights; `huddle` from a team that PPO has taught to sit still, by
  charging for every new cell, one for all arms and seeds of a rung.
* Reported: the IQM over seeds with its bootstrap interval, the mean of the differences to
  `gradient` paired by seed with theirs, and the same differences at equal wall-clock time: for
  every pair the score in PPO's rollouts (in an arm without PPO, on the judging worlds) when the
  faster of the two was done. A round counts as long as the fastest tenth of its arm's rounds, so
  that a busy machine tells nothing.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import page

from purejax_merl import train
from purejax_merl.config import EnvConfig, RunConfig, preset
from purejax_merl.runtime.runs import RunRecord, read_runs
from purejax_merl.runtime.statistics import (
    bootstrap_interval,
    iqm,
    paired_bootstrap,
    stratified_bootstrap,
)

CONTROL = "gradient"
MANY, FEW = 10, 3
"""Seeds of the main arms and of the others."""


@dataclasses.dataclass(frozen=True)
class Rung:
    """A world, its budget in environment steps, and the rounds that make the huddle."""

    grid: int
    agents: int
    budget: int
    huddle_rounds: int = 30


RUNGS = {
    "16x4": Rung(grid=16, agents=4, budget=800_000),
    "24x6": Rung(grid=24, agents=6, budget=800_000),
}
MAIN = ("merl", "gradient", "evolution")
OTHERS = ("frozen", "no_injection", "disjoint", "reuse", "accept", "cem", "snes")
ARMS: dict[str, dict[str, Any]] = {
    # The default: both halves.
    "merl": {},
    # PPO alone, selector and all.
    "gradient": {"arm": "gradient"},
    # The strategy alone, on the whole actor.
    "evolution": {"arm": "evolution"},
    # Half the budget by PPO alone, then the strategy alone on the selector.
    "frozen": {"grad_steps": 0},
    "no_injection": {"arm": "no_injection"},
    # The gradient leaves the selector alone.
    "disjoint": {"disjoint": "on"},
    # The population's episodes train the executor as well.
    "reuse": {"reuse": "on"},
    "accept": {"accept": "on"},
    "cem": {"es_kind": "cem"},
    "snes": {"es_kind": "SNES"},
}
"""What every arm changes in the default preset."""
CELLS = tuple(
    f"{rung}/{start}/{arm}"
    for rung, start, arms in (
        ("16x4", "scratch", MAIN),
        ("16x4", "huddle", MAIN),
        ("24x6", "scratch", MAIN),
        ("24x6", "huddle", MAIN),
        ("16x4", "scratch", OTHERS),
        ("16x4", "huddle", OTHERS),
    )
    for arm in arms
)


def config_of(rung: Rung, arm: str, *, budget: int, **fields: Any) -> RunConfig:
    """The run of one arm: as many rounds as the budget holds."""
    base, changes = preset("compact"), ARMS[arm]
    sections = {
        name: dataclasses.replace(
            getattr(base, name),
            **{k: v for k, v in changes.items() if k in vars(getattr(base, name))},
        )
        for name in ("ppo", "es")
    }
    world = EnvConfig(grid=rung.grid, n_agents=rung.agents)
    grad_steps = changes.get("grad_steps", base.grad_steps)
    config = dataclasses.replace(base, env=world, grad_steps=grad_steps, **sections)
    outer = max(1, budget // steps_per_round(config))
    return dataclasses.replace(config, outer=outer, checkpoint_every=50, **fields)


def steps_per_round(config: RunConfig) -> int:
    """Team steps: PPO rollouts, population and judging."""
    es, gradient = config.es, config.grad_steps * config.ppo.rollouts
    evolution = (es.pop + 2) * es.eval_worlds
    episodes = {"gradient": gradient, "evolution": evolution}.get(es.arm, gradient + evolution)
    return episodes * config.env.horizon


@dataclasses.dataclass(frozen=True)
class Study:
    """Where the runs are and how large the study is; `quick` makes it a rehearsal."""

    folder: Path
    seeds: tuple[int, int] = (MANY, FEW)
    scale: float = 1.0
    episodes: int = 512

    def run(self, cell: str) -> None:
        """Trains one cell, or what is left of it."""
        rung_name, start, arm = cell.split("/")
        rung, seeds = RUNGS[rung_name], self.seeds[arm not in MAIN]
        budget = int(self.scale * rung.budget)
        folder = self.folder / cell
        init = None if start == "scratch" else str(self.huddle(rung_name))
        common = {"episodes": self.episodes, "init_from": init}
        if arm != "frozen":
            config = config_of(rung, arm, budget=budget, seeds=seeds, **common)
            _train_or_resume(dataclasses.replace(config, run_dir=str(folder)))
            return
        for seed in range(seeds):
            first = config_of(rung, CONTROL, budget=budget // 2, seed=seed, **common)
            half = folder / f"seed{seed}-gradient"
            _train_or_resume(dataclasses.replace(first, run_dir=str(half)))
            common_then = common | {"init_from": str(half)}
            then = config_of(rung, arm, budget=budget // 2, seed=seed, **common_then)
            _train_or_resume(dataclasses.replace(then, run_dir=str(folder / f"seed{seed}")))

    def huddle(self, rung_name: str) -> Path:
        """The team that sits still."""
        rung = RUNGS[rung_name]
        config = config_of(rung, CONTROL, budget=1, seed=1000, episodes=self.episodes)
        folder = self.folder / rung_name / "huddle" / "start"
        config = dataclasses.replace(
            config,
            outer=max(1, int(self.scale * rung.huddle_rounds)),
            env=dataclasses.replace(config.env, w_coverage=-1.0),
            run_dir=str(folder),
        )
        _train_or_resume(config)
        return folder

    def runs(self, cell: str) -> dict[int, RunRecord]:
        """Seed → finished run of a cell."""
        folder = self.folder / cell
        places = sorted(path.parent for path in folder.glob("**/evaluation.json"))
        records = read_runs([path for path in places if not path.name.endswith("-gradient")])
        return {int(run.config["seed"]): _with_first_half(run) for run in records}


def _with_first_half(run: RunRecord) -> RunRecord:
    """A run of the frozen arm goes on where its gradient half ended."""
    half = run.folder.with_name(f"{run.folder.name}-gradient")
    if not half.exists():
        return run
    (first,) = read_runs([half])
    spent = first.history[-1]["env_steps"]
    then = [row | {"env_steps": row["env_steps"] + spent} for row in run.history]
    return dataclasses.replace(run, history=first.history + then)


def _train_or_resume(config: RunConfig) -> None:
    folder = Path(str(config.run_dir))
    if not folder.exists():
        train.train(config)
    elif not _finished(folder, config.seeds):
        train.resume(folder, [])


def _finished(folder: Path, seeds: int) -> bool:
    return (folder / "report.html").exists() and (
        len(list(folder.glob("**/evaluation.json"))) >= seeds
    )


def summary(study: Study, cells: Iterable[str]) -> dict[str, Any]:
    """Cell → scores by seed, IQM, differences to the control, curves."""
    table = {}
    for cell in cells:
        runs = study.runs(cell)
        if not runs:
            continue
        rung, start, _ = cell.split("/")
        table[cell] = _row(runs, study.runs(f"{rung}/{start}/{CONTROL}"))
    return table


def _row(runs: dict[int, RunRecord], control: dict[int, RunRecord]) -> dict[str, Any]:
    scores = {seed: _final(run, "fitness") for seed, run in runs.items()}
    values = list(scores.values())
    both = [seed for seed in runs if seed in control]
    differences = [scores[seed] - _final(control[seed], "fitness") for seed in both]
    timed = [_at_equal_time(runs[seed], control[seed]) for seed in both]
    curve = next(iter(runs.values())).history
    return {
        "score": {str(seed): score for seed, score in scores.items()},
        "iqm": iqm(values),
        "iqm_interval": stratified_bootstrap(np.array(values)[:, None]),
        **{
            name: float(np.mean([_final(run, name) for run in runs.values()]))
            for name in ("coverage", "conn_05", "conn_1e3", "conn_hard", "passed", "redundancy")
        },
        "score_greedy": float(np.mean([_final(r, "fitness", "greedy") for r in runs.values()])),
        "difference": _interval(differences),
        "difference_at_equal_time": _interval(timed),
        "env_steps": int(curve[-1]["env_steps"]),
        "seconds": float(np.mean([_seconds(run)[-1] for run in runs.values()])),
        "curve": _mean_curve(list(runs.values())),
    }


def _final(run: RunRecord, metric: str, policy: str = "sampled") -> float:
    assert run.evaluation is not None
    return float(run.evaluation[policy][metric]["mean"])


def _interval(differences: Sequence[float]) -> dict[str, Any] | None:
    """Mean and 95 % bootstrap interval over seeds."""
    if len(differences) < 2:
        return None
    low, high = paired_bootstrap(differences, np.zeros(len(differences)))
    return {"mean": float(np.mean(differences)), "low": low, "high": high, "n": len(differences)}


def _curve(run: RunRecord) -> np.ndarray:
    """The score while it trained, a running mean over nine rounds: of PPO's rollouts, on which
    nothing was chosen; on the judging worlds in rounds without PPO."""
    values = np.array(
        [row.get("train_fitness", row.get("score_fitness")) for row in run.history], float
    )
    width = min(9, len(values))
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")


def _seconds(run: RunRecord) -> np.ndarray:
    """Wall-clock time up to every round, at the pace of the fastest tenth of the rounds; the share
    of one run."""
    alone = run.folder.parent.name == "frozen"
    shared = 1 if alone else sum(1 for _ in run.folder.parent.glob("seed*/history.jsonl"))
    pace = np.array([row["seconds"] for row in run.history], float) / max(shared, 1)
    if "score_fitness" in run.history[-1] and "score_fitness" not in run.history[0]:
        first = sum(1 for row in run.history if "score_fitness" not in row)
        halves = (pace[:first], pace[first:])
    else:
        halves = (pace,)
    return np.cumsum(np.concatenate([np.full(len(x), np.quantile(x, 0.1)) for x in halves]))


def _at_equal_time(ours: RunRecord, theirs: RunRecord) -> float:
    """Difference of the two curves when the faster one was done."""
    time_ours, time_theirs = _seconds(ours), _seconds(theirs)
    end = min(time_ours[-1], time_theirs[-1])
    at = [np.interp(end, t, _curve(r)) for t, r in ((time_ours, ours), (time_theirs, theirs))]
    return float(at[0] - at[1])


def _mean_curve(runs: list[RunRecord], points: int = 40) -> dict[str, list[float]]:
    """Environment steps, mean and interval over seeds of the training score."""
    curves = np.stack([_curve(run) for run in runs])
    index = np.unique(np.linspace(0, curves.shape[1] - 1, points).astype(int))
    bounds = [
        bootstrap_interval(curves[:, i]) if len(runs) > 1 else (curves[0, i],) * 2 for i in index
    ]
    return {
        "env_steps": [float(runs[0].history[i]["env_steps"]) for i in index],
        "mean": curves[:, index].mean(axis=0).round(4).tolist(),
        "low": [round(float(low), 4) for low, _ in bounds],
        "high": [round(float(high), 4) for _, high in bounds],
    }


def draw(table: dict[str, Any], path: Path) -> None:
    """Learning curves, one panel per rung and start."""
    from matplotlib import pyplot as plt

    panels = list(dict.fromkeys(cell.rpartition("/")[0] for cell in table))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), 4), squeeze=False, sharey=True, layout="tight"
    )
    styles = ("-", "--", ":", "-.")
    for axis, panel in zip(axes[0], panels, strict=True):
        arms = [cell for cell in table if cell.rpartition("/")[0] == panel]
        for number, cell in enumerate(arms):
            curve = table[cell]["curve"]
            steps = np.array(curve["env_steps"]) / 1e6
            label = f"{cell.rpartition('/')[2]} ({len(table[cell]['score'])})"
            axis.plot(steps, curve["mean"], styles[number // 10], label=label)
            axis.fill_between(steps, curve["low"], curve["high"], alpha=0.15)
        axis.set(title=panel, xlabel="environment steps, millions", ylim=(0, 1))
        axis.legend(title="arm (seeds)", fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes[0][0].set_ylabel("score while training")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the runs are or go")
    parser.add_argument("--cells", nargs="*", default=[""], help="cells, or how their names begin")
    parser.add_argument("--summary", action="store_true", help="train nothing")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: tiny budget, 2 seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary here")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the curves here")
    args = parser.parse_args()
    cells = [cell for cell in CELLS if cell.startswith(tuple(args.cells))]
    if not cells:
        parser.error(f"`--cells {' '.join(args.cells)}` begins none of: {', '.join(CELLS)}")
    rehearsal = {"seeds": (2, 2), "scale": 0.02, "episodes": 16} if args.quick else {}
    study = Study(args.folder, **rehearsal)
    for cell in [] if args.summary else cells:
        print(f"=== {cell}", file=sys.stderr, flush=True)
        study.run(cell)
    table = summary(study, cells)
    size = dataclasses.replace(study, folder=Path())  # where it lay is nobody's business
    report = common.head("ablation", args, size) | {"protocol": __doc__, "cells": table}
    print(page.markdown([("ablation", "", page.ablation(report))]))
    if args.figure:
        draw(table, args.figure)
    common.write(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
