"""Cell sets as bit rows: bit c of row r says whether cell (r, c) is in the set.

In/out: `(..., H, words)` uint32, 32 columns to a word, columns past W always 0.
Axis: none of the program's; a set is one value. Union is `|`, intersection `&`.
May import: nothing of ours.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

WORD = 32
Cells = UInt32[Array, "*sets row word"]


def num_words(width: int) -> int:
    """Words in a row of `width` cells."""
    return -(-width // WORD)


def pack(cells: Bool[Array, "*sets row col"]) -> Cells:
    """Boolean grid → bit rows."""
    *lead, width = cells.shape
    padded = jnp.pad(cells, [(0, 0)] * len(lead) + [(0, num_words(width) * WORD - width)])
    bits = padded.reshape(*lead, -1, WORD).astype(jnp.uint32)
    return jnp.sum(bits << jnp.arange(WORD, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)


def unpack(cells: Cells, width: int) -> Bool[Array, "*sets row col"]:
    """Bit rows → boolean grid of `width` columns."""
    bits = (cells[..., None] >> jnp.arange(WORD, dtype=jnp.uint32)) & jnp.uint32(1)
    return bits.reshape(*cells.shape[:-1], -1)[..., :width].astype(bool)


def below(col: Int[Array, "*any"], words: int) -> UInt32[Array, "*any word"]:
    """The columns left of `col`, for any integer `col` (none if negative, all if past the end)."""
    local = jnp.clip(col[..., None] - WORD * jnp.arange(words), 0, WORD)
    some = (jnp.uint32(1) << jnp.minimum(local, WORD - 1).astype(jnp.uint32)) - jnp.uint32(1)
    return jnp.where(local == WORD, jnp.uint32(0xFFFFFFFF), some)


def columns(
    low: Int[Array, "*any"], high: Int[Array, "*any"], width: int
) -> UInt32[Array, "*any word"]:
    """Columns `low..high` inclusive, clipped into the grid."""
    words = num_words(width)
    return below(jnp.minimum(high + 1, width), words) & ~below(low, words)


def window(position: Int[Array, "*any 2"], radius: int, height: int, width: int) -> Cells:
    """All grid cells at Chebyshev distance ≤ `radius` from `position`."""
    row, col = position[..., 0], position[..., 1]
    in_rows = jnp.abs(jnp.arange(height) - row[..., None]) <= radius
    in_cols = columns(col - radius, col + radius, width)
    return jnp.where(in_rows[..., None], in_cols[..., None, :], jnp.uint32(0))


def count(cells: Cells) -> Int[Array, "*sets"]:
    """Number of cells in each set."""
    return jnp.sum(lax.population_count(cells), axis=(-2, -1)).astype(jnp.int32)


def contains(cells: Cells, position: Int[Array, "*any 2"]) -> Bool[Array, "*any"]:
    """Whether each in-grid `position` is in the one set `cells`."""
    row, col = position[..., 0], position[..., 1]
    word = cells[row, col // WORD]
    return ((word >> (col % WORD).astype(jnp.uint32)) & jnp.uint32(1)).astype(bool)


def spread(cells: UInt32[Array, "row word"]) -> UInt32[Array, "row word"]:
    """The set and its four neighbours. May set bits past the last column: intersect with the free
    cells."""
    none = jnp.zeros_like(cells[:1])
    vertical = jnp.concatenate([none, cells[:-1]]) | jnp.concatenate([cells[1:], none])
    carry_up = jnp.pad(cells, ((0, 0), (1, 0)))[:, :-1] >> jnp.uint32(WORD - 1)
    carry_down = jnp.pad(cells, ((0, 0), (0, 1)))[:, 1:] << jnp.uint32(WORD - 1)
    return (
        cells
        | vertical
        | (cells << jnp.uint32(1))
        | carry_up
        | (cells >> jnp.uint32(1))
        | carry_down
    )


def slide(rows: UInt32[Array, "*#any word"], start: Int[Array, "*#any"]) -> UInt32[Array, "*any"]:
    """The 32 columns that begin at `start` (which may be negative) as one word; nothing outside
    the grid."""
    word, shift = jnp.floor_divide(start, WORD), jnp.mod(start, WORD).astype(jnp.uint32)
    index = jnp.arange(rows.shape[-1])
    low = jnp.sum(jnp.where(index == word[..., None], rows, 0), axis=-1, dtype=jnp.uint32)
    high = jnp.sum(jnp.where(index == word[..., None] + 1, rows, 0), axis=-1, dtype=jnp.uint32)
    # A shift by 32 is undefined, so the high half moves in two steps.
    return (low >> shift) | ((high << jnp.uint32(1)) << (jnp.uint32(WORD - 1) - shift))


def crop(cells: Cells, position: Int[Array, "*sets 2"], radius: int) -> UInt32[Array, "*sets crop"]:
    """The window around `position` as `2 radius + 1` words of as many bits, zero outside the
    grid."""
    height = cells.shape[-2]
    rows = position[..., :1] + jnp.arange(-radius, radius + 1)
    inside = (rows >= 0) & (rows < height)
    taken = jnp.take_along_axis(cells, jnp.clip(rows, 0, height - 1)[..., None], axis=-2)
    words = slide(taken, position[..., 1:] - radius)
    mask = jnp.uint32((1 << (2 * radius + 1)) - 1)
    return jnp.where(inside, words & mask, jnp.uint32(0))


def crop_mask(
    position: Int[Array, "*sets 2"], radius: int, height: int, width: int
) -> UInt32[Array, "*sets crop"]:
    """The in-grid cells of the window, laid out as `crop` lays them out."""
    rows = position[..., :1] + jnp.arange(-radius, radius + 1)
    start = position[..., 1:] - radius
    columns_in = below(width - start, 1) & ~below(-start, 1) & below(jnp.array([2 * radius + 1]), 1)
    return jnp.where((rows >= 0) & (rows < height), columns_in[..., 0], jnp.uint32(0))


def full(height: int, width: int) -> UInt32[Array, "row word"]:
    """Every cell of the grid."""
    return jnp.broadcast_to(below(jnp.array(width), num_words(width)), (height, num_words(width)))


def union(cells: UInt32[Array, "set row word"]) -> UInt32[Array, "row word"]:
    """The union of a few sets."""
    return functools.reduce(jnp.bitwise_or, [cells[i] for i in range(cells.shape[0])])
