"""Several seeds in one program, or as many runs one after the other?

    python benchmarks/seeds.py --json benchmarks/results/seeds.json

`one after the other` compiles anew for every run, as processes without a compilation cache do;
the two forms in one program compile once. Compilation and rounds are reported apart, since how
they weigh depends on the length of a run.
"""

import sys
from typing import Any

import common
import fusion
import jax
import jax.numpy as jnp

FULL = fusion.Row(fusion.small(16), rounds=5, repeats=3, seeds=8)
QUICK = fusion.QUICK[0]


def measure(row: fusion.Row) -> dict[str, Any]:
    """Seconds of every form for `rounds` rounds of all runs, and the largest gap between their
    ends."""
    forms: dict[str, dict[str, Any]] = {}
    alone, ends = [], []
    for seed in range(row.seeds):
        jax.clear_caches()  # as a process of its own would start
        run = fusion.make_run(row.config, seed=seed)
        arm = fusion.chunk_arm(run, fusion.root_key(seed), row.rounds)
        alone.append(arm)
        ends.append(arm.advance(row.rounds))
    arms = fusion.seed_arms(row, alone[0])
    calls = {"one after the other": lambda: [arm.advance(row.rounds) for arm in alone]}
    samples = common.interleaved(calls | fusion.calls(arms, row.rounds), row.repeats)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *ends)
    compile_s = {"one after the other": sum(arm.program.seconds for arm in alone if arm.program)}
    compile_s |= {name: arm.program.seconds for name, arm in arms.items() if arm.program}
    for name, taken in samples.items():
        row_s = common.summary(taken)
        forms[name] = {"compile_s": compile_s[name], **row_s}
        forms[name]["total_s"] = compile_s[name] + row_s["median_s"]
    mapped = arms["seeds mapped"].advance(row.rounds)
    return {
        "seeds": row.seeds,
        "rounds": row.rounds,
        "population": row.config.es.pop,
        "env_steps_per_round": fusion.team_steps(row.config),
        "max_abs_difference": common.max_difference(
            stacked.learner.actor.selector, mapped.learner.actor.selector
        ),
        "forms": forms,
    }


def show(measured: dict[str, Any]) -> None:
    print(f"{measured['seeds']} seeds, {measured['rounds']} rounds each")
    for name, form in measured["forms"].items():
        spread = f"[{form['min_s']:.2f}, {form['max_s']:.2f}]"
        compiling = f"{form['compile_s']:.1f} s of compilation"
        print(f"  {name:20s}{form['median_s']:9.2f} s {spread} + {compiling}", flush=True)


def main() -> int:
    args = common.arguments(__doc__, "small sizes; a smoke test")
    row = QUICK if args.quick else FULL
    report = common.head("seeds", args, row) | measure(row)
    show(report)
    common.write(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
