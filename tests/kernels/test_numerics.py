"""Numbers near the limits of their dtypes: the gradients of each back end are finite and match float64."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.plan import ENTITY_CHUNK
from lightcake_fast.ops import context_weights
from lightcake_fast.scores import score_named
from tests.support.comparison import TOLERANCES, assert_close
from tests.support.fuzz import slope_error
from tests.support.graphs import (
    CPU_SCORES,
    KERNELS,
    QUICK_SCORES,
    SCORES,
    as_read,
    layer_inputs,
    layer_results,
    random_rows,
)

ON_CARD = torch.cuda.is_available()
# a graph per back end: Triton's interpreter takes a second even for the smaller one
BACKENDS = [("numba", "hubs"), ("reference", "hubs"), ("triton", "hubs" if ON_CARD else "duplicates")]
EVERY_BACKEND = pytest.mark.parametrize(("backend", "name"), BACKENDS, ids=lambda value: value)
DTYPES = (torch.float32, torch.float64)


def results(x: Tensor, y: Tensor, graph: ContextGraph, backend: str, **options: Any) -> dict[str, Tensor]:
    """Run a layer on the device of the back end, and return the results on the CPU."""
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
    """Compare with the float64 reference, and return the reference's results."""
    exact = layer_results(x, y, graph, dtype=torch.float64, score=score, mask=mask, backend="reference")
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
    """DistMult has scores of both signs. With integers and one column the scores are exact."""
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
def test_scores_that_change_much_within_a_row(backend: str, score: str, rising: bool) -> None:
    """The running maximum of the only relation changes with nearly every triple, or never after the first."""
    ends = torch.arange(600).view(2, 300)
    graph = ContextGraph.from_triples(torch.stack([ends[0], 0 * ends[0], ends[1]], 1), 600, 1)
    x, y = random_rows(graph, 16, torch.float64)
    lengths = torch.logspace(-2, 1.3, 300, dtype=torch.float64)
    check(x * (lengths if rising else lengths.flip(0)).repeat(2)[:, None], y, graph, backend, score)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", ["transe", pytest.param("rotate", marks=pytest.mark.full)])
@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
def test_zero_lengths(backend: str, score: str, dtype: torch.dtype) -> None:
    """TransE with t = r + h, RotatE with t = h r: the gradient is zero, and nothing divides by zero."""
    x, y, graph, mask = layer_inputs("duplicates", 16, dtype)
    still = torch.zeros(16, dtype=dtype)
    still[:8] = score == "rotate"  # RotatE: the rotation by zero
    check(torch.ones_like(x), still.expand_as(y), graph, backend, score)
    y[0] = still  # only in the loops of relation 0
    assert ((graph.triples[:, 0] == graph.triples[:, 2]) & (graph.triples[:, 1] == 0)).any()
    check(x, y, graph, backend, score, mask)


@pytest.mark.parametrize("score", ["distmult", "transe"])
@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
def test_one_triple_with_all_the_weight(backend: str, score: str) -> None:
    """Scores differ by 128 and more, so every other weight is below the smallest float32."""
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
    """An entity and a relation have 100,000 context triples, so float32 sums have that many terms."""
    tails = torch.arange(100_000) % 5_000 + 1
    triples = torch.stack([torch.zeros_like(tails), torch.zeros_like(tails), tails], 1)
    graph = ContextGraph.from_triples(triples, 5_001, 1)
    x, y = random_rows(graph, 6, torch.float32)
    check(x, y, graph, backend, score, slack=16.0 if backend == "reference" else 4.0)


@EVERY_BACKEND
def test_float16_scores_beyond_float16(backend: str, name: str) -> None:
    """The DistMult scores exceed float16's maximum of 65,504. The rows and gradients do not."""
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
def test_nan_and_infinity_stay_in_their_row(backend: str, score: str, value: float) -> None:
    """A broken row makes its results and gradients NaN or infinite. Results that do not depend on it stay."""
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
@pytest.mark.parametrize("copies", [1, 2 * ENTITY_CHUNK + 9])
def test_a_non_finite_row_affects_the_same_rows_in_all_back_ends(
    score: str, value: float, masked: bool, copies: int
) -> None:
    """Entities 1 and 6 read row 0. One also has an unmasked triple, the other (cut or not) has none."""
    sound = [[2, 0, 3], [2, 1, 1], [4, 1, 5], [4, 0, 4]]
    triples = torch.tensor([[0, 0, 1], *copies * [[0, 0, 6]], *sound])
    graph = ContextGraph.from_triples(triples, 7, 2)
    mask = triples[:, 0] == 0 if masked else None
    entities, relations = torch.randn(7, 8), torch.randn(4, 8)
    entities[0] = value
    for backend in ("reference", "numba", "triton"):
        found = results(entities, relations, graph, backend, score=score, mask=mask)
        shown = [
            (~found[table].isfinite()).any(1).nonzero().flatten().tolist()
            for table in ("entities", "relations")
        ]
        assert shown == [[0, 1, 6], [0, 2]], backend


@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
def test_a_score_of_minus_infinity_affects_a_row_without_other_triples(backend: str) -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [2, 1, 3]]), 4, 2)
    entities, relations = torch.randn(4, 6), torch.randn(4, 6)
    relations[0, 0] = math.inf
    found = results(entities, relations, graph, backend, score="transe")["entities"]
    assert not found[0].isfinite().all()
    assert found[2:].isfinite().all()


