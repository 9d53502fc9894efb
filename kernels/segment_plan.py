"""The order of work of the general segment op: chunks of its segments, and chunks in the order by index."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lightcake_fast.kernels.plan import index_tensor

Array = npt.NDArray[np.int64]

CHUNK = 64  # entries; the parts of cut segments are at most a 64th of the gathered rows
TASK = 8  # chunks that a CPU thread takes at once


class SegmentPlan(NamedTuple):
    """Index tensors of E entries in M segments of a CSR over N rows, all int32.

    Chunks are records (start, length, row, part or -1), sorted by length, longest first. So programs that
    start last end soon, and neighboring chunks have nearly equal length. The order by index sorts the entries
    by the row that they gather. The gradient of the rows uses it.
    """

    index: torch.Tensor  # [E] row that each entry gathers
    segment: torch.Tensor  # [E]
    chunk: torch.Tensor  # [P, 4] of the segments
    cut_row: torch.Tensor  # [H] segments cut into several chunks
    cut_part: torch.Tensor  # [H + 1] bounds of their parts
    part_row: torch.Tensor  # [S] segment of each part
    entry: torch.Tensor  # [E] order by index: the entry
    entry_segment: torch.Tensor  # [E] order by index: its segment
    index_chunk: torch.Tensor  # [Q, 4] chunks of the rows, in the order by index
    index_cut_row: torch.Tensor  # [I] rows cut into several chunks
    index_cut_part: torch.Tensor  # [I + 1] bounds of their parts
    index_part_row: torch.Tensor  # [U] row of each part


def build_segment_plan(indptr: Array, index: Array, num_values: int) -> SegmentPlan:
    """Sort and cut a CSR. The caller has checked its bounds and indices."""
    lengths = np.diff(indptr)
    segment = np.repeat(np.arange(len(lengths)), lengths)
    entry = np.argsort(index, kind="stable")
    chunk, cut_row, cut_part, part_row = _chunks(lengths)
    by_index = _chunks(np.bincount(index, minlength=num_values))
    index_chunk, index_cut_row, index_cut_part, index_part_row = by_index

    def ids(values: Array) -> torch.Tensor:
        return index_tensor(values, np.int32)

    return SegmentPlan(
        index=ids(index),
        segment=ids(segment),
        chunk=ids(chunk),
        cut_row=ids(cut_row),
        cut_part=ids(cut_part),
        part_row=ids(part_row),
        entry=ids(entry),
        entry_segment=ids(segment[entry]),
        index_chunk=ids(index_chunk),
        index_cut_row=ids(index_cut_row),
        index_cut_part=ids(index_cut_part),
        index_part_row=ids(index_part_row),
    )


def cut_heads(
    cut_row: torch.Tensor, cut_part: torch.Tensor, slots: int, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cut rows of each head and the bounds of their parts.

    The parts of head h start at h * slots.
    """
    if heads == 1:
        return cut_row, cut_part
    head = torch.arange(heads, dtype=cut_row.dtype, device=cut_row.device)[:, None]
    bounds = (cut_part[:-1] + slots * head).flatten()
    return (cut_row * heads + head).flatten(), torch.cat([bounds, bounds.new_full((1,), slots * heads)])


def _chunks(lengths: Array) -> tuple[Array, Array, Array, Array]:
    """Return chunk records of rows with these lengths, the cut rows, and their parts' bounds and rows."""
    pieces = np.maximum(1, -(-lengths // CHUNK))  # an empty row has an empty chunk
    row = np.repeat(np.arange(len(lengths)), pieces)
    done = CHUNK * (np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    length = np.minimum(lengths[row] - done, CHUNK)
    # an empty chunk at the end of the order still refers to an existing entry
    start = np.minimum((np.cumsum(lengths) - lengths)[row] + done, max(lengths.sum() - 1, 0))
    cut = pieces[row] > 1
    part = np.where(cut, np.cumsum(cut) - 1, -1)
    records = np.stack([start, length, row, part], 1)
    cut_row = np.flatnonzero(pieces > 1)
    return (
        records[np.argsort(-length, kind="stable")],
        cut_row,
        np.append(0, np.cumsum(pieces[cut_row])),
        row[cut],
    )
