"""What the Triton kernels share: rows of d numbers as tuples of tiles, one tile a BLOCK_D columns.

A tile has shape (BLOCK_E, BLOCK_D): BLOCK_E rows side by side in one warp. With BLOCK_D no wider than the
16 bytes a lane loads times the lanes of a row, a row's dot product is a fused multiply-add a tile, in
registers, and then one short shuffle tree for all BLOCK_E rows together. Tiles rather than one tensor of
three dimensions: its reductions compile to a multiply and an add, and its width must be a power of two.

Offsets of rows and of records are 64 bits wide: row times width passes 2^31 at Wikidata5M's size. Ids,
places and numbers of chunks fit 32 bits: a graph has fewer than 2^30 - 64 raw triples, and tables of 2^28
rows fit no card. Alignment is assumed only where a launch finds it: a table that begins at a multiple of 16
bytes, its rows a multiple of 16 bytes long, is loaded 16 bytes a lane; any other gets a kernel of its own,
with narrower loads.
"""

import triton
import triton.language as tl

from lightcake_fast.kernels import plan

NO_CHUNK = tl.constexpr(plan.GPU_NO_CHUNK)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(
    -1e38
)  # a running maximum before the first live score: finite, so that -inf - top is -inf


@triton.jit
def log2_weight(s, top):
    """Of scores before their row's total divides them: s in powers of two, less ``top``, which is in such.

    The constant is given its type: Triton 3.5 and 3.6 would round it to float32 beside float64 scores.
    """
    return tl.fma(s, tl.full([], LOG2E, s.dtype), -top)


@triton.jit
def row_pointers(ptr, row, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Pointers (BLOCK_E, BLOCK_D) to the first tile of these rows; the products are 64 bits wide."""
    return ptr + row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def load_tile(ptr, k: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr):
    """Tile k of rows, in the type of the sums; columns past the width are zero.

    bfloat16 is the upper half of a float32. Said with integers, a number costs one instruction, since half of
    them need only a mask; Triton's conversion takes each out of its word first.
    """
    if (k + 1) * BLOCK_D <= WIDTH:
        tile = tl.load(ptr + k * BLOCK_D)
    else:
        inside = k * BLOCK_D + tl.arange(0, BLOCK_D) < WIDTH
        tile = tl.load(ptr + k * BLOCK_D, mask=inside[None, :], other=0.0)
    if tile.dtype == tl.bfloat16:
        return (tile.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return tile.to(ACC)


@triton.jit
def load_row(ptr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr):
    """All tiles of rows."""
    row = ()
    for k in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        row = row + (load_tile(ptr, k, WIDTH, BLOCK_D, ACC),)
    return row


@triton.jit
def store_row(ptr, row, live, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write the tiles of those rows whose ``live`` (BLOCK_E, 1) is true."""
    for k in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        tile = row[k].to(ptr.dtype.element_ty)
        if (k + 1) * BLOCK_D <= WIDTH:
            tl.store(ptr + k * BLOCK_D, tile, mask=live)
        else:
            inside = k * BLOCK_D + tl.arange(0, BLOCK_D) < WIDTH
            tl.store(ptr + k * BLOCK_D, tile, mask=live & inside[None, :])


@triton.jit
def zero_row(BLOCK_E: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr):
    """Tiles of zeros."""
    row = ()
    for _ in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        row = row + (tl.zeros([BLOCK_E, BLOCK_D], ACC),)
    return row


@triton.jit
def scale_row(row, factor, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Each row times its factor (BLOCK_E, 1)."""
    scaled = ()
    for k in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        scaled = scaled + (row[k] * factor,)
    return scaled


@triton.jit
def add_scaled_row(row, factor, other, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """``row + factor * other``, the factor of shape (BLOCK_E, 1)."""
    added = ()
    for k in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        added = added + (tl.fma(other[k], factor, row[k]),)
    return added


@triton.jit
def fold_row(row, BLOCK_E: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """The sum of the BLOCK_E rows that lie side by side, in the place of each of them.

    Rows that are equal keep the shape (BLOCK_E, BLOCK_D) everywhere: tiles (1, BLOCK_D) would be loaded and
    stored in a layout of their own, at the price of conversions through shared memory.
    """
    folded = ()
    for k in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        folded = folded + (tl.sum(row[k], 0)[None, :].broadcast_to(BLOCK_E, BLOCK_D),)
    return folded


@triton.jit
def store_folded_row(ptr, row, BLOCK_E: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write one row that ``fold_row`` put in BLOCK_E places: each place stores tiles of its own."""
    K: tl.constexpr = triton.cdiv(WIDTH, BLOCK_D)
    lane, inside_tile = tl.arange(0, BLOCK_E)[:, None], tl.arange(0, BLOCK_D)[None, :]
    for m in tl.static_range(0, K, BLOCK_E):
        tile = row[m]
        for j in tl.static_range(1, BLOCK_E):
            if m + j < K:
                tile = tl.where(lane == j, row[m + j], tile)
        column = (m + lane) * BLOCK_D + inside_tile
        if (m + BLOCK_E) * BLOCK_D <= WIDTH:
            tl.store(ptr + column, tile)
        else:
            tl.store(ptr + column, tile, mask=column < WIDTH)
