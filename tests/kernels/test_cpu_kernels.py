"""The layer's Numba passes against the float64 reference, and with different numbers of threads."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import cpu_backward, cpu_forward, cpu_math
from lightcake_fast.kernels.cpu_compiler import FIXED_WIDTHS
from lightcake_fast.kernels.cpu_math import FAST
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import BUILT_IN, score_named
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import (
    CONTEXTS,
    CPU_GRAPHS,
    CPU_SCORES,
    as_read,
    layer_inputs,
    layer_results,
    random_rows,
)

LONG = 260  # long rows are not prefetched, and this width is not compiled as a constant
WIDTHS = (1, 16, 63, 64, 100, 256, LONG)
DTYPES = (torch.float32, torch.float64)
THREADS = (1, 2, 4)

# each fixed width takes seconds to compile per score and dtype; the other widths share one compilation
QUICK = {("distmult", 64, torch.float32), ("transe", LONG, torch.float32), ("complex", LONG, torch.float32)}


def in_the_quick_run(score: str, width: int, dtype: torch.dtype) -> bool:
    """Select pairs of a score and a dtype: all for most scores, only float32 for scores with two columns."""
    if width in (*FIXED_WIDTHS, LONG):
        return (score, width, dtype) in QUICK
    return score_named(score).columns == 1 or dtype == torch.float32


CASES = [
    pytest.param(
        *case, marks=[] if in_the_quick_run(*case) else pytest.mark.full, id="-".join(map(str, case))
    )
    for case in itertools.product(BUILT_IN, WIDTHS, DTYPES)
    if case[1] % score_named(case[0]).columns == 0
]


def check(x: Tensor, y: Tensor, graph: ContextGraph, **options: Any) -> None:
    """Check that the passes give the results of the reference in float64."""
    expected = layer_results(x, y, graph, dtype=torch.float64, backend="reference", **options)
    for name, actual in layer_results(x, y, graph, backend="numba", **options).items():
        assert actual.dtype == x.dtype
        assert_close(actual, expected[name], name=f"{name}, {options}")


@pytest.fixture
def on_threads() -> Iterator[tuple[int, ...]]:
    """Thread counts to try. Afterwards PyTorch's thread count is restored."""
    before = torch.get_num_threads()
    yield THREADS
    torch.set_num_threads(before)


def test_fresh_memory_is_poisoned() -> None:
    """Without the poison, these tests would not notice numbers that are read but never written."""
    x = torch.zeros(2, 3)
    for fresh in (x.new_empty(4), torch.empty_like(x), torch.empty(2)):
        assert fresh.isnan().all()


@pytest.mark.parametrize("name", CPU_GRAPHS)
@pytest.mark.parametrize(("score", "width", "dtype"), CASES)
def test_equals_the_reference(name: str, score: str, width: int, dtype: torch.dtype) -> None:
    x, y, graph, mask = layer_inputs(name, width, dtype)
    y = as_read(y, score)
    for context in CONTEXTS:
        for used in (None, mask):
            check(x, y, graph, score=score, context=context, mask=used)


@pytest.mark.parametrize("name", ["hubs", "relation_edges"])
def test_rows_are_cut(name: str) -> None:
    """Without cut rows, the merges of parts would stay untested."""
    cuts = layer_inputs(name, 1, torch.float32)[2].plan
    assert (cuts.relation_part.diff() > 1).any()
    if name == "hubs":
        assert cuts.cut_row.tolist() == [0]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("score", CPU_SCORES)
@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_every_triple_masked(name: str, score: str, context: str) -> None:
    x, y, graph, _ = layer_inputs(name, 16, torch.float32)
    y = as_read(y, score)
    mask = torch.ones(graph.num_triples, dtype=torch.bool)
    results = layer_results(x, y, graph, score=score, context=context, mask=mask, backend="numba")
    unchanged = layer_results(x, y, empty(graph), score=score, context=context, backend="reference")
    for table, actual in results.items():
        assert_bitwise_equal(actual, unchanged[table], name=table)


