"""Numbers at the edges of their types: each back end's gradients are finite and right against float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from tests.support.comparison import TOLERANCES, assert_close
from tests.support.fuzz import slope_error
from tests.support.graphs import SCORES, layer_inputs, layer_results, random_rows

ON_CARD = torch.cuda.is_available()
# with graphs for each: Triton's interpreter takes a second for the smaller one
BACKENDS = [("numba", "hubs"), ("reference", "hubs"), ("triton", "hubs" if ON_CARD else "duplicates")]
EVERY_BACKEND = pytest.mark.parametrize(("backend", "name"), BACKENDS, ids=lambda value: value)
DTYPES = (torch.float32, torch.float64)


def results(x: Tensor, y: Tensor, graph: ContextGraph, backend: str, **options: Any) -> dict[str, Tensor]:
    """A layer on the device that the back end runs on, brought back."""
    device = "cuda" if backend == "triton" and ON_CARD else "cpu"
    if options.get("mask") is not None:
        options["mask"] = options["mask"].to(device)
    found = layer_results(x.to(device), y.to(device), graph.to(device), backend=backend, **options)
    return {table: values.cpu() for table, values in found.items()}


def check(
    x: Tensor,
    y: Tensor,
    graph: ContextGraph,
    backend: str,
    score: str,
    mask: Tensor | None = None,
    slack: float = 1.0,
) -> dict[str, Tensor]:
    """Compare with the float64 reference, whose results come back."""
    exact = layer_results(x.double(), y.double(), graph, score=score, mask=mask, backend="reference")
    most = max(table.abs().max().item() for table in (x, y))
    for table, actual in results(x, y, graph, backend, score=score, mask=mask).items():
        assert actual.dtype == x.dtype
        wide, tolerance = exact[table], TOLERANCES[x.dtype]
        allowed = slack * (tolerance.relative * wide.abs() + tolerance.scaled * wide.abs().max())
        if table.startswith("dL/"):
            allowed += slope_error(score, x.dtype, x.shape[1], most)
        error = (actual.double() - wide).abs()
        assert (error <= allowed).all(), f"{table}: errors of {error.max()} at {wide.abs().max()}"
    return exact


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("score", "most_x", "most_y"), [("distmult", 20, 25), ("transe", 4000, 2000)])
@EVERY_BACKEND
def test_scores_of_ten_thousand(
    backend: str, name: str, score: str, most_x: int, most_y: int, dtype: torch.dtype
) -> None:
    """Of either sign for DistMult; in whole numbers and one column, where the scores are exact."""
    _, _, graph, mask = layer_inputs(name, 1, dtype)
    random = torch.Generator().manual_seed(3)
    x, y = (
        torch.randint(-most, most + 1, (rows, 1), generator=random).to(dtype)
        for most, rows in ((most_x, graph.num_entities), (most_y, 2 * graph.num_relations))
    )
    check(x, y, graph, backend, score)
    check(x, y, graph, backend, score, mask)


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_scores_that_change_far_within_a_row(backend: str, score: str, rising: bool) -> None:
    """The running maximum of the one relation moves with nearly every triple, or never again."""
    ends = torch.arange(600).view(2, 300)
    graph = ContextGraph.from_triples(torch.stack([ends[0], 0 * ends[0], ends[1]], 1), 600, 1)
    x, y = random_rows(graph, 16, torch.float64)
    lengths = torch.logspace(-2, 1.3, 300, dtype=torch.float64)
    check(x * (lengths if rising else lengths.flip(0)).repeat(2)[:, None], y, graph, backend, score)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", ["transe", pytest.param("rotate", marks=pytest.mark.full)])
@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
def test_zero_lengths(backend: str, score: str, dtype: torch.dtype) -> None:
    """TransE where t = r + h, RotatE where t = h r: the score has no slope there, nothing divides by it."""
    x, y, graph, mask = layer_inputs("duplicates", 16, dtype)
    still = torch.zeros(16, dtype=dtype)
    still[:8] = score == "rotate"  # a rotation by nothing
    check(torch.ones_like(x), still.expand_as(y), graph, backend, score)
    y[0] = still  # of the loops of relation 0 alone
    assert ((graph.triples[:, 0] == graph.triples[:, 2]) & (graph.triples[:, 1] == 0)).any()
    check(x, y, graph, backend, score, mask)


@pytest.mark.parametrize("score", ["distmult", "transe"])
@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
def test_one_triple_that_has_all_the_weight(backend: str, score: str) -> None:
    """Scores 128 and more apart: every other weight is below the smallest float32."""
    tails = torch.arange(1, 9)
    triples = torch.stack([torch.zeros_like(tails), torch.zeros_like(tails), tails], 1)
    graph = ContextGraph.from_triples(triples, 9, 1)
    x = torch.cat([torch.ones(1), 128.0 * tails])[:, None]
    exact = check(x, torch.ones(2, 1), graph, backend, score)
    best = 8 if score == "distmult" else 1
    assert exact["entities"][0, 0] == 1 + (x[best, 0] if score == "distmult" else x[best, 0] - 1)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("backend", ["numba", "reference", *["triton"] * ON_CARD])
def test_rows_of_a_hundred_thousand(backend: str, score: str) -> None:
    """An entity and a relation with so many context triples; float32 sums of as many terms."""
    tails = torch.arange(100_000) % 5_000 + 1
    triples = torch.stack([torch.zeros_like(tails), torch.zeros_like(tails), tails], 1)
    graph = ContextGraph.from_triples(triples, 5_001, 1)
    x, y = random_rows(graph, 6, torch.float32)
    check(x, y, graph, backend, score, slack=16.0 if backend == "reference" else 4.0)


@EVERY_BACKEND
def test_float16_scores_beyond_float16(backend: str, name: str) -> None:
    """DistMult: the scores leave the type, which ends at 65,504; the rows and gradients do not."""
    _, _, graph, mask = layer_inputs(name, 1, torch.float16)
    random = torch.Generator().manual_seed(4)
    x, y = (
        (
            (15 + 10 * torch.rand(rows, 16, generator=random))
            * torch.randn(rows, 16, generator=random).sign()
        ).half()
        for rows in (graph.num_entities, 2 * graph.num_relations)
    )
    heads, relations, tails = graph.context_triples
    scores = (x[heads].double() * y[relations].double() * x[tails].double()).sum(1)
    assert scores.abs().max() > 2**16
    check(x, y, graph, backend, "distmult", mask)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
def test_what_is_no_number_stays_where_it_belongs(backend: str, score: str, value: float) -> None:
    """A broken row shows in itself and in the gradients, and spoils nothing that does not depend on it."""
    x, y, graph, _ = layer_inputs("duplicates", 6, torch.float32)
    x[3, 2] = value
    expected = layer_results(x, y, graph, backend="reference", score=score)
    actual = results(x, y, graph, backend, score=score)
    assert not actual["entities"][3, 2].isfinite()
    for table, values in actual.items():
        sound = expected[table].isfinite()
        assert not sound.all()
        assert_close(values[sound], expected[table][sound], name=table, slack=4.0)
        if table.startswith("dL/") or backend == "numba":
            assert not values[~sound].isfinite().any(), table


@pytest.mark.parametrize("score", ["distmult", "transe"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("masked", [False, True])
def test_a_row_that_is_not_finite_shows_in_the_same_rows_of_all_back_ends(
    score: str, value: float, masked: bool
) -> None:
    triples = torch.tensor([[0, 0, 1], [2, 0, 3], [2, 1, 1], [4, 1, 5], [4, 0, 4]])
    graph = ContextGraph.from_triples(triples, 6, 2)
    mask = torch.arange(5) == 0 if masked else None
    entities, relations = torch.randn(6, 8), torch.randn(4, 8)
    entities[0] = value
    for backend in ("reference", "numba", "triton"):
        found = results(entities, relations, graph, backend, score=score, mask=mask)
        shown = [(~found[table].isfinite()).any(1).tolist() for table in ("entities", "relations")]
        assert shown == [[True, True, False, False, False, False], [True, False, True, False]], backend
