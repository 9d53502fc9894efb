"""Sharded layers match the layers of the whole graph and send as many bytes as the formula."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer
from lightcake_fast.sharding.layer import Shard, sharded_layer
from lightcake_fast.sharding.shard import HeldTriples, Layout
from lightcake_fast.sharding.world import World
from tests.support.graphs import CONTEXTS, layer_inputs
from tests.support.worlds import in_threads


def two_layers(
    x: Tensor,
    y: Tensor,
    graph: ContextGraph,
    mask: Tensor,
    owner: npt.NDArray[np.int64],
    context: str,
    residual: bool,
    halves: str,
    world: World,
) -> tuple[list[Tensor], Shard]:
    """New rows after two layers, and gradients of a loss, for own rows and relations."""
    held = HeldTriples.of(graph.triples.numpy(), owner, world.rank)
    layout = Layout.of(held, np.flatnonzero(owner == world.rank), world.rank, world.ranks)
    shard = Shard(layout, held, graph.num_relations, world, x.device)
    rows, local = torch.from_numpy(layout.rows), mask[torch.from_numpy(held.number)]
    own, y = x[rows].requires_grad_(), y.clone().requires_grad_()
    tables = own, y
    options: dict[str, Any] = {
        "score": "transe",
        "context": context,
        "rows": halves,
        "backend": "reference",
    }
    for whole in (True, residual):
        tables = sharded_layer(*tables, shard, mask=local, residual=whole, **options)
    # each rank has a share of the relation loss, and the loss of its own entities
    loss = tables[0].square().sum() + tables[1].cos().sum() / world.ranks
    grad_x, grad_y = torch.autograd.grad(loss, (own, y))
    return [*(table.detach() for table in tables), grad_x, grad_y], shard


@pytest.mark.parametrize(("residual", "halves"), [(True, "float32"), (False, "float32"), (True, "bfloat16")])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sharded_layers_match_the_whole_graph(context: str, ranks: int, residual: bool, halves: str) -> None:
    x, y, graph, mask = layer_inputs("hub", 6, torch.float64)
    owner = np.random.default_rng(0).integers(0, ranks, len(x))
    work = in_threads(
        ranks, lambda world: two_layers(x, y, graph, mask, owner, context, residual, halves, world)
    )
    x, y = x.requires_grad_(), y.requires_grad_()
    tables = x, y
    options: dict[str, Any] = {
        "score": "transe",
        "context": context,
        "rows": halves,
        "backend": "reference",
    }
    for whole in (True, residual):
        tables = context_layer(*tables, graph, mask=mask, residual=whole, **options)
    grad_x, grad_y = torch.autograd.grad(tables[0].square().sum() + tables[1].cos().sum(), (x, y))
    shares = sum((found[3] for found, _ in work), torch.zeros_like(y))
    for rank, (found, shard) in enumerate(work):
        rows = torch.from_numpy(shard.layout.rows)
        for actual, expected in zip(
            (*found[:3], shares), (tables[0][rows], tables[1], grad_x[rows], grad_y), strict=True
        ):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
        numbers, layout = x.shape[1], shard.layout
        assert layout.sent_to[rank] == layout.halo_from[rank] == 0
        of_eight_bytes = 1 if halves == "float32" else 1 / 4
        sent = {"exchange": (len(layout.sent) * of_eight_bytes + len(layout.halo)) * numbers}
        if context != "entity":
            sent["gather"] = (ranks - 1) * len(y) * (numbers + 2)
            sent["add"] = 2 * (ranks - 1) * len(y) * numbers // ranks
        # two layers, eight bytes per number
        assert shard.world.sent == {kind: 16 * count for kind, count in sent.items()}
