"""The layer as an operator on the CPU: registration, dtypes, layouts, weights, callers, invalid arguments."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast import backends, ops
from lightcake_fast.errors import InputError
from lightcake_fast.ops import context_layer, context_weights
from tests.support.comparison import assert_as_precise_as, assert_bitwise_equal, assert_close
from tests.support.graphs import CONTEXTS, SCORES, layer_inputs, layer_results
from tests.support.processes import HANG

Layer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, wanted in expected.items():
        assert_bitwise_equal(actual[name], wanted, name=name)


def gradients(layer: Layer, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients by x and y of a loss that weighs every number differently."""
    new_x, new_y = layer(x, y)
    loss = (new_x * torch.linspace(-1, 1, new_x.numel(), dtype=x.dtype).view_as(new_x)).sum()
    return torch.autograd.grad(loss + new_y.square().sum(), (x, y))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_gradients_equal_finite_differences(backend: str, score: str, context: str, masked: bool) -> None:
    x, y, graph, mask = layer_inputs("duplicates", 4, torch.float64)

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(
            x, y, graph, score=score, context=context, mask=mask if masked else None, backend=backend
        )

    assert torch.autograd.gradcheck(layer, (x.requires_grad_(), y.requires_grad_()))


@pytest.mark.parametrize(
    ("score", "context", "masked", "residual", "rows", "differentiable"),
    [
        ("distmult", "both", False, True, "float32", True),
        ("distmult", "both", False, False, "bfloat16", True),
        ("transe", "entity", True, True, "float32", True),
        ("transe", "relation", True, True, "float32", False),
    ],
)
def test_operator_registration(
    score: str, context: str, masked: bool, residual: bool, rows: str, differentiable: bool
) -> None:
    x, y, graph, mask = layer_inputs("degrees", 5, torch.float32)
    x, y = x.requires_grad_(differentiable), y.requires_grad_(differentiable)
    options = ops.packed_options(score, context, residual, rows, "numba")
    arguments = (x, y, list(graph.plan), mask if masked else None, options)
    torch.library.opcheck(torch.ops.lightcake_fast.context_layer.default, arguments)


@pytest.mark.parametrize(("score", "rows"), [("transe", "float32"), ("distmult", "bfloat16")])
def test_backward_operator_registration(score: str, rows: str) -> None:
    x, y, graph, mask = layer_inputs("degrees", 5, torch.float32)
    plan = list(graph.plan)
    options = ops.packed_options(score, "both", True, rows, "numba")
    outputs = torch.ops.lightcake_fast.context_layer(x, y, plan, mask, options)
    torch.library.opcheck(
        torch.ops.lightcake_fast.context_layer_backward.default,
        (x, y, x, y, outputs, plan, options),
    )


@pytest.mark.parametrize("wrt", ["entities", "relations"])
def test_one_table_may_be_constant(wrt: str) -> None:
    x, y, graph, _ = layer_inputs("degrees", 5, torch.float32)
    expected = layer_results(x, y, graph, backend="numba")
    table = (x if wrt == "entities" else y).requires_grad_()
    random = torch.Generator().manual_seed(2)
    rows = context_layer(x, y, graph, backend="numba")
    weights = [torch.randn(t.shape, generator=random, dtype=torch.float64).to(t.dtype) for t in rows]
    (gradient,) = torch.autograd.grad(rows, table, weights)
    assert_bitwise_equal(gradient, expected[f"dL/d{wrt}"])


@pytest.mark.parametrize("output", [0, 1])
def test_one_output_may_be_unused(output: int) -> None:
    x, y, graph, _ = layer_inputs("degrees", 5, torch.float64)
    x.requires_grad_()
    (actual,) = torch.autograd.grad(context_layer(x, y, graph, backend="numba")[output].sum(), x)
    (expected,) = torch.autograd.grad(context_layer(x, y, graph, backend="reference")[output].sum(), x)
    assert_close(actual, expected)


