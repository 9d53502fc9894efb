"""The order in which the passes walk a graph: built once for it, from arrays, by every back end that fuses.

Source: the relation-first plan of docs/architecture.md. A triple and its inverse are settled together in
relation order; each entity's context is then summed in head order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

RELATION_CHUNK = 128  # raw triples: one partial sum a chunk, 8 bytes a context triple at d = 256
ENTITY_CHUNK = 256  # context triples: longer rows (hubs) are cut, also for the sake of their sums' rounding
TASK_COST = 256  # context triples that a thread takes at a time
LONGEST_TASK = TASK_COST + ENTITY_CHUNK  # context triples of a task, at most

GPU_RELATION_CHUNKS = 4096  # programs that a card's latency asks for, where the graph has triples enough
GPU_RELATION_CHUNK = (32, 256)  # raw triples of a chunk: shortest and longest
GPU_WAVE = (
    132 * 8
)  # relation programs at once on an H100: so many multiprocessors, so many of their warps on each
GPU_ENTITY_CHUNK = 32  # context triples: a program takes them one at a time, several chunks side by side
GPU_SIDE_BY_SIDE = 16  # chunks that share a program, at most: so many have one kind
GPU_NO_CHUNK = -2  # the part that marks an empty place among them
GPU_MOST_CHUNKS = 2**29  # the kernels compute the places of a chunk's four numbers in int32
GPU_MOST_ROWS = 2**30  # and the places of a row's two numbers


class Plan(NamedTuple):
    """Index tensors of a graph with T raw triples, E = 2T context triples, N entities, R raw relations.

    Relation order sorts the raw triples by relation; a context triple's record is 2 * (its triple's place
    there) + (1 for an inverse). Head order sorts all E context triples by their head. A chunk is a run of
    triples of one row; a task is a run of chunks of about equal cost.
    """

    head: torch.Tensor  # [T] int32, relation order
    tail: torch.Tensor  # [T] int32, relation order
    triple: torch.Tensor  # [T] int32, place of the triple in the triples given
    relation_chunk: torch.Tensor  # [P + 1] int64, bounds in relation order
    relation_chunk_row: torch.Tensor  # [P] int32, raw relation
    relation_row: torch.Tensor  # [2R] int32: 0 .. 2R - 1, the rows whose parts follow
    relation_part: torch.Tensor  # [2R + 1] int64, a row's parts among 2P: the chunks, then their inverses
    context_relation: torch.Tensor  # [E] int32 below 2R, head order
    context_tail: torch.Tensor  # [E] int32, head order
    context_record: torch.Tensor  # [E] int32, head order: the record, see above
    entity_chunk: torch.Tensor  # [Q + 1] int64, bounds in head order
    entity_chunk_row: torch.Tensor  # [Q] int32, head
    entity_chunk_slot: torch.Tensor  # [Q] int32, place among the parts of cut rows, -1 in uncut rows
    entity_task: torch.Tensor  # [K + 1] int64, bounds in chunks
    cut_row: torch.Tensor  # [H] int32, entities whose row is cut
    cut_slot: torch.Tensor  # [H + 1] int64, their slots


class GpuPlan(NamedTuple):
    """The same order of work for the Triton kernels: records, cut finer, sorted for warps; all int32.

    Records keep what is read together in one sector. Chunks are sorted longest first: programs that
    start last end soon, and chunks that share a program have nearly one length.
    """

    raw: torch.Tensor  # [T, 4] relation order: head, tail, place of the triple, of its inverse in head order
    triple: torch.Tensor  # [T] relation order: place in the triples given
    relation_chunk: torch.Tensor  # [P, 4] start, end, raw relation, part (the inverse's is P further)
    context: torch.Tensor  # [E, 4] head order: relation below 2R, tail, record, inverse relation
    entity_chunk: torch.Tensor  # [Q, 4] start, end, head, part or -1: chunks of cut rows, then the others,
    # both with empty places up to a multiple of GPU_SIDE_BY_SIDE
    merge_row: torch.Tensor  # [2R + H] rows made of parts: all relations, then the H cut entities
    merge_part: torch.Tensor  # [2R + H + 1] their parts among S: 2P of relations, then those of entities
    part_row: torch.Tensor  # [S] the place in merge_row of each part's row


class Orders(NamedTuple):
    """The two orders that every back end walks: the fields of `Plan` that are called so, and the degrees."""

    head: Ids
    tail: Ids
    triple: Ids
    context_relation: Ids
    context_tail: Ids
    context_record: Ids
    relation_degree: Array  # [R] raw triples
    entity_degree: Array  # [N] context triples


def build_plan(triples: Ids, num_entities: int, num_relations: int) -> Plan:
    """Sort and cut the triples [T, 3] of (head, relation, tail), whose ids are known to be in range."""
    orders = sort_triples(triples, num_entities, num_relations)
    relation_first, relation_chunk, relation_chunk_row = cut_rows(orders.relation_degree, RELATION_CHUNK)
    entity_first, entity_chunk, entity_chunk_row = cut_rows(orders.entity_degree, ENTITY_CHUNK)
    pieces = np.diff(entity_first)
    slot = np.where(pieces[entity_chunk_row] > 1, 0, -1)
    slot[slot == 0] = np.arange(np.count_nonzero(slot == 0))
    cut_row = np.flatnonzero(pieces > 1)
    cost = np.diff(entity_chunk) + 2  # a row's own loads and stores cost about two triples
    task = np.concatenate([[-1], np.cumsum(cost) // TASK_COST])

    def offsets(values: Array) -> torch.Tensor:
        return index_tensor(values, np.int64)

    return Plan(
        head=_ids(orders.head),
        tail=_ids(orders.tail),
        triple=_ids(orders.triple),
        relation_chunk=offsets(relation_chunk),
        relation_chunk_row=_ids(relation_chunk_row),
        relation_row=_ids(np.arange(2 * num_relations)),
        relation_part=offsets(np.concatenate([relation_first[:-1], relation_first + relation_first[-1]])),
        context_relation=_ids(orders.context_relation),
        context_tail=_ids(orders.context_tail),
        context_record=_ids(orders.context_record),
        entity_chunk=offsets(entity_chunk),
        entity_chunk_row=_ids(entity_chunk_row),
        entity_chunk_slot=_ids(slot),
        entity_task=offsets(np.append(np.flatnonzero(np.diff(task)), len(cost))),
        cut_row=_ids(cut_row),
        cut_slot=offsets(np.concatenate([[0], np.cumsum(pieces[cut_row])])),
    )


def build_gpu_plan(triples: Ids, num_entities: int, num_relations: int) -> GpuPlan:
    """Sort and cut the triples [T, 3] as `build_plan` does, for the Triton kernels."""
    orders = sort_triples(triples, num_entities, num_relations)
    relation, count = orders.context_relation, len(triples)
    place = np.empty(2 * count, np.int32)  # in head order, of a triple and of its inverse
    place[orders.context_record] = np.arange(2 * count, dtype=np.int32)
    inverse = np.where(relation < num_relations, relation + num_relations, relation - num_relations)

    _, bounds, row = cut_rows(orders.relation_degree, gpu_relation_chunk(orders.relation_degree))
    chunk = np.stack([bounds[:-1], bounds[1:], row], 1)[np.diff(bounds) > 0]
    chunk = np.concatenate([chunk, np.arange(len(chunk))[:, None]], 1)
    parts = np.bincount(chunk[:, 2], minlength=num_relations)

    first, bounds, row = cut_rows(orders.entity_degree, GPU_ENTITY_CHUNK, even=True)
    pieces = np.diff(first)
    is_cut = pieces[row] > 1
    slot = np.where(is_cut, 2 * len(chunk) + np.cumsum(is_cut) - 1, -1)
    start, end = bounds[:-1], bounds[1:]
    start, end = np.where(start == end, 1, start), np.where(start == end, 1, end)  # see _side_by_side
    entity_chunk = np.stack([start, end, row, slot], 1)
    cut = np.flatnonzero(pieces > 1)
    parts = np.concatenate([parts, parts, pieces[cut]])
    return GpuPlan(
        raw=_ids(np.stack([orders.head, orders.tail, place[0::2], place[1::2]], 1)),
        triple=_ids(orders.triple),
        relation_chunk=_ids(chunk[np.argsort(chunk[:, 0] - chunk[:, 1], kind="stable")]),
        context=_ids(np.stack([relation, orders.context_tail, orders.context_record, inverse], 1)),
        entity_chunk=_ids(np.concatenate([_side_by_side(entity_chunk[kind]) for kind in (is_cut, ~is_cut)])),
        merge_row=_ids(np.concatenate([np.arange(2 * num_relations), cut])),
        merge_part=_ids(np.concatenate([[0], np.cumsum(parts)])),
        part_row=_ids(np.repeat(np.arange(len(parts)), parts)),
    )


def gpu_relation_chunk(degree: Array) -> int:
    """Raw triples of a relation's chunk on a GPU, so that its programs fill their last wave too.

    Of three lengths, the one with the least time where a card runs whole waves of programs, each of them as
    long as its triples.
    """
    shortest, longest = GPU_RELATION_CHUNK
    size = min(max(int(degree.sum()) // GPU_RELATION_CHUNKS, shortest), longest)
    size = 1 << (size.bit_length() - 1)

    def waves(chunk: int) -> int:
        return -(-int((-(-degree // chunk)).sum()) // GPU_WAVE)

    return min((min(size * quarters // 4, longest) for quarters in (4, 5, 6)), key=lambda c: waves(c) * c)


def sort_triples(triples: Ids, num_entities: int, num_relations: int) -> Orders:
    """Both orders of the triples [T, 3]; what is d-wide in neither is kept in 32 bits throughout."""
    count = len(triples)
    head, relation, tail = (np.ascontiguousarray(ids, np.int32) for ids in triples.T)

    # the side with fewer distinct entities first: its rows repeat within a chunk
    tail_repeats = _distinct(relation, tail, num_entities, num_relations) < _distinct(
        relation, head, num_entities, num_relations
    )
    tail_first = tail_repeats[relation]
    by_relation = stable_order(
        (relation, num_relations),
        (np.where(tail_first, tail, head), num_entities),
        (np.where(tail_first, head, tail), num_entities),
    )
    record = np.empty(2 * count, np.int32)
    record[by_relation] = np.arange(0, 2 * count, 2, dtype=np.int32)
    record[count:] = record[:count] + 1

    heads, tails = np.concatenate([head, tail]), np.concatenate([tail, head])
    relations = np.concatenate([relation, relation + np.int32(num_relations)])
    # equal relation rows of a head's context follow one another, so they are read from the cache
    by_head = stable_order((heads, num_entities), (relations, 2 * num_relations), (tails, num_entities))
    return Orders(
        head=head[by_relation],
        tail=tail[by_relation],
        triple=by_relation,
        context_relation=relations[by_head],
        context_tail=tails[by_head],
        context_record=record[by_head],
        relation_degree=np.bincount(relation, minlength=num_relations),
        entity_degree=np.bincount(heads, minlength=num_entities),
    )


def stable_order(*columns: tuple[Ids, int]) -> Ids:
    """The order that sorts by columns (ids, number above them), the first column first; ties stay in order.

    `np.lexsort` in a fifth of its time: as many columns as fit and the place form one 64-bit number, and
    numbers without their places beside them are sorted by vector instructions.
    """
    left, order = list(columns), None
    place_bits = len(columns[0][0]).bit_length()
    while left:
        used, word = place_bits, np.arange(len(columns[0][0]))
        while left and used + left[-1][1].bit_length() < 64:  # ids and places are below 2^31: one always fits
            ids, limit = left.pop()
            word |= (ids if order is None else ids[order]).astype(np.int64) << used
            used += limit.bit_length()
        word.sort()
        word &= (1 << place_bits) - 1
        place = word.astype(np.int32)
        order = place if order is None else order[place]
    assert order is not None
    return order


def _side_by_side(chunk: Array) -> Array:
    """Chunks (start, end, row, part) longest first, with empty places for what a program lacks.

    An empty chunk is (1, 1): ``start`` and ``end - 1``, which are read at no weight, both exist.
    """
    chunk = chunk[np.argsort(chunk[:, 0] - chunk[:, 1], kind="stable")]
    empty = np.full((-len(chunk) % GPU_SIDE_BY_SIDE, 4), [1, 1, 0, GPU_NO_CHUNK])
    return np.concatenate([chunk, empty])


def _distinct(relation: Ids, entity: Ids, num_entities: int, num_relations: int) -> Array:
    """How many distinct entities a relation has on one side, shape [R]."""
    pairs = relation.astype(np.int64) * num_entities + entity
    pairs.sort()
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return np.bincount(pairs // max(num_entities, 1), minlength=num_relations)


def _ids(values: npt.NDArray[Any]) -> torch.Tensor:
    return index_tensor(values, np.int32)


def index_tensor(values: npt.NDArray[Any], kind: type[np.signedinteger[Any]]) -> torch.Tensor:
    """Whole numbers as a tensor of a type."""
    import torch  # not above: who compiles the passes needs the constants alone

    tensor = torch.from_numpy(np.ascontiguousarray(values, kind))
    # an empty array has strides of zero, which torch.export.save cannot write
    return tensor if tensor.numel() else tensor.new_empty(tensor.shape)


def cut_rows(lengths: Array, longest: int, *, even: bool = False) -> tuple[Array, Array, Array]:
    """Cut rows of these lengths into chunks: (a row's chunks [rows + 1], bounds [P + 1], row [P]).

    Every row has at least one chunk, an empty one an empty chunk. Chunks are full but for a row's last, or
    as even as can be.
    """
    pieces = np.maximum(1, -(-lengths // longest))
    first = np.concatenate([[0], np.cumsum(pieces)])
    row = np.repeat(np.arange(len(lengths)), pieces)
    start = np.cumsum(lengths) - lengths
    number = np.arange(len(row)) - first[row]
    bounds = start[row] + (number * lengths[row] // pieces[row] if even else number * longest)
    return first, np.concatenate([bounds, [lengths.sum()]]), row
