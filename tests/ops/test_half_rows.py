"""``rows="bfloat16"``: triples read rounded entities, and the sums are added to the exact entities."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer, context_weights
from lightcake_fast.reference.layer import rounded
from lightcake_fast.scores import score_named
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import CONTEXTS, GRAPHS, KERNELS, as_read, layer_inputs, layer_results

DEVICES = {"triton": "cuda" if torch.cuda.is_available() else "cpu"}
CUT = {"numba": "hubs", "triton": "hub", "reference": "hubs"}  # graphs with cut rows
WIDTHS = (6, 64, 100, 256)
DTYPES = (torch.float32, torch.float64)
pytestmark = pytest.mark.usefixtures("small_chunks")


def on_cpu(results: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.cpu() for name, values in results.items()}


def half(x: Tensor, y: Tensor, graph: ContextGraph, backend: str, **options: Any) -> dict[str, Tensor]:
    return on_cpu(layer_results(x, y, graph, rows="bfloat16", backend=backend, **options))


def whole(x: Tensor, y: Tensor, graph: ContextGraph, backend: str, **options: Any) -> dict[str, Tensor]:
    return on_cpu(layer_results(x, y, graph, backend=backend, **options))


def test_rows_are_rounded_to_the_nearest_even() -> None:
    step = 2.0**-7  # spacing of bfloat16 numbers above one
    given = [
        1 + step / 2,
        1 + 3 * step / 2,
        1 + 0.51 * step,
        -1 - 0.49 * step,
        3e-39,
        torch.inf,
        torch.nan,
        3.4e38,
    ]
    wanted = [1.0, 1 + 2 * step, 1 + step, -1.0, 0.0, torch.inf, torch.nan, torch.inf]
    wanted[4] = torch.tensor(3e-39).bfloat16().item()  # denormal in float32 and in bfloat16
    for dtype in (torch.float32, torch.float64):
        table = torch.tensor(given, dtype=dtype, requires_grad=True)
        found = rounded(table)
        assert_bitwise_equal(found, torch.tensor(wanted, dtype=dtype))
        weights = torch.arange(len(given), dtype=dtype)
        assert_bitwise_equal(torch.autograd.grad(found, table, weights)[0], weights)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("backend", ["numba", "reference", pytest.param("triton", marks=pytest.mark.full)])
def test_sums_use_the_rounded_rows(backend: str, context: str, residual: bool) -> None:
    """In float64, with gradients.

    The result equals a layer of rounded rows, except for the rows added at the end.
    """
    x, y, graph, _ = layer_inputs(CUT[backend], 6, torch.float64, DEVICES.get(backend, "cpu"))
    options: dict[str, Any] = {"score": "transe", "context": context, "residual": residual}
    values = x.bfloat16().double()
    actual, expected = half(x, y, graph, backend, **options), whole(values, y, graph, backend, **options)
    if residual:
        expected["entities"] += (x - values).cpu()
    for name, wanted in expected.items():
        assert_close(actual[name], wanted, name=name, slack=10)
    table = "relations" if context == "relation" else "entities"
    unrounded = whole(x, y, graph, backend, **options)[table]
    assert (actual[table] - unrounded).abs().max() > 1e-4, "no row was rounded"


QUICK = {
    *(("numba", "distmult", context, 6, torch.float32) for context in CONTEXTS),
    ("numba", "transe", "both", 6, torch.float64),
    ("triton", "transe", "both", 6, torch.float32),
}
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.full, id="-".join(map(str, case)))
    for (backend, score), context, width, dtype in itertools.product(KERNELS, CONTEXTS, WIDTHS, DTYPES)
    if width % score_named(score).columns == 0
    for case in [(backend, score, context, width, dtype)]
]


@pytest.mark.parametrize(("backend", "score", "context", "width", "dtype"), CASES)
def test_equals_the_reference(backend: str, score: str, context: str, width: int, dtype: torch.dtype) -> None:
    for name, masked, residual in ((CUT[backend], False, True), ("duplicates", True, False)):
        x, y, graph, mask = layer_inputs(name, width, dtype, DEVICES.get(backend, "cpu"))
        y = as_read(y, score)
        options: dict[str, Any] = {
            "score": score,
            "context": context,
            "mask": mask if masked else None,
            "residual": residual,
        }
        expected = half(x, y, graph, "reference", dtype=torch.float64, **options)
        rough = half(x, y, graph, "reference", **options)
        for table, actual in half(x, y, graph, backend, **options).items():
            assert actual.dtype == dtype
            # a hub's gradient is a sum that cancels, and without the residual the cancellation is stronger
            scale = expected[table].abs().max().clamp(min=1e-30)
            error = (rough[table].double() - expected[table]).abs().max() / scale
            slack = 4.0 if dtype == torch.float64 else 4.0 + 4.0 * error.item() / 2e-6
            assert_close(actual, expected[table], name=f"{table} of {name}", slack=slack)


@pytest.mark.full
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("backend", ["numba", "triton"])
def test_every_graph(name: str, backend: str) -> None:
    x, y, graph, mask = layer_inputs(name, 64, torch.float32, DEVICES.get(backend, "cpu"))
    expected = half(x, y, graph, "reference", dtype=torch.float64, mask=mask)
    for table, actual in half(x, y, graph, backend, mask=mask).items():
        assert_close(actual, expected[table], name=table, slack=4.0)


@pytest.mark.parametrize("backend", ["numba", pytest.param("triton", marks=pytest.mark.full)])
def test_bfloat16_values_round_to_themselves(backend: str) -> None:
    x, y, graph, mask = layer_inputs("duplicates", 6, torch.float32, DEVICES.get(backend, "cpu"))
    x = x.bfloat16().float()
    expected = whole(x, y, graph, backend, mask=mask)
    for name, actual in half(x, y, graph, backend, mask=mask).items():
        assert_close(actual, expected[name], name=name)


def test_weights_equal_the_layers_weights() -> None:
    x, y, graph, mask = layer_inputs("duplicates", 6, torch.float64)
    heads, relations, tails = graph.context_triples
    values = x.bfloat16().double()
    for backend in ("numba", "reference"):
        options: dict[str, Any] = {"mask": mask, "rows": "bfloat16", "backend": backend}
        alpha, beta = context_weights(x, y, graph, **options)
        new_x, new_y = context_layer(x, y, graph, **options)
        assert_close(new_x, x.index_add(0, heads, alpha[:, None] * values[tails] * y[relations]))
        assert_close(new_y, y.index_add(0, relations, beta[:, None] * values[tails] * values[heads]))


def test_compile_and_autocast_give_the_same_results() -> None:
    x, y, graph, mask = layer_inputs("degrees", 6, torch.float32)

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(x, y, graph, mask=mask, rows="bfloat16")

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    tables = x.requires_grad_(), y.requires_grad_()
    results = []
    for call, autocast in ((layer, False), (compiled, False), (layer, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            rows = call(*tables)
        results.append([*rows, *torch.autograd.grad([table.square().sum() for table in rows], tables)])
    for found in results[1:]:
        for actual, expected in zip(found, results[0], strict=True):
            assert_bitwise_equal(actual, expected)


def test_forward_mode_and_torch_func_ignore_the_rounding() -> None:
    x, y, graph, _ = layer_inputs("duplicates", 4, torch.float64)
    values, direction = x.bfloat16().double(), torch.ones_like(x)

    def sums(x: Tensor, rows: str) -> Tensor:
        return context_layer(x, y, graph, score="transe", rows=rows, residual=False)[0]

    for name in ("jvp", "vjp"):
        found, wanted = (
            torch.func.jvp(lambda x, rows=rows: sums(x, rows), (table,), (direction,))[1]
            if name == "jvp"
            else torch.func.vjp(lambda x, rows=rows: sums(x, rows), table)[1](direction)[0]
            for table, rows in ((x, "bfloat16"), (values, "float32"))
        )
        assert_close(found, wanted, name=name)
        assert found.abs().max() > 0.1
