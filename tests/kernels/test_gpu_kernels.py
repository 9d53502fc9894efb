"""The layer's Triton kernels against the float64 reference, on a GPU if there is one, else interpreted."""

import itertools
import math
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightcake_fast import ops
from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import gpu_backward, gpu_forward, gpu_launch
from lightcake_fast.kernels import plan as kernels_plan
from lightcake_fast.kernels.plan import GPU_NO_CHUNK, GPU_SIDE_BY_SIDE, GpuPlan
from lightcake_fast.reference import layer as reference
from lightcake_fast.reference.scores import SCORES
from tests.support.comparison import assert_as_precise_as, assert_bitwise_equal, assert_close
from tests.support.graphs import GPU_GRAPHS, layer_inputs, pairwise

ON_CARD = torch.cuda.is_available()
DEVICE = "cuda" if ON_CARD else "cpu"
GRID = {
    "score": ("distmult", "transe"),
    "context": ("both", "entity", "relation"),
    "masked": (False, True),
    "width": (1, 16, 63, 64, 100, 256),
    "dtype": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "graph": tuple(GPU_GRAPHS),
    # the interpreter's time depends on the number of tiles, so most cases use a warp as wide as a row
    "lanes": (32, 256),
}
CASES = pairwise({key: values for key, values in GRID.items() if key != "lanes"})
FULL = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]


@pytest.fixture(autouse=True)
def _small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chunks short, so that few triples make a hub. The interpreter takes about 1 ms per kernel line."""
    if "shipped_chunks" not in request.fixturenames:
        monkeypatch.setattr(kernels_plan, "GPU_ENTITY_CHUNK", 7)
        monkeypatch.setattr(kernels_plan, "GPU_RELATION_CHUNK", (8, 16))


@pytest.fixture
def shipped_chunks() -> None:
    """Keep the default chunk lengths."""


def gradients(
    outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the gradients of a random combination of the outputs, with weights rounded to ``dtype``."""
    random = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=random).to(dtype).to(o) for o in outputs]
    # the reference returns its input if the context does not change a table
    return torch.autograd.grad([o.clone() for o in outputs], inputs, weights)


def by_reference(
    x: Tensor,
    y: Tensor,
    graph: ContextGraph,
    mask: Tensor | None,
    score: str,
    context: str,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """Computed in ``dtype``, if given, from the same rows and upstream gradients."""
    given = x.dtype
    x, y = (table.detach().to(dtype or given).requires_grad_() for table in (x, y))
    both_ways = None if mask is None else mask.repeat(2)
    outputs = reference.context_layer(x, y, graph.context_triples, both_ways, score, context)
    return *outputs, *gradients(outputs, (x, y), given)


def by_triton(
    x: Tensor, y: Tensor, graph: ContextGraph, mask: Tensor | None, score: str, context: str
) -> tuple[Tensor, ...]:
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    outputs = ops.context_layer(x, y, graph, score=score, context=context, mask=mask, backend="triton")
    return *outputs, *gradients(outputs, (x, y), x.dtype)


NAMES = ("entities", "relations", "dL/dentities", "dL/drelations")


def check(
    case: dict[str, Any],
    x: Tensor,
    y: Tensor,
    graph: ContextGraph,
    mask: Tensor | None,
    slack: float = 4.0,
) -> None:
    settings = {"score": case["score"], "context": case["context"]}
    actual = by_triton(x, y, graph, mask, **settings)
    expected = by_reference(x, y, graph, mask, **settings, dtype=torch.float64)
    if x.dtype.itemsize >= 4:
        for name, got, wanted in zip(NAMES, actual, expected, strict=True):
            assert_close(got, wanted, name=name, slack=slack)
    else:
        rough = by_reference(x, y, graph, mask, **settings)
        for name, got, low, wanted in zip(NAMES, actual, rough, expected, strict=True):
            assert_as_precise_as(got, low, wanted, name=name)


def lanes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    if not ON_CARD:
        monkeypatch.setattr(gpu_launch, "warp_size", lambda: count)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(v) for v in case.values()))
