"""The reference system at work: sizes, messages, the controller, learning, and its preset."""

import json
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small import f32, make_hybrid, make_ppo

from purejax_merl import build, config, evaluate, model, rollout, train
from purejax_merl.agents import reference
from purejax_merl.agents.reference import backbone, conv
from purejax_merl.agents.reference.actor import ReferenceActor
from purejax_merl.agents.reference.critic import ReferenceCritic
from purejax_merl.envs.coverage import CoverageEnv
from purejax_merl.envs.coverage.goals import GoalCoverageEnv
from purejax_merl.evolve.genome import module_theta
from purejax_merl.flags import parse_run
from purejax_merl.learn.dual import Dual
from purejax_merl.runtime.rundir import read_history

NORTH_EAST = 5


def make_env(*, grid=8, num_agents=3, **goals) -> GoalCoverageEnv:
    inner = CoverageEnv(num_agents=num_agents, grid=grid, comm_r=3, horizon=6, collision="share")
    return GoalCoverageEnv(inner, **goals)


def make_actor(env, *, flock="scripted", width=8, **kind) -> ReferenceActor:
    skills = env.skills() | ({"flock": None} if flock == "learned" else {})
    return ReferenceActor(
        env.num_channels,
        env.num_moves,
        {"disperse": None} | skills,
        width=width,
        key=jax.random.key(1),
        **kind,
    )


def filled(make, *args, **kwargs):
    """What `make` builds, with other random weights: drawing them here spares a compilation."""
    shapes, rng = eqx.filter_eval_shape(make, *args, **kwargs), np.random.default_rng(0)
    return jax.tree.map(lambda leaf: f32(rng.uniform(-0.3, 0.3, leaf.shape)), shapes)


def reference_ppo(**changes):
    """PPO with every switch at the published system's value."""
    dual = Dual("soft_lambda", initial_price=f32(1), limit=f32(0), lr=f32(0.05))
    numbers = {
        "dual": dual,
        "epochs": 1,
        "lr": f32(3e-4),
        "discount": f32(0.99),
        "value_weight": 0.5,
        "auxiliary_weight": 0.1,
        "weight_decay": 1e-4,
        "adam_eps": 1e-8,
        "team_reward": True,
        "count_scripted": True,
        "normalise_minibatch": True,
        "normalise_value": False,
        "joint_clip": True,
    }
    return make_ppo(**(numbers | changes))


@eqx.filter_jit
def seen(env):
    """A first state, and the planes of its views."""
    state = env.reset(key=jax.random.key(0))
    return state, env.view(state).planes.image(), env.team_view(state).image()


def count(module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(module))


# ---- networks -------------------------------------------------------------------------------


def test_parameter_counts_are_the_published_ones():
    env = make_env()
    actor = eqx.filter_eval_shape(make_actor, env, width=64, flock="learned")
    critic = eqx.filter_eval_shape(ReferenceCritic, key=jax.random.key(0))
    assert count(actor.backbone.convolutions) == 39_872
    assert count(actor.backbone.rounds) == 41_472
    assert count(actor.backbone.norm) == 128
    assert count(actor.disperse.goal) == 585
    assert count(actor.disperse.frontier) == 2_177
    assert count(actor.selector) == 195
    assert count(actor.heads) == 585
    assert count(actor.estimate) == 65
    attention = sum(count((one.query, one.key)) for one in actor.backbone.rounds)
    assert attention == 16_640
    scripted = eqx.filter_eval_shape(make_actor, env, width=64)
    assert count(scripted) - attention == 67_854
    assert count(critic) == 38_913


def test_weights_do_not_depend_on_grid_or_team():
    worlds = make_env(), make_env(grid=12, num_agents=5)
    actors = [eqx.filter_eval_shape(make_actor, env) for env in worlds]
    small, large = ([leaf.shape for leaf in jax.tree.leaves(actor)] for actor in actors)
    assert small == large


def test_weights_start_within_their_fan_in():
    actor = make_actor(make_env(), width=64)
    for layer, fan_in in (
        (actor.backbone.convolutions.layers[0], 9 * 5),
        (actor.backbone.convolutions.layers[1], 9 * 64),
        (actor.backbone.rounds[0].update, 128),
        (actor.selector, 64),
    ):
        weight, bias = jax.tree.leaves(layer)
        for leaf in (weight, bias):
            assert jnp.max(jnp.abs(leaf)) <= fan_in**-0.5
        assert float(jnp.std(weight)) == pytest.approx((3 * fan_in) ** -0.5, rel=0.1)
    assert float(jax.nn.softplus(actor.disperse.frontier.log_alpha)) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(4, 8, 8, 5, 6), (2, 5, 9, 3, 4)])
