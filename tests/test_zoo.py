"""The models that come with the package are the ones whose evaluations stand beside them."""

import json

import jax
import pytest

import purejax_merl as pm
from purejax_merl import build, evaluation, model
from purejax_merl.config import ConfigError
from purejax_merl.envs.coverage import CoverageEnv

NAMES = [
    "zoo:coverage-16x16-4",
    "zoo:coverage-24x24-6",
    "zoo:coverage-32x32-10",
    "zoo:crowded-24x24-6",
]


def recorded(name):
    return json.loads((model.find(name).parent / "evaluation.json").read_text())


def test_the_zoo_holds_these():
    assert model.zoo() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_zoo_acts_in_its_world(name):
    policy = pm.load(name)
    state = policy.env.reset(key=jax.random.key(0))
    action = policy.act(state, key=jax.random.key(1))
    assert isinstance(policy.env, CoverageEnv)
    side, agents = policy.env.grid, policy.env.num_agents
    assert name.endswith(f"-{side}x{side}-{agents}")
    assert (policy.env.terrain != "open") == name.startswith("zoo:crowded")
    assert action.move.shape == (agents,)


@pytest.mark.parametrize(
    "name", [NAMES[0], *[pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:]]]
)
def test_the_recorded_evaluation_is_found_again(name):
    trained, table = model.load(name), recorded(name)
    key = build.stream(table["seed"], build.TEST)
    scores = evaluation.episode_scores(trained.env, trained.actor, table["episodes"], key=key)
    for metric in ("fitness", "coverage", "conn_05"):
        stated = table["sampled"][metric]
        assert stated["low"] <= scores[metric].mean() <= stated["high"], metric


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=NAMES[0]):
        pm.load("zoo:coverage-8x8-2")
