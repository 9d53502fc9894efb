"""`torch.func`, forward mode, second derivatives and autocast: correct results or a clear error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from lightcake_fast import ContextGraph, Segments, context_layer, context_weights, segment_softmax_aggregate
from lightcake_fast.errors import InputError
from tests.support.comparison import assert_bitwise_equal, assert_close

TRIPLES = torch.tensor([[0, 0, 1], [2, 0, 3], [2, 1, 1], [4, 1, 5], [4, 0, 4]])
GRAPH = ContextGraph.from_triples(TRIPLES, 6, 2)
SEGMENTS = Segments.from_csr(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 1, 3, 2]), 4)
RELATIONS = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
SCORES = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def layer(entities: Tensor, backend: str) -> Tensor:
    new_entities, new_relations = context_layer(
        entities, RELATIONS.to(entities.dtype), GRAPH, score="transe", backend=backend
    )
    return torch.cat([new_entities, new_relations])


def segments(values: Tensor, backend: str) -> Tensor:
    return segment_softmax_aggregate(SCORES.to(values.dtype), values, SEGMENTS, backend=backend)


def forward_mode(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))  # type: ignore[no-untyped-call]
        return forward_ad.unpack_dual(function(dual)).tangent  # type: ignore[no-untyped-call]


REFUSED = r"under torch\.func or forward-mode differentiation, got 'numba'"
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x).sum((-1, -2)),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x).sum((-1, -2)),
    "dual": forward_mode,
}
OPERATORS = pytest.mark.parametrize(
    ("operator", "rows"), [(layer, 6), (segments, 4)], ids=["layer", "segments"]
)


@OPERATORS
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_directional_derivatives_in_every_mode(operator: Any, rows: int, transform: Any) -> None:
    x = torch.randn(rows, 8, dtype=torch.float64)
    step = 1e-6
    expected = (operator(x + step, "auto") - operator(x - step, "auto")) / (2 * step)
    found = transform(lambda x: operator(x, "auto"), x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert found.abs().max() > 0.1
    with pytest.raises(InputError, match=REFUSED):
        transform(lambda x: operator(x, "numba"), x)


@OPERATORS
def test_gradients_and_batches_of_torch_func(operator: Any, rows: int) -> None:
    x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(operator(x, "numba").square().sum(), x)
    plain = x.detach()
    assert_close(torch.func.grad(lambda x: operator(x, "auto").square().sum())(plain), expected, slack=10)
    both = torch.func.vmap(lambda x: operator(x, "auto"))(torch.stack([plain, 2 * plain]))
    for found, single in zip(both, (plain, 2 * plain), strict=True):
        assert_close(found, operator(single, "numba"), slack=10)
    with pytest.raises(InputError, match=REFUSED):
        torch.func.grad(lambda x: operator(x, "numba").sum())(plain)
    with pytest.raises(InputError, match=REFUSED):
        torch.func.vmap(lambda x: operator(x, "numba"))(plain[None])


@OPERATORS
def test_only_the_reference_has_second_derivatives(operator: Any, rows: int) -> None:
    x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)

    def twice(backend: str) -> Tensor:
        (gradient,) = torch.autograd.grad(operator(x, backend).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        return second

    assert twice("reference").abs().max() > 0.1
    with pytest.raises(RuntimeError, match="expected 'reference' for second derivatives"):
        twice("numba")


def test_calls_without_tangents_are_accepted() -> None:
    x = torch.randn(6, 8)
    with forward_ad.dual_level():
        assert_bitwise_equal(layer(x, "numba"), layer(x, "auto"))


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("narrow", ["entities", "relations", "both", "neither"])
def test_autocast_casts_tables_of_two_types_first(backend: str, narrow: str) -> None:
    x, y = torch.randn(6, 8), torch.randn(4, 8)
    given_x = (x.bfloat16() if narrow in ("entities", "both") else x).requires_grad_()
    given_y = (y.bfloat16() if narrow in ("relations", "both") else y).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        tables = context_layer(given_x, given_y, GRAPH, backend=backend)
        weights = context_weights(given_x, given_y, GRAPH, backend=backend)
    wide = given_x.detach().float(), given_y.detach().float()
    for found, expected in zip(
        (*tables, *weights),
        (*context_layer(*wide, GRAPH, backend=backend), *context_weights(*wide, GRAPH, backend=backend)),
        strict=True,
    ):
        assert found.dtype == torch.float32
        assert_bitwise_equal(found.detach(), expected)
    gradients = torch.autograd.grad(tables[0].sum() + tables[1].sum(), (given_x, given_y))
    assert [gradient.dtype for gradient in gradients] == [given_x.dtype, given_y.dtype]
    with pytest.raises(ValueError, match=r"relations: expected .*, got 8"):
        context_layer(x, y.bfloat16(), GRAPH, backend=backend)


def test_autocast_accepts_the_output_of_a_linear_layer() -> None:
    linear = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        entities = linear(torch.randn(6, 8))
        assert entities.dtype == torch.bfloat16
        tables = context_layer(entities, torch.randn(4, 8), GRAPH)
        out, w = segment_softmax_aggregate(
            linear(torch.randn(5, 8))[:, 0], linear(torch.randn(4, 8)), SEGMENTS, return_weights=True
        )
    assert {table.dtype for table in (*tables, out, w)} == {torch.float32}
    (gradient,) = torch.autograd.grad(tables[0].sum() + out.sum(), linear.weight)
    assert gradient.abs().max() > 0


def test_autocast_keeps_float64() -> None:
    x, y = torch.randn(6, 8, dtype=torch.float64), RELATIONS
    with torch.autocast("cpu", torch.bfloat16):
        tables = context_layer(x, y, GRAPH)
    for found, expected in zip(tables, context_layer(x, y, GRAPH), strict=True):
        assert_bitwise_equal(found, expected)