def test_gradient_of_the_convolution_is_autodiffs(shape):
    images, height, width, fan_in, fan_out = shape
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (images, height, width, fan_in))
    kernel = jax.random.normal(keys[1], (3, 3, fan_in, fan_out))
    weight = jax.random.normal(keys[2], (images, height, width, fan_out))

    def plain(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)

    def grads(f):
        loss = jax.grad(lambda x, k: jnp.sum(weight * jnp.tanh(f(x, k))), argnums=(0, 1))
        return jax.jit(loss)(x, kernel)

    for ours, theirs in zip(grads(conv.conv3x3), grads(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(jnp.max(theirs)))


def test_chunks_change_nothing():
    key = jax.random.key(0)
    stack, chunked = (filled(conv.ConvStack, 2, 4, 2, chunk=n, key=key) for n in (None, 3))
    images = jax.random.normal(jax.random.key(1), (2, 4, 6, 6, 2))

    @eqx.filter_jit
    def both(stack):
        return stack(images), jax.grad(lambda s: jnp.sum(s(images) ** 2))(stack)

    for ours, theirs in zip(*(jax.tree.leaves(both(s)) for s in (chunked, stack)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "hear, heard",
    [
        (backbone.hear_max, [[3.0, 5.0], [2.0, 5.0], [3.0, 2.0], [0.0, 0.0]]),
        (backbone.hear_mean, [[2.5, 3.5], [1.5, 3.0], [2.0, 1.5], [0.0, 0.0]]),
    ],
)
def test_messages_by_hand(hear, heard):
    """Agents 0..2 hear each other, 3 is alone."""
    sent = jnp.array([[1.0, 1.0], [3.0, 2.0], [2.0, 5.0], [9.0, 9.0]])
    graph = jnp.zeros((4, 4), bool).at[:3, :3].set(~jnp.eye(3, dtype=bool))
    np.testing.assert_allclose(hear(sent, graph), heard)


def test_attention_by_hand():
    """With equal keys attention is the mean; an agent without neighbours hears 0."""
    sent = jax.random.normal(jax.random.key(0), (3, 4))
    graph = jnp.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
    query, key = jnp.ones((3, 4)), jnp.ones((3, 4))
    heard = backbone.hear_attended(query, key, sent, graph, 2)
    np.testing.assert_allclose(heard, backbone.hear_mean(sent, graph), rtol=1e-6)


@pytest.mark.parametrize("aggregator", ["max", "mean", "multihead"])
def test_an_agent_without_neighbours_has_finite_gradients(aggregator):
    layer = backbone.MessagePassing(8, aggregator, 4, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 3, 8))
    graph = jnp.zeros((2, 3, 3), bool).at[1, 0, 1].set(True)
    grads = jax.jit(jax.grad(lambda m: jnp.sum(m(x, graph) ** 2)))(layer)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


def test_messages_come_from_neighbours_only():
    env = make_env()
    graph = jnp.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    believe = eqx.filter_jit(filled(make_actor, env).backbone)
    _, image, _ = seen(env)
    changed = believe(image.at[2].set(1 - image[2]), graph)
    np.testing.assert_array_equal(changed[:2], believe(image, graph)[:2])
    assert jnp.any(believe(image.at[1].set(1 - image[1]), graph)[0] != changed[0])


def test_the_first_skill_must_be_learned():
    env = make_env()
    with pytest.raises(ValueError, match="must begin with a learned skill"):
        ReferenceActor(5, 9, env.skills(), width=8, key=jax.random.key(0))


# ---- world ----------------------------------------------------------------------------------


@eqx.filter_jit
def after_step(env, position, goals):
    state = env.inner.start(jnp.zeros((8, 8), bool), position)
    after, _ = env.step(state, goals, key=jax.random.key(0))
    return after.position


def moved(env, position, goals):
    """Where agents at `position` on open ground are one step later."""
    return np.asarray(after_step(env, jnp.asarray(position), jnp.asarray(goals)))


def test_diagonal_goals_move_only_with_the_tie_break():
    start, goals = [[4, 3], [6, 6], [1, 1]], [NORTH_EAST, 0, 0]
    np.testing.assert_array_equal(moved(make_env(metric="chebyshev"), start, goals), start)
    alive = moved(make_env(metric="l1_tiebreak"), start, goals)
    np.testing.assert_array_equal(alive, [[3, 3], [6, 6], [1, 1]])


def test_the_tie_break_changes_no_straight_goal():
    start = [[4, 3], [6, 6], [0, 1]]
    for goals in ([1, 2, 3], [4, 1, 2], [0, 0, 4]):
        both = [moved(make_env(metric=m), start, goals) for m in ("chebyshev", "l1_tiebreak")]
        np.testing.assert_array_equal(both[0], both[1])


def test_the_mask_keeps_agents_off_held_cells():
    start, goals = [[4, 3], [3, 3], [7, 7]], [1, 0, 0]
    assert moved(make_env(collision_mask=True), start, goals)[0].tolist() == [4, 3]
    assert moved(make_env(collision_mask=False), start, goals)[0].tolist() == [3, 3]


def test_a_wrong_number_of_goals_is_refused():
    with pytest.raises(ValueError, match="between 1 and 9"):
        GoalCoverageEnv(CoverageEnv(), num_goals=10)


@pytest.mark.parametrize("grid", [8, 33, 40])
def test_packed_planes_unpack_to_the_planes(grid):
    state, image, central = seen(make_env(grid=grid))
    assert image.shape == (3, grid, grid, 5)
    row, col = np.asarray(state.position).T
    assert (image[np.arange(3), row, col, 1] == 1).all() and image[..., 1].sum() == 3
    assert central.shape == (grid, grid, 3)
    assert (central[row, col, 1] == 1).all() and central[..., 1].sum() == 3


# ---- learning -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    """A world, networks, learner state and one rollout of four episodes."""
    env = make_env()
    actor = filled(make_actor, env, flock="learned", rounds=1)
    critic = filled(ReferenceCritic, width=8, depth=1, key=jax.random.key(2))
    keys = rollout.world_keys(jax.random.key(3), 4)
    data = eqx.filter_jit(rollout.collect)(env, actor, rollout.Sampler(), keys=keys)
    return env, actor, critic, data


def updated(parts, ppo):
    _, actor, critic, data = parts
    return eqx.filter_jit(ppo.update)(ppo.init(actor, critic), data, key=jax.random.key(4))


@eqx.filter_jit
def targets(ppo, actor, critic, data):
    return ppo._targets(ppo.init(actor, critic), data)


def test_one_update_moves_every_part(parts):
    _, actor, critic, data = parts
    state, log = updated(parts, reference_ppo())
    assert data.steps.target.shape == data.steps.alive.shape == (6, 4)
    mean_target = jnp.mean(data.steps.target, axis=0)
    np.testing.assert_allclose(mean_target, data.outcome.score.lambda2, rtol=1e-6)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((state, log)))
    assert float(log.auxiliary_loss) > 0
    for part in ("backbone", "disperse", "heads", "estimate", "selector"):
        before, after = (jax.tree.leaves(getattr(a, part)) for a in (actor, state.actor))
        assert any(jnp.any(x != y) for x, y in zip(before, after, strict=True)), part
    before, after = jax.tree.leaves(critic), jax.tree.leaves(state.critic)
    assert all(jnp.any(x != y) for x, y in zip(before, after, strict=True))


