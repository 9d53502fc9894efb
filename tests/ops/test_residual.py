"""``residual=False``: the sums alone, without the rounding of a difference of rows."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer
from tests.support.comparison import TOLERANCES, assert_as_precise_as, assert_bitwise_equal, assert_close
from tests.support.graphs import (
    CONTEXTS,
    KERNELS,
    QUICK_SCORES,
    as_read,
    layer_inputs,
    layer_results,
    random_rows,
)

GRAPHS = {"numba": "hubs", "triton": "hub", "reference": "hubs"}  # with cut rows
SCALED = TOLERANCES[torch.float32].scaled
DEVICES = {"triton": "cuda" if torch.cuda.is_available() else "cpu"}
pytestmark = pytest.mark.usefixtures("small_chunks")


def sums(
    x: Tensor, y: Tensor, graph: ContextGraph, backend: str, mask: Tensor | None = None, **options: Any
) -> dict[str, Tensor]:
    found = layer_results(x, y, graph, backend=backend, residual=False, mask=mask, **options)
    return {name: values.cpu() for name, values in found.items()}


QUICK = {("numba", score, context) for score in (*QUICK_SCORES, "transh") for context in CONTEXTS} | {
    ("triton", "distmult", "both"),
    ("triton", "transe", "relation"),
    ("triton", "complex", "entity"),
}
CASES = [
    pytest.param(*kernel, context, marks=[] if (*kernel, context) in QUICK else pytest.mark.full)
    for kernel, context in itertools.product(KERNELS, CONTEXTS)
]


@pytest.mark.parametrize(("backend", "score", "context"), CASES)
def test_sums_and_their_gradients_equal_the_reference(backend: str, score: str, context: str) -> None:
    """Rows of a thousandth give far smaller products. A difference of rows would lose three digits."""
    device = DEVICES.get(backend, "cpu")
    _, _, graph, mask = layer_inputs(GRAPHS[backend], 6, torch.float32, device)
    x, y = random_rows(graph, 6, torch.float32, scale=1e-3)
    x, y = x.to(device), as_read(y, score).to(device)
    for used in (None, mask) if backend == "numba" else (mask,):
        wide = sums(x, y, graph, "reference", used, dtype=torch.float64, score=score, context=context)
        low = sums(x, y, graph, "reference", used, score=score, context=context)
        for name, actual in sums(x, y, graph, backend, used, score=score, context=context).items():
            # a hub's gradient is a sum that cancels, and without the residual the cancellation is stronger
            error = (low[name].double() - wide[name]).abs().max() / wide[name].abs().max().clamp(min=1e-30)
            assert_close(actual, wide[name], name=name, slack=4.0 + 4.0 * error.item() / SCALED)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("backend", ["numba", "reference", pytest.param("triton", marks=pytest.mark.full)])
def test_float64_sums_equal_the_change_of_the_rows(backend: str, context: str) -> None:
    x, y, graph, mask = layer_inputs("duplicates", 5, torch.float64, DEVICES.get(backend, "cpu"))
    whole = layer_results(x, y, graph, backend=backend, context=context, mask=mask)
    only = layer_results(x, y, graph, backend=backend, context=context, mask=mask, residual=False)
    random = torch.Generator().manual_seed(2)  # as in layer_results
    own = [torch.randn(t.shape, generator=random, dtype=torch.float64).to(t) for t in (x, y)]
    for (name, rows), part in zip(whole.items(), (x, y, *own), strict=True):
        assert_close(only[name], rows - part, name=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["numba", "triton"])
def test_sums_of_16_bit_rows(backend: str, dtype: torch.dtype) -> None:
    x, y, graph, mask = layer_inputs("duplicates", 16, dtype, DEVICES.get(backend, "cpu"))
    exact = sums(x, y, graph, "reference", mask, dtype=torch.float64)
    low = sums(x, y, graph, "reference", mask)
    for name, actual in sums(x, y, graph, backend, mask).items():
        assert actual.dtype == dtype
        assert_as_precise_as(actual, low[name], exact[name], name=name)


@pytest.mark.parametrize("backend", ["numba", "reference", "triton"])
def test_rows_without_a_live_triple_have_zero_sums(backend: str) -> None:
    device = DEVICES.get(backend, "cpu")
    x, y, graph, _ = layer_inputs("duplicates", 4, torch.float32, device)
    none = ContextGraph.from_triples(graph.triples[:0], graph.num_entities, graph.num_relations)
    mask = torch.ones(graph.num_triples, dtype=torch.bool, device=device)
    for used, left_out in ((graph, mask), (none, None)):
        for name, values in sums(x, y, used, backend, left_out).items():
            assert_bitwise_equal(values, torch.zeros_like(values), name=name)


def test_gradients_of_sums_in_any_order_and_mode() -> None:
    x, y, graph, mask = layer_inputs("duplicates", 4, torch.float64)
    for backend in ("numba", "reference"):
        for context in CONTEXTS:

            def layer(x: Tensor, y: Tensor, options: Any = (backend, context)) -> tuple[Tensor, ...]:
                backend, context = options
                return context_layer(x, y, graph, mask=mask, residual=False, backend=backend, context=context)

            assert torch.autograd.gradcheck(layer, (x.requires_grad_(), y.requires_grad_()))
            if backend == "reference":
                assert torch.autograd.gradgradcheck(layer, (x, y))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_results_do_not_alias_arguments(backend: str, context: str) -> None:
    x, y, graph, _ = layer_inputs("duplicates", 5, torch.float32)
    before = x.clone(), y.clone()
    with torch.no_grad():
        for table in context_layer(x, y, graph, backend=backend, context=context):
            table.add_(1)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_a_score_must_be_a_name() -> None:
    x, y, graph, _ = layer_inputs("duplicates", 5, torch.float32)
    with pytest.raises(TypeError, match="score: expected a name, got 3"):
        context_layer(x, y, graph, score=3)  # type: ignore[arg-type]
