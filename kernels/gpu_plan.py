"""The plan of the Triton kernels: the order of ``plan.py`` in records, cut finer and sorted for warps.

Built from the plan once a graph, on first use: the CPU's passes do without it.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lightcake_fast.kernels.plan import Plan, cut_rows

Array = npt.NDArray[np.int64]

RELATION_CHUNKS = 4096  # programs that a card's latency asks for, where the graph has triples enough
RELATION_CHUNK = (32, 256)  # raw triples of a chunk: shortest and longest
ENTITY_CHUNK = 32  # context triples: a program takes them one at a time, several chunks side by side


class GpuPlan(NamedTuple):
    """Index tensors of a graph, all int32; T, E, N, R and the two orders are those of ``Plan``.

    Records keep what is read together in one sector. Chunks are sorted longest first: programs that
    start last end soon, and chunks that share a program have nearly one length.
    """

    raw: torch.Tensor  # [T, 4] relation order: head, tail, place of the triple, of its inverse in head order
    triple: torch.Tensor  # [T] relation order: place in the triples given
    relation_chunk: torch.Tensor  # [P, 4] start, end, raw relation, part (the inverse's is P further)
    relation_row: torch.Tensor  # [2R] 0 .. 2R - 1, the rows whose parts follow
    relation_part: torch.Tensor  # [2R + 1] a row's parts among 2P
    context: torch.Tensor  # [E, 4] head order: relation below 2R, tail, link, inverse relation
    # a link is 2 * (place in relation order) + (1 for an inverse)
    entity_chunk: torch.Tensor  # [Q, 4] start, length, head, part or -1; those of cut rows come first
    cut_row: torch.Tensor  # [H] entities whose row is cut
    cut_part: torch.Tensor  # [H + 1] a cut row's parts
    part_row: torch.Tensor  # [S] entity of each part


def build_gpu_plan(plan: Plan) -> GpuPlan:
    """Derive the records from a plan; they lie on its device."""
    device = plan.head.device
    head, forward, inverse = (t.numpy(force=True) for t in (plan.head, plan.forward, plan.inverse))
    relation, tail = plan.context_relation.numpy(force=True), plan.context_tail.numpy(force=True)
    rows = plan.entity_chunk_row.numpy(force=True)
    num_relations, count = len(plan.relation_row) // 2, len(head)

    link = np.empty(2 * count, np.int64)
    link[forward], link[inverse] = 2 * np.arange(count), 2 * np.arange(count) + 1
    back = np.where(relation < num_relations, relation + num_relations, relation - num_relations)

    shortest, longest = RELATION_CHUNK
    size = min(max(count // RELATION_CHUNKS, shortest), longest)
    size = 1 << (size.bit_length() - 1)
    degree = np.bincount(relation[forward], minlength=num_relations)
    part, bounds, row = cut_rows(degree, size)
    chunk = np.stack([bounds[:-1], bounds[1:], row, np.arange(len(row))], 1)
    part = np.concatenate([part[:-1], part + part[-1]])

    degree = np.bincount(rows, np.diff(plan.entity_chunk.numpy(force=True))).astype(np.int64)
    first, bounds, row = cut_rows(degree, ENTITY_CHUNK, even=True)
    pieces = np.diff(first)
    slot = np.where(pieces[row] > 1, 0, -1)
    slot[slot == 0] = np.arange(np.count_nonzero(slot == 0))
    start, length = bounds[:-1], np.diff(bounds)
    # an empty chunk at the end of the order still names a triple that exists
    start = np.minimum(start, max(2 * count - 1, 0))
    entity_chunk = np.stack([start, length, row, slot], 1)
    cut = np.flatnonzero(pieces > 1)

    def ids(values: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int32)).to(device)

    return GpuPlan(
        raw=torch.stack([plan.head, plan.tail, plan.forward, plan.inverse], 1),
        triple=plan.triple,
        relation_chunk=ids(chunk[np.argsort(chunk[:, 0] - chunk[:, 1], kind="stable")]),
        relation_row=plan.relation_row,
        relation_part=ids(part),
        context=ids(np.stack([relation, tail, link, back], 1)),
        entity_chunk=ids(entity_chunk[np.lexsort((-length, slot < 0))]),
        cut_row=ids(cut),
        cut_part=ids(np.concatenate([[0], np.cumsum(pieces[cut])])),
        part_row=ids(row[slot >= 0]),
    )