@pytest.mark.slow
def test_a_frozen_selector_is_not_even_decayed(parts):
    state, _ = updated(parts, reference_ppo(train_selector=False, weight_decay=0.1))
    before, after = module_theta(parts[1].selector), module_theta(state.actor.selector)
    np.testing.assert_array_equal(before, after)


def test_the_team_reward_gives_all_agents_one_advantage(parts):
    _, actor, critic, data = parts
    for team, equal in ((True, True), (False, False)):
        ppo = reference_ppo(team_reward=team)
        batch, _ = targets(ppo, actor, critic, data)
        spread = jnp.max(jnp.ptp(batch.advantage, axis=-1))
        assert bool(spread < 1e-5) == equal


def test_without_value_normalisation_targets_are_raw_returns(parts):
    _, actor, critic, data = parts
    ppo = reference_ppo(discount=f32(0), trace_decay=f32(0))
    batch, norm = targets(ppo, actor, critic, data)
    paid = jnp.mean(data.steps.reward - data.steps.cost, axis=-1).reshape(-1)
    np.testing.assert_allclose(batch.target[:, 0], paid, rtol=1e-5, atol=1e-5)
    assert float(norm.weight) == 0


def test_an_estimate_without_a_target_names_the_cure(parts):
    env, actor, critic, data = parts
    blind = eqx.tree_at(lambda d: d.steps.target, data, None)
    with pytest.raises(ValueError, match=r"`Transition\.target` is None"):
        updated((env, actor, critic, blind), reference_ppo())
    silent = reference_ppo(auxiliary_weight=0.0)
    eqx.filter_eval_shape(silent.update, silent.init(actor, critic), blind, key=jax.random.key(0))


