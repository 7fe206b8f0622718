"""What does it buy to compile the outer round? Checks that the loops agree, then times them.

    python benchmarks/fusion.py --json benchmarks/results/fusion.json

Arms: `literal` (Python over steps and members, a `float()` each), `host` (the best loop on the
host: a jitted scan of PPO steps, a jitted vmap of members, evosax's Open_ES to ask and tell, the
fitness read back once a round), `round` (one program per round), `chunk` (one program for several
rounds), `seeds in turn` and `seeds mapped` (several runs, one after the other through the chunk's
program as `--seeds` does it on a CPU, or as one more mapped axis as on an accelerator). All but
`host`, which draws its own noise, must end with the same weights.

The population of the preset is timed at the preset's sizes, the others at smaller ones. The
literal arm is left out above 128 members: it is not extrapolated.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import common
import jax
import jax.numpy as jnp
from host_loop import batched_round, host_round

from purejax_merl.build import Run
from purejax_merl.config import RunConfig, preset
from purejax_merl.evolve import module_theta
from purejax_merl.loop import Program, gather
from purejax_merl.rounds import Hybrid, RoundState, run_rounds

TOLERANCE = 1e-4
"""On every weight, after one round. The programs do the same sums in another order; over more
rounds a last digit may turn a sampled move, and then the runs part."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One population at one size."""

    config: RunConfig
    rounds: int
    """Rounds per sample; those of a chunk."""
    repeats: int
    seeds: int = 0
    """Runs of the arms with seeds; 0 leaves these arms out."""
    seed_repeats: int = 2
    literal_up_to: int = 128
    """Members beyond which the literal arm would take too long."""


def small(population: int) -> RunConfig:
    """The preset with less of everything, so that a large population fits into a short sample."""
    base = preset("compact")
    return dataclasses.replace(
        base,
        grad_steps=2,
        env=dataclasses.replace(base.env, horizon=50),
        ppo=dataclasses.replace(base.ppo, rollouts=8),
        es=dataclasses.replace(base.es, pop=population, eval_worlds=4),
    )


FULL = (
    Row(small(8), rounds=3, repeats=6, seeds=4),
    Row(preset("compact"), rounds=3, repeats=4, seeds=4, seed_repeats=1),
    Row(small(32), rounds=3, repeats=6),
    Row(small(128), rounds=3, repeats=4, seeds=4),
    Row(small(512), rounds=2, repeats=3),
    Row(small(1024), rounds=2, repeats=3, seeds=4, seed_repeats=1),
)


def tiny(population: int) -> RunConfig:
    """For a smoke test: nearly all of it is compilation."""
    base = small(population)
    return dataclasses.replace(
        base,
        grad_steps=1,
        env=dataclasses.replace(base.env, grid=8, n_agents=2, horizon=10),
        agent=dataclasses.replace(base.agent, width=16),
        ppo=dataclasses.replace(base.ppo, rollouts=4, minibatches=2, ppo_epochs=1),
        es=dataclasses.replace(base.es, eval_worlds=2),
    )


QUICK = (Row(tiny(8), rounds=2, repeats=2, seeds=2),)


@dataclasses.dataclass(frozen=True)
class Arm:
    """A loop over some rounds of one run, or of several, from the first state."""

    advance: Callable[[int], Any]
    """In: how many rounds."""
    runs: int = 1
    program: common.Compiled | None = None
    """None where the loop is made of several programs, compiled at its first call."""


def make_run(config: RunConfig, *, seed: int = 0, evosax_name: str | None = None) -> Run:
    es = {"es_kind": evosax_name} if evosax_name else {}
    return common.run_of(dataclasses.replace(config, seed=seed), es=es)


def root_key(seed: int) -> jax.Array:
    return jax.random.key(1 + seed)


def repeated(
    one: Callable[[Hybrid, RoundState, jax.Array], RoundState], run: Run, rounds: int
) -> RoundState:
    """`rounds` rounds from the first state."""
    state = run.state
    for _ in range(rounds):
        state = one(run.hybrid, state, root_key(0))
    return state


def single_arms(row: Row) -> dict[str, Arm]:
    """The loops over one run, from a literal one to one program for all rounds."""
    run, root = make_run(row.config), root_key(0)
    evosax_run = make_run(row.config, evosax_name="Open_ES")
    one = common.compiled(
        lambda hybrid, state, root: hybrid.outer_round(state, root=root)[0],
        run.hybrid,
        run.state,
        root,
    )
    arms = {
        "literal": Arm(functools.partial(repeated, host_round, run)),
        "host": Arm(functools.partial(repeated, batched_round, evosax_run)),
        "round": Arm(functools.partial(repeated, one.call, run), program=one),
        "chunk": chunk_arm(run, root, row.rounds),
    }
    if row.config.es.pop > row.literal_up_to:
        del arms["literal"]
    return arms


def chunk_arm(run: Run, root: jax.Array, rounds: int) -> Arm:
    """One program for all rounds."""
    args = (run.hybrid, run.state, root)
    program = common.compiled(functools.partial(run_rounds, chunk=rounds), *args, jnp.int32(rounds))
    return Arm(lambda active: program.call(*args, jnp.int32(active))[0], program=program)


