"""How fast are the worlds, what they show, and the evaluation of a population?

    python benchmarks/environment.py --json benchmarks/results/environment.json

One environment step is one step of a whole team. Worlds are reset, drawn random moves for and
played to the horizon in one call; resets and random numbers are part of the time. Every number
that a step or a view yields enters a sum that is returned, so that nothing can be left out.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import common
import jax
import jax.numpy as jnp
from jax import lax

from purejax_merl import rollout
from purejax_merl.build import Run, make_coverage, make_env
from purejax_merl.config import preset
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.envs.coverage import CoverageEnv, bits
from purejax_merl.evolve import module_theta
from purejax_merl.rounds import Hybrid

Look = Callable[[AbstractTeamEnv, Any], Any]
"""What is computed of a state in every step."""


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    teams: tuple[tuple[int, int], ...]
    """(side of the grid, agents) of the worlds with random moves."""
    plane_teams: tuple[tuple[int, int], ...]
    """The same with grid planes for views."""
    worlds: int
    horizon: int
    members: int
    """Of the population whose evaluation is timed, with `eval_worlds` worlds each."""
    eval_worlds: int
    halves: tuple[tuple[int, int], ...]
    """(members, worlds): all members at once or one by one."""
    memory: tuple[int, int, tuple[int, ...]]
    """Members, worlds, and the `member_chunk`s whose planned memory is asked for."""
    repeats: int


FULL = Size(
    teams=((16, 4), (24, 6), (32, 10)),
    plane_teams=((16, 4), (32, 10)),
    worlds=256,
    horizon=100,
    members=16,
    eval_worlds=16,
    halves=((16, 16), (256, 4), (256, 1)),
    memory=(1024, 16, (0, 256, 64, 16)),
    repeats=9,
)
QUICK = Size(
    teams=((8, 2),),
    plane_teams=((8, 2),),
    worlds=4,
    horizon=5,
    members=4,
    eval_worlds=2,
    halves=((4, 2),),
    memory=(8, 2, (0, 4)),
    repeats=2,
)


def look_at_nothing(env: AbstractTeamEnv, state: Any) -> None:
    """The world alone."""
    del env, state


def look_around(env: AbstractTeamEnv, state: Any) -> Any:
    """All that an actor is given, and the critic's view."""
    return env.view(state), env.team_view(state), env.legal(state), env.graph(state)


def look_at_planes(env: AbstractTeamEnv, state: Any) -> tuple[jax.Array, jax.Array]:
    """The published observation, every agent's grid planes and the critic's, as bit rows."""
    assert isinstance(env, CoverageEnv)
    return env.planes(state), env.central_planes(state)


def look_at_images(env: AbstractTeamEnv, state: Any) -> list[jax.Array]:
    """The same as float images: 32 times the memory."""
    assert isinstance(env, CoverageEnv)
    planes = look_at_planes(env, state)
    return [bits.unpack(rows, env.grid).astype(jnp.float32) for rows in planes]


def total(tree: Any) -> jax.Array:
    """The sum of every number in `tree`."""
    leaves = [jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree)]
    return sum(leaves, jnp.zeros(()))


def play_at_random(env: AbstractTeamEnv, worlds: int, look: Look, key: jax.Array):
    """Whole episodes of random moves; returns the last states and a sum per step and world."""
    reset_key, move_key = jax.random.split(key)
    shape = (env.horizon, worlds, env.num_agents)
    moves = jax.random.randint(move_key, shape, 0, env.num_moves)

    def one(state, move):
        seen = look(env, state)
        state, paid = env.step(state, move, key=reset_key)  # the coverage world draws nothing here
        return state, total((seen, paid))

    start = jax.vmap(lambda k: env.reset(key=k))(rollout.world_keys(reset_key, worlds))
    return lax.scan(jax.vmap(one), start, moves)


def worlds(size: Size) -> list[dict[str, Any]]:
    """Rows of steps per second: the world alone, with compact views, with grid planes."""
    cases = [
        (what, "compact", team, look)
        for team in size.teams
        for what, look in (("world", look_at_nothing), ("compact views", look_around))
    ]
    for what, look in (
        ("grid planes, bit rows", look_at_planes),
        ("grid planes, float images", look_at_images),
        ("all that `reference` sees", look_around),
    ):
        cases += [(what, "reference", team, look) for team in size.plane_teams]
    rows, arms = [], {}
    for what, name, (grid, agents), look in cases:
        config = preset(name)
        env_config = dataclasses.replace(
            config.env, grid=grid, n_agents=agents, horizon=size.horizon
        )
        # The published world knows five moves and planes. What its agents derive of them (goal
        # cells, frontier features, bearings) is in "all that `reference` sees".
        make = make_env if look is look_around else make_coverage
        env = make(dataclasses.replace(config, env=env_config))
        made = common.compiled(
            lambda key, env=env, look=look: play_at_random(env, size.worlds, look, key),
            jax.random.key(0),
        )
        row = {"what": what, "grid": grid, "agents": agents, "worlds": size.worlds} | made.cost
        rows.append(row)
        arms[str(len(arms))] = lambda call=made.call: call(jax.random.key(1))
    samples = common.interleaved(arms, size.repeats)
    return [
        _with_speed(row, samples[arm], size.worlds * size.horizon)
        for arm, row in zip(arms, rows, strict=True)
    ]


