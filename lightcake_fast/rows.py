"""A context layer for some entities only, with the context "entity".

With this context a row depends only on the triples of its entity. So a subgraph with these triples is
enough, and the layer before it needs the triples of the subgraph's entities. The triples of one relation
can lie anywhere in the graph, so with relation contexts every layer computes all rows.
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

CUTTING = 80  # the cost of cutting out one triple, in numbers that a layer reads in the same time


class Part(NamedTuple):
    """The subgraph that some entities read.

    Attributes:
        graph: the raw triples with at least one of these entities as head or tail. Its triples and its
            entities are in the order of the whole graph.
        triples: int64 (T',), the positions of these triples in the whole graph.
        off: bool (T', 2), True masks a direction (triple, inverse): its head is not one of these entities.
        entities: int64 (N',), the ids of the subgraph's entities in the whole graph.
        rows: int64 (M,), the position of each requested entity in ``entities``.
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
    """Compute some rows of ``context_layer`` with the context "entity", bitwise equal to the whole layer.

    Args:
        entities: the rows of the part's entities (N', d), float32 or float64.
        relations: as in ``context_layer``.
        part: the subgraph of the requested entities.
        score: as in ``context_layer``.
        mask: as in ``context_layer``, for the triples of the whole graph.
        residual: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``, but not "triton".

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
    """The entities of a subgraph after a layer. Rows of entities that were not requested are meaningless."""

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
    """The raw triples of each entity, as head or tail: triple numbers (E,) and bounds per entity (N + 1,)."""

    triple: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int64]


_FOUND: "WeakKeyDictionary[ContextGraph, _Heads]" = WeakKeyDictionary()


def _heads(graph: ContextGraph) -> _Heads:
    """Return the triples per entity of a graph, cached as long as the graph exists."""
    if graph not in _FOUND:
        ends = graph.triples.numpy()[:, ::2].T.reshape(-1).astype(np.int32)
        order = stable_order((ends, graph.num_entities))
        degrees = np.bincount(ends, minlength=graph.num_entities)
        place = np.where(order < graph.num_triples, order, order - graph.num_triples)
        _FOUND[graph] = _Heads(place.astype(np.int32), np.concatenate([[0], np.cumsum(degrees)]))
    return _FOUND[graph]


def part_of(graph: ContextGraph, ids: Tensor, dim: int, backend: str = "auto") -> Part | None:
    """Cut out the subgraph that some entities read.

    Args:
        graph: the whole graph.
        ids: int64 (M,), the entities; repeats are allowed.
        dim: d, the width of the rows that a layer will read.
        backend: as in ``context_layer``.

    Returns:
        The subgraph. None on a GPU, and where the entities read so much of the graph that cutting saves no
        time.
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
    near = np.zeros(graph.num_triples, bool)  # one masked direction saves almost no time
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
