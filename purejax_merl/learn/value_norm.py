"""Running scale of the value targets, so that the critic always regresses numbers of order one.

In: value targets. Out: their normalised form, and back (Yu et al. 2022, arXiv 2103.01955, §5).
Axis: none.
May import: nothing of ours.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class ValueNorm(eqx.Module):
    """Exponential moving first and second moments with bias correction."""

    mean: Float[Array, ""]
    mean_square: Float[Array, ""]
    weight: Float[Array, ""]
    decay: float = eqx.field(static=True, default=0.95)

    @classmethod
    def init(cls) -> "ValueNorm":
        """No data yet: the identity."""
        zero = jnp.zeros((), jnp.float32)
        return cls(mean=zero, mean_square=zero, weight=zero)

    def update(self, target: Float[Array, "*rows"], weight: Float[Array, "*rows"]) -> "ValueNorm":
        """Moves the moments toward those of one rollout's targets."""
        share = weight / jnp.sum(weight)
        keep, add = self.decay, 1 - self.decay
        return ValueNorm(
            mean=keep * self.mean + add * jnp.sum(share * target),
            mean_square=keep * self.mean_square + add * jnp.sum(share * target**2),
            weight=keep * self.weight + add,
            decay=self.decay,
        )

    def normalise(self, value: Float[Array, "*any"]) -> Float[Array, "*any"]:
        """Raw → normalised."""
        center, scale = self._moments()
        return (value - center) / scale

    def restore(self, value: Float[Array, "*any"]) -> Float[Array, "*any"]:
        """Normalised → raw."""
        center, scale = self._moments()
        return value * scale + center

    def _moments(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        seen = jnp.maximum(self.weight, 1e-8)
        center = self.mean / seen
        variance = jnp.maximum(self.mean_square / seen - center**2, 1e-4)
        return center, jnp.where(self.weight > 0, jnp.sqrt(variance), 1.0)
