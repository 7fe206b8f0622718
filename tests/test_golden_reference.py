"""The reference system's controller, skills, features, networks and loss, array by array.

Every array of a file is compared, is an input, or is listed as left out with the reason.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from purejax_merl import rollout
from purejax_merl.agents.reference.actor import ReferenceActor
from purejax_merl.agents.reference.backbone import Aggregator
from purejax_merl.agents.reference.critic import ReferenceCritic
from purejax_merl.envs.coverage import bits, comms, controller, goal_views, movement
from purejax_merl.envs.coverage.env import CoverageEnv
from purejax_merl.envs.coverage.goal_views import GoalView, Planes
from purejax_merl.envs.coverage.goals import GoalCoverageEnv
from purejax_merl.evolve.genome import module_theta
from purejax_merl.learn import ppo as ppo_module
from purejax_merl.learn.dual import Dual
from purejax_merl.learn.ppo import PPO
from purejax_merl.types import Action, Step

pytestmark = pytest.mark.golden

CONTROLLER_INPUTS = {"positions", "wall", "goal_index", "comm_r", "sharp", "hold_target"}
CONTROLLER_LEFT_OUT = {
    "safe_mask_1e3": "the action-mask mechanism is not built: it masks next to nothing",
    "safe_mask_05": "the action-mask mechanism is not built",
    "relay_mask": "position controllers of the role picker, which is not built",
    "relay_nomask": "position controllers of the role picker",
    "hold_mask": "position controllers of the role picker",
    "hold_nomask": "position controllers of the role picker",
}
FEATURES_LEFT_OUT = {
    "compass": "off on the default path, not built",
    "index_signal_": "input of the goal residual, which is not built",
    "msg_": "message extras are off on the default path, not built",
    "tv_": "a diversity metric that nothing reads",
    "group_": "forked groups are not built",
}
MODULES_LEFT_OUT = ("role_head", "compass", "goal_residual", "gru", "value_head")
LOSS_LEFT_OUT = {
    **{f"gradnorm_actor_{name}": "module not built" for name in MODULES_LEFT_OUT},
    "loss_role_entropy": "no roles",
    "loss_role_pg": "no roles",
    "fwd_compass_term": "no compass",
    "fwd_goal_residual": "no goal residual",
    "fwd_value_agent": "no decentralised critic",
    "fwd_gru_from_zero": "no recurrence",
    "fwd_gru_second": "no recurrence",
}


def close(actual, expected, name, *, rtol=1e-4, atol=1e-5):
    assert np.shape(actual) == expected.shape, name
    if np.issubdtype(expected.dtype, np.floating):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=name)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=name)


def all_close(ours, data, names, **tolerance):
    missing = sorted(names - set(ours))
    assert not missing, f"neither compared nor left out: {missing}"
    for name in sorted(names):
        close(np.asarray(ours[name]), data[name], name, **tolerance)


def test_controller_file(golden):
    data = dict(np.load(golden / "controller.npz"))
    grid, agents = data["wall"].shape[-1], data["positions"].shape[1]
    inner = CoverageEnv(
        num_agents=agents,
        grid=grid,
        comm_r=int(data["comm_r"]),
        lambda2_sharp=float(data["sharp"]),
        terrain="walls",
        collision="share",
    )
    free = GoalCoverageEnv(inner, metric="chebyshev", collision_mask=False)
    polite = GoalCoverageEnv(inner, metric="chebyshev", collision_mask=True)

    @jax.jit
    @jax.vmap
    def one_state(wall, position, goal):
        state = inner.start(wall, position)
        options = movement.options(state.position, state.wall, grid)
        cells = controller.goal_cells(position, controller.stencil(9, 3), grid)
        every = jnp.broadcast_to(jnp.arange(9)[:, None], (9, agents))
        return {
            "targets": options.target,
            "action_valid": options.valid,
            "goal_cells": cells,
            "goal": jnp.take_along_axis(cells, goal[:, None, None], axis=1)[:, 0],
            "occupied": controller.occupied(position, options.target),
            "moves_nomask": free.control(state, goal),
            "moves_mask": polite.control(state, goal),
            "first_moves": jax.vmap(lambda k: free.control(state, k))(every).T,
            "soft_degree": free.view(state).bearings.degree,
        }

    ours = one_state(*(jnp.asarray(data[name]) for name in ("wall", "positions", "goal_index")))
    ours |= {
        "stencil_k9_s3": controller.stencil(9, 3),
        "stencil_k5_s2": controller.stencil(5, 2),
        "compass_unit_dirs": controller.unit_directions(9),
        "action_deltas": movement.DELTAS,
    }
    all_close(ours, data, set(data) - CONTROLLER_INPUTS - set(CONTROLLER_LEFT_OUT))


@eqx.filter_jit
def skill_arrays(env, position, chosen):
    """Of `(sets, agent, 2)` positions. λ₂ of one agent is undefined, so no state is made."""
    comm_r, grid = env.inner.comm_r, env.inner.grid
    seen = jax.vmap(lambda p: goal_views.bearings(p, comm_r, 2.0))(position)
    blank = jnp.zeros((*position.shape[:2], 5, grid, 1), jnp.uint32)
    view = GoalView(Planes(blank, grid), jnp.zeros((*position.shape[:2], 9, 2)), seen)
    others = ~jnp.eye(position.shape[1], dtype=bool)
    linked = jax.vmap(lambda p: comms.adjacency(p, comm_r))(position) & others
    skills = {f"{name}_logits": jax.vmap(jax.vmap(f))(view) for name, f in env.skills().items()}
    congestion = rollout.crowding(linked, chosen)
    return skills | {"soft_degree": seen.degree, "congestion": congestion}


def test_skills_file(golden):
    data = dict(np.load(golden / "skills.npz"))
    ours = {}
    for team in sorted({name.split("_")[0] for name in data}):
        position = jnp.asarray(data[f"{team}_positions"])
        comm_r = int(data[f"{team}_comm_r"])
        grid = int(position.max()) + 1
        world = CoverageEnv(num_agents=position.shape[1], grid=grid, comm_r=comm_r)
        env = GoalCoverageEnv(world)
        arrays = skill_arrays(env, position, jnp.asarray(data[f"{team}_skills"]))
        ours |= {f"{team}_{name}": value for name, value in arrays.items()}
    inputs = {n for n in data if n.endswith(("_positions", "_comm_r", "_skills"))}
    all_close(ours, data, set(data) - inputs)


def test_features_file(golden):
    data = dict(np.load(golden / "features.npz"))
    ours, names = {}, set(data)
    for prefix in sorted({n.removesuffix("_obs") for n in data if n.endswith("_obs")}):
        obs = data[f"{prefix}_obs"]
        position = np.argwhere(obs[:, 1])[:, 1:]
        unknown = jnp.asarray(obs[:, 0] == 0)
        name = f"{prefix}_sector_frontier"
        ours[name] = goal_views.sector_frontier(unknown, jnp.asarray(position), 9)
        names -= {f"{prefix}_obs", f"{prefix}_compass"}
    names = {n for n in names if not n.startswith(tuple(FEATURES_LEFT_OUT))}
    all_close(ours, data, names)


# ---- ppo_loss.npz ---------------------------------------------------------------------------


def conv_leaves(prefix, stack):
    """Recorded path → leaf of ours, and how the recorded array becomes it."""
    for i, layer in enumerate(stack.layers):
        yield f"{prefix}conv_{i}.weight", layer.kernel, lambda x: x.transpose(2, 3, 1, 0)
        yield f"{prefix}conv_{i}.bias", layer.bias, lambda x: x[:, 0, 0]


def norm_leaves(prefix, norm):
    yield f"{prefix}ln.weight", norm.scale, None
    yield f"{prefix}ln.bias", norm.shift, None


def linear_leaves(name, layer):
    yield f"{name}.weight", layer.weight, None
    yield f"{name}.bias", layer.bias, None


def actor_leaves(actor, *, learned_flock=False):
    yield from conv_leaves("backbone.", actor.backbone.convolutions)
    for i, one in enumerate(actor.backbone.rounds):
        layers = {"msg": one.message, "upd": one.update, "q": one.query, "k": one.key}
        for name, layer in layers.items():
            yield from linear_leaves(f"backbone.mp_{i}.{name}", layer)
    yield from norm_leaves("backbone.", actor.backbone.norm)
    yield from linear_leaves("goal_head", actor.disperse.goal)
    yield from linear_leaves("frontier_attn.q", actor.disperse.frontier.query)
    yield from linear_leaves("frontier_attn.k", actor.disperse.frontier.key)
    yield "frontier_attn.log_alpha", actor.disperse.frontier.log_alpha, None
    yield from linear_leaves("selector_head", actor.selector)
    yield from linear_leaves("aux_head", actor.estimate)
    if learned_flock:
        yield from linear_leaves("flock_head.head", actor.heads[0])


def critic_leaves(critic):
    yield from conv_leaves("", critic.convolutions)
    yield from norm_leaves("", critic.norm)
    yield from linear_leaves("value_head", critic.head)


def load(module, leaves, data, prefix):
    """The module with the recorded weights, and the names of the arrays it took."""

    def recorded(path, change):
        array = jnp.asarray(data[prefix + path])
        return array if change is None else change(array)

    names, _, changes = zip(*leaves(module), strict=True)
    values = [recorded(path, change) for path, change in zip(names, changes, strict=True)]
    filled = eqx.tree_at(lambda m: [leaf for _, leaf, _ in leaves(m)], module, values)
    assert len(jax.tree.leaves(module)) == len(names)
    return filled, {prefix + path for path in names}


def batch_view(data, comm_r=3):
    obs = data["batch_obs"]
    position = jnp.asarray(data["batch_position"])
    unknown = jnp.asarray(obs[:, :, 0] == 0)
    return GoalView(
        planes=Planes(bits.pack(jnp.asarray(obs > 0)), obs.shape[-1]),
        frontier=jax.vmap(lambda u, p: goal_views.sector_frontier(u, p, 9))(unknown, position),
        bearings=jax.vmap(lambda p: goal_views.bearings(p, comm_r, 2.0))(position),
    )


def batch_of(data):
    rows, agents = data["batch_skill"].shape
    taken = {
        name: jnp.asarray(data[f"batch_{name}"])
        for name in ("skill", "skill_logp", "goal", "goal_logp", "adj", "goal_mask", "true_l2")
    }
    central = jnp.asarray(data["batch_central"] > 0)
    step = Step(
        view=batch_view(data),
        team_view=Planes(bits.pack(central), central.shape[-1]),
        legal=taken["goal_mask"],
        graph=taken["adj"] & ~jnp.eye(agents, dtype=bool),
        action=Action(taken["skill"], taken["goal"], taken["skill_logp"], taken["goal_logp"]),
        reward=jnp.zeros((rows, agents)),
        cost=jnp.zeros((rows, agents)),
        terminated=jnp.zeros(rows, bool),
        alive=jnp.ones(rows, bool),
        target=taken["true_l2"],
    )
    per_agent = [
        jnp.repeat(jnp.asarray(data[n])[:, None], agents, 1) for n in ("batch_adv", "batch_ret")
    ]
    return ppo_module._Batch(step, *per_agent)


def make_actor(data, aggregator: Aggregator = "max", *, learned_flock=False):
    env = GoalCoverageEnv(CoverageEnv(num_agents=data["batch_skill"].shape[1], grid=8, comm_r=3))
    scripted = env.skills()
    flock = None if learned_flock else scripted["flock"]
    return ReferenceActor(
        data["batch_obs"].shape[2],
        9,
        {"disperse": None, "flock": flock, "hold": scripted["hold"]},
        width=data["theta_selector"].size // 3 - 1,
        aggregator=aggregator,
        key=jax.random.key(0),
    )


def make_ppo(*, huber=None):
    value = jnp.float32
    return PPO(
        lr=value(3e-4),
        clip=value(0.2),
        discount=value(0.99),
        trace_decay=value(0.95),
        skill_entropy=value(0.01),
        move_entropy=value(0.01),
        max_grad_norm=value(0.5),
        dual=Dual("soft_lambda", initial_price=value(1.0), limit=value(0.0), lr=value(0.05)),
        epochs=4,
        minibatches=4,
        train_selector=True,
        value_weight=0.5,
        auxiliary_weight=0.1,
        auxiliary_huber=huber,
        weight_decay=1e-4,
        adam_eps=1e-8,
        team_reward=True,
        count_scripted=True,
        normalise_minibatch=True,
        normalise_value=False,
        joint_clip=True,
    )


class Recorded(eqx.Module):
    """The file, with our networks holding its weights."""

    data: dict[str, jax.Array]
    batch: ppo_module._Batch
    actor: ReferenceActor
    critic: ReferenceCritic


def read(path):
    """The file, and the names of its arrays that are inputs."""
    data = {name: jnp.asarray(array) for name, array in np.load(path).items()}
    actor, actor_names = load(make_actor(data), actor_leaves, data, "actor__")
    critic = ReferenceCritic(width=actor.selector.weight.shape[1], key=jax.random.key(0))
    critic, critic_names = load(critic, critic_leaves, data, "critic__")
    unused = tuple(f"actor__{name}." for name in (*MODULES_LEFT_OUT, "flock_head"))
    inputs = {n for n in data if n.startswith((*unused, "batch_"))}
    return Recorded(data, batch_of(data), actor, critic), inputs | actor_names | critic_names


def variant(file, **kind):
    """The recorded weights in an actor of another kind."""
    flock = kind.get("learned_flock", False)
    return load(
        make_actor(file.data, **kind),
        lambda actor: actor_leaves(actor, learned_flock=flock),
        file.data,
        "actor__",
    )[0]


def forward_arrays(file):
    step, actor = file.batch.step, file.actor
    everything = jnp.ones_like(step.legal)
    image = step.view.planes.image()
    policy = actor(step.view, step.graph, everything)
    belief = actor.backbone(image, step.graph)
    flock = variant(file, learned_flock=True)(step.view, step.graph, everything)
    return {
        "fwd_belief": belief,
        "fwd_belief_mean": variant(file, aggregator="mean").backbone(image, step.graph),
        "fwd_belief_multihead": variant(file, aggregator="multihead").backbone(image, step.graph),
        "fwd_skill_logits": policy.skill_logits,
        "fwd_offset_logits": jnp.moveaxis(policy.move_logits, 2, 1),
        "fwd_goal_head": belief @ actor.disperse.goal.weight.T + actor.disperse.goal.bias,
        "fwd_frontier_logits": actor.disperse.frontier(belief, step.view.frontier),
        "fwd_learned_flock": flock.move_logits[:, :, 1],
        "fwd_l2_hat": policy.estimate,
        "fwd_critic": file.critic(step.view, step.team_view)[:, 0],
        "theta_selector": module_theta(actor.selector),
    }


def loss_arrays(file):
    # The published loss also adds the variance of the team's degree, which has no gradient.
    spread = jnp.var(file.data["batch_degree"].mean(axis=1))
    nets = ppo_module._split(file.actor, file.critic)
    total, log = make_ppo()._loss(nets, file.batch)
    huber_total, huber_log = make_ppo(huber=0.1)._loss(nets, file.batch)
    return {
        "loss_total": total + 1e-3 * spread,
        "loss_policy_loss": log.skill_loss + log.move_loss,
        "loss_goal_pg": log.move_loss,
        "loss_skill_pg": log.skill_loss,
        "loss_value_loss": log.value_loss,
        "loss_aux_loss": log.auxiliary_loss,
        "loss_entropy": log.move_entropy,
        "loss_skill_entropy": log.skill_entropy,
        "loss_degree_reg": spread,
        "loss_huber_total": huber_total + 1e-3 * spread,
        "loss_huber_aux": huber_log.auxiliary_loss,
    }


def gradient_arrays(file):
    nets = ppo_module._split(file.actor, file.critic)
    grads = jax.grad(lambda n: make_ppo()._loss(n, file.batch)[0])(nets)
    actor: Any = ppo_module._join(grads)
    norm = optax.tree.norm
    return {
        "grad_selector_weight": actor.selector.weight,
        "grad_goal_head_weight": actor.disperse.goal.weight,
        "grad_critic_value_weight": grads.critic.head.weight,
        "grad_conv0_weight": actor.backbone.convolutions.layers[0].kernel.transpose(3, 2, 0, 1),
        "gradnorm_joint": norm(grads),
        "gradnorm_actor": norm(actor),
        "gradnorm_critic": norm(grads.critic),
        "gradnorm_actor_backbone": norm(actor.backbone),
        "gradnorm_actor_goal_head": norm(actor.disperse.goal),
        "gradnorm_actor_frontier_attn": norm(actor.disperse.frontier),
        "gradnorm_actor_selector_head": norm(actor.selector),
        "gradnorm_actor_aux_head": norm(actor.estimate),
        # Scripted here, so there is no head and nothing to differentiate.
        "gradnorm_actor_flock_head": norm(actor.heads),
    }


def step_arrays(file):
    learner = make_ppo()
    state, _ = learner._minibatch(learner.init(file.actor, file.critic), file.batch)
    actor: Any = state.actor
    critic: Any = state.critic
    return {
        "step1_selector_weight": actor.selector.weight,
        "step1_selector_bias": actor.selector.bias,
        "step1_goal_head_weight": actor.disperse.goal.weight,
        "step1_critic_value_weight": critic.head.weight,
        "step1_conv0_weight": actor.backbone.convolutions.layers[0].kernel.transpose(3, 2, 0, 1),
        "step1_log_alpha": actor.disperse.frontier.log_alpha,
    }


@eqx.filter_jit
def every_array(file):
    return forward_arrays(file) | loss_arrays(file) | gradient_arrays(file) | step_arrays(file)


def test_ppo_loss_file(golden):
    file, inputs = read(golden / "ppo_loss.npz")
    names = set(file.data) - inputs - set(LOSS_LEFT_OUT)
    all_close(every_array(file), file.data, names, rtol=2e-4, atol=2e-5)