def test_layer(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lanes(monkeypatch, 256)
    x, y, graph, mask = layer_inputs(case["graph"], case["width"], case["dtype"], DEVICE)
    check(case, x, y, graph, mask if case["masked"] else None)


@pytest.mark.parametrize(("score", "width"), [("distmult", 256), ("transe", 100), ("distmult", 1)])
@pytest.mark.usefixtures("shipped_chunks")
def test_layer_with_the_launch_shapes_of_a_gpu(score: str, width: int) -> None:
    x, y, graph, mask = layer_inputs("hub", width, torch.float32, DEVICE)
    check({"score": score, "context": "both"}, x, y, graph, mask)


@pytest.mark.full
@pytest.mark.usefixtures("shipped_chunks")
@pytest.mark.parametrize("case", FULL, ids=lambda case: "-".join(str(v) for v in case.values()))
def test_layer_in_every_combination(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lanes(monkeypatch, case["lanes"])
    x, y, graph, mask = layer_inputs(case["graph"], case["width"], case["dtype"], DEVICE)
    check(case, x, y, graph, mask if case["masked"] else None)


@pytest.mark.parametrize("width", [300, 1040])
def test_wide_rows(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes(monkeypatch, 256)
    x, y, graph, mask = layer_inputs("duplicates", width, torch.float32, DEVICE)
    check({"score": "transe", "context": "both"}, x, y, graph, mask)


@settings(max_examples=8)
@given(data=st.data())
def test_random_graphs(data: st.DataObject) -> None:
    entities, relations = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3))
    ids = st.tuples(*(st.integers(0, n - 1) for n in (entities, relations, entities)))
    triples = data.draw(st.lists(ids, min_size=1, max_size=30))
    out = data.draw(st.lists(st.booleans(), min_size=len(triples), max_size=len(triples)))
    graph = ContextGraph.from_triples(torch.tensor(triples, device=DEVICE), entities, relations)
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    x, y = (torch.randn(n, 5, generator=random).to(DEVICE) for n in (entities, 2 * relations))
    case = {
        "score": data.draw(st.sampled_from(GRID["score"])),
        "context": data.draw(st.sampled_from(GRID["context"])),
    }
    check(case, x, y, graph, torch.tensor(out, device=DEVICE))


@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_every_triple_masked(score: str) -> None:
    x, y, graph, _ = layer_inputs("duplicates", 16, torch.float32, DEVICE)
    mask = torch.ones(graph.num_triples, dtype=torch.bool, device=DEVICE)
    new_x, new_y, grad_x, grad_y = by_triton(x, y, graph, mask, score, "both")
    assert_bitwise_equal(new_x, x)
    assert_bitwise_equal(new_y, y)
    *_, wanted_x, wanted_y = by_reference(x, y, graph, mask, score, "both", torch.float64)
    assert_close(grad_x, wanted_x)
    assert_close(grad_y, wanted_y)


@pytest.mark.parametrize(("entities", "width"), [(0, 4), (3, 4), (3, 0)])
def test_empty_inputs(entities: int, width: int) -> None:
    graph = ContextGraph.from_triples(torch.zeros(0, 3, dtype=torch.int64, device=DEVICE), entities, 2)
    x, y = torch.randn(entities, width, device=DEVICE), torch.randn(4, width, device=DEVICE)
    new_x, new_y, grad_x, _ = by_triton(x, y, graph, None, "distmult", "both")
    assert_bitwise_equal(new_x, x)
    assert_bitwise_equal(new_y, y)
    assert_bitwise_equal(grad_x, by_reference(x, y, graph, None, "distmult", "both")[2])


@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_scores_that_increase_much_within_a_row(score: str) -> None:
    """The running maximum must rise, below and above the range of a float's exponent."""
    x, y, graph, _ = layer_inputs("hub", 16, torch.float32, DEVICE)
    x = x * torch.logspace(-2, 1.9, len(x), device=DEVICE)[:, None]
    alpha, _ = reference.context_weights(x, y, graph.context_triples, None, score)
    assert alpha[alpha > 0].min() < 2.0**-60
    check({"score": score, "context": "both"}, x, y, graph, None, slack=20.0)


@pytest.mark.parametrize("largest", [30.0, 1000.0])
@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_rows_at_large_scores_are_as_precise_as_in_pytorch(
    score: str, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has hubs.

    Gradients have a larger error, from the rounding of D, if equal triples share the weight.
    """
    lanes(monkeypatch, 256)
    x, y, graph, _ = layer_inputs("hub", 8, torch.float32, DEVICE)
    tables = zip((x, y, x), graph.context_triples, strict=True)
    reached = SCORES[score].psi(*(table[ids] for table, ids in tables)).abs().max()
    x, y = (table * (largest / reached) ** (1 / 3 if score == "distmult" else 1) for table in (x, y))
    results = by_triton(x, y, graph, None, score, "both")
    plain = by_reference(x, y, graph, None, score, "both")
    exact = by_reference(x, y, graph, None, score, "both", torch.float64)
    for name, got, rough, wanted in zip(NAMES[:2], results, plain, exact, strict=False):
        error, allowed = ((result.double() - wanted).abs().max() for result in (got, rough))
        assert error <= 4 * allowed, f"{name}: {error:.3g}, in float32 PyTorch {allowed:.3g}"


@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_one_triple_with_all_the_weight_has_exact_zero_gradients(
    score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores reach a thousand and lie far apart. The softmax gradient is exactly zero, as in PyTorch."""
    lanes(monkeypatch, 256)
    tails = torch.arange(1, 21, device=DEVICE)
    graph = ContextGraph.from_triples(torch.stack([0 * tails, 0 * tails, tails], 1), 21, 1)
    random = torch.Generator().manual_seed(0)
    x, y = (0.5 + torch.rand(rows, 8, generator=random).to(DEVICE) for rows in (21, 2))
    x[1:] *= tails[:, None] * (5 if score == "distmult" else 15)
    exact = by_reference(x, y, graph, None, score, "both", torch.float64)
    plain = by_reference(x, y, graph, None, score, "both")
    for name, got, rough, wanted in zip(
        NAMES, by_triton(x, y, graph, None, score, "both"), plain, exact, strict=True
    ):
        error, allowed = ((result.double() - wanted).abs().max() for result in (got, rough))
        assert error <= 4 * allowed, f"{name}: {error:.3g}, in float32 PyTorch {allowed:.3g}"


@pytest.mark.skipif(ON_CARD, reason="times by rule")
def test_launch_shapes_change_only_when_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightcake_fast.kernels import gpu_tune

    def shapes(width: int, dtype: torch.dtype) -> list[dict[str, Any]]:
        return [gpu_launch.row_shape(kernel, width, dtype) for kernel in gpu_launch.SHIPPED]

    runs: list[int] = []

    def timed(layer: Callable[[], None], return_mode: str) -> float:
        if not runs:
            layer()
        runs.append(gpu_launch.row_shape("forward.entity_pass", 256, torch.float32)["BLOCK_E"])
        return abs(runs[-1] - 8)

    lanes(monkeypatch, 256)
    monkeypatch.setattr(gpu_launch, "_kept", {})
    monkeypatch.setattr(gpu_tune, "do_bench", timed)
    shipped, narrow, half = (
        shapes(*key) for key in ((256, torch.float32), (16, torch.float32), (256, torch.float16))
    )
    x, y, graph, mask = layer_inputs("sparse", 256, torch.float32, DEVICE)
    times = ops.tune_context_layer(graph, 256)
    values = {(8, 128): 0, (16, 128): 8, (32, 128): 8, (64, 128): 8}
    assert times["forward.entity_pass"] == values | {(8, registers): 0 for registers in gpu_tune.REGISTERS}
    assert times.keys() == gpu_launch.SHIPPED.keys()
    assert [a == b for a, b in zip(shapes(256, torch.float32), shipped, strict=True)].count(False) >= 1
    assert gpu_launch.row_shape("forward.entity_pass", 256, torch.float32)["BLOCK_E"] == 8
    assert (shapes(16, torch.float32), shapes(256, torch.float16)) == (narrow, half)
    check({"score": "distmult", "context": "both"}, x, y, graph, mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim: expected at least 1, got 0"),
        ({"dim": 4, "score": "rescal"}, "score: expected one of .*, got 'rescal'"),
        ({"dim": 4, "dtype": torch.int64}, "dtype: expected .*, got torch.int64"),
    ],
)
def test_invalid_tuning_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    graph = layer_inputs("sparse", 1, torch.float32, DEVICE)[2]
    with pytest.raises(ValueError, match=message):
        ops.tune_context_layer(graph, **arguments)


def test_zero_distance_has_no_gradient() -> None:
    x, y, graph, _ = layer_inputs("duplicates", 16, torch.float32, DEVICE)
    x, y = torch.ones_like(x), torch.zeros_like(y)
    results = by_triton(x, y, graph, None, "transe", "both")
    assert all(torch.isfinite(result).all() for result in results)


@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_16_bit_gradients_do_not_use_rounded_differences(score: str) -> None:
    """Rows are much longer than the sums that a layer adds.

    With D from rounded rows, the error would be far larger.
    """
    x, y, graph, _ = layer_inputs("hub", 64, torch.bfloat16, DEVICE)
    x = x + 30 * (torch.arange(64, device=DEVICE) % 7 == 0)
    y = y + 30 * (torch.arange(64, device=DEVICE) % 7 == 1)
    exact = by_reference(x, y, graph, None, score, "both", torch.float64)
    for name, got, wanted in zip(NAMES, by_triton(x, y, graph, None, score, "both"), exact, strict=True):
        assert_close(got, wanted, name=name, dtype=torch.bfloat16)


def test_two_runs_agree_in_every_bit() -> None:
    x, y, graph, mask = layer_inputs("hub", 16, torch.float32, DEVICE)
    first, second = (by_triton(x, y, graph, mask, "transe", "both") for _ in range(2))
    for name, a, b in zip(NAMES, first, second, strict=True):
        assert_bitwise_equal(a, b, name=name)


@pytest.mark.skipif(ON_CARD, reason="a card runs programs in an order of its own")
@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_programs_in_any_order_agree_in_every_bit(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    builder, seen = interpreter.interpreter_builder, []
    in_order = builder.set_grid_idx

    def shuffled(i: int, j: int, k: int) -> None:
        sizes = builder.grid_dim
        order = np.random.default_rng(7).permutation(math.prod(sizes))
        number = int(order[(i * sizes[1] + j) * sizes[2] + k])
        seen.append(number)
        in_order(*(int(n) for n in np.unravel_index(number, sizes)))

    x, y, graph, mask = layer_inputs("hub", 16, torch.float32, DEVICE)
    expected = by_triton(x, y, graph, mask, score, "both")
    monkeypatch.setattr(builder, "set_grid_idx", shuffled)
    actual = by_triton(x, y, graph, mask, score, "both")
    assert any(a > b for a, b in itertools.pairwise(seen))
    for name, a, b in zip(NAMES, actual, expected, strict=True):
        assert_bitwise_equal(a, b, name=name)


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        (torch.float64, "float32"),
        (torch.bfloat16, "float32"),
        pytest.param(torch.float32, "bfloat16", marks=pytest.mark.full),
    ],
)
def test_operator_registration(dtype: torch.dtype, rows: str) -> None:
    x, y, graph, mask = layer_inputs("sparse", 5, dtype, DEVICE)
    tables = x.requires_grad_(), y.requires_grad_()
    options = ops.packed_options("transe", "both", True, rows, "triton")
    inputs = (*tables, list(graph.gpu_plan), mask, options)
    torch.library.opcheck(torch.ops.lightcake_fast.context_layer.default, inputs)


