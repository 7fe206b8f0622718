"""Names become objects: a `RunConfig` turns into the parts of a run. The only registry.

In: a config, and whatever parts the caller brings. Out: a `Run`.
Axis: none.
May import: rounds and below, config, mesh.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from purejax_merl import mesh, rollout
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.agents.compact import CompactActor, CompactCritic
from purejax_merl.agents.reference.actor import ReferenceActor
from purejax_merl.agents.reference.critic import ReferenceCritic
from purejax_merl.config import HEADS, ConfigError, RunConfig, refuse
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.envs.coverage import CoverageEnv
from purejax_merl.envs.coverage.goals import GoalCoverageEnv
from purejax_merl.evolve.base import AbstractStrategy
from purejax_merl.evolve.cem import CEM
from purejax_merl.evolve.evosax import make_evosax
from purejax_merl.evolve.nes import NES
from purejax_merl.learn.dual import Dual
from purejax_merl.learn.ppo import PPO
from purejax_merl.rounds import Evolution, Hybrid, RoundState
from purejax_merl.types import features

TRAINING, DEVELOPMENT, TEST, WEIGHTS = range(4)
"""Disjoint random streams: worlds of one are never met in another, nor are initial weights."""


def stream(seed: int, which: int) -> PRNGKeyArray:
    """The root key of one of the streams above."""
    return jax.random.fold_in(jax.random.key(seed), which)


class Run(eqx.Module):
    """Parts and state, ready to train."""

    hybrid: Hybrid
    state: RoundState


def build_run(
    config: RunConfig,
    *,
    env: AbstractTeamEnv | None = None,
    actor: AbstractActor | None = None,
    critic: AbstractCritic | None = None,
    strategy: AbstractStrategy | None = None,
    key: PRNGKeyArray | None = None,
) -> Run:
    """The parts of a run; whatever is passed in replaces what the config describes.

    **Arguments:** `key`: initial weights; by default they follow `config.seed`.

    **Errors:** `ConfigError` names the field that does not fit and the cure.
    """
    env = make_env(config) if env is None else env
    if env.num_agents < 2:
        raise ConfigError(f"`env.num_agents={env.num_agents}` must be at least 2: a team.")
    _check_minibatches(config, env)
    actor_key, critic_key = jax.random.split(stream(config.seed, WEIGHTS) if key is None else key)
    actor = make_actor(config, env, key=actor_key) if actor is None else actor
    critic = make_critic(config, env, key=critic_key) if critic is None else critic
    if config.es.arm != "gradient" and len(actor.skill_names) < 2:
        raise ConfigError(
            "`actor.skill_names` must name at least 2 skills, or use `--arm gradient`."
        )
    hybrid = Hybrid(
        env=env,
        learner=make_learner(config),
        strategy=make_strategy(config) if strategy is None else strategy,
        evolution=make_evolution(config),
        sampler=make_sampler(config),
        grad_steps=config.grad_steps,
        worlds=config.ppo.rollouts,
        anneal_rounds=_rate(float(config.outer)) if config.ppo.anneal == "on" else None,
    )
    return Run(hybrid=hybrid, state=hybrid.init(actor, critic))


def _check_minibatches(config: RunConfig, env: AbstractTeamEnv) -> None:
    """The world, which may be the caller's own, says how long an episode is."""
    rows, number = config.ppo.rollouts * env.horizon, config.ppo.minibatches
    if config.es.arm == "evolution" or rows % number == 0:
        return
    nearest = min((d for d in range(1, rows + 1) if rows % d == 0), key=lambda d: abs(d - number))
    refuse(
        "minibatches",
        number,
        f"divide the {rows} rows of a rollout (`--rollouts {config.ppo.rollouts}` × {env.horizon} "
        f"steps of an episode); try `--minibatches {nearest}`.",
    )


def make_mesh(config: RunConfig, runs: int = 1) -> Mesh | None:
    """The devices that `runs` runs are spread over, or the work of a single one; None: just one.

    `--devices 0` takes as many of the visible ones as divide the work evenly; on a CPU, one.

    **Errors:** `ConfigError` if there are not as many, or they do not divide the work evenly.
    """
    visible, work = jax.device_count(), _shared_out(config, runs)
    if config.devices > visible:
        must = f"be at most {visible}, the number of devices that JAX sees"
        cure = f"XLA_FLAGS=--xla_force_host_platform_device_count={config.devices} cuts up a CPU"
        hint = f"; {cure}." if jax.default_backend() == "cpu" else "."
        refuse("devices", config.devices, must + hint)
    at_most = config.devices or (1 if jax.default_backend() == "cpu" else visible)
    whole = math.gcd(*work.values())
    number = max(n for n in range(1, at_most + 1) if whole % n == 0)
    if config.devices not in (0, number):
        uneven = [f"`{name} {size}`" for name, size in work.items() if size % config.devices]
        must = f"divide {' and '.join(uneven)}, an equal share for each; try `--devices {number}`."
        refuse("devices", config.devices, must)
    return mesh.make_mesh(number) if number > 1 else None


