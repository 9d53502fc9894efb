"""The reference layer: numbers computed by hand, equations in plain Python, and finite differences."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer
from lightcake_fast.reference import layer as reference
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import CONTEXTS, SCORES, layer_inputs, random_rows

# 0 -> 1 and 0 -> 2 by relation 0, whose inverse is row 1; entity 3 is in no triple
FORK = torch.tensor([[0, 0, 1], [0, 0, 2]])


def fork(x: list[list[float]], y: list[list[float]], **options: Any) -> tuple[Tensor, Tensor]:
    graph = ContextGraph.from_triples(FORK, 4, 1)
    x_rows, y_rows = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    return context_layer(x_rows, y_rows, graph, backend="reference", **options)


def test_distmult_by_hand() -> None:
    # psi(0, 0, 1) = 1 * 2 * ln 2 / 2 = ln 2 and psi(0, 0, 2) = 1 * 2 * 0 = 0: weights 2/3 and 1/3
    # psi(1, inverse, 0) = ln 2 / 2 * -2 * 1 = -ln 2 and psi(2, inverse, 0) = 0: weights 1/3 and 2/3
    a = math.log(2) / 2
    x, y = fork([[1.0], [a], [0.0], [5.0]], [[2.0], [-2.0]])
    assert x.squeeze(1).tolist() == pytest.approx([1 + 2 / 3 * (2 * a), a + -2 * 1, 0 + -2 * 1, 5.0])
    assert y.squeeze(1).tolist() == pytest.approx([2 + 2 / 3 * (1 * a), -2 + 1 / 3 * (a * 1)])


def test_transe_by_hand() -> None:
    # |(3, 4) - 0 - 0| = 5 and |(0, 5 - ln 3) - 0 - 0| = 5 - ln 3: weights 1/4 and 3/4 from 0
    # |0 - (0, 0) - (3, 4)| and |0 - (0, 0) - (0, 5 - ln 3)|: the same for the inverse
    b = 5 - math.log(3)
    x, y = fork([[0, 0], [3, 4], [0, b], [7, 7]], [[0, 0], [0, 0]], score="transe")
    pulled = [3 / 4, 1 + 3 / 4 * b]
    assert x[0].tolist() == pytest.approx(pulled)
    assert x[1].tolist() == pytest.approx([3.0, 4.0])  # the only triple adds e_t - e_r = (0, 0)
    assert x[3].tolist() == [7.0, 7.0]
    assert y[0].tolist() == pytest.approx(pulled)
    assert y[1].tolist() == pytest.approx([-p for p in pulled])


@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_a_mask_removes_a_triple_and_its_inverse(score: str) -> None:
    x, y = [[1.0], [0.5], [0.25], [5.0]], [[2.0], [-2.0]]
    new_x, new_y = fork(x, y, score=score, mask=torch.tensor([True, False]))

    def add(first: float, second: float) -> float:
        return second * first if score == "distmult" else second - first

    # each row keeps one triple, with weight one; entity 1 has none and keeps its row
    assert new_x.squeeze(1).tolist() == pytest.approx([1 + add(2.0, 0.25), 0.5, 0.25 + add(-2.0, 1.0), 5.0])
    assert new_y.squeeze(1).tolist() == pytest.approx([2 + add(1.0, 0.25), -2 + add(0.25, 1.0)])


@pytest.mark.parametrize("score", SCORES)
def test_one_context_leaves_the_other_table_unchanged(score: str) -> None:
    x, y = [[1.0, 0.0], [0.5, 2.0], [0.25, 1.0], [5.0, 4.0]], [[2.0, 3.0], [-2.0, 0.5]]
    both_x, both_y = fork(x, y, score=score)
    entity_x, entity_y = fork(x, y, score=score, context="entity")
    relation_x, relation_y = fork(x, y, score=score, context="relation")
    assert_bitwise_equal(entity_x, both_x)
    assert_bitwise_equal(relation_y, both_y)
    assert entity_y.tolist() == y
    assert relation_x.tolist() == x


def in_plain_python(
    x: Tensor, y: Tensor, graph: ContextGraph, mask: Tensor, score: str, context: str
) -> tuple[list[list[float]], list[list[float]]]:
    """Compute equations 1-6 of the paper, one number at a time."""
    e, w = x.tolist(), y.tolist()
    live = [tuple(t) for t, out in zip(graph.triples.tolist(), mask.tolist(), strict=True) if not out]
    live += [(t, r + graph.num_relations, h) for h, r, t in live]

    def numbers(row: list[float]) -> list[complex]:
        half = len(row) // 2
        return [complex(*pair) for pair in zip(row[:half], row[half:], strict=True)]

    def psi(h: int, r: int, t: int) -> float:
        if score == "distmult":
            return math.fsum(a * b * c for a, b, c in zip(e[h], w[r], e[t], strict=True))
        if score == "complex":
            triples = zip(numbers(e[h]), numbers(w[r]), numbers(e[t]), strict=True)
            return math.fsum((a * b * c.conjugate()).real for a, b, c in triples)
        if score == "rotate":
            triples = zip(numbers(e[h]), numbers(w[r]), numbers(e[t]), strict=True)
            return -math.hypot(*(abs(a * b - c) for a, b, c in triples))
        if score == "simple":
            first, second = slice(0, len(e[h]) // 2), slice(len(e[h]) // 2, None)
            rows = zip(e[h][first], w[r][first], e[t][second], strict=True)
            back = zip(e[t][first], w[r][second], e[h][second], strict=True)
            return math.fsum(a * b * c for a, b, c in (*rows, *back)) / 2
        return -math.dist(e[t], [a + b for a, b in zip(e[h], w[r], strict=True)])

    def phi(first: list[float], second: list[float]) -> list[float]:
        if score in ("complex", "rotate"):
            products = [a.conjugate() * b for a, b in zip(numbers(first), numbers(second), strict=True)]
            return [p.real for p in products] + [p.imag for p in products]
        if score == "simple":
            half = len(first) // 2
            return [a * b / 2 for a, b in zip(first, second[half:] + second[:half], strict=True)]
        return [b * a if score == "distmult" else b - a for a, b in zip(first, second, strict=True)]

    def refined(row: list[float], terms: list[tuple[float, list[float]]]) -> list[float]:
        total = sum(math.exp(s) for s, _ in terms)
        return [v + sum(math.exp(s) / total * add[k] for s, add in terms) for k, v in enumerate(row)]

    new_e, new_w = e, w
    if context != "relation":
        new_e = [
            refined(row, [(psi(h, r, t), phi(w[r], e[t])) for h, r, t in live if h == i])
            for i, row in enumerate(e)
        ]
    if context != "entity":
        new_w = [
            refined(row, [(psi(h, r, t), phi(e[h], e[t])) for h, r, t in live if r == i])
            for i, row in enumerate(w)
        ]
    return new_e, new_w


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["degrees", "duplicates"])
def test_equals_the_equations(name: str, score: str, context: str, masked: bool) -> None:
    x, y, graph, mask = layer_inputs(name, 4, torch.float64)
    mask &= masked
    actual = context_layer(x, y, graph, score=score, context=context, mask=mask, backend="reference")
    expected = in_plain_python(x, y, graph, mask, score, context)
    for table, got, wanted in zip(("entities", "relations"), actual, expected, strict=True):
        assert_close(got, torch.tensor(wanted, dtype=torch.float64), name=table)


def test_a_zero_length_has_gradient_zero() -> None:
    graph = ContextGraph.from_triples(FORK, 4, 1)
    x = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    new_x, new_y = context_layer(x, y, graph, score="transe", backend="reference")
    # all scores are 0 with gradient 0, so only the gradients of the sums remain, with weights 1/2
    grad_x, grad_y = torch.autograd.grad(new_x.sum() + new_y.sum(), (x, y))
    # entity 0: itself, tail of two weight-one triples, head of relation 0, tail of the inverse
    assert grad_x[:, 0].tolist() == pytest.approx([1 + 2 - 1 + 1, 1 + 0.5, 1 + 0.5, 1])
    assert grad_y[:, 0].tolist() == pytest.approx([1 - 1, 1 - 2])


def test_no_triples_change_nothing() -> None:
    graph = ContextGraph.from_triples(torch.zeros(0, 3, dtype=torch.int64), 3, 2)
    x, y = random_rows(graph, 4, torch.float64)
    new_x, new_y = context_layer(x, y, graph, backend="reference")
    assert_bitwise_equal(new_x, x)
    assert_bitwise_equal(new_y, y)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_softmax_of_segments(shift: float) -> None:
    scores = torch.tensor([0.0, math.log(3), 2.0, 0.0, 1.0], dtype=torch.float64) + shift
    segment = torch.tensor([2, 2, 2, 0, 3])  # segment 1 is empty, segment 3 loses its only score
    mask = torch.tensor([False, False, True, False, True])
    weights = reference.segment_softmax(scores, segment, 4, mask)
    assert weights.tolist() == pytest.approx([0.25, 0.75, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_keep_the_float_dtype(dtype: torch.dtype) -> None:
    x, y, graph, mask = layer_inputs("degrees", 8, dtype)
    new_x, new_y = context_layer(x, y, graph, mask=mask, backend="reference")
    exact = context_layer(x.double(), y.double(), graph, mask=mask, backend="reference")
    assert new_x.dtype == new_y.dtype == dtype
    # one rounding of the dtype per step
    assert_close(new_x, exact[0], slack=8.0)
    assert_close(new_y, exact[1], slack=8.0)


@pytest.mark.parametrize("score", SCORES)
def test_inverses_have_separate_rows(score: str) -> None:
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float64)
    other = y.clone()
    other[graph.num_relations :] += 1
    new_x, new_y = context_layer(x, y, graph, score=score, backend="reference")
    other_x, other_y = context_layer(x, other, graph, score=score, backend="reference")
    heads, tails = graph.triples[:, 0], graph.triples[:, 2]  # no head is a tail
    assert_bitwise_equal(new_x[heads], other_x[heads])
    assert_bitwise_equal(new_y[: graph.num_relations], other_y[: graph.num_relations])
    assert not torch.isclose(new_x[tails], other_x[tails]).any()
