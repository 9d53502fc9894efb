"""TransH in the context: layers with planes of the relations, and the message of the GPU back end."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast import rows
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer, context_weights, tune_context_layer
from lightcake_fast.reference.layer import rounded
from lightcake_fast.rows import context_rows, part_of
from lightcake_fast.scores import BUILT_IN, FUSED, SCORES
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import CONTEXTS, layer_inputs, layer_results, with_planes

D = 5
BACKENDS = ("reference", "numba")


def inputs(name: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, ContextGraph, Tensor]:
    x, y, graph, mask = layer_inputs(name, D, dtype)
    return x, with_planes(y), graph, mask


def by_definition(
    x: Tensor, y: Tensor, graph: ContextGraph, mask: Tensor | None, context: str, read: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the layer row by row, with a matrix I - w w^T per relation.

    Triples read entities from ``read``.
    """
    r, w = y[:, :D], y[:, D:]
    onto_plane = torch.eye(D, dtype=y.dtype) - w[:, :, None] * w[:, None]
    triples = torch.stack(graph.context_triples, 1)
    if mask is not None:
        triples = triples[~mask.repeat(2)]

    def of_triples(own: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        head, relation, tail = own.unbind(1)
        h, t = (torch.einsum("eij,ej->ei", onto_plane[relation], read[ids]) for ids in (head, tail))
        weights = (-(h + r[relation] - t).square().sum(1).sqrt()).softmax(0)
        return weights, h, r[relation], t

    new_x, new_y = list(x), list(y)
    for entity in range(len(x)) if context != "relation" else ():
        alpha, _, translation, t = of_triples(triples[triples[:, 0] == entity])
        new_x[entity] = x[entity] + alpha @ (t - translation)
    for relation in range(len(y)) if context != "entity" else ():
        beta, h, _, t = of_triples(triples[triples[:, 1] == relation])
        new_y[relation] = torch.cat([r[relation] + beta @ (t - h), w[relation]])
    return torch.stack(new_x), torch.stack(new_y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", ["degrees", "duplicates", "sparse", "hub"])
def test_equals_its_definition(name: str, context: str, masked: bool, backend: str) -> None:
    x, y, graph, mask = inputs(name)
    chosen = mask if masked else None
    actual = layer_results(x, y, graph, score="transh", context=context, mask=chosen, backend=backend)
    x, y = x.requires_grad_(), y.requires_grad_()
    expected = by_definition(x, y, graph, chosen, context, x)
    random = torch.Generator().manual_seed(2)  # the gradients of `layer_results`
    gradients = [torch.randn(t.shape, generator=random, dtype=t.dtype) for t in expected]
    for got, wanted in zip(
        actual.items(), (*expected, *torch.autograd.grad(expected, (x, y), gradients)), strict=True
    ):
        assert_close(got[1], wanted, name=got[0])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient(backend: str, context: str) -> None:
    triples = torch.tensor([[0, 0, 1], [1, 1, 2], [0, 1, 2], [2, 0, 0], [0, 0, 1], [1, 1, 1]])
    graph = ContextGraph.from_triples(triples, 4, 2)
    random = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4, d, generator=random, dtype=torch.float64) for d in (3, 6))

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # with normals of any length
        return context_layer(x, y, graph, score="transh", context=context, backend=backend)

    assert torch.autograd.gradcheck(layer, (x.requires_grad_(), y.requires_grad_()))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_alone_and_half_width_rows(backend: str, context: str) -> None:
    x, y, graph, mask = inputs("degrees")
    options: dict[str, Any] = {"score": "transh", "context": context, "mask": mask, "backend": backend}
    sums = context_layer(x, y, graph, residual=False, **options)
    for base, gained, new in zip((x, y), sums, context_layer(x, y, graph, **options), strict=True):
        assert_close(base + gained, new)
    assert not sums[1][:, D:].any()
    halves = context_layer(x, y, graph, rows="bfloat16", **options)
    for got, wanted in zip(halves, by_definition(x, y, graph, mask, context, rounded(x)), strict=True):
        assert_close(got, wanted)


def test_normals_are_unchanged_in_every_dtype() -> None:
    x, y, graph, mask = inputs("degrees")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        rows = x.to(dtype), y.to(dtype)
        actual = context_layer(*rows, graph, score="transh", mask=mask)
        wide = context_layer(rows[0].double(), rows[1].double(), graph, score="transh", mask=mask)
        for got, wanted in zip(actual, wide, strict=True):
            assert got.dtype == dtype
            assert_close(got, wanted, slack=4)
        assert_bitwise_equal(actual[1][:, D:], rows[1][:, D:])


