"""How far is every phase of the default round from what the machine could do at best?

    python benchmarks/roofline.py --json benchmarks/results/roofline.json

The floor of a phase is a fixed formula for the minimal algorithm, written below, over two ceilings
measured in the same process: multiply-adds of a large float32 product, bytes per second of a large
streamed array. It depends on the sizes of the task alone, so that wasteful work cannot raise its
own floor. Nothing reaches such a floor: elementwise work, random numbers and dispatch count as
nothing in it, and the nets are thin. The ratio says where time is left.
"""

import dataclasses
import sys
from typing import Any

import common
import jax
import jax.numpy as jnp
from jax import lax

from purejax_merl import rollout
from purejax_merl.agents import policy as policies
from purejax_merl.build import Run
from purejax_merl.config import EnvConfig, RunConfig, preset
from purejax_merl.envs.coverage import comms
from purejax_merl.evolve import module_theta

# The compact views and skills: what the algorithm needs, whatever the program makes of it. A change
# of the views is a change of the algorithm and has to be written down here (a test compares).
CROP_BITS = 2 * 11**2
OWN_FLOATS = 16 + 24 + 5 * 3 + 1
TEAM_FLOATS = 24 + 5 * 3 + 4
OWN, TEAM = CROP_BITS + OWN_FLOATS, TEAM_FLOATS
MOVES, SKILLS, LEARNED = 5, 3, 1
OWN_BYTES, TEAM_BYTES = CROP_BITS / 8 + 4 * OWN_FLOATS, 4 * TEAM_FLOATS


@dataclasses.dataclass(frozen=True)
class Work:
    """What the minimal algorithm of a phase has to do."""

    macs: float = 0.0
    """Multiply-adds of the nets."""
    bytes: float = 0.0
    """Bytes of compact data read and written once."""

    def __mul__(self, times: float) -> "Work":
        return Work(self.macs * times, self.bytes * times)


def actor_macs(config: RunConfig) -> int:
    """Multiply-adds of one agent's policy."""
    return _trunk(config, OWN) + config.agent.width * (SKILLS + LEARNED * MOVES)


def critic_macs(config: RunConfig) -> int:
    """Multiply-adds of one agent's value."""
    return _trunk(config, OWN + TEAM) + config.agent.width


def _trunk(config: RunConfig, features: int) -> int:
    width, depth = config.agent.width, config.agent.depth
    return features * width + (depth - 1) * width**2


def state_bytes(env: EnvConfig) -> float:
    """A world: walls, and every agent's covered and known cells, a bit each; two bytes of position
    per agent; λ₂; the time."""
    return (1 + 2 * env.n_agents) * env.grid**2 / 8 + 2 * env.n_agents + 4 + 1


def floors(config: RunConfig) -> dict[str, list[Work]]:
    """Phase → what has to be done, one `Work` after the other."""
    env, team = config.env, config.env.n_agents
    step = {
        "world": Work(bytes=2 * state_bytes(env)),
        "own view": Work(bytes=state_bytes(env) + team * OWN_BYTES),
        "observation": Work(bytes=state_bytes(env) + team * (OWN_BYTES + TEAM_BYTES)),
        "actor": Work(macs=team * actor_macs(config)),
        "lambda2": Work(bytes=2 * team + 4),
    }
    rows = config.ppo.rollouts * env.horizon
    gradient_rows = config.ppo.ppo_epochs * rows
    update = Work(
        # Values of all rows and of the last states; then thrice per gradient row.
        macs=team * critic_macs(config) * (rows + config.ppo.rollouts)
        + 3 * team * (actor_macs(config) + critic_macs(config)) * gradient_rows,
        bytes=team * (OWN_BYTES + TEAM_BYTES) * rows,
    )

    def tried(members: int) -> list[Work]:
        steps = members * config.es.eval_worlds * env.horizon
        return [step[name] * steps for name in ("world", "own view", "actor")]

    trained = [step[name] * rows for name in ("world", "observation", "actor")]
    return {
        "world": [step["world"] * rows],
        "observation": [step["observation"] * rows],
        "actor in rollout": [step["actor"] * rows],
        "lambda2": [step["lambda2"] * rows],
        "PPO rollout": trained,
        "PPO update": [update],
        "ES evaluation": tried(config.es.pop),
        # Two more members: the genomes before and after, on the judging worlds.
        "round": [*trained, update] * config.grad_steps + tried(config.es.pop) + tried(2),
    }


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """What the machine does at best."""

    mac_per_s: float
    byte_per_s: float

    def seconds(self, works: list[Work]) -> float:
        """One after the other; within each, arithmetic and memory traffic overlap."""
        return sum(max(w.macs / self.mac_per_s, w.bytes / self.byte_per_s) for w in works)


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    config: RunConfig
    matmul: int
    """Side of the square product behind the arithmetic ceiling."""
    copy: int
    """Floats of the array behind the memory ceiling."""
    repeats: int


FULL = Size(config=preset("compact"), matmul=2048, copy=2**26, repeats=15)
QUICK = Size(
    config=dataclasses.replace(
        FULL.config,
        grad_steps=1,
        env=EnvConfig(grid=8, n_agents=2, horizon=10),
        ppo=dataclasses.replace(FULL.config.ppo, rollouts=4, minibatches=2, ppo_epochs=1),
        es=dataclasses.replace(FULL.config.es, pop=4, eval_worlds=2),
    ),
    matmul=256,
    copy=2**16,
    repeats=2,
)