def test_a_population_of_selectors_plays(parts):
    env, actor, critic, _ = parts
    hybrid = make_hybrid(env, ppo=reference_ppo(), worlds=2)
    state = hybrid.init(actor, critic)
    theta = module_theta(actor.selector)
    genomes = jnp.stack([theta, theta.at[-3:].set(jnp.array([0.0, 0.0, 50.0])), theta])
    played: Any = eqx.filter_jit(hybrid.play)(actor, genomes, key=jax.random.key(5))
    assert played.reward_sum.shape == (3, 4)
    np.testing.assert_array_equal(played.reward_sum[0], played.reward_sum[2])
    # The second always holds; three agents that start together stay put.
    covered = jnp.mean(played.score.coverage, axis=1)
    assert covered[1] < covered[0]
    assert hybrid.fitness(played, state.learner).shape == (3,)


def test_compat_keeps_the_moments_of_a_replaced_selector(parts):
    env, actor, critic, _ = parts
    ppo = reference_ppo()
    learner = ppo.init(actor, critic)
    warm = jax.tree.map(jnp.ones_like, learner.selector_moments)
    learner = eqx.tree_at(lambda s: s.selector_moments, learner, warm)
    for reset in (True, False):
        hybrid = make_hybrid(env, ppo=ppo, reset_moments=reset)
        written = hybrid.write_back(learner, 2 * module_theta(actor.selector))
        assert not eqx.tree_equal(written.actor.selector, actor.selector)
        assert eqx.tree_equal(written.selector_moments, warm) != reset


# ---- preset ---------------------------------------------------------------------------------

TINY_FLAGS = (
    "--preset reference --grid 8 --n-agents 2 --horizon 6 --rollouts 2 --minibatches 2 "
    "--ppo-epochs 1 --pop 2 --eval-worlds 1 --width 8 --depth 1 --mp-rounds 1 --grad-steps 1 "
    "--chunk 2 --outer 2 --episodes 4"
)
TINY = TINY_FLAGS.split()


def parsed(*flags) -> config.RunConfig:
    return parse_run(["--preset", "reference", *flags], prog="test", description="")


def refused(argv, capsys) -> str:
    """What `train` prints as it refuses."""
    with pytest.raises(SystemExit) as stop:
        train.main(argv)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return train.main([*TINY, "--run-dir", str(tmp_path_factory.mktemp("runs") / "reference")])


def evaluated(folder, capsys) -> dict[str, Any]:
    evaluate.main([str(folder), "--episodes", "4", "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_preset_trains_saves_loads_and_evaluates(run_dir, capsys):
    rows = read_history(run_dir / "history.jsonl")
    assert [row["outer"] for row in rows] == [0, 1]
    assert all(row["auxiliary_loss"] > 0 for row in rows)
    trained = model.load(run_dir)
    assert isinstance(trained.actor, ReferenceActor)
    assert isinstance(trained.critic, ReferenceCritic)
    assert isinstance(trained.env, GoalCoverageEnv)
    saved = json.loads((run_dir / "evaluation.json").read_text())
    assert evaluated(run_dir, capsys)["sampled"] == saved["sampled"]


@pytest.mark.slow
def test_compat_trains_saves_loads_and_evaluates(tmp_path, capsys):
    folder = train.main([*TINY, "--compat", "on", "--run-dir", str(tmp_path / "compat")])
    assert len(read_history(folder / "history.jsonl")) == 2
    assert model.load(folder).config.compat == "on"
    saved = json.loads((folder / "evaluation.json").read_text())
    assert evaluated(folder, capsys)["sampled"] == saved["sampled"]


@pytest.mark.slow
def test_a_reference_model_starts_another_grid_and_team(run_dir):
    other = parse_run([*TINY, "--grid", "12", "--n-agents", "3"], prog="test", description="test")
    actor, critic = model.warm_start(run_dir, other, build.make_env(other))
    trained = model.load(run_dir)
    assert eqx.tree_equal(actor, trained.actor) and eqx.tree_equal(critic, trained.critic)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--aggregator", "mean"], "--aggregator max"),
        (["--mp-rounds", "2"], "--mp-rounds 1"),
        (["--network", "compact", "--mp-rounds", "2"], "--network reference"),
    ],
)
def test_another_reference_architecture_is_named(run_dir, tmp_path, capsys, flags, named):
    argv = [*TINY, *flags, "--init-from", str(run_dir), "--run-dir", str(tmp_path / "x")]
    assert named in refused(argv, capsys)
    assert not (tmp_path / "x").exists()


