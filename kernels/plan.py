"""The order in which the passes walk a graph. Each graph builds it once, for every fused back end.

Source: the relation-first plan of docs/architecture.md. A triple and its inverse are processed together in
relation order. Each entity's context is then summed in head order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

RELATION_CHUNK = 128  # raw triples; one partial sum per chunk is 8 bytes per context triple at d = 256
ENTITY_CHUNK = 256  # context triples; longer rows (hubs) are cut, which also reduces the rounding of sums
TASK_COST = 256  # context triples that a thread takes at once
LONGEST_TASK = TASK_COST + ENTITY_CHUNK  # maximum number of context triples per task

GPU_RELATION_CHUNKS = 4096  # programs needed to hide latency, if the graph has enough triples
GPU_RELATION_CHUNK = (32, 256)  # minimum and maximum of raw triples per chunk
GPU_WAVE = 132 * 8  # relation programs at once on an H100: multiprocessors times warps on each
GPU_ENTITY_CHUNK = 32  # context triples; a program takes them one by one, from several chunks at once
GPU_SIDE_BY_SIDE = 16  # maximum number of chunks per program; these are all cut or all uncut
GPU_NO_CHUNK = -2  # the part that marks an empty place among the chunks
GPU_MOST_CHUNKS = 2**29  # the kernels compute the places of a chunk's four numbers in int32
GPU_MOST_ROWS = 2**30  # the kernels compute the places of a row's two numbers in int32


class Plan(NamedTuple):
    """Index tensors of a graph with T raw triples, E = 2T context triples, N entities, R raw relations.

    Relation order sorts the raw triples by relation. The record of a context triple is 2 * (place of its raw
    triple in relation order) + (1 for an inverse). Head order sorts all E context triples by their head. A
    chunk is a sequence of triples with the same row. A task is a sequence of chunks. All tasks have about
    equal cost.
    """

    head: torch.Tensor  # [T] int32, relation order
    tail: torch.Tensor  # [T] int32, relation order
    triple: torch.Tensor  # [T] int32, place of the triple in the given triples
    relation_chunk: torch.Tensor  # [P + 1] int64, bounds in relation order
    relation_chunk_row: torch.Tensor  # [P] int32, raw relation
    relation_row: torch.Tensor  # [2R] int32: 0 .. 2R - 1, the rows of relation_part
    relation_part: torch.Tensor  # [2R + 1] int64, bounds of a row's parts among 2P: chunks, then inverses
    context_relation: torch.Tensor  # [E] int32 below 2R, head order
    context_tail: torch.Tensor  # [E] int32, head order
    context_record: torch.Tensor  # [E] int32, head order: the record (see above)
    entity_chunk: torch.Tensor  # [Q + 1] int64, bounds in head order
    entity_chunk_row: torch.Tensor  # [Q] int32, head
    entity_chunk_slot: torch.Tensor  # [Q] int32, place among the parts of cut rows, -1 for uncut rows
    entity_task: torch.Tensor  # [K + 1] int64, bounds in chunks
    cut_row: torch.Tensor  # [H] int32, entities with a cut row
    cut_slot: torch.Tensor  # [H + 1] int64, bounds of their slots


class GpuPlan(NamedTuple):
    """The same order of work for the Triton kernels: records, shorter chunks, sorted for warps; all int32.

    A record holds values that are read together in one memory sector. Chunks are sorted by length, longest
    first. So programs that start last end soon, and chunks that share a program have nearly equal length.
    """

    raw: torch.Tensor  # [T, 4] relation order: head, tail, places of the triple and its inverse in head order
    triple: torch.Tensor  # [T] relation order: place in the given triples
    relation_chunk: torch.Tensor  # [P, 4] start, end, raw relation, part (the inverse has part + P)
    context: torch.Tensor  # [E, 4] head order: relation below 2R, tail, record, inverse relation
    entity_chunk: torch.Tensor  # [Q, 4] start, end, head, part or -1: chunks of cut rows, then the others,
    # both padded with empty places to a multiple of GPU_SIDE_BY_SIDE
    merge_row: torch.Tensor  # [2R + H] rows that consist of parts: all relations, then the H cut entities
    merge_part: torch.Tensor  # [2R + H + 1] bounds of their parts among S: 2P of relations, then entities
    part_row: torch.Tensor  # [S] the place of each part's row in merge_row


class Orders(NamedTuple):
    """The two orders that every back end walks (fields of `Plan` with the same names), and the degrees."""

    head: Ids
    tail: Ids
    triple: Ids
    context_relation: Ids
    context_tail: Ids
    context_record: Ids
    relation_degree: Array  # [R] raw triples
    entity_degree: Array  # [N] context triples


def build_plan(triples: Ids, num_entities: int, num_relations: int) -> Plan:
    """Sort and cut the triples [T, 3] of (head, relation, tail). The caller has checked the ids."""
    orders = sort_triples(triples, num_entities, num_relations)
    relation_first, relation_chunk, relation_chunk_row = cut_rows(orders.relation_degree, RELATION_CHUNK)
    entity_first, entity_chunk, entity_chunk_row = cut_rows(orders.entity_degree, ENTITY_CHUNK)
    pieces = np.diff(entity_first)
    slot = np.where(pieces[entity_chunk_row] > 1, 0, -1)
    slot[slot == 0] = np.arange(np.count_nonzero(slot == 0))
    cut_row = np.flatnonzero(pieces > 1)
    cost = np.diff(entity_chunk) + 2  # loads and stores of a row cost about two triples
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
    place = np.empty(2 * count, np.int32)  # place of a triple and of its inverse in head order
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
    """Return the number of raw triples per chunk of a relation on a GPU.

    The function compares three lengths. It assumes that a GPU runs whole waves of programs, and that the time
    of a program is proportional to its number of triples. It returns the fastest length.
    """
    shortest, longest = GPU_RELATION_CHUNK
    size = min(max(int(degree.sum()) // GPU_RELATION_CHUNKS, shortest), longest)
    size = 1 << (size.bit_length() - 1)

    def waves(chunk: int) -> int:
        return -(-int((-(-degree // chunk)).sum()) // GPU_WAVE)

    return min((min(size * quarters // 4, longest) for quarters in (4, 5, 6)), key=lambda c: waves(c) * c)


def sort_triples(triples: Ids, num_entities: int, num_relations: int) -> Orders:
    """Return both orders of the triples [T, 3]. Ids and places stay int32."""
    count = len(triples)
    head, relation, tail = (np.ascontiguousarray(ids, np.int32) for ids in triples.T)

    # first the side with fewer distinct entities: its rows repeat within a chunk
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
    # equal relation rows in a head's context follow one another, so the cache serves them
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
    """Return the order that sorts by columns (ids, upper limit), the first column first.

    Ties keep their order.

    It takes a fifth of the time of `np.lexsort`. Each 64-bit number packs the place and as many columns as
    fit. NumPy sorts such numbers with vector instructions.
    """
    left, order = list(columns), None
    place_bits = len(columns[0][0]).bit_length()
    while left:
        used, word = place_bits, np.arange(len(columns[0][0]))
        while left and used + left[-1][1].bit_length() < 64:  # below 2^31: one id always fits
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
    """Sort chunks (start, end, row, part), longest first, and pad the last program with empty places.

    An empty chunk is (1, 1). Kernels read ``start`` and ``end - 1`` with weight zero, and both must exist.
    """
    chunk = chunk[np.argsort(chunk[:, 0] - chunk[:, 1], kind="stable")]
    empty = np.full((-len(chunk) % GPU_SIDE_BY_SIDE, 4), [1, 1, 0, GPU_NO_CHUNK])
    return np.concatenate([chunk, empty])


def _distinct(relation: Ids, entity: Ids, num_entities: int, num_relations: int) -> Array:
    """Return the number of distinct entities that each relation has on one side, shape [R]."""
    pairs = relation.astype(np.int64) * num_entities + entity
    pairs.sort()
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return np.bincount(pairs // max(num_entities, 1), minlength=num_relations)


def _ids(values: npt.NDArray[Any]) -> torch.Tensor:
    return index_tensor(values, np.int32)


def index_tensor(values: npt.NDArray[Any], kind: type[np.signedinteger[Any]]) -> torch.Tensor:
    """Return integers as a tensor of a dtype."""
    import torch  # not at the top: a process that only compiles passes does not load torch

    tensor = torch.from_numpy(np.ascontiguousarray(values, kind))
    # an empty array has strides of zero, which torch.export.save cannot write
    return tensor if tensor.numel() else tensor.new_empty(tensor.shape)


def cut_rows(lengths: Array, longest: int, *, even: bool = False) -> tuple[Array, Array, Array]:
    """Cut rows of these lengths into chunks: (a row's chunks [rows + 1], bounds [P + 1], row [P]).

    Every row has at least one chunk, and an empty row has an empty chunk. All chunks of a row are full except
    the last. With ``even`` their lengths are as equal as possible.
    """
    pieces = np.maximum(1, -(-lengths // longest))
    first = np.concatenate([[0], np.cumsum(pieces)])
    row = np.repeat(np.arange(len(lengths)), pieces)
    start = np.cumsum(lengths) - lengths
    number = np.arange(len(row)) - first[row]
    bounds = start[row] + (number * lengths[row] // pieces[row] if even else number * longest)
    return first, np.concatenate([bounds, [lengths.sum()]]), row
