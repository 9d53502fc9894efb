"""New rows of some entities alone, of a layer with the entity context: each reads its own triples only.

A graph of these triples is cut out for them, and of it another one for the layer before. A relation's context
has triples everywhere: with it a layer is the whole layer.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels.plan import stable_order
from lightcake_fast.ops import compile_together
from lightcake_fast.reference import layer as reference
from lightcake_fast.sharding import operator

CUTTING = 80  # numbers that a layer reads for a triple in the time that cutting it out takes


class Part(NamedTuple):
    """What some entities read of a graph.

    Attributes:
        graph: the raw triples of which one of these entities is the head or the tail, in the graph's order,
            over the entities that they name, in the graph's order as well.
        triples: int64 (T',), their places in the graph.
        off: bool (T', 2), the directions, triple and inverse, whose head is none of these entities.
        entities: int64 (N',), the graph's entity of each.
        rows: int64 (M,), the place among them of each entity that was asked for.
    """

    graph: ContextGraph
    triples: Tensor
    off: Tensor
    entities: Tensor
    rows: Tensor


def context_rows(
    entities: Tensor,
    relations: Tensor,
    part: Part,
    *,
    score: str = "distmult",
    mask: Tensor | None = None,
    residual: bool = True,
    rows: str = "float32",
    backend: str = "auto",
) -> Tensor:
    """Some rows of ``context_layer`` with the context "entity", in the same bits.

    Args:
        entities: the rows of the part's entities (N', d), float32 or float64.
        relations: as in ``context_layer``.
        part: what the entities read whose new rows are wanted.
        score: as in ``context_layer``.
        mask: as in ``context_layer``, of the whole graph's triples.
        residual: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``; not "triton".

    Returns:
        New rows (M, d).

    Raises:
        ValueError: as ``context_layer``.
    """
    chosen = operator.check_tables(entities, relations, score, backend)
    off = part.off
    if mask is not None:
        off = off | mask.index_select(0, part.triples)[:, None]
    if chosen == "reference":
        both_ways = off.T.reshape(-1)
        triples = part.graph.context_triples
        new, _ = reference.context_layer(
            entities, relations, triples, both_ways, score, "entity", residual, rows
        )
    else:
        tables = entities.contiguous(), relations.contiguous()
        compile_together(*tables, score, "entity", rows)
        new = _PartialLayer.apply(*tables, part.graph, off, score, residual, rows)  # type: ignore[no-untyped-call]
    return functional.embedding(part.rows, new)


class _PartialLayer(torch.autograd.Function):
    """The entities of a part of a graph after a layer; those that were not asked for mean nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        graph: ContextGraph,
        off: Tensor,
        score: str,
        residual: bool,
        rows: str,
    ) -> Tensor:
        share = operator.forward(x, y, graph, off, score, "entity", residual, rows, "numba")
        ctx.save_for_backward(x, y, *share)
        ctx.rest = graph, score, residual, "numba"
        return share.entities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *saved = ctx.saved_tensors
        share = operator.Share(*saved)
        whole = share.means, share.norm_relations
        grad_x, grad_y = operator.backward(
            g.contiguous(), torch.zeros_like(y), x, y, share, *whole, *ctx.rest
        )
        return grad_x, grad_y, *[None] * 5


@dataclass(frozen=True, eq=False)
class _Heads:
    """The raw triples of each entity, as head or tail: places (E,) and the bounds of entities (N + 1,)."""

    triple: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int64]


_FOUND: "WeakKeyDictionary[ContextGraph, _Heads]" = WeakKeyDictionary()


def _heads(graph: ContextGraph) -> _Heads:
    """Those of a graph, kept as long as it lives."""
    if graph not in _FOUND:
        ends = graph.triples.numpy()[:, ::2].T.reshape(-1).astype(np.int32)
        order = stable_order((ends, graph.num_entities))
        degrees = np.bincount(ends, minlength=graph.num_entities)
        place = np.where(order < graph.num_triples, order, order - graph.num_triples)
        _FOUND[graph] = _Heads(place.astype(np.int32), np.concatenate([[0], np.cumsum(degrees)]))
    return _FOUND[graph]


def part_of(graph: ContextGraph, ids: Tensor, dim: int, backend: str = "auto") -> Part | None:
    """What entities read.

    Args:
        graph: the whole one.
        ids: int64 (M,), the entities, some of them more than once perhaps.
        dim: d, of the rows that a layer will read.
        backend: as in ``context_layer``.

    Returns:
        None on a GPU, and where they read so much of the graph that nothing is saved.
    """
    if graph.device.type != "cpu" or backend == "triton":
        return None
    heads, asked = _heads(graph), ids.numpy()
    wanted = np.zeros(graph.num_entities, bool)
    wanted[asked] = True
    entities = np.flatnonzero(wanted)
    first, length = heads.bounds[entities], heads.bounds[entities + 1] - heads.bounds[entities]
    most = graph.num_triples * dim // (dim + CUTTING)
    if length.sum() > 2 * most:
        return None
    near = np.zeros(graph.num_triples, bool)  # a triple takes about as long if one direction is off
    before = np.cumsum(length) - length
    near[heads.triple[np.arange(length.sum()) + np.repeat(first - before, length)]] = True
    found = np.flatnonzero(near)
    if len(found) > most:
        return None
    triples = torch.from_numpy(found)
    local = graph.triples_at(triples).numpy()
    off = ~wanted[local[:, ::2]]
    wanted[local[:, ::2]] = True
    entities = np.flatnonzero(wanted)
    place = np.empty(graph.num_entities, np.int64)
    place[entities] = np.arange(len(entities))
    local[:, ::2] = place[local[:, ::2]]
    return Part(
        graph=ContextGraph.from_triples(local, len(entities), graph.num_relations),
        triples=triples,
        off=torch.from_numpy(off),
        entities=torch.from_numpy(entities),
        rows=torch.from_numpy(place[asked]),
    )