def test_weights_equal_the_layers_weights() -> None:
    x, y, graph, mask = inputs("duplicates")
    alpha, beta = context_weights(x, y, graph, score="transh", mask=mask)
    h, r, t = graph.context_triples
    e_h, e_r, e_t = SCORES["transh"].read(x[h], y[r], x[t])
    sums = context_layer(x, y, graph, score="transh", mask=mask, residual=False)
    assert_close(torch.zeros_like(x).index_add(0, h, alpha[:, None] * (e_t - e_r)), sums[0])
    assert_close(torch.zeros_like(y[:, :D]).index_add(0, r, beta[:, None] * (e_t - e_h)), sums[1][:, :D])


def test_compiled_equals_eager() -> None:
    x, y, graph, mask = inputs("degrees", torch.float32)  # a graph whose triples nothing has read yet

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(x, y, graph, score="transh", mask=mask)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for actual, wanted in zip(compiled(x, y), layer(x, y), strict=True):
        assert_bitwise_equal(actual, wanted)


def test_some_rows_equal_the_whole_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CUTTING", 0)
    x, y, graph, mask = inputs("degrees")
    ids = torch.tensor([2, 40, 2])
    part = part_of(graph, ids, D)
    assert part is not None
    some = context_rows(x[part.entities], y, part, score="transh", mask=mask)
    whole, _ = context_layer(x, y, graph, score="transh", context="entity", mask=mask)
    assert_bitwise_equal(some, whole[ids])


def test_a_zero_length_has_gradient_zero() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1]]), 2, 1)
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0]], requires_grad=True)  # equal on the plane
    y = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]], requires_grad=True)
    h, r, t = graph.context_triples
    score = SCORES["transh"]
    scores = score.psi(*score.read(x[h], y[r], x[t]))
    assert scores.tolist() == [0.0, 0.0]
    for gradient in torch.autograd.grad(scores.sum(), (x, y)):
        assert not gradient.any()


def test_gpu_back_end_refuses_planes() -> None:
    assert set(BUILT_IN) - set(FUSED) == {"transh"}
    x, y, graph, _ = inputs("degrees", torch.float32)
    message = "^backend: expected 'numba' or 'reference' for score 'transh', got 'triton'$"
    with pytest.raises(ValueError, match=message):
        context_layer(x, y, graph, score="transh", backend="triton")
    with pytest.raises(ValueError, match=message):
        tune_context_layer(graph, D, score="transh")


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_width_zero(backend: str) -> None:
    triples = torch.tensor([[0, 0, 1]]).repeat(2000, 1)
    graph = ContextGraph.from_triples(triples, 3, 2)
    results = layer_results(torch.zeros(3, 0), torch.zeros(4, 0), graph, score="transh", backend=backend)
    assert [tuple(table.shape) for table in results.values()] == [(3, 0), (4, 0)] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("d", [5, 64])
def test_a_nan_gradient_of_normals_stays_in_its_row(d: int, backend: str) -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [1, 1, 2], [2, 0, 0]]), 3, 2)
    random = torch.Generator().manual_seed(0)
    x, y, g, q = (torch.randn(n, d * m, generator=random) for n, m in ((3, 1), (4, 2), (3, 1), (4, 2)))
    q[0, d] = torch.nan
    tables = x.requires_grad_(), y.requires_grad_()
    rows = context_layer(*tables, graph, score="transh", backend=backend)
    grad_x, grad_y = torch.autograd.grad(rows, tables, (g, q))
    assert grad_x.isfinite().all()
    assert (~grad_y.isfinite()).nonzero().tolist() == [[0, d]]


def test_auto_uses_numba_on_the_cpu() -> None:
    x, y, graph, mask = inputs("degrees", torch.float32)
    options: dict[str, Any] = {"score": "transh", "mask": mask}
    fused = layer_results(x, y, graph, backend="numba", **options)
    for name, actual in layer_results(x, y, graph, **options).items():
        assert_bitwise_equal(actual, fused[name], name=name)


def test_wrong_widths_are_refused() -> None:
    x, y, graph, _ = inputs("degrees", torch.float32)
    message = r"^relations: expected twice the width of the entities and .*, got 5 and torch.float32"
    with pytest.raises(ValueError, match=message):
        context_layer(x, y[:, :D], graph, score="transh")
    with pytest.raises(
        ValueError, match=r"^relations: expected the width of the entities .*, 5 and .*, got 10"
    ):
        context_layer(x, y, graph, score="transe")