def _with_speed(row: dict[str, Any], samples: list[float], steps: int) -> dict[str, Any]:
    """A row with its seconds, and team steps per second at the median."""
    taken = common.summary(samples)
    return row | taken | {"env_steps": steps, "env_steps_per_s": steps / taken["median_s"]}


def population(size: Size, members: int, worlds: int, member_chunk: int = 0) -> Run:
    """The default run with a population of this size."""
    return common.run_of(
        preset("compact"),
        env={"horizon": size.horizon},
        es={"pop": members, "eval_worlds": worlds, "member_chunk": member_chunk},
    )


def fitness(hybrid: Hybrid, learner: Any, genomes: jax.Array, key: jax.Array) -> jax.Array:
    """Of every genome: world, observation, actor and sampling, to the horizon."""
    return hybrid.fitness(hybrid.play(learner.actor, genomes, key=key), learner)


def given(run: Run) -> tuple[Any, ...]:
    """What `fitness` takes, with a population around the selector."""
    theta = module_theta(run.state.learner.actor.selector)
    noise = jax.random.normal(jax.random.key(0), (run.hybrid.strategy.population_size, theta.size))
    return run.hybrid, run.state.learner, theta + 0.05 * noise, jax.random.key(1)


def evaluation(size: Size) -> dict[str, Any]:
    """The evaluation of the preset's population: team steps per second."""
    args = given(population(size, size.members, size.eval_worlds))
    made = common.compiled(fitness, *args)
    samples = common.interleaved({"all": lambda: made.call(*args)}, size.repeats)
    row = {"members": size.members, "worlds": size.eval_worlds} | made.cost
    steps = size.members * size.eval_worlds * size.horizon
    row = _with_speed(row, samples["all"], steps)
    agents = preset("compact").env.n_agents
    return row | {"agents": agents, "agent_steps_per_s": agents * row["env_steps_per_s"]}


def halves(size: Size) -> list[dict[str, Any]]:
    """The evolution half: members in one vmap, one by one in the program, one by one from the
    host."""
    rows = []
    for members, worlds in size.halves:
        together = given(population(size, members, worlds))
        in_turn = given(population(size, members, worlds, member_chunk=1))
        hybrid, learner, genomes, key = together
        programs = {
            "one vmap": common.compiled(fitness, *together),
            "one by one in the program": common.compiled(fitness, *in_turn),
            "one by one from the host": common.compiled(fitness, hybrid, learner, genomes[:1], key),
        }
        vmapped, mapped, alone = (program.call for program in programs.values())

        def from_host(alone=alone, given=together):
            hybrid, learner, genomes, key = given
            return [float(alone(hybrid, learner, theta[None], key)[0]) for theta in genomes]

        arms = {
            "one vmap": lambda call=vmapped, given=together: call(*given),
            "one by one in the program": lambda call=mapped, given=in_turn: call(*given),
            "one by one from the host": from_host,
        }
        reference = jnp.asarray(arms["one vmap"]())
        samples = common.interleaved(arms, size.repeats)
        steps = members * worlds * size.horizon
        for name, taken in samples.items():
            gap = common.max_difference(jnp.asarray(arms[name]()), reference)
            row = {"members": members, "worlds": worlds, "form": name, "max_abs_difference": gap}
            rows.append(_with_speed(row | programs[name].cost, taken, steps))
    return rows


def memory(size: Size) -> list[dict[str, Any]]:
    """Planned bytes of a large population's evaluation, all at once and in chunks."""
    members, worlds, chunks = size.memory
    return [
        {
            "members": members,
            "worlds": worlds,
            "member_chunk": chunk,
            **common.compiled(fitness, *given(population(size, members, worlds, chunk))).cost,
        }
        for chunk in chunks
    ]


def show(report: dict[str, Any]) -> None:
    for row in [*report["worlds"], {"what": "ES evaluation", **report["evaluation"]}]:
        where = f"{row['grid']}²" if "grid" in row else f"{row['members']} × {row['worlds']}"
        label = f"{row['what']}, {where}, {row['agents']} agents"
        print(f"{label:40s}{row['env_steps_per_s'] / 1e6:9.3f} M env steps/s")
    for row in report["halves"]:
        label = f"{row['members']} members × {row['worlds']} worlds, {row['form']}"
        print(f"{label:60s}{row['median_s'] * 1e3:10.1f} ms")
    for row in report["memory"]:
        label = f"{row['members']} members × {row['worlds']} worlds, chunk {row['member_chunk']}"
        print(f"{label:60s}{row['memory_bytes'].get('planned', 0) / 2**20:10.1f} MiB planned")


def main() -> int:
    args = common.arguments(__doc__, "small sizes; a smoke test")
    size = QUICK if args.quick else FULL
    report = common.head("environment", args, size)
    for section in (worlds, evaluation, halves, memory):
        report[section.__name__] = section(size)
        common.write(args.json, report)
    show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
