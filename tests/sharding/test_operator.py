"""Shards in one process, one after another: together they match the layer of the whole graph."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import plan as kernels_plan
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import FUSED
from lightcake_fast.sharding import operator
from lightcake_fast.sharding.layer import Shard
from lightcake_fast.sharding.shard import HeldTriples, Layout
from lightcake_fast.sharding.world import World
from tests.support.graphs import CONTEXTS, as_read, layer_inputs, pairwise

GRID = {
    "score": FUSED,
    "context": CONTEXTS,
    "masked": (False, True),
    "residual": (True, False),
    "rows": ("float32", "bfloat16"),
    "ranks": (1, 2, 3),
    "name": ("sparse", "edges", "hub", "duplicates"),
    "width": (4, 16),
}
CASES = pairwise(GRID)
WITH_PLANES = pairwise({**GRID, "score": ("transh",)})


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few triples already make a hub, also in the interpreter."""
    monkeypatch.setattr(kernels_plan, "GPU_ENTITY_CHUNK", 7)
    monkeypatch.setattr(kernels_plan, "GPU_RELATION_CHUNK", (8, 16))


def whole_layer(
    x: Tensor,
    y: Tensor,
    g: Tensor,
    q: Tensor,
    graph: ContextGraph,
    mask: Tensor | None,
    score: str,
    context: str,
    residual: bool,
    rows: str,
) -> list[Tensor]:
    """New rows and gradients from the reference and autograd."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    options = {"score": score, "context": context, "mask": mask, "residual": residual, "rows": rows}
    tables = context_layer(x, y, graph, backend="reference", **options)  # type: ignore[arg-type]
    new = [table.clone() for table in tables]
    return [row.detach() for row in new] + list(torch.autograd.grad(new, (x, y), (g, q)))


def shards_one_by_one(
    x: Tensor,
    y: Tensor,
    g: Tensor,
    q: Tensor,
    graph: ContextGraph,
    mask: Tensor | None,
    owner: npt.NDArray[np.int64],
    ranks: int,
    *,
    score: str,
    context: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    """The same results from the shards, on the back end's device, with exchanges by hand."""
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    x, y, g, q = (table.to(device) for table in (x, y, g, q))
    triples = graph.triples.numpy()
    parts = []
    for rank in range(ranks):
        held = HeldTriples.of(triples, owner, rank)
        layout = Layout.of(held, np.flatnonzero(owner == rank), rank, ranks)
        shard = Shard(layout, held, graph.num_relations, World(), x.device)
        names = torch.from_numpy(np.concatenate([layout.rows, layout.halo])).to(device)
        off = shard.left_out(None if mask is None else mask[torch.from_numpy(held.number)].to(device))
        share = operator.forward(x[names], y, shard.graph, off, score, context, residual, rows, backend)
        parts.append((shard.own, names, shard.graph, share))
    new_y, norm_y = parts[0][3].means, y.new_tensor([torch.inf, 0]).repeat(len(y), 1)
    if context != "entity":
        new_y, norm_y = operator.merge_relations(
            y if residual else None,
            torch.stack([p[3].means for p in parts]),
            torch.stack([p[3].norm_relations for p in parts]),
        )
    new_x, grad_x, grad_y = torch.full_like(x, torch.nan), torch.zeros_like(x), q * residual
    for own, names, local, share in parts:
        new_x[names[:own]] = share.entities[:own]
        g_local = g[names].clone()
        g_local[own:] = 0
        given = g_local, q, x[names], y, share, new_y, norm_y, local
        dx, dy = operator.backward(*given, score, residual, backend)
        grad_x.index_add_(0, names, dx)
        grad_y += dy
    return [found.cpu() for found in (new_x, new_y, grad_x, grad_y)]


def assert_shards_make_the_whole(
    backend: str,
    score: str,
    context: str,
    masked: bool,
    residual: bool,
    rows: str,
    ranks: int,
    name: str,
    width: int,
) -> None:
    x, y, graph, mask = layer_inputs(name, width, torch.float64)
    y = as_read(y, score)
    random = torch.Generator().manual_seed(3)
    g, q = (torch.randn(t.shape, generator=random, dtype=torch.float64) for t in (x, y))
    owner = np.random.default_rng(5).integers(0, ranks, len(x))
    if ranks == 3:
        owner[owner == 2] = 0  # a rank without entities
    given = (x, y, g, q, graph, mask if masked else None)
    options = {"score": score, "context": context, "residual": residual, "rows": rows}
    actual = shards_one_by_one(*given, owner, ranks, backend=backend, **options)  # type: ignore[arg-type]
    expected = whole_layer(*given, **options)  # type: ignore[arg-type]
    for what, a, b in zip(("entities", "relations", "dL/dx", "dL/dy"), actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * (1 + b.abs().max().item()), msg=what)


@pytest.mark.parametrize("case", CASES + WITH_PLANES, ids=str)
def test_shards_match_the_whole_graph(case: dict[str, object]) -> None:
    assert_shards_make_the_whole("reference", **case)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case",  # two scores in the quick run, because each score takes seconds to compile
    [
        pytest.param(c, marks=[] if c["score"] in ("distmult", "transe") else pytest.mark.full)
        for c in (*CASES, *WITH_PLANES)
    ],
    ids=str,
)
def test_shards_match_the_whole_graph_on_numba(case: dict[str, object]) -> None:
    assert_shards_make_the_whole("numba", **case)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if n < 4 else pytest.mark.full) for n, case in enumerate(CASES)],
    ids=str,
)
def test_shards_match_the_whole_graph_on_triton(case: dict[str, object]) -> None:
    assert_shards_make_the_whole("triton", **case)  # type: ignore[arg-type]