class Stream:
    """Adds one to a large array in place: reads and writes it once per call."""

    def __init__(self, floats: int):
        self._array = jnp.zeros(floats)
        self._call = jax.jit(lambda x: x + 1, donate_argnums=0)

    def __call__(self) -> jax.Array:
        self._array = self._call(self._array)
        return self._array


def world(env, states, moves):
    """Transition, gossip, λ₂ and metrics of all steps."""

    def body(states, moves):
        key = jax.random.key(0)  # the coverage world draws nothing in a step
        return jax.vmap(lambda state, move: env.step(state, move, key=key))(states, moves)

    return lax.scan(body, states, moves)


def observation(env, states):
    """Everything that is seen in all `states` `(T, B, ...)`."""
    return lax.map(lambda now: tuple(jax.vmap(see)(now) for see in _senses(env)), states)


def act(actor, view, graph, legal, uniform):
    """The policy in all steps, and what is drawn from it."""
    return lax.map(
        lambda now: policies.sample(actor(*now[:3]), now[3]), (view, graph, legal, uniform)
    )


def lambda2(env, position):
    """Of all positions `(T, B, N, 2)`."""

    def one(position):
        weights = comms.soft_weights(position, env.comm_r, env.lambda2_sharp)
        return comms.algebraic_connectivity(weights)

    return lax.map(jax.vmap(one), position)


def _senses(env):
    return env.view, env.graph, env.legal, env.team_view


def programs(run: Run) -> dict[str, tuple[Any, ...]]:
    """Phase → its function and what it is given: data of the same kind as in a round."""
    hybrid, learner = run.hybrid, run.state.learner
    env, actor, root = hybrid.env, learner.actor, jax.random.key(1)
    shape = (env.horizon, hybrid.worlds, env.num_agents)
    moves = jax.random.randint(jax.random.key(2), shape, 0, env.num_moves)
    uniform = jax.random.uniform(jax.random.key(3), (*shape, 2))
    keys = rollout.world_keys(root, hybrid.worlds)
    start = jax.jit(jax.vmap(lambda key: env.reset(key=key)))(keys)
    states = jax.jit(_states)(env, start, moves)
    # A function of its own: the program that is timed must not be compiled already.
    view, graph, legal, _ = jax.jit(lambda env, states: observation(env, states))(env, states)
    collect = jax.jit(lambda actor, keys: rollout.collect(env, actor, hybrid.sampler, keys=keys))
    theta = module_theta(actor.selector)
    noise = jax.random.normal(root, (hybrid.strategy.population_size, theta.size))
    return {
        "world": (world, env, start, moves),
        "observation": (observation, env, states),
        "actor in rollout": (act, actor, view, graph, legal, uniform),
        "lambda2": (lambda2, env, states.position),
        "PPO rollout": (collect, actor, keys),
        "PPO update": (
            lambda hybrid, learner, data, key: hybrid.learner.update(learner, data, key=key),
            hybrid,
            learner,
            collect(actor, keys),
            root,
        ),
        "ES evaluation": (
            lambda hybrid, actor, genomes, key: hybrid.play(actor, genomes, key=key),
            hybrid,
            actor,
            theta + 0.05 * noise,
            root,
        ),
        "round": (
            lambda hybrid, state, root: hybrid.outer_round(state, root=root),
            hybrid,
            run.state,
            root,
        ),
    }


def _states(env, start, moves):
    """The states of all steps, before the move."""

    def body(states, moves):
        return world(env, states, moves[None])[0], states

    return lax.scan(body, start, moves)[1]


def measure(size: Size) -> dict[str, Any]:
    """Ceilings and phases, all in one interleaved series."""
    given = programs(common.run_of(size.config))
    made = {name: common.compiled(function, *args) for name, (function, *args) in given.items()}
    square = jax.random.normal(jax.random.key(0), (size.matmul, size.matmul))
    matmul = common.compiled(lambda a: a @ a, square)
    arms = {
        name: lambda call=made[name].call, args=args: call(*args)
        for name, (_, *args) in given.items()
    }
    arms |= {"matmul": lambda: matmul.call(square), "stream": Stream(size.copy)}
    samples = common.interleaved(arms, size.repeats)
    ceiling = Ceiling(
        mac_per_s=size.matmul**3 / min(samples.pop("matmul")),
        byte_per_s=2 * 4 * size.copy / min(samples.pop("stream")),
    )
    works, phases = floors(size.config), {}
    for name, taken in samples.items():
        floor, row = ceiling.seconds(works[name]), common.summary(taken)
        phases[name] = {
            "macs": sum(work.macs for work in works[name]),
            "bytes": sum(work.bytes for work in works[name]),
            "floor_s": floor,
            "ratio": row["median_s"] / floor,
            **row,
            **made[name].cost,
        }
    return {"ceilings": dataclasses.asdict(ceiling), "phases": phases}


def show(measured: dict[str, Any]) -> None:
    ceilings = measured["ceilings"]
    print(
        f"ceilings: {ceilings['mac_per_s'] / 1e9:.1f} G multiply-adds/s, "
        f"{ceilings['byte_per_s'] / 1e9:.1f} GB/s"
    )
    print(f"{'phase':18s}{'floor ms':>11s}{'measured ms':>13s}{'ratio':>9s}")
    for name, row in measured["phases"].items():
        times = f"{row['floor_s'] * 1e3:11.3f}{row['median_s'] * 1e3:13.3f}"
        print(f"{name:18s}{times}{row['ratio']:9.1f}", flush=True)


def main() -> int:
    args = common.arguments(__doc__, "small sizes; a smoke test")
    size = QUICK if args.quick else FULL
    report = common.head("roofline", args, size) | measure(size)
    show(report)
    common.write(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