def test_a_second_derivative_is_refused() -> None:
    x, y, graph, _ = layer_inputs("degrees", 5, torch.float64)
    x.requires_grad_()
    loss = context_layer(x, y, graph, backend="numba")[0].square().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradient.sum(), x)


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
@pytest.mark.parametrize("score", SCORES)
def test_compiled_equals_eager(score: str, compiler: str) -> None:
    torch.compiler.reset()  # a process compiles one function only a few times
    x, y, graph, mask = layer_inputs("degrees", 6, torch.float32)
    x, y = x.requires_grad_(), y.requires_grad_()

    def two_layers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = context_layer(x, y, graph, score=score, mask=mask)
        return context_layer(*rows, graph, score=score, mask=mask)

    compiled = torch.compile(two_layers, fullgraph=True, backend=compiler)
    for actual, expected in zip(compiled(x, y), two_layers(x, y), strict=True):
        assert_bitwise_equal(actual, expected, name="rows")
    for actual, expected in zip(gradients(compiled, x, y), gradients(two_layers, x, y), strict=True):
        assert_bitwise_equal(actual, expected, name="gradient")


def test_auto_is_numba_on_the_cpu() -> None:
    x, y, graph, mask = layer_inputs("degrees", 5, torch.float32)
    numba = layer_results(x, y, graph, mask=mask, backend="numba")
    assert_same(layer_results(x, y, graph, mask=mask), numba)
    reference = layer_results(x, y, graph, mask=mask, backend="reference")
    assert not torch.equal(reference["entities"], numba["entities"])  # the two round differently


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_inputs_are_not_modified(backend: str) -> None:
    x, y, graph, mask = layer_inputs("hubs", 5, torch.float32)
    before = [t.clone() for t in (x, y, mask, *graph.plan)]
    rows = context_layer(x, y, graph, context="entity", mask=mask, backend=backend)
    layer_results(x, y, graph, mask=mask, backend=backend)
    for actual, expected in zip((x, y, mask, *graph.plan), before, strict=True):
        assert_bitwise_equal(actual, expected)
    assert_bitwise_equal(rows[1], y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["degrees", "hubs"])
def test_16_bit_rows_are_computed_in_float32(name: str, score: str, dtype: torch.dtype) -> None:
    x, y, graph, mask = layer_inputs(name, 16, dtype)
    actual = layer_results(x, y, graph, score=score, mask=mask, backend="numba")
    low = layer_results(x, y, graph, score=score, mask=mask, backend="reference")
    exact = layer_results(x, y, graph, dtype=torch.float64, score=score, mask=mask, backend="reference")
    wide = layer_results(x, y, graph, dtype=torch.float32, score=score, mask=mask, backend="numba")
    for table, narrow in actual.items():
        assert narrow.dtype == dtype
        assert_as_precise_as(narrow, low[table], exact[table], name=table)
    for table in ("entities", "relations"):
        assert_bitwise_equal(actual[table], wide[table].to(dtype), name=table)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_runs_in_float32(dtype: torch.dtype) -> None:
    x, y, graph, mask = layer_inputs("degrees", 16, torch.float32)
    expected = layer_results(x, y, graph, mask=mask, backend="numba")
    wide = layer_results(x.double(), y.double(), graph, mask=mask, backend="numba")
    with torch.autocast("cpu", dtype):
        assert_same(layer_results(x, y, graph, mask=mask, backend="numba"), expected)
        assert_same(layer_results(x.double(), y.double(), graph, mask=mask, backend="numba"), wide)
        # the operator itself; its passes take no 16-bit rows
        options = ops.packed_options("distmult", "both", True, "float32", "numba")
        arguments = (x.to(dtype), y.to(dtype), list(graph.plan), mask, options)
        rows = torch.ops.lightcake_fast.context_layer(*arguments)
    assert [table.dtype for table in rows[:2]] == [torch.float32] * 2


def test_any_layout_of_inputs() -> None:
    x, y, graph, mask = layer_inputs("degrees", 6, torch.float32)
    expected = layer_results(x, y, graph, mask=mask, backend="numba")
    wide = torch.zeros(len(x), 12)
    wide[:, ::2] = x
    for layout in (x.T.contiguous().T, wide[:, ::2], torch.cat([x, x])[: len(x)]):
        rows = y.T.contiguous().T
        assert_same(layer_results(layout, rows, graph, mask=mask, backend="numba"), expected)
    every_other = torch.stack([mask, ~mask], 1)[:, 0]
    assert not every_other.is_contiguous()
    assert_same(layer_results(x, y, graph, mask=every_other, backend="numba"), expected)