@pytest.mark.parametrize(
    ("score", "context"),
    [
        ("distmult", "both"),
        ("transe", "both"),
        pytest.param("distmult", "entity", marks=pytest.mark.full),
        pytest.param("transe", "relation", marks=pytest.mark.full),
    ],
)
def test_gradient_in_float64(score: str, context: str) -> None:
    x, y, graph, mask = layer_inputs("sparse", 3, torch.float64, DEVICE)

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ops.context_layer(x, y, graph, score=score, context=context, mask=mask, backend="triton")

    assert torch.autograd.gradcheck(layer, (x.requires_grad_(), y.requires_grad_()), fast_mode=True)


def test_compiles_without_graph_breaks() -> None:
    x, y, graph, _ = layer_inputs("sparse", 16, torch.float32, DEVICE)

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ops.context_layer(2 * x, y, graph, backend="triton")

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for name, a, b in zip(NAMES, compiled(x, y), layer(x, y), strict=False):
        assert_bitwise_equal(a, b, name=name)


def test_autocast_computes_in_float32() -> None:
    x, y, graph, _ = layer_inputs("sparse", 16, torch.float32, DEVICE)
    expected = ops.context_layer(x, y, graph, backend="triton")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        actual = ops.context_layer(x, y, graph, backend="triton")
    for name, a, b in zip(NAMES, actual, expected, strict=False):
        assert_bitwise_equal(a, b, name=name)