def _shared_out(config: RunConfig, runs: int) -> dict[str, int]:
    """What the devices share out, by the flag that says how much of it there is."""
    if runs > 1:
        return {"--seeds" if not config.sweep else "--seeds × --sweep": runs}
    work = {}
    if config.es.arm != "evolution" and config.grad_steps:
        work["--rollouts"] = config.ppo.rollouts
    if config.es.arm != "gradient":
        work["--pop"] = config.es.pop
    return work


def make_env(config: RunConfig) -> AbstractTeamEnv:
    """The coverage world of `config.env`; for the reference network, with goals for moves."""
    world = make_coverage(config)
    if config.agent.network == "compact":
        return world
    return GoalCoverageEnv(world, metric="chebyshev" if _compat(config) else "l1_tiebreak")


def make_coverage(config: RunConfig) -> CoverageEnv:
    """The coverage world itself."""
    env = config.env
    return CoverageEnv(
        num_agents=env.n_agents,
        horizon=env.horizon,
        grid=env.grid,
        comm_r=env.comm_r,
        sense_r=env.sense_r,
        cover_r=env.cover_r,
        sense_walls=env.sense_walls,
        sense_free=env.sense_free,
        terrain=env.terrain,
        n_obstacles=env.obstacles,
        rooms=env.rooms,
        pillar_spacing=env.pillar_spacing,
        pillar_size=env.pillar_size,
        spawn=env.spawn,
        spawn_radius=env.spawn_radius,
        collision=env.collision,
        credit=env.credit,
        w_coverage=env.w_coverage,
        w_connectivity=env.w_connectivity,
        w_collision=env.w_collision,
        w_overlap=env.w_overlap,
        cost=env.cost,
        cost_threshold=env.cost_threshold,
        views=env.views,
    )


def make_sampler(config: RunConfig) -> rollout.Sampler:
    """How rollouts of this run act and what they charge."""
    congestion = config.ppo.congestion_weight if config.ppo.congestion == "on" else 0.0
    return rollout.Sampler(congestion_weight=congestion)


def make_actor(config: RunConfig, env: AbstractTeamEnv, *, key: PRNGKeyArray) -> AbstractActor:
    """The actor: the world's scripted skills beside learned ones.

    The compact one fits any world, the reference one only a world of grid planes and goals.
    """
    if config.agent.network == "reference":
        return ReferenceActor(
            _goal_world(env).num_channels,
            env.num_moves,
            skill_library(config, env),
            width=config.agent.width,
            depth=config.agent.depth,
            rounds=config.agent.mp_rounds,
            aggregator=config.agent.aggregator,
            heads=HEADS,
            chunk=_image_chunk(),
            key=key,
        )
    own, _ = num_features(env)
    return CompactActor(
        own,
        env.num_moves,
        skill_library(config, env),
        width=config.agent.width,
        depth=config.agent.depth,
        first_bias=config.agent.first_bias,
        key=key,
    )


def skill_library(config: RunConfig, env: AbstractTeamEnv) -> dict[str, Any]:
    """Name → the world's scripted skill, or None where a head is to be learned.

    A world with skills of its own gets one learned skill, `disperse`, in front of them; a world
    without gets `num_skills` learned ones.
    """
    scripted = env.skills()
    if config.agent.selector == "off":
        return {"disperse" if scripted else "skill_0": None}
    if not scripted:
        return {f"skill_{k}": None for k in range(config.agent.num_skills)}
    if config.agent.flock == "learned" and "flock" in scripted:
        scripted = scripted | {"flock": None}
    return {"disperse": None} | scripted


def make_critic(config: RunConfig, env: AbstractTeamEnv, *, key: PRNGKeyArray) -> AbstractCritic:
    """The central critic, for the worlds that the actor fits."""
    width, depth = config.agent.width, config.agent.depth
    if config.agent.network == "reference":
        _goal_world(env)
        return ReferenceCritic(width=width, depth=depth, chunk=_image_chunk(), key=key)
    return CompactCritic(sum(num_features(env)), width=width, depth=depth, key=key)


