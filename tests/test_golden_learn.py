"""Advantages and the price of the constraint against recorded data: every array of the file."""

import jax.numpy as jnp
import numpy as np
import pytest

from purejax_merl.learn import advantages
from purejax_merl.learn.dual import Dual

MECHANISMS = ("soft_lambda", "lagrangian", "pid_lagrangian")


def replay_dual(mechanism, violations):
    """[price, integral, previous violation] after each update, from a price of 0.1."""
    dual = Dual(mechanism, jnp.float32(0.1), jnp.float32(0.0), jnp.float32(0.05))
    state, rows = dual.init(), []
    for violation in violations:
        state = dual.update(state, violation)
        rows.append([state.price, state.integral, state.previous])
    return np.array(rows)


@pytest.mark.golden
def test_every_recorded_array(golden):
    with np.load(golden / "gae_dual.npz") as file:
        data = {name: jnp.asarray(value) for name, value in file.items()}
    inputs = {"rewards", "values", "v_last", "gamma", "lam", "dual_violation"}
    # Recorded as (episode, time); time leads here.
    advantage, target = advantages.gae(
        data["rewards"].T,
        data["values"].T,
        data["v_last"],
        discount=data["gamma"],
        trace_decay=data["lam"],
    )
    duals = {f"dual_{m}": replay_dual(m, data["dual_violation"]) for m in MECHANISMS}
    ours = {"adv": advantage.T, "ret": target.T, **duals}
    assert ours.keys() | inputs == data.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, data[name], rtol=1e-5, atol=1e-5, err_msg=name)