def test_flags_left_unset_take_the_presets_value():
    assert parsed() == config.preset("reference")
    changed = parsed("--grid", "24", "--aggregator", "mean", "--es-lr", "0.01")
    assert (changed.env.grid, changed.agent.aggregator, changed.es.es_lr) == (24, "mean", 0.01)
    assert (changed.agent.width, changed.ppo.lr, changed.es.fitness) == (64, 3e-4, "return")
    assert changed.env.w_connectivity == 2.0
    assert parse_run([], prog="test", description="") == config.preset("compact")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--compat", "on"], "--preset reference"),
        (["--network", "reference"], "--preset reference"),
        (["--aggregator", "mean"], "--aggregator mean"),
        (["--preset", "reference", "--width", "6"], "--width 6"),
        (["--preset", "reference", "--compat", "on", "--disjoint", "on"], "--disjoint on"),
        (["--preset", "reference", "--compat", "on", "--accept", "on"], "--accept on"),
        (["--preset", "reference", "--compat", "on", "--es-kind", "SNES"], "--es-kind SNES"),
    ],
    ids=lambda x: str(x),
)
def test_what_does_not_fit_the_preset_is_refused(flags, named, capsys):
    # The message may be wrapped.
    assert named in " ".join(refused(flags, capsys).replace("│", " ").split())


@pytest.mark.parametrize(
    "flags",
    [
        "--congestion on --mechanism pid_lagrangian --aggregator multihead --flock learned",
        "--compat on --mechanism lagrangian --aggregator mean --es-kind cem --arm evolution",
    ],
)
def test_every_option_builds_and_traces(flags):
    run = build.build_run(parse_run([*TINY, *flags.split()], prog="test", description=""))
    after, _ = eqx.filter_eval_shape(run.hybrid.outer_round, run.state, root=jax.random.key(0))
    before = eqx.filter_eval_shape(lambda: run.state)
    assert eqx.tree_equal(after, before)


def test_the_preset_has_the_published_sizes():
    settings = parsed()
    actor, critic = model.networks_like(settings, build.make_env(settings))
    unused_attention = 16_640
    assert count(actor) - unused_attention == 67_854
    assert count(actor.selector) == 195
    assert count(critic) == 38_913
    learned = parsed("--flock", "learned")
    more, _ = model.networks_like(learned, build.make_env(learned))
    assert count(more) - count(actor) == 585


def test_compat_turns_every_part_and_the_preset_none():
    for switch in ("off", "on"):
        settings, kept = parsed("--compat", switch), switch == "on"
        world: Any = build.make_env(settings)
        assert world.metric == ("chebyshev" if kept else "l1_tiebreak")
        assert world.inner.collision == "share" and world.inner.credit == "each"
        ppo = build.make_learner(settings)
        assert ppo.count_scripted == ppo.normalise_minibatch == ppo.joint_clip == kept
        assert ppo.normalise_value != kept
        assert ppo.team_reward and ppo.train_selector
        evolution = build.make_evolution(settings)
        assert evolution.reset_moments != kept
        assert evolution.fitness == "return" and not evolution.accept
        for kind in ("nes", "cem"):
            strategy: Any = build.make_strategy(parsed("--compat", switch, "--es-kind", kind))
            assert strategy.compat == kept


def test_another_world_names_the_cure():
    settings = parsed()
    with pytest.raises(config.ConfigError, match="--network compact"):
        build.build_run(settings, env=build.make_coverage(settings))


def test_the_table_lists_every_defect_with_tests_that_exist():
    table = reference.__doc__ or ""
    assert re.findall(r"^(D\d+) ", table, re.M) == [f"D{i}" for i in range(1, 32)]
    tests = re.findall(r"(test_\w+)::(test_\w+)", table)
    assert len(tests) > 31
    for file, name in tests:
        source = (Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8")
        assert f"def {name}(" in source, f"{file}.py has no {name}"