def test_weights() -> None:
    x, y, graph, mask = layer_inputs("hub", 16, torch.float32, DEVICE)
    actual = ops.context_weights(x, y, graph, mask=mask, backend="triton")
    expected = ops.context_weights(x.double(), y.double(), graph, mask=mask, backend="reference")
    for name, a, b in zip(("alpha", "beta"), actual, expected, strict=True):
        assert_close(a, b, name=name, slack=4.0)


@pytest.mark.usefixtures("shipped_chunks")
@pytest.mark.parametrize("name", GPU_GRAPHS)
def test_plan_contains_every_triple_once(name: str) -> None:
    graph = layer_inputs(name, 1, torch.float32)[2]
    plan = GpuPlan(*(field.long() for field in graph.gpu_plan))
    head, relation, tail = graph.context_triples
    context = torch.stack([plan.context[:, 0], plan.context[:, 1]], 1)
    heads = torch.full((len(context),), -1)
    for start, end, row, part in plan.entity_chunk.tolist():
        assert 0 <= end - start <= (0 if part == GPU_NO_CHUNK else kernels_plan.GPU_ENTITY_CHUNK)
        assert end > 0
        assert (heads[start:end] == -1).all()
        heads[start:end] = row
    assert sorted(map(tuple, torch.stack([heads, *context.T], 1).tolist())) == sorted(
        zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
    )
    of_record = torch.stack([plan.raw[:, 2], plan.raw[:, 3]], 1).flatten()
    assert_bitwise_equal(of_record[plan.context[:, 2]], torch.arange(len(context)))
    assert_bitwise_equal(
        (plan.context[:, 0] + graph.num_relations) % (2 * graph.num_relations), plan.context[:, 3]
    )
    for group in plan.entity_chunk.view(-1, GPU_SIDE_BY_SIDE, 4):
        lengths = group[:, 1] - group[:, 0]
        assert (lengths[:-1] >= lengths[1:]).all()
        assert len(set((group[group[:, 3] != GPU_NO_CHUNK, 3] >= 0).tolist())) == 1
    lengths = plan.relation_chunk[:, 1] - plan.relation_chunk[:, 0]
    assert lengths.min() > 0
    assert lengths.sum() == graph.num_triples


