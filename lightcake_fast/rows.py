"""New rows of some entities alone, of a layer with the entity context: each reads its own triples only.

A graph of these triples is cut out for every call. A relation's context has triples everywhere: with it a
layer is the whole layer.
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
from lightcake_fast.reference import layer as reference
from lightcake_fast.sharding import operator

LARGEST_SHARE = 0.4  # of a graph's context triples: with more of them the whole layer is as fast


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
    graph: ContextGraph,
    ids: Tensor,
    *,
    score: str = "distmult",
    mask: Tensor | None = None,
    residual: bool = True,
    rows: str = "float32",
    backend: str = "auto",
) -> Tensor | None:
    """Some rows of ``context_layer`` with the context "entity", in the same bits.

    Args:
        entities: as in ``context_layer``, float32 or float64.
        relations: as in ``context_layer``.
        graph: as in ``context_layer``.
        ids: int64 (M,), the entities whose new rows are wanted, some of them more than once perhaps.
        score: as in ``context_layer``.
        mask: as in ``context_layer``.
        residual: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``.

    Returns:
        New rows (M, d); None on a GPU, and where they read so much of the graph that nothing is saved.

    Raises:
        ValueError: as ``context_layer``.
    """
    if graph.device.type != "cpu":
        return None
    chosen = operator.check_tables(entities, relations, score, backend)
    part = _part(graph, ids)
    if part is None or chosen == "triton":
        return None
    off = part.off
    if mask is not None:
        off = off | mask.index_select(0, part.triples)[:, None]
    x = functional.embedding(part.entities, entities)
    if chosen == "reference":
        both_ways = off.T.reshape(-1)
        triples = part.graph.context_triples
        new, _ = reference.context_layer(x, relations, triples, both_ways, score, "entity", residual, rows)
    else:
        new = _PartialLayer.apply(x, relations.contiguous(), part.graph, off, score, residual, rows)  # type: ignore[no-untyped-call]
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


def _part(graph: ContextGraph, ids: Tensor) -> Part | None:
    """What entities read, or None if it is too much."""
    heads, asked = _heads(graph), ids.numpy()
    wanted = np.zeros(graph.num_entities, bool)
    wanted[asked] = True
    entities = np.flatnonzero(wanted)
    first, length = heads.bounds[entities], heads.bounds[entities + 1] - heads.bounds[entities]
    if length.sum() > LARGEST_SHARE * len(heads.triple):
        return None
    near = np.zeros(graph.num_triples, bool)
    before = np.cumsum(length) - length
    near[heads.triple[np.arange(length.sum()) + np.repeat(first - before, length)]] = True
    triples = torch.from_numpy(np.flatnonzero(near))
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
