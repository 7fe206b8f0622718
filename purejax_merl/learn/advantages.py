"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

In: rewards, values, ends. Out: advantages and value targets.
Axes: time T is scanned, trailing axes pass through.
May import: nothing of ours.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def gae(
    reward: Float[Array, "time *rest"],
    value: Float[Array, "time *rest"],
    last_value: Float[Array, "*rest"],
    *,
    discount: float | Float[Array, ""],
    trace_decay: float | Float[Array, ""],
    terminated: Float[Array, "time *rest"] | None = None,
    alive: Float[Array, "time *rest"] | None = None,
) -> tuple[Float[Array, "time *rest"], Float[Array, "time *rest"]]:
    """Backward recursion A_t = δ_t + γλ A_{t+1}, δ_t = r_t + γ V_{t+1} − V_t.

    **Arguments:**

    - `last_value`: V of the state after the last row. A time limit is bootstrapped from it.
    - `terminated`: 1 where the task ended with this row: nothing is bootstrapped.
    - `alive`: 0 on rows after the end of the episode. The row before the first of them is the
      episode's last; the value of a dead row is that of the final state.

    **Returns:** advantages and value targets A + V; dead rows hold zeros and V.
    """
    goes_on = 1 - (jnp.zeros_like(reward) if terminated is None else terminated)
    alive = jnp.ones_like(reward) if alive is None else alive
    next_value = jnp.concatenate([value[1:], last_value[None]])
    # The last row has no row after it, so its trace is cut by a zero that is never read.
    next_alive = jnp.concatenate([alive[1:], jnp.zeros_like(alive[:1])])
    delta = alive * (reward + discount * goes_on * next_value - value)
    decay = discount * trace_decay * goes_on * next_alive

    def backward(advantage: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = row[0] + row[1] * advantage
        return advantage, advantage

    _, advantage = lax.scan(backward, jnp.zeros_like(last_value), (delta, decay), reverse=True)
    return advantage, advantage + value
