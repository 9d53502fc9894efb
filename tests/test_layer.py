"""The layer: the reference against numbers worked by hand, the Numba passes against the float64 reference."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightcake_fast import ops
from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels.plan import ENTITY_CHUNK, RELATION_CHUNK
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


def assert_as_float64(
    inputs: list[Tensor], graph: ContextGraph, *, slack: float = 1.0, **options: Any
) -> None:
    """The Numba passes give what the reference gives in float64."""
    actual = rows_and_gradients(inputs, graph, backend="numba", **options)
    exact = [table.detach().double().requires_grad_() for table in inputs]
    expected = rows_and_gradients(exact, graph, backend="reference", **options)
    names = "entities", "relations", "entity gradient", "relation gradient"
    for name, a, e in zip(names, actual, expected, strict=True):
        assert_close(a, e, name=name, dtype=inputs[0].dtype, slack=slack)


def test_reference_distmult_by_hand() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [0, 0, 2]]), 3, 1)
    entities = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    relations = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    new_entities, new_relations = context_layer(entities, relations, graph, backend="reference")
    alpha = 1 / (1 + np.exp(0.5))  # of scores 1 * 0.5 * 2 = 1 and 1 * 0.5 * 3 = 1.5
    assert new_entities[0].item() == pytest.approx(1 + alpha * 0.5 * 2 + (1 - alpha) * 0.5 * 3)
    assert new_entities[1].item() == pytest.approx(2 + -1.0 * 1)  # one triple: (1, inverse, 0)
    assert new_relations[0].item() == pytest.approx(0.5 + alpha * 2 + (1 - alpha) * 3)
    beta = 1 / (1 + np.exp(-1.0))  # of scores -2 and -3
    assert new_relations[1].item() == pytest.approx(-1 + beta * 2 + (1 - beta) * 3)


def test_reference_transe_by_hand() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [0, 0, 2]]), 3, 1)
    entities = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    relations = torch.zeros(2, 2, dtype=torch.float64)
    new_entities, new_relations = context_layer(
        entities, relations, graph, score="transe", backend="reference"
    )
    alpha = 1 / (1 + np.exp(4.0))  # of scores -5 and -1
    expected = alpha * entities[1] + (1 - alpha) * entities[2]
    assert_close(new_entities[0], expected, name="entity 0", dtype=torch.float64)
    assert_close(new_relations[0], expected, name="relation", dtype=torch.float64)
    assert_close(new_relations[1], -expected, name="inverse", dtype=torch.float64)
    assert_close(new_entities[1], entities[1] + entities[0], name="entity 1", dtype=torch.float64)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_gradients_are_those_of_finite_differences(score: str, context: str, backend: str) -> None:
    graph = random_graph(12, 6, 2)
    mask = torch.arange(12) % 5 == 0

    def layer(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(
            inputs[0], inputs[1], graph, score=score, context=context, mask=mask, backend=backend
        )

    assert torch.autograd.gradcheck(layer, tables(graph, 3, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 16, 63, 64, 100])
@pytest.mark.parametrize("score", SCORES)
def test_numba_over_widths(score: str, width: int, dtype: torch.dtype) -> None:
    graph = random_graph(150, 40, 3)
    for context in CONTEXTS:
        for mask in (None, torch.rand(150) < 0.4):
            assert_as_float64(tables(graph, width, dtype), graph, score=score, context=context, mask=mask)


@pytest.mark.parametrize("score", SCORES)
def test_numba_over_chunk_edges(score: str) -> None:
    hub = random_graph(3 * ENTITY_CHUNK, 50, 2, hub=0.9)
    assert len(hub.plan.cut_row) > 0
    # a row of thousands of terms: the rounding of its float32 sum grows with their square root
    assert_as_float64(tables(hub, 64, torch.float32), hub, slack=4, score=score)
    assert_as_float64(tables(hub, 64, torch.float64), hub, score=score)
    for count in (1, 2, 3, 4, 5, RELATION_CHUNK - 1, RELATION_CHUNK, RELATION_CHUNK + 1):
        edge = random_graph(count, 6, 1)
        assert_as_float64(tables(edge, 64, torch.float32), edge, score=score)


@pytest.mark.parametrize("score", SCORES)
def test_rows_without_live_triples_stay(score: str) -> None:
    graph = random_graph(20, 6, 2)
    inputs = tables(graph, 64, torch.float32)
    mask = torch.ones(20, dtype=torch.bool)
    assert_as_float64(inputs, graph, score=score, mask=mask)
    rows = context_layer(inputs[0], inputs[1], graph, score=score, mask=mask)
    assert_bitwise_equal(rows[0], inputs[0], name="entities")
    assert_bitwise_equal(rows[1], inputs[1], name="relations")
    empty = ContextGraph.from_triples(torch.zeros(0, 3, dtype=torch.int64), 6, 2)
    assert_bitwise_equal(
        context_layer(inputs[0], inputs[1], empty, score=score)[0], inputs[0], name="empty graph"
    )


@pytest.mark.parametrize("score", SCORES)
def test_extreme_scores_and_zero_lengths(score: str) -> None:
    graph = random_graph(60, 10, 2)
    # scores of about 1e4: the softmax takes their rounding, ten thousand times that of 1, as it is
    assert_as_float64(tables(graph, 64, torch.float64, scale=10.0), graph, slack=10, score=score)
    zeros = [torch.zeros_like(table).requires_grad_() for table in tables(graph, 64, torch.float32)]
    assert_as_float64(zeros, graph, score=score)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    triples=st.integers(0, 80),
    entities=st.integers(2, 30),
    relations=st.integers(1, 4),
    score=st.sampled_from(SCORES),
    context=st.sampled_from(CONTEXTS),
    masked=st.floats(0, 1),
)
def test_random_graphs(
    seed: int, triples: int, entities: int, relations: int, score: str, context: str, masked: float
) -> None:
    graph = random_graph(triples, entities, relations, seed)
    mask = torch.rand(triples, generator=torch.Generator().manual_seed(seed)) < masked
    assert_as_float64(tables(graph, 7, torch.float64), graph, score=score, context=context, mask=mask)


@pytest.mark.parametrize("score", SCORES)
def test_results_do_not_depend_on_threads(score: str) -> None:
    graph = random_graph(4000, 300, 5, hub=0.4)
    inputs = tables(graph, 64, torch.float32)
    threads = torch.get_num_threads()
    try:
        runs = []
        for count in (1, 2, 4, 4):
            torch.set_num_threads(count)
            runs.append(rows_and_gradients(inputs, graph, score=score, backend="numba"))
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        for actual, expected in zip(run, runs[0], strict=True):
            assert_bitwise_equal(actual, expected, name=score)


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


@pytest.mark.parametrize(
    ("triples", "named"),
    [
        (torch.zeros(3, 3), "triples"),
        (torch.zeros(3, 2, dtype=torch.int64), "triples"),
        (torch.tensor([[5, 0, 0]]), "head"),
        (torch.tensor([[0, 2, 0]]), "relation"),
        (torch.tensor([[0, 0, -1]]), "tail"),
    ],
)
def test_wrong_triples_are_named(triples: Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ContextGraph.from_triples(triples, 5, 2)


def test_plan_places_every_triple_once() -> None:
    graph = random_graph(500, 30, 4, hub=0.5)
    plan, (heads, relation_ids, tails) = graph.plan, graph.context_triples
    given = torch.cat([plan.triple, plan.triple + 500]).long()
    place = torch.cat([plan.forward, plan.inverse]).long()
    assert torch.equal(given.sort().values, torch.arange(1000))
    assert torch.equal(place.sort().values, torch.arange(1000))
    order = torch.empty(1000, dtype=torch.int64).scatter(0, place, given)
    assert torch.equal(plan.context_relation.long(), relation_ids[order])
    assert torch.equal(plan.context_tail.long(), tails[order])
    assert torch.equal(heads[order], heads.sort().values)
    assert torch.equal(plan.head.long(), heads[plan.triple.long()])
    lengths = plan.entity_chunk.diff()
    assert torch.equal(plan.entity_chunk_row.repeat_interleave(lengths).long(), heads[order])
