"""Helpers of the Triton kernels: rows of d numbers as tuples of tiles of BLOCK_D numbers.

A row has COLUMNS columns of d / COLUMNS entries, as the block of its score requires (``scores.py``). The
tiles follow the order of the entries: ``row[k : k + COLUMNS]`` are the same entries of each column. A tile
has shape (BLOCK_E, BLOCK_D): one warp holds BLOCK_E rows side by side. BLOCK_D is at most 16 bytes per lane
times the lanes per row. Then a dot product of rows is one fused multiply-add per tile, in registers, and one
short shuffle tree for all BLOCK_E rows together. One tensor with three dimensions would be worse: its
reductions compile to a multiply and an add, and its width must be a power of two.

Offsets of rows and of records are 64 bits wide, because row times width exceeds 2^31 at Wikidata5M's size.
Ids, places, 4 times a chunk and 2 times a row fit into 32 bits: a graph has fewer than 2^30 - 64 raw triples,
and the package refuses more chunks than ``GPU_MOST_CHUNKS`` or more rows than ``GPU_MOST_ROWS``. Each launch
checks the alignment. If a table starts at a multiple of 16 bytes and its rows are a multiple of 16 bytes
long, a lane loads 16 bytes at once. For other tables Triton compiles a separate kernel with narrower loads.
"""

import triton
import triton.language as tl

from lightcake_fast.kernels import plan

NO_CHUNK = tl.constexpr(plan.GPU_NO_CHUNK)
LOG2E = tl.constexpr(1.4426950408889634)
# Initial value of a maximum. It is below every score but finite, because -inf minus -inf would be NaN.
LOWEST = tl.constexpr(-1e38)


@triton.jit
def log2_weight(s, top):
    """log2 of ``exp(s - top)``.

    The difference comes first. If the scores were converted to powers of two first, a score of 1,000 would
    lose precision from the fourth decimal place. The constant has an explicit dtype, because Triton 3.5 and
    3.6 round it to float32 even with float64 scores.
    """
    return (s - top) * tl.full([], LOG2E, s.dtype)


@triton.jit
def row_pointers(ptr, row, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Pointers (BLOCK_E, BLOCK_D) to the first tile of these rows. The products are 64 bits wide."""
    return ptr + row.to(tl.int64)[:, None] * WIDTH + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def load_tile(
    ptr, m: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr
):
    """Tile m of rows, in the dtype of the sums. Entries past the end of a column are zero.

    bfloat16 is the upper half of a float32. The integer conversion costs one instruction per number, because
    half of the numbers only need a mask. Triton's conversion first extracts each number from its word.
    """
    entries: tl.constexpr = WIDTH // COLUMNS
    first: tl.constexpr = m // COLUMNS * BLOCK_D
    start: tl.constexpr = m % COLUMNS * entries + first
    if first + BLOCK_D <= entries:
        tile = tl.load(ptr + start)
    else:
        inside = first + tl.arange(0, BLOCK_D) < entries
        tile = tl.load(ptr + start, mask=inside[None, :], other=0.0)
    if tile.dtype == tl.bfloat16:
        return (tile.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return tile.to(ACC)


@triton.jit
def load_row(ptr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr):
    """All tiles of rows."""
    row = ()
    for m in tl.static_range(COLUMNS * triton.cdiv(WIDTH // COLUMNS, BLOCK_D)):
        row = row + (load_tile(ptr, m, WIDTH, COLUMNS, BLOCK_D, ACC),)
    return row


@triton.jit
def store_tile(
    ptr, m: tl.constexpr, tile, live, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Write tile m of the rows with a true ``live`` (BLOCK_E, 1)."""
    entries: tl.constexpr = WIDTH // COLUMNS
    first: tl.constexpr = m // COLUMNS * BLOCK_D
    start: tl.constexpr = m % COLUMNS * entries + first
    if first + BLOCK_D > entries:
        live = live & (first + tl.arange(0, BLOCK_D) < entries)[None, :]
    tl.store(ptr + start, tile.to(ptr.dtype.element_ty), mask=live)


@triton.jit
def store_row(ptr, row, live, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write the tiles of the rows with a true ``live`` (BLOCK_E, 1)."""
    for m in tl.static_range(len(row)):
        store_tile(ptr, m, row[m], live, WIDTH, COLUMNS, BLOCK_D)


@triton.jit
def zero_row(
    BLOCK_E: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ACC: tl.constexpr,
):
    """Tiles of zeros."""
    row = ()
    for _ in tl.static_range(COLUMNS * triton.cdiv(WIDTH // COLUMNS, BLOCK_D)):
        row = row + (tl.zeros([BLOCK_E, BLOCK_D], ACC),)
    return row


@triton.jit
def scale_row(row, factor):
    """Each row times its factor (BLOCK_E, 1)."""
    scaled = ()
    for m in tl.static_range(len(row)):
        scaled = scaled + (row[m] * factor,)
    return scaled


@triton.jit
def add_row(row, other):
    """``row + other``."""
    added = ()
    for m in tl.static_range(len(row)):
        added = added + (row[m] + other[m],)
    return added


@triton.jit
def add_scaled_row(row, factor, other):
    """``row + factor * other``, the factor of shape (BLOCK_E, 1)."""
    added = ()
    for m in tl.static_range(len(row)):
        added = added + (row[m] + factor * other[m],)
    return added


@triton.jit
def add_dot(acc, a, b):
    """``acc`` plus the products of the tiles of two rows."""
    for m in tl.static_range(len(a)):
        acc += a[m] * b[m]
    return acc


@triton.jit
def fold_row(row):
    """Sum the BLOCK_E rows of a tile, and store the sum in the place of each row.

    The equal rows keep the shape (BLOCK_E, BLOCK_D) everywhere. Tiles of shape (1, BLOCK_D) would need
    another layout for loads and stores, and conversions through shared memory.
    """
    folded = ()
    for m in tl.static_range(len(row)):
        folded = folded + (tl.sum(row[m], 0)[None, :].broadcast_to(row[m].shape),)
    return folded


@triton.jit
def store_folded_row(
    ptr, row, BLOCK_E: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Write one row that ``fold_row`` put in BLOCK_E places. Each place stores different tiles."""
    entries: tl.constexpr = WIDTH // COLUMNS
    tiles: tl.constexpr = COLUMNS * triton.cdiv(entries, BLOCK_D)
    lane, inside_tile = tl.arange(0, BLOCK_E)[:, None], tl.arange(0, BLOCK_D)[None, :]
    for m in tl.static_range(0, tiles, BLOCK_E):
        tile = row[m]
        for j in tl.static_range(1, BLOCK_E):
            if m + j < tiles:
                tile = tl.where(lane == j, row[m + j], tile)
        entry = (m + lane) // COLUMNS * BLOCK_D + inside_tile
        place = (m + lane) % COLUMNS * entries + entry
        if m + BLOCK_E <= tiles and entries % BLOCK_D == 0:
            tl.store(ptr + place, tile)
        else:
            tl.store(ptr + place, tile, mask=entry < entries)


@triton.jit
def normalized(top, total):
    """One over the total of a softmax row, and its maximum. Without a live triple they are one and +inf.

    A NaN score makes the total NaN, and so the row.
    """
    return 1.0 / tl.where(total == 0, 1.0, total), tl.where(total == 0, float("inf"), top)


@triton.jit
def store_norm(ptr, row, top, factor, live):
    """Write the results of ``normalized`` where ``live`` is true."""
    tl.store(ptr + 2 * row, top, mask=live)
    tl.store(ptr + 2 * row + 1, factor, mask=live)
