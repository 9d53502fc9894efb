"""The general segment op on every back end: against the float64 reference, PyG, and repeated runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.kernels import plan as kernels_plan
from lightcake_fast.kernels.cpu_compiler import FIXED_WIDTHS
from lightcake_fast.reference import segments as reference
from lightcake_fast.segments import Segments, segment_softmax_aggregate
from tests.support.comparison import assert_as_precise_as, assert_bitwise_equal, assert_close

BACKENDS = ("numba", "triton")
DEVICES = {"numba": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}
WIDTHS = (1, 16, 63, 64, 100, 256)
# Lengths: empty, one, around the chunk of 64, a hub, and enough short segments to fill a program.
LENGTHS = (0, 1, 3, 130, 63, 64, 65, 0, 7, *[2] * 12, 0)
ROWS = 40  # no entry gathers the last rows


def example(
    width: int, dtype: torch.dtype, device: str = "cpu", lengths: tuple[int, ...] = LENGTHS
) -> tuple[Tensor, Tensor, Segments, Tensor]:
    """Return scores, values, segments, and a mask that covers one segment completely."""
    random = np.random.default_rng(width)
    bounds = np.append(0, np.cumsum(lengths, dtype=np.int64))
    index = random.integers(0, ROWS - 5, bounds[-1])
    index[: len(index) // 3] = 4  # many entries gather this row, also twice in a segment
    segments = Segments.from_csr(torch.from_numpy(bounds), torch.from_numpy(index), ROWS)
    scores = torch.from_numpy(random.normal(size=bounds[-1]) * 3).to(device, dtype)
    values = torch.from_numpy(random.normal(size=(ROWS, width))).to(device, dtype)
    mask = torch.from_numpy(random.random(bounds[-1]) < 0.2).to(device)
    mask[1:4] = True
    return scores, values, segments.to(device), mask


def results(
    scores: Tensor,
    values: Tensor,
    segments: Segments,
    mask: Tensor | None,
    backend: str,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Return sums and weights, and the gradients of a random combination of both.

    With ``dtype``, the op computes in this dtype from the same scores, values and upstream gradients.
    """
    random = torch.Generator().manual_seed(1)
    given = values.dtype
    scores, values = (table.detach().to(dtype or given).requires_grad_() for table in (scores, values))
    sums, weights = segment_softmax_aggregate(
        scores, values, segments, mask, return_weights=True, backend=backend
    )
    gradients = [torch.randn(t.shape, generator=random, dtype=torch.float64) for t in (sums, weights)]
    grad_scores, grad_values = torch.autograd.grad(
        (sums, weights), (scores, values), [g.to(given).to(sums) for g in gradients]
    )
    return {"sums": sums, "weights": weights, "grad_scores": grad_scores, "grad_values": grad_values}


CASES = [
    pytest.param(backend, width, dtype, masked, marks=[] if paired else pytest.mark.full)
    for backend in BACKENDS
    for k, width in enumerate(WIDTHS)
    for dtype in (torch.float32, torch.float64)
    for masked in (False, True)
    # The interpreter is slow, and each width compiles separately. So these cases use one dtype and mask, or
    # none.
    for fast in (backend == "numba" and width not in FIXED_WIDTHS,)
    for one in (width < 256 and (dtype == torch.float32, masked) == (k % 3 != 2, k % 2 == 0),)
    for paired in (fast or one,)
]