def seed_arms(row: Row, chunk: Arm) -> dict[str, Arm]:
    """Several runs that share a program: one after the other through `chunk`'s, or mapped."""
    assert chunk.program is not None
    call, seeds = chunk.program.call, range(row.seeds)
    runs = [make_run(row.config, seed=seed) for seed in seeds]
    study = gather(runs, [root_key(seed) for seed in seeds])
    mapped = Program(study, row.rounds, members_at_once=row.seeds)

    def in_turn(rounds: int) -> list[RoundState]:
        return [
            call(run.hybrid, run.state, root_key(seed), jnp.int32(rounds))[0]
            for seed, run in zip(seeds, runs, strict=True)
        ]

    def at_once(rounds: int) -> RoundState:
        # The program takes its state for its own, so every sample gets a copy.
        return mapped(jax.tree.map(jnp.copy, study.state), rounds)[0]

    made = common.Compiled(call=mapped.compiled, seconds=mapped.seconds)
    return {
        "seeds in turn": Arm(in_turn, runs=row.seeds, program=chunk.program),
        "seeds mapped": Arm(at_once, runs=row.seeds, program=made),
    }


def measure(row: Row) -> dict[str, Any]:
    """First calls, whether they agree, then seconds per round and run of every arm."""
    arms = single_arms(row)
    first = {name: common.timed(call)[0] for name, call in calls(arms, row.rounds).items()}
    check = compare(make_run(row.config).state, {n: arm.advance(1) for n, arm in arms.items()})
    measured: dict[str, Any] = {
        "population": row.config.es.pop,
        "preset_size": row.config == preset("compact"),
        "rounds_per_sample": row.rounds,
        "env_steps_per_round": team_steps(row.config),
        "check": check,
    }
    if not check["same"]:
        return measured | {"arms": {}}
    samples = common.interleaved(calls(arms, row.rounds), row.repeats, warm=False)
    if row.seeds:
        more = seed_arms(row, arms["chunk"])
        arms = arms | more
        samples |= common.interleaved(calls(more, row.rounds), row.seed_repeats)
    return measured | {
        "arms": {
            name: arm_row(arm, samples[name], row.rounds, first.get(name))
            for name, arm in arms.items()
        }
    }


def calls(arms: dict[str, Arm], rounds: int) -> dict[str, Callable[[], Any]]:
    return {name: functools.partial(arm.advance, rounds) for name, arm in arms.items()}


def arm_row(arm: Arm, samples: list[float], rounds: int, first: float | None) -> dict[str, Any]:
    """Seconds per round and run. Where the loop has no program of its own, its compilation is
    what the first call took longer."""
    row = {"runs": arm.runs} | common.summary([s / rounds / arm.runs for s in samples])
    if arm.program is not None:
        return row | arm.program.cost
    assert first is not None
    return row | {"compile_s": max(first - rounds * row["median_s"], 0.0)}


def team_steps(config: RunConfig) -> int:
    """Environment steps of a round: PPO, population and the judging of two genomes."""
    episodes = config.grad_steps * config.ppo.rollouts + (config.es.pop + 2) * config.es.eval_worlds
    return episodes * config.env.horizon


def compare(start: RoundState, ends: dict[str, RoundState]) -> dict[str, Any]:
    """Largest difference of any weight of the actor between each arm and the chunk."""

    def gap(one: Any, other: Any) -> float:
        return common.max_difference(module_theta(one), module_theta(other))

    actors = {name: end.learner.actor for name, end in ends.items()}
    differences = {name: gap(actors[name], actors["chunk"]) for name in actors if name != "host"}
    return {
        "max_abs_difference": differences,
        "selector_moved_by": gap(actors["chunk"].selector, start.learner.actor.selector),
        "tolerance": TOLERANCE,
        "same": all(difference <= TOLERANCE for difference in differences.values()),
    }


def show(measured: dict[str, Any]) -> None:
    check, arms = measured["check"], measured["arms"]
    worst = max(check["max_abs_difference"].values())
    verdict = "same" if check["same"] else "NOT THE SAME"
    print(
        f"population {measured['population']}: {verdict}, max |Δweight| {worst:.1e} "
        f"<= {TOLERANCE:g}?; the selector moved by {check['selector_moved_by']:.1e}"
    )
    for name, row in arms.items():
        gain = arms["host"]["median_s"] / row["median_s"]
        print(
            f"  {name:14s}{row['median_s'] * 1e3:10.1f} ms/round and run"
            f"  [{row['min_s'] * 1e3:.1f}, {row['max_s'] * 1e3:.1f}]"
            f"  x{gain:.2f} of host  compiled in {row['compile_s']:.1f} s",
            flush=True,
        )


def main() -> int:
    args = common.arguments(__doc__, "small sizes; a smoke test")
    rows = QUICK if args.quick else FULL
    report = common.head("fusion", args, rows) | {"rows": []}
    for row in rows:
        report["rows"].append(measure(row))
        show(report["rows"][-1])
        common.write(args.json, report)
    return 0 if all(row["check"]["same"] for row in report["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
