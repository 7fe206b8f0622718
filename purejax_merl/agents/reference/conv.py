"""A 3×3 convolution that is as fast inside a loop as outside one.

In: images `(images, row, col, channel)`. Out: the same size. Stride 1, zero padding 1.
Axis: none.
May import: nothing of ours.

Inside a `scan`, XLA's CPU compiler does not rewrite convolution layouts (jax issue 12868): the
weight gradient that autodiff builds is then about 40 times slower than it need be. Hence images
are NHWC, weights HWIO, and the gradient is written out.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

Images = Float[Array, "images row col fan_in"]
Responses = Float[Array, "images row col fan_out"]
Kernel = Float[Array, "3 3 fan_in fan_out"]


@jax.custom_vjp
def conv3x3(x: Images, kernel: Kernel) -> Responses:
    """Cross-correlation of every image with every filter."""
    return lax.conv_general_dilated(
        x, kernel, (1, 1), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _forward(x: Images, kernel: Kernel) -> tuple[Responses, tuple[Images, Kernel]]:
    return conv3x3(x, kernel), (x, kernel)


def _backward(saved: tuple[Images, Kernel], grad: Responses) -> tuple[Images, Kernel]:
    x, kernel = saved
    grad_x = conv3x3(grad, jnp.swapaxes(kernel[::-1, ::-1], 2, 3))
    images, height, width, fan_in = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    # The three taps of a row side by side: a third of the copies of a full unfolding, and products
    # wide enough to run fast.
    taps = jnp.concatenate([padded[:, :, col : col + width] for col in range(3)], axis=-1)
    rows = grad.reshape(-1, grad.shape[-1])
    products = [
        taps[:, row : row + height].reshape(images * height * width, 3 * fan_in).T @ rows
        for row in range(3)
    ]
    return grad_x, jnp.stack(products).reshape(kernel.shape)


conv3x3.defvjp(_forward, _backward)


class Conv3x3(eqx.Module):
    """A convolution with bias; weights and biases start uniform in ±1/√(9 · fan-in)."""

    kernel: Float[Array, "3 3 fan_in fan_out"]
    bias: Float[Array, "fan_out"]

    def __init__(self, fan_in: int, fan_out: int, *, key: PRNGKeyArray):
        kernel_key, bias_key = jax.random.split(key)
        bound = (9 * fan_in) ** -0.5
        shape = (3, 3, fan_in, fan_out)
        self.kernel = jax.random.uniform(kernel_key, shape, minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(bias_key, (fan_out,), minval=-bound, maxval=bound)

    def __call__(self, x: Images) -> Responses:
        return conv3x3(x, self.kernel) + self.bias


class ConvStack(eqx.Module):
    """`depth` × (convolution, ReLU), then the mean over the grid: no shape depends on its size."""

    layers: tuple[Conv3x3, ...]
    chunk: int | None = eqx.field(static=True)
    """Images at once, so that activations stay in a CPU's cache (a training pass over 1,600 images
    of 16² takes 0.4 of the time); None: all, as an accelerator wants it."""

    def __init__(
        self, channels: int, width: int, depth: int, *, chunk: int | None = 64, key: PRNGKeyArray
    ):
        fans = [channels] + [width] * (depth - 1)
        keys = jax.random.split(key, depth)
        self.layers = tuple(Conv3x3(f, width, key=k) for f, k in zip(fans, keys, strict=True))
        self.chunk = chunk

    def __call__(self, image: Float[Array, "*batch row col channel"]) -> Float[Array, "*batch w"]:
        *batch, height, width, channels = image.shape
        images = image.reshape(-1, height, width, channels)
        if self.chunk is None or images.shape[0] <= self.chunk:
            pooled = self._pooled(images)
        else:
            pooled = lax.map(self._pooled_one, images, batch_size=self.chunk)
        return pooled.reshape(*batch, pooled.shape[-1])

    def _pooled_one(self, x: Float[Array, "row col channel"]) -> Float[Array, "width"]:
        return self._pooled(x[None])[0]

    def _pooled(self, x: Images) -> Float[Array, "images width"]:
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return jnp.mean(x, axis=(1, 2))