def at_scores_of(largest: float, score: str, graph: ContextGraph, seed: int) -> tuple[Tensor, Tensor]:
    """Return random float32 rows with a largest score of this size. RotatE's relations are rotations."""
    x, y = random_rows(graph, 8, torch.float64, seed=seed)
    heads, relations, tails = graph.context_triples
    if score == "rotate":
        y = torch.view_as_real(torch.polar(torch.ones(()), y[:, :4].float())).transpose(1, 2).flatten(1)
    functions = score_named(score)
    reached = functions.psi(*functions.read(x[heads], as_read(y, score)[relations], x[tails])).abs().max()
    factor = (largest / reached) ** (1 / 3 if score in ("distmult", "complex", "simple") else 1)
    return (x * factor).float(), as_read(y if score == "rotate" else y * factor, score).float()


def in_order(number: int, rows: Tensor, columns: int) -> Tensor:
    """Permute the entries of the rows. A score is the same sum, rounded in another order."""
    count = rows.shape[1] // columns
    order = torch.arange(count) if number == 0 else torch.randperm(count, generator=torch.manual_seed(number))
    return rows[:, torch.cat([order + count * column for column in range(columns)])].contiguous()


def largest_errors(x: Tensor, y: Tensor, graph: ContextGraph, backend: str, score: str) -> dict[str, float]:
    """Return the largest error of each table relative to its largest number."""
    exact = layer_results(x, y, graph, dtype=torch.float64, score=score, backend="reference")
    found = results(x, y, graph, backend, score=score)
    return {
        table: ((found[table].double() - wide).abs().max() / wide.abs().max()).item()
        for table, wide in exact.items()
    }


def assert_as_near_as_pytorch(
    backend: str, graph: ContextGraph, score: str, inputs: list[tuple[Tensor, Tensor]]
) -> None:
    """Assert that the largest error of each table over the inputs is at most 4 times that of float32 PyTorch.

    If two large scores are nearly tied, their rounding dominates the error. It can be a thousandth or a
    millionth, depending on the order of the sum. So PyTorch's error is the largest over several orders.
    """
    ours = [largest_errors(x, y, graph, backend, score) for x, y in inputs]
    of_x = score_named(score).columns
    of_y = 2 if score_named(score).planes else of_x
    of_pytorch = [
        largest_errors(in_order(n, x, of_x), in_order(n, y, of_y), graph, "reference", score)
        for x, y in inputs
        for n in range(6)
    ]
    for table in ours[0]:
        error, allowed = max(e[table] for e in ours), 4 * max(e[table] for e in of_pytorch)
        assert error <= allowed, f"{table}: {error:.2g} of the largest, four times PyTorch's {allowed:.2g}"


def distinct_triples(entities: int, relations: int, count: int) -> ContextGraph:
    """Return random triples without duplicates."""
    rng = np.random.default_rng(1)
    numbers = rng.choice(entities * relations * entities, count, replace=False)
    triples = np.stack(np.unravel_index(numbers, (entities, relations, entities)), 1)
    return ContextGraph.from_triples(torch.from_numpy(triples), entities, relations)


QUICK_LARGE = {("numba", score, s) for score in (*QUICK_SCORES, "transh") for s in (8.0, 1000.0)} | {
    ("triton", "transe", 1000.0)
}
LARGE = [
    pytest.param(*kernel, s, marks=[] if (*kernel, s) in QUICK_LARGE or ON_CARD else pytest.mark.full)
    for kernel, s in itertools.product(KERNELS, (1.0, 8.0, 100.0, 1000.0))
]


@pytest.mark.parametrize(("backend", "score", "largest"), LARGE)
def test_errors_at_large_scores_are_as_small_as_pytorchs(
    backend: str, score: str, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At scores of 1,000 the rounding of a float32 log-sum-exp is 3e-5. It would affect every weight."""
    graph, seeds = distinct_triples(300, 5, 2000), range(4)
    if backend == "triton" and not ON_CARD:
        monkeypatch.setattr(gpu_launch, "warp_size", lambda: 256)
        graph, seeds = distinct_triples(24, 2, 120), range(3)
    assert_as_near_as_pytorch(backend, graph, score, [at_scores_of(largest, score, graph, s) for s in seeds])


def hub(tails: Tensor) -> ContextGraph:
    """Return one entity and one relation with this number of triples."""
    triples = torch.stack([torch.zeros_like(tails), torch.zeros_like(tails), tails], 1)
    return ContextGraph.from_triples(triples, int(tails.max()) + 1, 1)


@pytest.mark.parametrize("largest", [8.0, 1000.0])
@pytest.mark.parametrize("score", CPU_SCORES)
def test_errors_of_hubs_are_as_small_as_pytorchs(score: str, largest: float) -> None:
    """An entity and a relation have 100,000 triples."""
    graph = hub(torch.arange(100_000) % 5_000 + 1)
    assert_as_near_as_pytorch("numba", graph, score, [at_scores_of(largest, score, graph, 0)])


@pytest.mark.parametrize("score", ["distmult", "complex", "transe"])
def test_a_hub_with_all_the_weight_on_one_triple(score: str) -> None:
    """Its weight is exactly one, and the errors are as small as PyTorch's."""
    graph = hub(torch.arange(100_000) + 1)
    x, y = at_scores_of(1000.0, score, graph, 0)
    if score == "transe":
        x[7] = x[0] + y[0]
    else:
        x[7] *= 1000.0 / score_named(score).psi(x[0], y[0], x[7])
        x[1:7] *= 0.1
        x[8:] *= 0.1
    weights = context_weights(x, y, graph, score=score, backend="numba")
    for context in weights:
        assert context[6] == 1
        assert context[:100_000].sum() == 1
    assert_as_near_as_pytorch("numba", graph, score, [(x, y)])