@pytest.mark.parametrize(("backend", "width", "dtype", "masked"), CASES)
def test_equals_the_reference(backend: str, width: int, dtype: torch.dtype, masked: bool) -> None:
    scores, values, segments, mask = example(width, dtype, DEVICES[backend])
    used = mask if masked else None
    expected = results(scores, values, segments, used, "reference", torch.float64)
    for name, actual in results(scores, values, segments, used, backend).items():
        assert actual.dtype == dtype
        assert_close(actual, expected[name], name=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_16_bit_rows_have_float32_sums(backend: str, dtype: torch.dtype) -> None:
    scores, values, segments, mask = example(64, dtype, DEVICES[backend])
    expected = results(scores, values, segments, mask, "reference", torch.float64)
    low = results(scores, values, segments, mask, "reference")
    for name, actual in results(scores, values, segments, mask, backend).items():
        assert actual.dtype == dtype
        assert_as_precise_as(actual, low[name], expected[name], name=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_completely_masked_segment_is_zero(backend: str) -> None:
    scores, values, segments, mask = example(16, torch.float32, DEVICES[backend])
    mask[:] = True
    sums, weights = segment_softmax_aggregate(
        scores, values, segments, mask, return_weights=True, backend=backend
    )
    assert not sums.any()
    assert not weights.any()


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("lengths", [(), (0, 0, 0)])
def test_no_entries(backend: str, lengths: tuple[int, ...]) -> None:
    scores, values, segments, mask = example(16, torch.float32, DEVICES.get(backend, "cpu"), lengths)
    actual = results(scores, values, segments, mask, backend)
    assert actual["sums"].shape == (len(lengths), 16)
    assert not actual["sums"].any()
    assert not actual["grad_values"].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_agree_in_every_bit(backend: str) -> None:
    arguments = example(64, torch.float32, DEVICES[backend])
    first, second = results(*arguments, backend), results(*arguments, backend)
    for name, actual in first.items():
        assert_bitwise_equal(actual, second[name], name=name)


def test_threads_do_not_change_a_bit() -> None:
    arguments, threads = example(64, torch.float32), torch.get_num_threads()
    expected = results(*arguments, "numba")
    try:
        torch.set_num_threads(1)
        for name, actual in results(*arguments, "numba").items():
            assert_bitwise_equal(actual, expected[name], name=name)
    finally:
        torch.set_num_threads(threads)


@settings(max_examples=10)
@given(data=st.data(), backend=st.sampled_from(BACKENDS))
def test_any_segments(data: st.DataObject, backend: str) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9) | st.integers(60, 70), min_size=1, max_size=12))
    width = data.draw(st.sampled_from((3, 24)))
    seed = data.draw(st.integers(0, 1000))
    random = torch.Generator().manual_seed(seed)
    bounds = torch.tensor([0, *np.cumsum(lengths).tolist()])
    index = torch.randint(0, 5, (int(bounds[-1]),), generator=random)
    segments = Segments.from_csr(bounds, index, 5).to(DEVICES[backend])
    scores = torch.randn(len(index), generator=random).to(DEVICES[backend])
    values = torch.randn(5, width, generator=random).to(DEVICES[backend])
    expected = results(scores, values, segments, None, "reference", torch.float64)
    for name, actual in results(scores, values, segments, None, backend).items():
        assert_close(actual, expected[name], name=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_finite_differences(backend: str) -> None:
    scores, values, segments, mask = example(3, torch.float64, DEVICES[backend], (0, 1, 5))
    scores, values = scores.requires_grad_(), values.requires_grad_()

    def op(s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return segment_softmax_aggregate(s, v, segments, mask, return_weights=True, backend=backend)

    assert torch.autograd.gradcheck(op, (scores, values), fast_mode=True)


@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_op_registration(backend: str, with_weights: bool) -> None:
    scores, values, segments, _ = example(16, torch.float32, DEVICES[backend])
    torch.library.opcheck(
        torch.ops.lightcake_fast.segment_softmax_aggregate.default,
        (
            scores[:, None].requires_grad_(),
            values[:, None].requires_grad_(),
            list(segments.plan),
            segments.num_segments,
            with_weights,
            backend,
        ),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_equals_eager(backend: str) -> None:
    scores, values, segments, mask = example(16, torch.float32, DEVICES[backend])
    scores, values = scores.requires_grad_(), values.requires_grad_()

    def loss(scores: Tensor, values: Tensor) -> Tensor:
        return segment_softmax_aggregate(scores, values, segments, mask, backend=backend).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(scores, values), (scores, values))
    for actual, eager in zip(
        torch.autograd.grad(compiled(scores, values), (scores, values)), expected, strict=True
    ):
        assert_bitwise_equal(actual, eager)


def test_autocast_keeps_float32() -> None:
    scores, values, segments, mask = example(16, torch.float32)
    expected = segment_softmax_aggregate(scores, values, segments, mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert_bitwise_equal(segment_softmax_aggregate(scores, values, segments, mask), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_softmax_and_scatter_of_pyg(backend: str, peer: Callable[[str], Any]) -> None:
    utils = peer("torch_geometric.utils")
    scores, values, segments, _ = example(64, torch.float32, DEVICES[backend])
    actual = results(scores, values, segments, None, backend)
    random = torch.Generator().manual_seed(1)
    scores, values = scores.requires_grad_(), values.requires_grad_()
    segment, index = segments.plan.segment.long(), segments.plan.index.long()
    weights = utils.softmax(scores, segment, num_nodes=segments.num_segments)
    sums = utils.scatter(weights[:, None] * values[index], segment, dim_size=segments.num_segments)
    gradients = [torch.randn(t.shape, generator=random, dtype=torch.float64).to(t) for t in (sums, weights)]
    grad_scores, grad_values = torch.autograd.grad((sums, weights), (scores, values), gradients)
    # PyG adds 1e-16 to each segment's total, which is below float32's precision
    for name, expected in (
        ("sums", sums),
        ("weights", weights),
        ("grad_scores", grad_scores),
        ("grad_values", grad_values),
    ):
        assert_close(actual[name], expected, name=name, slack=4.0)


def test_reference_by_hand() -> None:
    sums, weights = reference.segment_softmax_aggregate(
        torch.tensor([[0.0], [0.0], [5.0]]),
        torch.tensor([[[1.0]], [[3.0]]]),
        torch.tensor([1, 1, 1]),
        torch.tensor([0, 1, 1]),
        2,
        torch.tensor([False, False, True]),
    )
    assert weights.tolist() == [[0.5], [0.5], [0.0]]
    assert sums.tolist() == [[[0.0]], [[2.0]]]


@pytest.mark.parametrize(
    ("bounds", "index", "message"),
    [
        ([0, 2], [0, 1, 2], "rise from 0 to 3, the length of index"),
        ([1, 3], [0, 1, 2], "rise from 0"),
        ([0, 3, 1, 3], [0, 1, 2], "rise from 0"),
        ([], [], "rise from 0"),
        ([0, 3], [0, 1, 4], "expected 0 to 3, got 0 to 4"),
        ([0, 1], [-1], "got -1 to -1"),
    ],
)
def test_wrong_segments_are_refused(bounds: list[int], index: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Segments.from_csr(torch.tensor(bounds, dtype=torch.int64), torch.tensor(index, dtype=torch.int64), 4)


def test_wrong_types_of_segments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"indptr: expected torch\.int64 \(n,\), got torch\.int32"):
        Segments.from_csr(torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int64), 4)
    lists: Any = [0, 1]
    with pytest.raises(TypeError, match=r"indptr: expected a .*, got list"):
        Segments.from_csr(lists, torch.zeros(1, dtype=torch.int64), 2)
    with pytest.raises(TypeError, match=r"edge_index: expected a .*, got list"):
        Segments.from_edge_index(lists, 2)


def test_wrong_arguments_are_refused() -> None:
    scores, values, segments, mask = example(4, torch.float32)
    for arguments, message in (
        ((scores[1:], values, segments), "scores: expected shape .* got"),
        ((scores.long(), values, segments), "scores: expected .* got torch.int64"),
        ((scores, values[1:], segments), "values: expected shape .* got"),
        ((scores, values[:, :0], segments), "with d at least 1"),
        ((scores, values, segments, mask[1:]), "mask: expected torch.bool .* got torch.bool"),
        ((scores.to("meta"), values, segments), "scores: expected the device of the values, cpu, got meta"),
    ):
        with pytest.raises(ValueError, match=message):
            segment_softmax_aggregate(*arguments)
    with pytest.raises(ValueError, match=r"backend: expected one of .*, got 'cuda'"):
        segment_softmax_aggregate(scores, values, segments, backend="cuda")
    wrong: Any
    for wrong, message in (
        (([1.0], values, segments), "scores: expected a torch.Tensor, got list"),
        ((scores, values, "segments"), "segments: expected Segments, got str"),
        ((scores, values, segments, [True]), "mask: expected a torch.Tensor, got list"),
    ):
        with pytest.raises(TypeError, match=message):
            segment_softmax_aggregate(*wrong)
    for wrong, message in (
        (
            values.to(torch.float8_e4m3fn),
            "values: expected a floating.*, got torch.float8_e4m3fn",
        ),
        (values.to_sparse(), "values: expected a dense tensor, got a tensor of layout torch.sparse_coo"),
    ):
        with pytest.raises(ValueError, match=message):
            segment_softmax_aggregate(scores, wrong, segments)


def test_segments_of_an_edge_index() -> None:
    """Equals a softmax over the edges that end in a node, for any order of the edges."""
    random = torch.Generator().manual_seed(4)
    edges = torch.randint(9, (2, 60), generator=random)
    edges[1][edges[1] == 3] = 4  # a node without edges
    scores = torch.randn(60, generator=random, dtype=torch.float64)
    values = torch.randn(9, 5, generator=random, dtype=torch.float64)
    segments, order = Segments.from_edge_index(edges, 9)
    actual = segment_softmax_aggregate(scores[order], values, segments)
    expected = torch.zeros_like(values)
    for node in range(9):
        here = edges[1] == node
        expected[node] = scores[here].softmax(0) @ values[edges[0][here]]
    assert_close(actual, expected)
    assert (actual[3] == 0).all()


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (torch.zeros(2, 3), r"edge_index: expected torch\.int64 \(2, E\), got torch\.float32 \(2, 3\)"),
        (torch.zeros(3, 2, dtype=torch.int64), r"edge_index: expected .*, got torch\.int64 \(3, 2\)"),
        (torch.tensor([[0, 5], [0, 0]]), "starts of edges: expected 0 to 4, got 0 to 5"),
        (torch.tensor([[0, 1], [-1, 0]]), "ends of edges: expected 0 to 4, got -1 to 0"),
    ],
)
def test_wrong_edge_indices_are_refused(edges: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Segments.from_edge_index(edges, 5)


def with_heads(
    heads: int, width: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor, Segments, Tensor]:
    """Return an `example` with few segments and several heads. Two segments are cut."""
    _, _, segments, mask = example(width, dtype, device, (0, 1, 66, 5, 0, 65))
    random = torch.Generator().manual_seed(heads)
    scores = torch.randn(segments.num_entries, heads, generator=random, dtype=torch.float64) * 3
    values = torch.randn(ROWS, heads, width, generator=random, dtype=torch.float64)
    return scores.to(device, dtype), values.to(device, dtype), segments, mask


@pytest.mark.parametrize(
    ("backend", "heads", "width", "dtype"),
    [
        ("numba", 3, 32, torch.float32),
        ("numba", 2, 5, torch.float64),
        ("numba", 1, 5, torch.float32),
        ("triton", 3, 8, torch.float32),
        pytest.param("triton", 2, 5, torch.float64, marks=pytest.mark.full),
        pytest.param("triton", 4, 64, torch.float32, marks=pytest.mark.full),
    ],
)
def test_heads_equal_the_reference(backend: str, heads: int, width: int, dtype: torch.dtype) -> None:
    scores, values, segments, mask = with_heads(heads, width, dtype, DEVICES[backend])
    expected = results(scores, values, segments, mask, "reference", torch.float64)
    for name, actual in results(scores, values, segments, mask, backend).items():
        assert actual.dtype == dtype
        assert_close(actual, expected[name], name=name)


def test_each_head_equals_a_separate_call() -> None:
    scores, values, segments, mask = with_heads(3, 5, torch.float64)
    sums, weights = segment_softmax_aggregate(
        scores, values, segments, mask, return_weights=True, backend="reference"
    )
    for head in range(3):
        alone = segment_softmax_aggregate(
            scores[:, head], values[:, head], segments, mask, return_weights=True, backend="reference"
        )
        assert_bitwise_equal(sums[:, head], alone[0])
        assert_bitwise_equal(weights[:, head], alone[1])


@pytest.mark.parametrize("backend", ["numba", pytest.param("triton", marks=pytest.mark.full)])
def test_gradients_of_heads_equal_finite_differences(backend: str) -> None:
    _, _, segments, _ = example(2, torch.float64, DEVICES[backend], (0, 1, 4))
    random = torch.Generator().manual_seed(2)
    scores = torch.randn(5, 2, generator=random, dtype=torch.float64).to(segments.device)
    values = torch.randn(ROWS, 2, 2, generator=random, dtype=torch.float64).to(segments.device)

    def op(s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return segment_softmax_aggregate(s, v, segments, return_weights=True, backend=backend)

    assert torch.autograd.gradcheck(op, (scores.requires_grad_(), values.requires_grad_()), fast_mode=True)


def test_wrong_heads_are_refused() -> None:
    scores, values, segments, _ = with_heads(2, 4, torch.float32)
    entries = segments.num_entries
    for arguments, message in (
        ((scores, values[:, 0], segments), r"values: expected shape \(40, 2, d\) .*, got \(40, 4\)"),
        ((scores[:, 0], values, segments), r"values: expected shape \(40, d\) .*, got \(40, 2, 4\)"),
        ((scores[:, :0], values[:, :0], segments), rf"expected shape \({entries},\) or \({entries}, H\)"),
        ((scores, values[..., :0], segments), "with d at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            segment_softmax_aggregate(*arguments)


@pytest.mark.parametrize(("limit", "name"), [("GPU_MOST_CHUNKS", "chunks"), ("GPU_MOST_ROWS", "rows")])
def test_more_segments_than_kernels_can_number_are_refused(
    limit: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = DEVICES["triton"]
    scores, values, segments, _ = example(4, torch.float32, device)
    expected = segment_softmax_aggregate(scores, values, segments, backend="triton")
    size = segments.num_segments if name == "rows" else len(segments.plan.index_chunk)
    monkeypatch.setattr(kernels_plan, limit, size)
    assert_bitwise_equal(segment_softmax_aggregate(scores, values, segments, backend="triton"), expected)
    monkeypatch.setattr(kernels_plan, limit, size - 1)
    with pytest.raises(InputError, match=rf"expected at most {size - 1} {name} .* got {size}"):
        segment_softmax_aggregate(scores, values, segments, backend="triton")
