"""Small runs for the tests: the parts of a `Hybrid` with numbers that one wants to turn."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from purejax_merl import rollout
from purejax_merl.agents.compact import CompactActor, CompactCritic
from purejax_merl.evolve import NES
from purejax_merl.learn.dual import Dual
from purejax_merl.learn.ppo import PPO
from purejax_merl.rounds import Evolution, Hybrid, run_rounds
from purejax_merl.types import features

run_chunk = functools.partial(jax.jit, static_argnames="chunk")(run_rounds)
"""The chunk of rounds, compiled and not donated, so that a test can reuse its start."""


def f32(x) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


def make_ppo(**changes) -> PPO:
    numbers = {
        "lr": f32(1e-2),
        "clip": f32(0.2),
        "discount": f32(0.9),
        "trace_decay": f32(0.95),
        "skill_entropy": f32(0.0),
        "move_entropy": f32(0.0),
        "max_grad_norm": f32(0.5),
        "dual": Dual("soft_lambda", f32(0.0), f32(0.0), f32(0.0)),
        "epochs": 2,
        "minibatches": 2,
        "train_selector": True,
    }
    return PPO(**(numbers | changes))


def make_networks(env, *, skills: dict[str, Any] | None = None, width=16, seed=0, first_bias=0.0):
    """Actor and critic over the views of `env`; `skills` None: two learned heads."""
    state = env.reset(key=jax.random.key(0))
    own, team = (features(view).shape[-1] for view in (env.view(state), env.team_view(state)))
    skills = skills or {"one": None, "two": None}
    actor_key, critic_key = jax.random.split(jax.random.key(seed))
    actor = CompactActor(
        own, env.num_moves, skills, width=width, depth=1, first_bias=first_bias, key=actor_key
    )
    return actor, CompactCritic(own + team, width=width, depth=1, key=critic_key)


def opinionated(actor):
    """The actor with learned head k set on move k, so that it matters which skill is chosen."""
    moves = actor.skills.num_moves
    bias = 3.0 * jnp.eye(moves)[: sum(actor.learned)].ravel()
    return eqx.tree_at(lambda a: a.skills.heads.bias, actor, bias)


def make_hybrid(
    env, *, ppo=None, strategy=None, grad_steps=1, worlds=4, eval_worlds=4, **evolution
) -> Hybrid:
    return Hybrid(
        env=env,
        learner=make_ppo() if ppo is None else ppo,
        strategy=NES(population_size=4, sigma=0.1, lr=0.1) if strategy is None else strategy,
        evolution=Evolution(worlds=eval_worlds, **evolution),
        sampler=rollout.Sampler(),
        grad_steps=grad_steps,
        worlds=worlds,
    )
