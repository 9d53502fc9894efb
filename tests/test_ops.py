"""The operator: gradients, contract, types, weights, concurrency and wrong arguments."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightcake_fast import ops
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer, context_weights
from tests.comparison import assert_bitwise_equal, assert_close

SCORES, CONTEXTS = ("distmult", "transe"), ("both", "entity", "relation")


def random_graph(
    triples: int, entities: int, relations: int, seed: int = 0, hub: float = 0.0
) -> ContextGraph:
    """Random triples, some of them doubled, a share of them with head 0; the last entity is in none."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, [entities - 1, relations, entities - 1], (triples, 3))
    drawn[rng.random(triples) < hub, 0] = 0
    drawn[: triples // 8] = drawn[triples - triples // 8 :]
    return ContextGraph.from_triples(drawn, entities, relations)


def tables(graph: ContextGraph, width: int, dtype: torch.dtype, scale: float = 0.5) -> list[Tensor]:
    """Random entities and relations that ask for gradients."""
    generator = torch.Generator().manual_seed(1)
    rows = graph.num_entities, 2 * graph.num_relations
    drawn = (torch.randn(n, width, generator=generator, dtype=torch.float64) * scale for n in rows)
    return [table.to(dtype).requires_grad_() for table in drawn]


def rows_and_gradients(inputs: list[Tensor], graph: ContextGraph, **options: Any) -> list[Tensor]:
    """New rows, and the gradients of a fixed weighted sum of them."""
    rows = context_layer(inputs[0], inputs[1], graph, **options)
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in rows]
    return [*(r.detach() for r in rows), *torch.autograd.grad(rows, inputs, weights)]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("context", CONTEXTS)
def test_gradients_are_those_of_finite_differences(score: str, context: str) -> None:
    graph = random_graph(12, 6, 2)
    mask = torch.arange(12) % 5 == 0

    def layer(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(
            inputs[0], inputs[1], graph, score=score, context=context, mask=mask, backend="numba"
        )

    assert torch.autograd.gradcheck(layer, tables(graph, 3, torch.float64))


def test_two_python_threads_at_once() -> None:
    graph = random_graph(2000, 200, 3)
    inputs = tables(graph, 64, torch.float32)
    expected = rows_and_gradients(inputs, graph)
    found: list[list[Tensor]] = []
    workers = [
        threading.Thread(target=lambda: found.append(rows_and_gradients(inputs, graph))) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for run in found:
        for actual, wanted in zip(run, expected, strict=True):
            assert_bitwise_equal(actual, wanted, name="concurrent")


@pytest.mark.parametrize("score", SCORES)
def test_operator_contract(score: str) -> None:
    graph = random_graph(40, 10, 2)
    inputs = tables(graph, 5, torch.float32)
    mask = torch.arange(40) % 3 == 0
    torch.library.opcheck(ops._context_layer, (*inputs, list(graph.plan), mask, score, "both", "numba"))
    compiled = torch.compile(lambda a, b: context_layer(a, b, graph, score=score, mask=mask), fullgraph=True)
    rows = compiled(*inputs)
    expected = context_layer(inputs[0], inputs[1], graph, score=score, mask=mask)
    for actual, wanted in zip(rows, expected, strict=True):
        assert_bitwise_equal(actual, wanted, name="compiled")
    gradients = torch.autograd.grad(rows[0].sum() + rows[1].sum(), inputs)
    wanted_gradients = torch.autograd.grad(expected[0].sum() + expected[1].sum(), inputs)
    for actual, wanted in zip(gradients, wanted_gradients, strict=True):
        assert_bitwise_equal(actual, wanted, name="compiled gradient")


def test_types_and_layouts() -> None:
    graph = random_graph(40, 10, 2)
    entities, relations = (table.detach() for table in tables(graph, 6, torch.float32))
    expected = context_layer(entities, relations, graph)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = context_layer(entities.to(dtype), relations.to(dtype), graph)
        wanted = context_layer(entities.to(dtype).float(), relations.to(dtype).float(), graph)
        assert narrow[0].dtype == narrow[1].dtype == dtype
        assert_bitwise_equal(narrow[0], wanted[0].to(dtype), name="computed in float32")
    with torch.autocast("cpu", torch.bfloat16):
        assert_bitwise_equal(context_layer(entities, relations, graph)[0], expected[0], name="autocast")
    transposed = entities.T.contiguous().T
    assert not transposed.is_contiguous()
    assert_bitwise_equal(context_layer(transposed, relations, graph)[0], expected[0], name="strided")


@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_and_equal_the_reference(score: str) -> None:
    graph = random_graph(60, 10, 3)
    entities, relations = tables(graph, 8, torch.float64)
    mask = torch.arange(60) % 4 == 0
    weights = context_weights(entities, relations, graph, score=score, mask=mask)
    expected = context_weights(entities, relations, graph, score=score, mask=mask, backend="reference")
    for actual, wanted in zip(weights, expected, strict=True):
        assert_close(actual, wanted, name="weights", dtype=torch.float64)
        assert not actual[mask.repeat(2)].any()
    heads, relation_ids, _ = graph.context_triples
    live = ~mask.repeat(2)
    for weight, row in zip(weights, (heads, relation_ids), strict=True):
        sums = torch.zeros(int(row.max()) + 1, dtype=torch.float64).index_add(0, row, weight)
        assert_close(sums[row[live]], torch.ones(int(live.sum())), name="sum", dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"score": "rescal"}, "score"),
        ({"context": "none"}, "context"),
        ({"backend": "cuda"}, "backend"),
        ({"entities": torch.zeros(9, 4)}, "entities"),
        ({"entities": torch.zeros(10, 4, dtype=torch.int64)}, "entities"),
        ({"relations": torch.zeros(4, 5)}, "relations"),
        ({"relations": torch.zeros(2, 4)}, "relations"),
        ({"relations": torch.zeros(4, 4, dtype=torch.float64)}, "relations"),
        ({"mask": torch.zeros(39, dtype=torch.bool)}, "mask"),
        ({"mask": torch.zeros(40)}, "mask"),
        ({"entities": torch.zeros(10, 4, device="meta")}, "device"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], named: str) -> None:
    arguments = {"entities": torch.zeros(10, 4), "relations": torch.zeros(4, 4)} | change
    with pytest.raises(ValueError, match=named):
        context_layer(
            arguments.pop("entities"), arguments.pop("relations"), random_graph(40, 10, 2), **arguments
        )
