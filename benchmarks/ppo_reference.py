"""The reference preset's PPO step against the same step with Equinox's `Conv2d`.

    python benchmarks/ppo_reference.py --json benchmarks/results/ppo_reference.json

Only the convolutions differ: channels-last with a written-out gradient in chunks of images, or
`eqx.nn.Conv2d` (channels first) under `vmap` and autodiff. Same weights; logits, values and the
gradient of one minibatch must agree. Both forms are timed on two worlds, one epoch of two
minibatches, since the plain form would take very long at full size; ours is timed at full size as
well. XLA's CPU compiler treats a loop that runs once as no loop, hence two minibatches: the plain
form's trouble is inside loops.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import common
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from purejax_merl import rollout
from purejax_merl.agents.reference.conv import Conv3x3, ConvStack
from purejax_merl.build import Run
from purejax_merl.config import RunConfig, preset
from purejax_merl.learn.ppo import LearnerState, _Networks, _split
from purejax_merl.rounds import Hybrid

TOLERANCE = 1e-3
"""Relative to the largest number of each quantity."""


class PlainStack(eqx.Module):
    """`ConvStack` as one would write it: Equinox's layer, mapped over images."""

    layers: tuple[eqx.nn.Conv2d, ...]

    def __call__(self, image: Float[Array, "*batch row col channel"]) -> Float[Array, "*batch w"]:
        *batch, height, width, channels = image.shape
        images = jnp.moveaxis(image.reshape(-1, height, width, channels), -1, 1)
        return jax.vmap(self._pooled)(images).reshape(*batch, -1)

    def _pooled(self, x: Float[Array, "channel row col"]) -> Float[Array, "width"]:
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return jnp.mean(x, axis=(1, 2))


def plain_layer(layer: Conv3x3) -> eqx.nn.Conv2d:
    """The same weights in Equinox's order: HWIO → OIHW."""
    fan_in, fan_out = layer.kernel.shape[2:]
    conv = eqx.nn.Conv2d(fan_in, fan_out, 3, padding=1, key=jax.random.key(0))
    weight, bias = jnp.transpose(layer.kernel, (3, 2, 0, 1)), layer.bias[:, None, None]
    return eqx.tree_at(lambda c: (c.weight, c.bias), conv, (weight, bias))


def plain_stack(stack: ConvStack) -> PlainStack:
    return PlainStack(tuple(plain_layer(layer) for layer in stack.layers))


def plainly(hybrid: Hybrid, learner: LearnerState) -> LearnerState:
    """The learner with plain convolutions and fresh moments."""
    actor = eqx.tree_at(lambda a: a.backbone.convolutions, learner.actor, replace_fn=plain_stack)
    critic = eqx.tree_at(lambda c: c.convolutions, learner.critic, replace_fn=plain_stack)
    return hybrid.learner.init(actor, critic)


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    small: RunConfig
    """Of both forms."""
    full: RunConfig | None
    """Of ours alone."""
    repeats: int
    full_repeats: int


def shrunk(worlds: int, *, width: int = 64, **env: int) -> RunConfig:
    """The reference preset on few worlds, with one epoch of two minibatches."""
    base = preset("reference")
    return dataclasses.replace(
        base,
        env=dataclasses.replace(base.env, **env),
        agent=dataclasses.replace(base.agent, width=width),
        ppo=dataclasses.replace(base.ppo, rollouts=worlds, ppo_epochs=1, minibatches=2),
    )


FULL = Size(small=shrunk(2), full=preset("reference"), repeats=3, full_repeats=2)
QUICK = Size(small=shrunk(2, width=8, grid=8, horizon=4), full=None, repeats=1, full_repeats=0)


def train_step(hybrid: Hybrid, learner: LearnerState, key: jax.Array):
    """The whole PPO step: rollout, then the update."""
    return hybrid.train_step(learner, key=key)


def update(hybrid: Hybrid, learner: LearnerState, data: Any, key: jax.Array):
    """The update alone."""
    return hybrid.learner.update(learner, data, key=key)