def empty(graph: ContextGraph) -> ContextGraph:
    """Return a graph with the same numbers of entities and relations and without triples."""
    none = torch.zeros(0, 3, dtype=torch.int64)
    return ContextGraph.from_triples(none, graph.num_entities, graph.num_relations)


@pytest.mark.parametrize("score", CPU_SCORES)
@pytest.mark.parametrize(("entities", "relations", "width"), [(3, 2, 4), (0, 2, 4), (3, 0, 4), (3, 2, 0)])
def test_empty_inputs(entities: int, relations: int, width: int, score: str) -> None:
    graph = ContextGraph.from_triples(torch.zeros(0, 3, dtype=torch.int64), entities, relations)
    x, y = random_rows(graph, width, torch.float32)
    y = as_read(y, score)
    results = layer_results(x, y, graph, score=score, backend="numba")
    assert_bitwise_equal(results["entities"], x)
    assert_bitwise_equal(results["relations"], y)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("score", CPU_SCORES)
def test_threads_and_runs_do_not_change_a_bit(score: str, context: str, on_threads: tuple[int, ...]) -> None:
    for name in ("hubs", "relation_edges"):
        x, y, graph, mask = layer_inputs(name, 100, torch.float32)
        y, runs = as_read(y, score), []
        for count in (*on_threads, on_threads[-1]):
            torch.set_num_threads(count)
            runs.append(layer_results(x, y, graph, score=score, context=context, mask=mask, backend="numba"))
        for run in runs[1:]:
            for table, actual in run.items():
                assert_bitwise_equal(actual, runs[0][table], name=f"{table} of {name}")


ONE_POOL = """
import threading, torch
from lightcake_fast import ContextGraph, context_layer
random, flushed = torch.Generator().manual_seed(0), torch.set_flush_denormal(True)
for count in (1, 2, 4, 3, 8):
    torch.set_num_threads(count)
    for size in (10, 300, 700, 1000, 1500, 2000):
        torch.set_flush_denormal(flushed and size % 200 == 0)
        triples = torch.randint(0, 3, (4 * size, 3), generator=random)
        triples[:, ::2] = torch.randint(0, size, (4 * size, 2), generator=random)
        graph = ContextGraph.from_triples(triples, size, 3)
        context_layer(torch.ones(size, 16), torch.ones(6, 16), graph, backend="numba")
    names = [thread.name for thread in threading.enumerate()]
    print(sum(name.startswith("lightcake_fast") for name in names))
"""


def test_all_passes_share_one_pool_of_as_many_threads_as_pytorch_has() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_POOL], capture_output=True, text=True, check=True)
    alone, *helped = map(int, done.stdout.split())
    assert alone == 0
    for found, most in zip(helped, (1, 3, 3, 7), strict=True):
        assert 1 <= found <= most


