"""What people look at and use: an episode, its pictures, the report, a loaded policy."""

import builtins
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import make_networks

import purejax_merl as pm
from purejax_merl import build, model, render, report, rollout
from purejax_merl.envs.coverage import CoverageEnv, viewer
from purejax_merl.envs.coverage.goals import GoalCoverageEnv
from purejax_merl.flags import parse_run
from purejax_merl.runtime import curves, page, runs

WORLD = CoverageEnv(
    num_agents=3, horizon=12, grid=9, terrain="clutter", n_obstacles=8, spawn_radius=1
)
TINY = "--grid 9 --n-agents 3 --horizon 12 --width 8 --depth 1".split()


def play(env=WORLD, seed=0):
    actor, _ = make_networks(env, skills={"disperse": None} | env.skills())
    key = jax.random.key(seed)
    return jax.jit(rollout.episode)(env, actor, rollout.Sampler(), key=key), actor, key


@pytest.fixture(scope="module")
def played():
    return play()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """An untrained model: nothing here depends on how good it is."""
    config = parse_run(TINY, prog="test", description="")
    run = build.build_run(config)
    path = tmp_path_factory.mktemp("model") / "model.eqx"
    model.save(path, config, run.state.learner.actor, run.state.learner.critic)
    return path


def test_the_episode_is_the_one_that_a_rollout_scores(played):
    episode, actor, key = played
    scored = rollout.outcomes(WORLD, actor, rollout.Sampler(), keys=key[None])
    for ours, theirs in zip(jax.tree.leaves(episode.outcome), jax.tree.leaves(scored), strict=True):
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-6)


def test_states_follow_from_the_actions(played):
    episode, _, _ = played
    states = [jax.tree.map(lambda x, t=t: x[t], episode.states) for t in range(13)]
    for before, move, after in zip(states, episode.action.move, states[1:], strict=False):
        stepped, _ = WORLD.step(before, move, key=jax.random.key(0))
        np.testing.assert_array_equal(stepped.position, after.position)
        np.testing.assert_array_equal(stepped.seen, after.seen)


def test_the_scene_shows_the_outcome(played):
    episode, actor, _ = played
    scene = viewer.scene(WORLD, episode, actor.skill_names)
    score = episode.outcome.score
    assert scene.position.shape == (13, 3, 2)
    np.testing.assert_allclose(scene.coverage[-1], score.coverage, rtol=1e-6)
    np.testing.assert_allclose(np.mean(scene.lambda2[1:] > scene.bar), score.conn_05, rtol=1e-6)
    for t, share in enumerate(scene.coverage):
        covered = (scene.covered_at >= 0) & (scene.covered_at <= t)
        np.testing.assert_allclose(np.sum(covered) / np.sum(~scene.wall), share)
    for t in (0, 12):
        state = jax.tree.map(lambda x, t=t: x[t], episode.states)
        np.testing.assert_array_equal(scene.linked[t], WORLD.graph(state))
    assert not np.any(scene.wall[tuple(scene.position.reshape(-1, 2).T)])


def test_a_world_of_goals_is_drawn_as_the_world_within():
    env = GoalCoverageEnv(WORLD)
    state = env.reset(key=jax.random.key(0))
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    episode, _, _ = play()
    still = jax.tree.map(lambda x: x[:1], (episode.action, episode.alive))
    short = type(episode)(states=states, action=still[0], alive=still[1], outcome=episode.outcome)
    scene = viewer.scene(env, short, ("a", "b", "c"))
    np.testing.assert_array_equal(scene.position[1], state.position)


def embedded(text: str) -> dict:
    """The page's data, after checking that the page needs nothing but itself."""
    outside = re.findall(r"https?:|\bsrc\s*=|@import|url\((?!#)|\bfetch\(|@@", text)
    assert not outside, outside
    assert all(link == "data:," for link in re.findall(r'href="([^"]*)"', text))
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]


def test_an_episode_page_holds_everything(model_file, tmp_path, capsys):
    out = tmp_path / "new" / "episode.html"
    flags = ["--grid", "10", "--terrain", "walls", "--horizon", "8", "--greedy"]
    assert render.main([str(model_file), *flags, "--out", str(out)]) == out
    assert capsys.readouterr().out.strip() == str(out)
    data = embedded(out.read_text("utf-8"))
    assert len(data["position"]) == len(data["skill"]) == len(data["links"]) == 9
    assert len(data["wall"]) == len(data["wall"][0]) == 10
    assert data["skill_names"] == ["disperse", "flock", "hold"]


