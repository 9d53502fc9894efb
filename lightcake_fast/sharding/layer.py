"""A layer that several processes compute together; each computes the rows that it owns.

Before the passes, each rank receives its halo rows. After them, gradients of halo rows go back to their
owners. Entity softmaxes need no communication, because one rank has all triples of a head. Relation
rows are the same on all ranks. Outside of a layer, each rank holds a share of their gradient; the sum of the
shares is the gradient.

A rank with H halo rows sends this many bytes per layer, where w is the size of a number and S the number of
its rows that are halo rows of other ranks: ``(S + H) d w + (P - 1) 2R (d + 2) w + 2 (P - 1)/P 2R d w``. The
terms are the halo rows and their gradients, the relation means, and the relation gradients. With context
"entity" only the first term remains. With rows "bfloat16" the S rows have 2 bytes per number.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.sharding import operator
from lightcake_fast.sharding.shard import HeldTriples, Layout
from lightcake_fast.sharding.world import World


class Shard:
    """The part of the context on one rank, and its connections to the other ranks.

    Args:
        layout: The rank's rows.
        held: Its training triples.
        num_relations: R.
        world: All ranks.
        device: Device of the computation.

    Attributes:
        layout: As given.
        held: As given.
        world: As given.
        graph: The held triples, over the own rows and the halo.
    """

    def __init__(
        self, layout: Layout, held: HeldTriples, num_relations: int, world: World, device: torch.device
    ) -> None:
        self.layout, self.held, self.world = layout, held, world
        self.own, halo = len(layout.rows), len(layout.halo)
        heads, tails = layout.local(held.triples[:, 0]), layout.local(held.triples[:, 2])
        triples = torch.from_numpy(np.stack([heads, held.triples[:, 1], tails], 1)).to(device)
        self.graph = ContextGraph.from_triples(triples, self.own + halo, num_relations)
        self._dead = torch.from_numpy(held.owners != layout.rank).to(device)
        self._sent = torch.from_numpy(layout.sent).to(device)
        self._out, self._in = layout.sent_to.tolist(), layout.halo_from.tolist()

    def left_out(self, mask: Tensor | None) -> Tensor:
        """Return the masked directions, bool (T, 2), for a mask of raw triples (T,) or None."""
        return self._dead if mask is None else self._dead | mask[:, None]

    def with_halo(self, own: Tensor, rows: str) -> Tensor:
        """Append halo rows to own rows (n, d), sent in dtype ``rows``, because only triples read them."""
        sent = own.index_select(0, self._sent)
        if rows == "bfloat16":
            sent = sent.bfloat16()
        return torch.cat([own, self.world.exchange(sent, self._out, self._in).to(own.dtype)])

    def to_owners(self, gradients: Tensor) -> Tensor:
        """Send gradients of halo rows to their owners; return the gradients of owned rows (n, d)."""
        own, halo = gradients[: self.own].clone(), gradients[self.own :]
        owed = self.world.exchange(halo, self._in, self._out)
        # a row comes from each rank at most once, so adding rank by rank needs no atomics
        for rows, part in zip(torch.split(self._sent, self._out), torch.split(owed, self._out), strict=True):
            own.index_add_(0, rows, part)
        return own


AnyGraph = ContextGraph | Shard  # the whole context, or a rank's part of it


def sharded_layer(
    entities: Tensor,
    relations: Tensor,
    shard: Shard,
    *,
    score: str = "distmult",
    context: str = "both",
    mask: Tensor | None = None,
    residual: bool = True,
    rows: str = "float32",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute ``context_layer`` for a graph that is divided among processes. All processes must call it.

    Args:
        entities: the rank's own rows (n, d), float32 or float64.
        relations: shape (2R, d), the same on all ranks.
        shard: the rank's part of the graph.
        score: as in ``context_layer``.
        context: as in ``context_layer``.
        mask: bool (T,), for the triples that the shard holds.
        residual: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``.

    Returns:
        New own rows (n, d) and relations (2R, d).

    Raises:
        ValueError: as ``context_layer``.
    """
    chosen = operator.check_tables(entities, relations, score, backend)
    x, y = _ShardedLayer.apply(  # type: ignore[no-untyped-call]
        entities, relations, shard, shard.left_out(mask), score, context, residual, rows, chosen
    )
    return x, y


def with_halo(rows: Tensor, graph: AnyGraph) -> tuple[Tensor, ContextGraph]:
    """Return the rows of all entities in a graph's triples, and the graph over these rows.

    For a shard, ``rows`` holds only the owned rows (n, d). The result appends the halo rows, and their
    gradients go back to the owners. All ranks must call it.
    """
    if isinstance(graph, ContextGraph):
        return rows, graph
    return _WithHalo.apply(rows, graph), graph.graph  # type: ignore[no-untyped-call]


class _WithHalo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.with_halo(rows, "float32")

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.to_owners(g), None


def exchanged(rows: Tensor, world: World, sent: list[int], received: list[int]) -> Tensor:
    """Exchange rows with ``World.exchange``; gradients go back the same way."""
    found: Tensor = _Exchange.apply(rows, world, sent, received)  # type: ignore[no-untyped-call]
    return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: World, sent: list[int], received: list[int]) -> Tensor:
        ctx.back = world, received, sent
        return world.exchange(rows, sent, received)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        world, sent, received = ctx.back
        return world.exchange(g, sent, received), None, None, None


class _ShardedLayer(torch.autograd.Function):
    """Exchange rows twice, gather the relation means once, add the relation gradients once."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        shard: Shard,
        off: Tensor,
        score: str,
        context: str,
        residual: bool,
        rows: str,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        x, y = shard.with_halo(x, rows), y.contiguous()
        share = operator.forward(x, y, shard.graph, off, score, context, residual, rows, backend)
        new_y, norm_y = share.means, share.norm_relations
        if context != "entity":
            both = shard.world.gather(torch.cat([share.means, share.norm_relations], 1))
            own = y if residual else None
            new_y, norm_y = operator.merge_relations(own, both[..., :-2], both[..., -2:])
        ctx.save_for_backward(x, y, *share, new_y, norm_y)
        ctx.shard, ctx.context, ctx.residual, ctx.rest = shard, context, residual, (score, residual, backend)
        return share.entities[: shard.own].clone(), new_y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, q: Tensor) -> tuple[Tensor | None, ...]:
        shard: Shard = ctx.shard
        x, y, *rest = ctx.saved_tensors
        share, (new_y, norm_y) = operator.Share(*rest[:6]), rest[6:]
        # without relation contexts the relation weights are zero, and the passes ignore this gradient
        whole = q if ctx.context == "entity" else shard.world.add(q.clone())
        g = torch.cat([g, g.new_zeros(len(x) - shard.own, g.shape[1])])
        rows = x, y, share, new_y, norm_y
        grad_x, grad_y = operator.backward(g, whole.contiguous(), *rows, shard.graph, *ctx.rest)
        grad_y = q + grad_y if ctx.residual else grad_y
        return shard.to_owners(grad_x), grad_y, *[None] * 7