def num_features(env: AbstractTeamEnv) -> tuple[int, int]:
    """Features of one agent's own view and of the team view."""

    def look() -> tuple[Array, Array]:
        state = env.reset(key=jax.random.key(0))
        return features(env.view(state)), features(env.team_view(state))

    own, team = jax.eval_shape(look)
    return own.shape[-1], team.shape[-1]


def make_learner(config: RunConfig) -> PPO:
    """PPO with the config's numbers."""
    ppo = config.ppo
    return PPO(
        lr=_rate(ppo.lr),
        clip=_rate(ppo.clip),
        discount=_rate(ppo.gamma),
        trace_decay=_rate(ppo.gae_lambda),
        skill_entropy=_rate(ppo.skill_entropy),
        move_entropy=_rate(ppo.move_entropy),
        max_grad_norm=_rate(ppo.max_grad_norm),
        dual=Dual(
            mechanism=ppo.mechanism,
            initial_price=_rate(ppo.price),
            limit=_rate(ppo.cost_limit),
            lr=_rate(ppo.price_lr),
        ),
        epochs=ppo.ppo_epochs,
        minibatches=ppo.minibatches,
        train_selector=ppo.disjoint == "off",
        **published_loss(config),
    )


def published_loss(config: RunConfig) -> dict[str, Any]:
    """What the loss of the reference network does otherwise, beyond what a flag decides.

    `--compat on` adds the parts of the published loss that are defects.
    """
    if config.agent.network == "compact":
        return {}
    compat = _compat(config)
    return {
        "value_weight": 0.5,
        "auxiliary_weight": 0.1,
        "weight_decay": 1e-4,
        "adam_eps": 1e-8,
        "team_reward": True,
        "count_scripted": compat,
        "normalise_minibatch": compat,
        "normalise_value": not compat,
        "joint_clip": compat,
    }


def make_evolution(config: RunConfig) -> Evolution:
    """How a round evolves."""
    es = config.es
    return Evolution(
        arm=es.arm,
        fitness=es.fitness,
        worlds=es.eval_worlds,
        accept=es.accept == "on",
        reuse=es.reuse == "on" and es.arm in ("merl", "no_injection") and config.grad_steps > 0,
        reset_moments=not _compat(config),
        member_chunk=es.member_chunk or _member_chunk(config),
    )


def make_strategy(config: RunConfig) -> AbstractStrategy:
    """The strategy by name: ours (nes, cem) or one of evosax's."""
    es = config.es
    if es.es_kind == "nes":
        return NES(
            population_size=es.pop,
            sigma=es.sigma,
            lr=es.es_lr,
            weight_decay=es.weight_decay,
            optimizer=es.es_optimizer,
            compat=_compat(config),
        )
    if es.es_kind == "cem":
        return CEM(
            population_size=es.pop,
            elite_frac=es.elite_frac,
            sigma=es.sigma,
            sigma_floor=es.sigma_floor,
            compat=_compat(config),
        )
    try:
        return make_evosax(es.es_kind, population_size=es.pop, sigma=es.sigma, lr=es.es_lr)
    except ValueError as error:
        raise ConfigError(f"`--es-kind {es.es_kind}`: {error}") from None


def _compat(config: RunConfig) -> bool:
    return config.compat == "on"


def _goal_world(env: AbstractTeamEnv) -> GoalCoverageEnv:
    if isinstance(env, GoalCoverageEnv):
        return env
    raise ConfigError(
        f"`--network reference` needs a `GoalCoverageEnv`, whose views are grid planes, not "
        f"`{type(env).__name__}`; use `--network compact` or pass an actor and a critic."
    )


def _image_chunk() -> int | None:
    """Images convolved at once: as many as a CPU's cache holds, all on an accelerator."""
    return 64 if jax.default_backend() == "cpu" else None


def _member_chunk(config: RunConfig) -> int | None:
    """Members at once where no flag says it. A CPU gains nothing from stacking convolutions."""
    convolves = config.agent.network == "reference"
    return 1 if convolves and jax.default_backend() == "cpu" else None


def _rate(value: float) -> Float[Array, ""]:
    """A rate as an array: a Python float would be part of the program and recompile it."""
    return jnp.asarray(value, jnp.float32)
