"""The price of the constraint: fixed, or a Lagrange multiplier that follows the violation.

In: the mean violation of a rollout. Out: the next price.
Axis: none.
May import: nothing of ours.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

Mechanism = Literal["soft_lambda", "lagrangian", "pid_lagrangian"]


class DualState(eqx.Module):
    """The multiplier and, for the PID form, what it remembers."""

    price: Float[Array, ""]
    integral: Float[Array, ""]
    previous: Float[Array, ""]


class Dual(eqx.Module):
    """Updates the price λ once per train step.

    The violation is *signed* (measured cost minus the limit), so that λ can fall again.
    `soft_lambda` keeps λ fixed; `lagrangian` is projected gradient ascent; `pid_lagrangian` is
    Stooke et al. 2020 (arXiv 2007.03964).
    """

    mechanism: Mechanism = eqx.field(static=True)
    initial_price: Float[Array, ""]
    limit: Float[Array, ""]
    """Tolerated mean cost."""
    lr: Float[Array, ""]
    kp: float = eqx.field(static=True, default=1.0)
    ki: float = eqx.field(static=True, default=0.01)
    kd: float = eqx.field(static=True, default=0.1)

    def init(self) -> DualState:
        """The price before any step."""
        zero = jnp.zeros((), jnp.float32)
        return DualState(price=self.initial_price, integral=zero, previous=zero)

    def update(self, state: DualState, violation: Float[Array, ""]) -> DualState:
        """One update with a signed `violation`; the price never goes below 0."""
        if self.mechanism == "soft_lambda":
            return state
        if self.mechanism == "lagrangian":
            price = jnp.maximum(state.price + self.lr * violation, 0)
            return DualState(price=price, integral=state.integral, previous=violation)
        integral = state.integral + violation
        change = violation - state.previous
        price = jnp.maximum(self.kp * violation + self.ki * integral + self.kd * change, 0)
        return DualState(price=price, integral=integral, previous=violation)
