"""One evolution step against recorded data, in compatibility mode: every array of the file."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejax_merl.evolve.seed import cem_update, nes_update, shape, summarise

SIGMA = LR = 0.05
WEIGHT_DECAY = {"nes": 0.0, "neswd": 0.01}
ELITE_FRAC = 0.25
nes = jax.jit(nes_update, static_argnames="compat")
cem = jax.jit(cem_update, static_argnames=("elite_frac", "compat"))
CASES = ("distinct", "ties", "const", "nan")


def replay(data, prefix):
    """Yields `(array name, our value)` for everything recorded under one prefix."""
    theta, noise = jnp.asarray(data[f"{prefix}theta"]), jnp.asarray(data[f"{prefix}noise"])
    half = noise.shape[0] // 2
    yield f"{prefix}theta", theta
    yield f"{prefix}noise", jnp.concatenate([noise[:half], -noise[:half]])
    yield f"{prefix}candidates", theta + SIGMA * noise
    for case in CASES:
        fitness = jnp.asarray(data[f"{prefix}{case}_fitness"])
        info = summarise(fitness, compat=True)
        logged = [info["best_fitness"], info["mean_fitness"]]
        yield f"{prefix}{case}_fitness", fitness
        yield f"{prefix}{case}_shaped", shape(fitness, compat=True)
        for update, decay in WEIGHT_DECAY.items():
            moved = nes(theta, noise, fitness, sigma=SIGMA, lr=LR, weight_decay=decay, compat=True)
            yield f"{prefix}{case}_{update}_theta", moved
            yield f"{prefix}{case}_{update}_info", [*logged, np.nan]
        moved, sigma = cem(theta, noise, fitness, sigma=SIGMA, elite_frac=ELITE_FRAC, compat=True)
        yield f"{prefix}{case}_cem_theta", moved
        yield f"{prefix}{case}_cem_info", [*logged, sigma]


@pytest.mark.golden
def test_every_recorded_array(golden):
    with np.load(golden / "es.npz") as file:
        data = dict(file)
    prefixes = sorted({match[0] for name in data if (match := re.match(r"D\d+_P\d+_", name))})
    assert prefixes, "no D*_P* arrays in es.npz"
    compared = set()
    for prefix in prefixes:
        for name, value in replay(data, prefix):
            np.testing.assert_allclose(
                np.asarray(value), data[name], rtol=1e-4, atol=1e-6, err_msg=name
            )
            compared.add(name)
    assert compared == set(data), f"not compared: {sorted(set(data) - compared)}"