@pytest.mark.usefixtures("shipped_chunks")
@pytest.mark.parametrize("name", GPU_GRAPHS)
def test_plan_assigns_every_part_to_its_row(name: str) -> None:
    graph = layer_inputs(name, 1, torch.float32)[2]
    plan = GpuPlan(*(field.long() for field in graph.gpu_plan))
    rows = {}
    for _, _, row, part in plan.relation_chunk.tolist():
        rows[part], rows[part + len(plan.relation_chunk)] = row, row + graph.num_relations
    rows |= {part: row for _, _, row, part in plan.entity_chunk.tolist() if part >= 0}
    assert sorted(rows) == list(range(len(plan.part_row)))
    for part, place in enumerate(plan.part_row.tolist()):
        assert plan.merge_row[place] == rows[part]
        assert (part >= 2 * len(plan.relation_chunk)) == (place >= 2 * graph.num_relations)
        assert plan.merge_part[place] <= part < plan.merge_part[place + 1]
    assert plan.merge_part[-1] == len(plan.part_row)
    assert_bitwise_equal(plan.merge_row[: 2 * graph.num_relations], torch.arange(2 * graph.num_relations))


@pytest.mark.skipif(ON_CARD, reason="needs addresses without memory behind them")
@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_tables_with_more_than_2_to_the_31_numbers(score: str) -> None:
    """The tables have memory only for two rows. Offsets computed in 32 bits would miss these rows."""
    width, far = 64, 2**25 + 5
    plan = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [1, 1, 0]]), 2, 2).gpu_plan
    raw, context, chunk = plan.raw.clone(), plan.context.clone(), plan.entity_chunk.clone()
    raw[:, :2] += far
    context[:, 1] += far
    chunk[:, 2] += far
    random = torch.Generator().manual_seed(0)
    near = tuple(torch.randn(rows, width, generator=random) for rows in (2, 4, 2, 4))
    expected = _row_passes(plan, *near, rows=2, score=score)

    def spread(rows: Tensor) -> Tensor:
        # private memory is not reserved, so only the pages of the last two rows are allocated
        memory = mmap.mmap(-1, 4 * width * (far + 2), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        table = torch.frombuffer(memory, dtype=torch.float32).view(far + 2, width)
        table[far:] = rows
        return table

    x, y, g, q = near
    moved = plan._replace(raw=raw, context=context, entity_chunk=chunk)
    actual = _row_passes(moved, spread(x), y, spread(g), q, rows=far + 2, score=score)
    for a, b in zip(actual, expected, strict=True):
        assert_bitwise_equal(a, b)


def _row_passes(
    plan: GpuPlan, x: Tensor, y: Tensor, g: Tensor, q: Tensor, *, rows: int, score: str
) -> list[Tensor]:
    """Return the outputs of the four passes over rows, for the last two entities.

    The tables may be far larger.
    """
    width, parts = x.shape[1], len(plan.part_row)
    s, norm_y, row_dot_y = torch.zeros(4), torch.ones(4, 2), torch.zeros(4)
    norm_x, row_dot_x = torch.zeros(rows, 2), torch.zeros(rows)
    norm_x[-2:] = 1
    part = gpu_forward.Parts(torch.zeros(parts, width), torch.zeros(parts), torch.zeros(parts))
    gpu_forward.run_relation_pass(x, y, plan, None, s, part, score, True)
    results = [s.clone(), part.acc.clone()]
    # the result overwrites its input row, which no other program reads, because each entity has one chunk
    new_x = x if rows > 2 else x.clone()
    kept = x[-2:].clone()
    gpu_forward.run_entity_pass(x, y, x, plan, s, new_x, norm_x, norm_x, part, score, True)
    results += [new_x[-2:].clone(), norm_x[-2:].clone()]
    x[-2:] = kept
    record, part_y = torch.zeros(4, gpu_backward.RECORD), torch.zeros(parts, width)
    gpu_backward.run_relation_pass(
        g, q, x, y, plan, s, (norm_x, norm_y), (row_dot_x, row_dot_y), record, part_y, score
    )
    grad_x = g if rows > 2 else g.clone()
    gpu_backward.run_entity_pass(g, q, x, y, plan, record, grad_x, part_y, score, True)
    return [*results, record[:, :3], part_y, grad_x[-2:]]