def agreement(run: Run, forms: dict[str, LearnerState], data: Any) -> dict[str, Any]:
    """Largest relative gap of logits, values and one minibatch's gradient between the forms."""

    def gradient(learner: LearnerState) -> dict[str, Any]:
        ppo, steps = run.hybrid.learner, data.steps
        batch, _ = ppo._targets(learner, data)
        nets = _split(learner.actor, learner.critic)
        grads: _Networks = jax.grad(lambda n: ppo._loss(n, batch)[0])(nets)
        policy = learner.actor(steps.view, steps.graph, steps.legal)
        return {
            "skill logits": policy.skill_logits,
            "move logits": policy.move_logits,
            "values": learner.critic(steps.view, steps.team_view),
            "actor's convolution gradients": _kernels(grads.executor.backbone.convolutions),
            "critic's convolution gradients": _kernels(grads.critic.convolutions),
            "selector gradient": grads.selector,
        }

    ours, plain = (jax.jit(gradient)(learner) for learner in forms.values())
    gaps = {name: _relative(plain[name], ours[name]) for name in ours}
    return {
        "relative_difference": gaps,
        "tolerance": TOLERANCE,
        "same": all(gap <= TOLERANCE for gap in gaps.values()),
    }


def _kernels(stack: Any) -> list[jax.Array]:
    """The kernels' gradients in one order, HWIO."""
    if isinstance(stack, PlainStack):
        return [jnp.transpose(layer.weight, (2, 3, 1, 0)) for layer in stack.layers]
    return [layer.kernel for layer in stack.layers]


def _relative(one: Any, other: Any) -> float:
    largest = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(other))
    return common.max_difference(one, other) / max(largest, 1e-30)


def measure(size: Size) -> dict[str, Any]:
    """Both forms on few worlds, ours at full size."""
    run, key = common.run_of(size.small), jax.random.key(1)
    hybrid, learner = run.hybrid, run.state.learner
    forms = {"ours": learner, "plain": plainly(hybrid, learner)}
    keys = rollout.world_keys(key, hybrid.worlds)
    data = jax.jit(lambda actor: rollout.collect(hybrid.env, actor, hybrid.sampler, keys=keys))(
        learner.actor
    )
    check = agreement(run, forms, data)
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name, state in forms.items():
        calls[f"PPO step, {name}"] = (train_step, (hybrid, state, key))
        calls[f"update, {name}"] = (update, (hybrid, state, data, key))
    report = {"check": check, "small": rows(calls, size.repeats, rows_of(size.small))}
    if size.full is None:
        return report
    whole = common.run_of(size.full)
    calls = {"PPO step, ours": (train_step, (whole.hybrid, whole.state.learner, key))}
    full = rows(calls, size.full_repeats, rows_of(size.full))
    return report | {"full": full}


def rows_of(config: RunConfig) -> dict[str, int]:
    """What the seconds are for: agents' images per rollout, and in gradients."""
    images = config.ppo.rollouts * config.env.horizon * config.env.n_agents
    return {"images": images, "gradient_images": images * config.ppo.ppo_epochs}


def rows(calls: dict[str, Any], repeats: int, counts: dict[str, int]) -> dict[str, Any]:
    made = {name: common.compiled(function, *args) for name, (function, args) in calls.items()}
    arms = {
        name: lambda call=made[name].call, a=args: call(*a) for name, (_, args) in calls.items()
    }
    samples = common.interleaved(arms, repeats)
    return {
        name: counts | common.summary(taken) | made[name].cost for name, taken in samples.items()
    }


def show(measured: dict[str, Any]) -> None:
    check = measured["check"]
    print("same" if check["same"] else "NOT THE SAME", check["relative_difference"])
    for part in ("small", "full"):
        for name, row in measured.get(part, {}).items():
            print(
                f"{part:6s}{name:18s}{row['median_s']:9.3f} s, {row['gradient_images']} gradient "
                f"images, compiled in {row['compile_s']:.1f} s"
            )


def main() -> int:
    args = common.arguments(__doc__, "small sizes; a smoke test")
    size = QUICK if args.quick else FULL
    report = common.head("ppo_reference", args, size) | measure(size)
    show(report)
    common.write(args.json, report)
    return 0 if report["check"]["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