def test_a_gif_has_a_frame_a_state(model_file, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    out = tmp_path / "episode.gif"
    render.main([str(model_file), "--horizon", "3", "--out", str(out), "--fps", "5"])
    with image.open(out) as gif:
        assert gif.n_frames == 4
        assert gif.info["duration"] == 200


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--out", "there.html"], "--overwrite"),
        (["--out", "film.mp4"], ".html or .gif"),
        (["--fps", "0"], "--fps"),
        (["--world-index", "-1"], "--world-index"),
        (["--grid", "1"], "--grid"),
        (["--terrain", "swamp"], "terrain"),
    ],
)
def test_bad_pictures_are_refused(flags, named, model_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.html").write_text("precious")
    with pytest.raises(SystemExit) as stop:
        render.main([str(model_file), *flags])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["there.html"]
    assert (tmp_path / "there.html").read_text() == "precious"


def test_a_missing_package_is_named_with_its_cure(model_file, tmp_path, monkeypatch, capsys):
    from purejax_merl.runtime import render_gif

    def absent(name, *_):
        raise ImportError(name)

    monkeypatch.setattr(render_gif.importlib, "import_module", absent)
    with pytest.raises(SystemExit) as stop:
        render.main([str(model_file), "--out", str(tmp_path / "x.gif")])
    assert stop.value.code == 2
    assert 'pip install "purejax-merl[render]"' in capsys.readouterr().err


def test_a_page_needs_no_optional_package(played, monkeypatch):
    from purejax_merl.runtime import render_html

    real = builtins.__import__

    def only_core(name, *rest, **more):
        assert name.split(".")[0] not in {"matplotlib", "PIL", "imageio"}
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", only_core)
    scene = viewer.scene(WORLD, played[0], played[1].skill_names)
    text = render_html.episode_page(scene, "</script><i>", "& 'so' on")
    assert "<i>" not in text
    embedded(text)


def make_run(folder, *, seed=0, rounds=5, sigma=0.05, evaluated=True):
    folder.mkdir(parents=True)
    config = parse_run([*TINY, "--seed", str(seed)], prog="test", description="").to_dict()
    config["es"]["sigma"] = sigma
    (folder / "config.json").write_text(json.dumps(config))
    row = {"best": 0.5, "mean": 0.4, "es_before": 0.3, "es_after": None, "price": 1.5}
    row |= {"skill_loss": 0.1, "skill_disperse": 0.75, "skill_hold": 0.25, "score_odd": 3.0}
    lines = [
        {"outer": t, **row, "score_coverage": 0.1 * t + 0.1 * seed, "env_steps": 100 * (t + 1)}
        | {"seconds": 0.5}
        for t in range(rounds)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if evaluated:
        cell = {"mean": 0.5 + 0.1 * seed, "low": 0.4, "high": 0.7}
        both = {"sampled": {"coverage": cell}, "greedy": {"coverage": cell}}
        (folder / "evaluation.json").write_text(json.dumps({"episodes": 8, **both}))
    return folder


def panels(data: dict) -> dict[str, dict]:
    return {p["title"]: p for section in data["sections"] for p in section["panels"]}


def test_one_run_is_reported_in_its_folder_and_brought_up_to_date(tmp_path):
    folder = make_run(tmp_path / "run", evaluated=False)
    assert report.main([str(folder)]) == folder / "report.html"
    text = report.main([str(folder)]).read_text("utf-8")
    assert "No run has been evaluated yet" in text
    drawn = panels(embedded(text))
    assert [line["name"] for line in drawn["Fitness of the population"]["lines"]] == [
        "best member",
        "mean",
    ]
    np.testing.assert_allclose(drawn["Coverage"]["lines"][0]["mean"], [0, 10, 20, 30, 40])
    np.testing.assert_allclose(drawn["Throughput"]["lines"][0]["mean"], [200] * 5)
    assert [line["name"] for line in drawn["Skill use, PPO's rollouts"]["lines"]] == [
        "disperse",
        "hold",
    ]
    assert "odd" in drawn, "a world's own metric gets a panel"


def test_seeds_are_overlaid(tmp_path):
    folders = [make_run(tmp_path / f"s{s}", seed=s, rounds=5 - s) for s in (0, 1)]
    out = tmp_path / "both.html"
    text = report.main([*map(str, folders), "--out", str(out)]).read_text("utf-8")
    data = embedded(text)
    assert [group["seeds"] for group in data["groups"]] == [[0, 1]]
    (line,) = panels(data)["Coverage"]["lines"]
    np.testing.assert_allclose(line["mean"], [5, 15, 25, 35], atol=1e-3)
    np.testing.assert_allclose(line["high"], [10, 20, 30, 40], atol=1e-3)
    assert [sum(v is not None for v in run) for run in line["runs"]] == [5, 4]
    assert "differ by their seed only" in text
    assert "55.0 % [50.0, 60.0]" in text


def test_different_configs_are_told_apart(tmp_path):
    for s in (0, 1, 2):
        make_run(tmp_path / "study" / f"low{s}", seed=s)
    make_run(tmp_path / "study" / "high", sigma=0.5)
    out = tmp_path / "all.html"
    text = report.main([str(tmp_path / "study"), "--out", str(out)]).read_text("utf-8")
    data = embedded(text)
    assert {g["label"]: g["seeds"] for g in data["groups"]} == {
        "sigma 0.5": [0],
        "sigma 0.05": [0, 1, 2],
    }
    assert re.search(r"What the configs differ in.*es\.sigma.*0\.5.*0\.05", text, re.S)
    assert len(panels(data)["Coverage"]["lines"]) == 2


def test_the_interval_is_students():
    low, high = curves.interval(np.array([[1.0], [2.0], [3.0]]))
    # t(0.975, 2) = 4.3027, standard error 1 / sqrt(3).
    np.testing.assert_allclose([low[0], high[0]], [2 - 2.4842, 2 + 2.4842], atol=1e-3)
    low, high = curves.interval(np.array([[0.1], [0.9], [0.9]]), (0.0, 1.0))
    assert (low[0], high[0]) == (0, 1)


def test_long_runs_are_thinned(tmp_path):
    record = runs.read_runs([make_run(tmp_path / "long", rounds=1000)])
    groups = runs.group(record)
    assert curves.stretch(groups) == 3
    assert len(curves.axes(groups)[0]["round"]) == 334
    assert curves.axes(groups)[0]["round"][:2] == [2, 5]


@pytest.mark.parametrize("content", [None, "", '{"outer": 0}\nbroken\n{"outer": 1}\n'])
def test_runs_without_history_are_refused(content, tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    (folder / "history.jsonl").unlink()
    if content is not None:
        (folder / "history.jsonl").write_text(content)
    with pytest.raises(SystemExit) as stop:
        report.main([str(folder)])
    assert stop.value.code == 2
    assert "history.jsonl" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_a_run_named_twice_and_an_existing_file_are_refused(tmp_path, capsys):
    folder, other = make_run(tmp_path / "run"), make_run(tmp_path / "other", seed=1)
    out = tmp_path / "report.html"
    out.write_text("precious")
    for flags, named in (
        ([folder, folder], "twice"),
        ([folder, other, "--out", out], "--overwrite"),
        ([tmp_path / "nowhere"], "nowhere"),
    ):
        with pytest.raises(SystemExit) as stop:
            report.main([str(flag) for flag in flags])
        assert stop.value.code == 2
        assert named in capsys.readouterr().err
    assert out.read_text() == "precious"


def test_page_data_cannot_end_its_element():
    text = page.fill("episode", {"x": "</script>"}, title="t", subtitle="s", bar="0.5")
    assert embedded(text) == {"x": "</script>"}


def test_a_model_is_used_in_three_lines(model_file):
    policy = pm.load(model_file)
    state = policy.reset(key=jax.random.key(0))
    action = policy.act(state, key=jax.random.key(1))
    after, paid = policy.step(state, action, key=jax.random.key(2))
    assert paid.reward.shape == action.skill.shape == (3,)
    assert int(after.step_count) == 1
    assert policy.skill_names == ("disperse", "flock", "hold")


def test_a_loaded_policy_acts_as_in_a_rollout(model_file):
    policy = pm.load(model_file, grid=10, n_agents=4)
    assert policy.env.num_agents == 4
    sampler = rollout.Sampler(greedy=jnp.asarray(True))
    episode = jax.jit(rollout.episode)(policy.env, policy.actor, sampler, key=jax.random.key(3))
    state, after = (jax.tree.map(lambda x, t=t: x[t], episode.states) for t in (5, 6))
    action = policy.act(state, greedy=True)
    np.testing.assert_array_equal(action.move, episode.action.move[5])
    np.testing.assert_array_equal(action.skill, episode.action.skill[5])
    stepped, _ = policy.step(state, action, key=jax.random.key(0))
    np.testing.assert_array_equal(stepped.position, after.position)
    np.testing.assert_array_equal(stepped.seen, after.seen)


def test_a_policy_loaded_again_compiles_nothing(model_file, caplog):
    key = jax.random.key(0)

    def use():
        policy = pm.load(model_file, n_agents=2)
        state = policy.reset(key=key)
        policy.step(state, policy.act(state, key=key), key=key)

    with jax.log_compiles():
        use()
        first = [r for r in caplog.messages if r.startswith("Compiling")]
        caplog.clear()
        use()
    assert len(first) >= 3
    assert [r for r in caplog.messages if r.startswith("Compiling")] == []


def test_misuse_of_a_policy_names_the_cure(model_file):
    policy = pm.load(model_file)
    with pytest.raises(ValueError, match="greedy=True"):
        policy.act(policy.reset(key=jax.random.key(0)))
    with pytest.raises(ValueError, match="gird"):
        pm.load(model_file, gird=10)