def test_helper_threads_flush_denormals_like_their_caller(on_threads: tuple[int, ...]) -> None:
    """Rows of zeros get e_t - e_r = 3e-39, which is a denormal float32."""
    heads = torch.arange(4000) % 200
    triples = torch.stack([heads, torch.zeros_like(heads), 200 + torch.arange(4000) // 20], 1)
    graph = ContextGraph.from_triples(triples, 400, 1)
    x, y = torch.zeros(400, 100), torch.zeros(2, 100)
    x[200:], y[0] = 1.5e-38, 1.2e-38
    for flush in (True, False):
        for count in on_threads:
            torch.set_num_threads(count)
            try:
                if not torch.set_flush_denormal(flush):
                    pytest.skip("this processor cannot flush denormals")
                rows, _ = context_layer(x, y, graph, score="transe", backend="numba")
            finally:
                torch.set_flush_denormal(False)
            assert ((rows[:200] == 0) == flush).all()


def test_no_array_has_shape_triples_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(4)
    triples = torch.randint(0, 50, (10_000, 3), generator=random)
    graph = ContextGraph.from_triples(triples, 50, 50)
    x, y = random_rows(graph, 64, torch.float32)
    allocated = []

    def counted(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def allocate_counted(*args: Any, **kwargs: Any) -> Tensor:
            fresh = allocate(*args, **kwargs)
            allocated.append(fresh.nbytes)
            return fresh

        return allocate_counted

    for owner, name in (
        (torch, "empty_like"),
        *((torch.Tensor, method) for method in ("new_empty", "new_full", "new_zeros", "clone")),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    outputs = cpu_forward.forward(x, y, graph.plan, None, "distmult", "both")
    cpu_backward.backward(x, y, x, y, *outputs, graph.plan, "distmult")
    results = 2 * (x.nbytes + y.nbytes)
    assert sum(allocated) - results < 60 * 2 * len(triples)
    assert sum(allocated) - results > 20 * 2 * len(triples)  # the buffers between the passes were counted


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exponential_function(dtype: torch.dtype) -> None:
    """The error stays within the docstring's bounds over the range of the weights. NaN stays NaN."""

    @numba.njit(**FAST)  # type: ignore[untyped-decorator]
    def exponentials(values: Any, results: Any) -> None:
        for n in range(len(values)):
            results[n] = cpu_math.exp(values[n])

    random = torch.Generator().manual_seed(0)
    x = torch.cat(
        [-87.6 * torch.rand(20_000, generator=random), -(10 ** (-8 * torch.rand(2_000, generator=random)))]
    )
    x = torch.cat([x, torch.tensor([0.0, 1.0, 10.0, 87.9])]).to(dtype)
    edges = torch.tensor([-torch.inf, torch.nan, -1e30], dtype=dtype)
    results, at_edges = torch.empty_like(x), torch.empty_like(edges)
    exponentials(x.numpy(), results.numpy())
    exponentials(edges.numpy(), at_edges.numpy())
    expected = x.double().exp()
    error = ((results.double() - expected) / expected).abs()
    assert error.max() < (4e-7 if dtype == torch.float32 else 1e-15)
    assert error[x.abs() < 20].max() < (2e-7 if dtype == torch.float32 else 1e-15)
    assert at_edges[0] == 0
    assert at_edges[1].isnan()
    assert at_edges[2] == 0


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, in the checkout."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_another_process_loads_the_compiled_passes() -> None:
    code = """
import torch
from tests.support.graphs import layer_inputs, layer_results
x, y, graph, mask = layer_inputs("degrees", 7, torch.float32)
results = layer_results(x, y, graph, mask=mask, backend="numba")
print([table.tolist() for table in results.values()])
"""
    x, y, graph, mask = layer_inputs("degrees", 7, torch.float32)
    results = layer_results(x, y, graph, mask=mask, backend="numba")  # compiles passes if needed
    other = run_python(code)
    assert other.stderr == ""  # a pass that compiles prints a message
    assert other.stdout.strip() == str([table.tolist() for table in results.values()])


def test_a_first_call_prints_why_it_waits_and_adds_files_once(tmp_path: Path) -> None:
    code = """
import torch
from lightcake_fast.kernels.cpu_backward import row_dot_pass
rows = torch.ones(3, 5)
out = torch.zeros(3)
row_dot_pass(5, 1, rows, rows + 1, rows, out)
print(out.tolist())
"""
    runs, files = [], []
    for _ in range(2):
        runs.append(run_python(code, NUMBA_CACHE_DIR=str(tmp_path)))
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb[ic]")})
    assert [run.stdout for run in runs] == ["[5.0, 5.0, 5.0]\n"] * 2
    assert runs[0].stderr.count("compiling the CPU passes") == 1
    assert runs[1].stderr == ""
    assert len(files[0]) == 2  # an index and the machine code
    assert files[0] == files[1]