def test_expanded_inputs_and_gradients() -> None:
    _, y, graph, _ = layer_inputs("degrees", 6, torch.float64)
    row = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
    results = []
    for backend in ("numba", "reference"):
        new_x, new_y = context_layer(row.expand(graph.num_entities, 6), y, graph, backend=backend)
        # the gradient of a sum is one expanded number; the gradient of a transposed product is strided
        loss = new_x.sum() + (new_y.T @ torch.ones(len(y), 3, dtype=torch.float64)).square().sum()
        results.append(torch.autograd.grad(loss, row)[0])
    assert_close(*results)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["degrees", "duplicates", "hubs"])
def test_weights(name: str, score: str, masked: bool) -> None:
    x, y, graph, mask = layer_inputs(name, 6, torch.float64)
    used = mask if masked else None
    actual = context_weights(x, y, graph, score=score, mask=used, backend="numba")
    expected = context_weights(x, y, graph, score=score, mask=used, backend="reference")
    heads, relations, _ = graph.context_triples
    live = ~(mask & masked).repeat(2)
    for table, weights, wanted, rows, count in (
        ("alpha", actual[0], expected[0], heads, graph.num_entities),
        ("beta", actual[1], expected[1], relations, 2 * graph.num_relations),
    ):
        assert_close(weights, wanted, name=table)
        assert not weights[~live].any()
        sums = torch.zeros(count, dtype=torch.float64).index_add_(0, rows, weights)
        some = torch.zeros(count, dtype=torch.bool)
        some[rows[live]] = True
        assert_close(sums, some.double(), name=f"sums of {table}")


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_weights_reproduce_the_layer(backend: str) -> None:
    x, y, graph, mask = layer_inputs("duplicates", 7, torch.float64)
    heads, relations, tails = graph.context_triples
    alpha, beta = context_weights(x, y, graph, mask=mask, backend=backend)
    new_x, new_y = context_layer(x, y, graph, mask=mask, backend=backend)
    assert_close(new_x, x.index_add(0, heads, alpha[:, None] * x[tails] * y[relations]))
    assert_close(new_y, y.index_add(0, relations, beta[:, None] * x[tails] * x[heads]))


def test_weights_have_no_gradient_and_the_type_of_the_rows() -> None:
    x, y, graph, _ = layer_inputs("degrees", 7, torch.bfloat16)
    for backend in ("numba", "reference"):
        weights = context_weights(x.requires_grad_(), y.requires_grad_(), graph, backend=backend)
        assert [(w.dtype, w.requires_grad) for w in weights] == [(torch.bfloat16, False)] * 2


