"""The communication graph: who hears whom, gossip, and how well the team hangs together.

In: positions, beliefs. Out: adjacency, heard cells, λ₂ and graph metrics.
Axis: none (agents are data).
May import: nothing of ours.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32


def distance(position: Int[Array, "agent 2"]) -> Int[Array, "agent agent"]:
    """Chebyshev distance between every two agents, in cells."""
    return jnp.max(jnp.abs(position[:, None] - position[None]), axis=-1)


def adjacency(position: Int[Array, "agent 2"], comm_r: int) -> Bool[Array, "agent agent"]:
    """Agents within `comm_r`, the agent itself included."""
    return distance(position) <= comm_r


def gossip(
    outbox: UInt32[Array, "agent row word"],
    belief: UInt32[Array, "agent row word"],
    linked: Bool[Array, "agent agent"],
) -> UInt32[Array, "agent row word"]:
    """Own news now, and what every linked agent knew one step ago: knowledge moves one hop per
    step."""
    heard = jnp.where(linked[:, :, None, None], belief[None], jnp.uint32(0))
    heard_sets = [heard[:, j] for j in range(belief.shape[0])]
    return functools.reduce(jnp.bitwise_or, heard_sets, outbox)


def reach(linked: Bool[Array, "agent agent"]) -> Bool[Array, "agent agent"]:
    """Transitive closure of `linked`: who can be reached over any number of hops."""
    closed = linked | jnp.eye(linked.shape[0], dtype=bool)
    for _ in range(int(np.ceil(np.log2(max(linked.shape[0], 2))))):
        closed = jnp.any(closed[:, :, None] & closed[None], axis=1)
    return closed


def in_one_piece(linked: Bool[Array, "agent agent"]) -> Bool[Array, ""]:
    """Whether every agent can be reached from the first."""
    reached = linked[0]
    for _ in range(linked.shape[0] - 2):
        reached = jnp.any(linked & reached[:, None], axis=0)
    return jnp.all(reached)


def giant_fraction(linked: Bool[Array, "agent agent"]) -> Float[Array, ""]:
    """Share of the team in its largest connected component."""
    return jnp.max(jnp.mean(reach(linked).astype(jnp.float32), axis=1))


def soft_weights(
    position: Int[Array, "agent 2"], comm_r: int, sharpness: float
) -> Float[Array, "agent agent"]:
    """Edge weights sigmoid(sharpness · (comm_r − distance)), zero on the diagonal."""
    gap = comm_r - distance(position).astype(jnp.float32)
    weights = 1 / (1 + jnp.exp(-sharpness * gap))
    return weights * (1 - jnp.eye(position.shape[0], dtype=jnp.float32))


def edge_margin(weights: Float[Array, "agent agent"], target: float) -> Float[Array, "agent"]:
    """How far each agent's soft degree falls short of `target`."""
    return jnp.maximum(target - jnp.sum(weights, axis=1), 0)


def algebraic_connectivity(weights: Float[Array, "agent agent"]) -> Float[Array, ""]:
    """λ₂ of the weighted graph: the second smallest eigenvalue of its Laplacian (Fiedler 1973).

    The constant vector is projected out first, so λ₂ is the *smallest* eigenvalue of an
    (N−1)×(N−1) matrix: Householder to tridiagonal form, then bisection on the signs of the pivots.
    Every operation is elementwise over worlds once mapped; a library eigen-solver is called
    once per tiny matrix instead.

    **Arguments:** `weights`: symmetric, ≥ 0, zero diagonal; N ≥ 2.

    **Returns:** λ₂ to about 1e-6 of the largest degree.
    """
    laplacian = jnp.diag(jnp.sum(weights, axis=1)) - weights
    basis = jnp.asarray(_zero_sum_basis(weights.shape[0]), weights.dtype)
    half = jnp.sum(laplacian[:, :, None] * basis[None], axis=1)
    projected = jnp.sum(basis[:, :, None] * half[:, None, :], axis=0)
    diagonal, off_diagonal = _tridiagonal(projected)
    return _smallest_eigenvalue(diagonal, off_diagonal)


@functools.cache
def _zero_sum_basis(size: int) -> np.ndarray:
    """Orthonormal columns `(N, N−1)` orthogonal to the constant vector (Helmert)."""
    columns = [[1.0] * k + [-float(k)] + [0.0] * (size - k - 1) for k in range(1, size)]
    basis = np.array(columns).T
    return basis / np.linalg.norm(basis, axis=0)


def _tridiagonal(matrix: Float[Array, "n n"]) -> tuple[list[Array], list[Array]]:
    """Diagonal and off-diagonal of an orthogonally similar tridiagonal matrix (Golub & Van Loan
    §8.3)."""
    diagonal, off_diagonal = [], []
    while matrix.shape[0] > 2:
        column, rest = matrix[1:, 0], matrix[1:, 1:]
        norm = jnp.sqrt(jnp.sum(column**2))
        pivot = jnp.where(column[0] > 0, -norm, norm)
        mirror = jnp.concatenate([column[:1] - pivot, column[1:]])
        mirror = mirror / jnp.sqrt(jnp.maximum(jnp.sum(mirror**2), 1e-30))
        image = jnp.sum(rest * mirror, axis=1)
        image = image - jnp.sum(mirror * image) * mirror
        diagonal.append(matrix[0, 0])
        off_diagonal.append(pivot)
        matrix = rest - 2 * (mirror[:, None] * image + image[:, None] * mirror)
    diagonal += [matrix[k, k] for k in range(matrix.shape[0])]
    off_diagonal += [matrix[1, 0]] if matrix.shape[0] == 2 else []
    return diagonal, off_diagonal


def _smallest_eigenvalue(diagonal: list[Array], off_diagonal: list[Array]) -> Float[Array, ""]:
    """Bisection: `x` is below every eigenvalue exactly if all pivots of `T − xI` are positive."""
    squares = [b * b for b in off_diagonal]

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        pivot = diagonal[0] - middle
        positive = pivot > 0
        for entry, square in zip(diagonal[1:], squares, strict=True):
            pivot = entry - middle - square / jnp.where(positive, pivot, 1)
            positive = positive & (pivot > 0)
        return jnp.where(positive, middle, low), jnp.where(positive, high, middle)

    high = functools.reduce(jnp.minimum, diagonal)
    # 26 halvings leave high / 2^26, below float32 rounding of the entries.
    low, high = lax.fori_loop(0, 26, halve, (jnp.zeros_like(high), high), unroll=13)
    return jnp.maximum((low + high) / 2, 0)