def test_concurrent_callers() -> None:
    x, y, graph, mask = layer_inputs("hubs", 64, torch.float32)
    expected = layer_results(x, y, graph, mask=mask, backend="numba")
    found: list[dict[str, Tensor]] = []
    together = threading.Barrier(2)

    def call() -> None:
        together.wait()
        found.extend(layer_results(x, y, graph, mask=mask, backend="numba") for _ in range(5))

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 10
    for results in found:
        assert_same(results, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_can_call() -> None:
    """The parent's threads do not exist in the child, so the child must not wait for them."""
    # Few rows, so that PyTorch uses one thread. PyTorch's OpenMP hangs after a fork.
    x, y, graph, mask = layer_inputs("hubs", 16, torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = layer_results(x, y, graph, mask=mask, backend="numba")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(HANG)  # ends a child that hangs
                assert_same(layer_results(x, y, graph, mask=mask, backend="numba"), expected)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("call", [context_layer, context_weights], ids=lambda call: call.__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"score": "rescal"},
            r"score: expected one of distmult, transe, complex, simple, rotate, .*, got 'rescal'",
        ),
        (
            {"score": "complex", "entities": torch.zeros(60, 5), "relations": torch.zeros(20, 5)},
            r"entities: expected a multiple of 2 for score 'complex', got width 5",
        ),
        ({"rows": "float16"}, r"rows: expected one of float32, bfloat16, got 'float16'"),
        (
            {
                "rows": "bfloat16",
                "entities": torch.zeros(60, 4).half(),
                "relations": torch.zeros(20, 4).half(),
            },
            r"rows: expected 'float32' for 16-bit .* got 'bfloat16' with entities of torch.float16",
        ),
        ({"backend": "cuda"}, r"backend: expected one of auto, triton, numba, reference, got 'cuda'"),
        ({"entities": torch.zeros(59, 4)}, r"entities: expected shape \(60, d\), got \(59, 4\)"),
        ({"entities": torch.zeros(60)}, r"entities: expected shape \(60, d\), got \(60,\)"),
        (
            {"entities": torch.zeros(60, 4).long()},
            r"entities: expected a floating.*, got torch.int64",
        ),
        ({"relations": torch.zeros(10, 4)}, r"relations: expected shape \(20, d\), got \(10, 4\)"),
        (
            {"entities": torch.zeros(60, 4).to(torch.float8_e4m3fn)},
            r"entities: expected .*, got torch.float8_e4m3fn",
        ),
        (
            {"entities": torch.zeros(60, 4).to_sparse()},
            r"entities: expected a dense .* torch.sparse_coo",
        ),
        (
            {"relations": torch.zeros(20, 4).bool()},
            r"relations: expected a floating.*, got torch.bool",
        ),
        ({"relations": torch.zeros(20, 5)}, r"relations: expected .*, 4 and .*, got 5 and torch.float32"),
        ({"relations": torch.zeros(20, 4).double()}, r"relations: expected .*, got 4 and torch.float64"),
        (
            {"relations": torch.zeros(20, 4, device="meta")},
            r"relations: expected .* device .*, cpu, got meta",
        ),
        ({"mask": torch.zeros(44).bool()}, r"mask: expected torch.bool \(45,\), got torch.bool \(44,\)"),
        ({"mask": torch.zeros(90).bool()}, r"mask: expected .*, got torch.bool \(90,\)"),
        ({"mask": torch.zeros(45)}, r"mask: expected .*, got torch.float32 \(45,\)"),
        ({"mask": torch.zeros(45, device="meta").bool()}, r"mask: expected the device .*, got meta"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, change: dict[str, Any], message: str) -> None:
    graph = layer_inputs("degrees", 1, torch.float32)[2]
    arguments = {"entities": torch.zeros(60, 4), "relations": torch.zeros(20, 4), "graph": graph} | change
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        call(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["entities", "relations", "graph", "mask"])
@pytest.mark.parametrize("call", [context_layer, context_weights])
def test_arguments_of_wrong_types_are_refused(call: Any, name: str) -> None:
    x, y, graph, mask = layer_inputs("degrees", 4, torch.float32)
    arguments = {"entities": x, "relations": y, "graph": graph, "mask": mask} | {name: x.numpy()}
    wanted = "ContextGraph" if name == "graph" else r"torch\.Tensor"
    with pytest.raises(TypeError, match=rf"^{name}: expected a {wanted}, got ndarray"):
        call(**arguments)


def test_a_wrong_context_is_refused() -> None:
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float32)
    with pytest.raises(ValueError, match=r"^context: expected one of both, entity, relation, got 'none'"):
        context_layer(x, y, graph, context="none")


def test_a_graph_on_another_device_is_refused() -> None:
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float32)
    with pytest.raises(ValueError, match=r"^graph: expected the device of the entities, cpu, got meta"):
        context_layer(x, y, graph.to("meta"))


def test_back_ends_that_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float32)
    elsewhere = x.to("meta"), y.to("meta"), graph.to("meta")
    with pytest.raises(InputError, match=r"^backend: expected .* on the cpu for 'numba', got .* meta"):
        context_layer(*elsewhere, backend="numba")
    monkeypatch.setattr(backends, "_INTERPRETED", False)
    with pytest.raises(InputError, match=r"^backend: expected tensors on a GPU for 'triton' .* on cpu"):
        context_layer(x, y, graph, backend="triton")
    monkeypatch.setattr(backends, "_HAS_TRITON", False)
    with pytest.raises(InputError, match=r"^backend: expected an installed triton package, got"):
        context_layer(x, y, graph, backend="triton")


def test_other_devices_use_the_reference() -> None:
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float32)
    new_x, new_y = context_layer(x.to("meta"), y.to("meta"), graph.to("meta"))
    assert (new_x.shape, new_y.shape) == (x.shape, y.shape)
