"""Helper processes compile passes into the disk cache.

Results stay the same, and a failed helper only costs time.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from numba.core import event

from lightcake_fast import context_layer, register_score
from lightcake_fast import rows as rows_module
from lightcake_fast.kernels import cpu_backward, cpu_compiler, cpu_forward, cpu_merge, cpu_together
from lightcake_fast.kernels.cpu_together import BACKWARD, FORWARD, Kind
from tests.support.comparison import assert_bitwise_equal
from tests.support.graphs import layer_inputs, layer_results
from tests.support.own_blocks import Crossed
from tests.support.processes import HANG

KIND = Kind("distmult", 0, "float32", "float32")
SHORT_PASSES = [each for each in FORWARD + BACKWARD if each.module == "cpu_merge"]
PASSES = (
    cpu_forward.relation_pass, cpu_forward.entity_pass, cpu_merge.merge_pass, cpu_merge.sum_pass,
    cpu_backward.row_dot_pass, cpu_backward.relation_pass, cpu_backward.entity_pass,
)  # fmt: skip
LAYER = """
import sys
import torch
from lightcake_fast.kernels import cpu_together
from tests.support.graphs import layer_inputs, layer_results
cpu_together._processes = lambda: int(sys.argv[1])
x, y, graph, mask = layer_inputs("degrees", 7, torch.float32)
results = layer_results(x, y, graph, mask=mask, backend="numba")
print([table.tolist() for table in results.values()])
"""


class Compilations(event.Listener):  # type: ignore[misc]
    """Records the passes that this process compiles."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, started: Any) -> None:
        """Record a pass, but not the functions that are compiled into it."""
        name = started.data["dispatcher"].py_func.__name__
        self.names += [started.data["dispatcher"].py_func.__qualname__] if name == "run" else []

    def on_end(self, _: Any) -> None:
        """Record nothing."""


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    listener = Compilations()
    with event.install_listener("numba:compile", listener):
        yield listener.names


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start with no compiled passes and an empty cache; two processes share the work from the start."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for each in PASSES:
        monkeypatch.setattr(each, "_functions", {})
        monkeypatch.setattr(each, "_compiled", {})
    monkeypatch.setattr(cpu_together, "_seen", set())
    monkeypatch.setattr(cpu_together, "_processes", lambda: 2)
    monkeypatch.setattr(cpu_together, "START", 0)
    monkeypatch.setattr(cpu_together, "PATIENCE", HANG)


def sums(width: int = 7) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    part = torch.randn(5, width, generator=random)
    rows, bounds = torch.arange(3, dtype=torch.int32), torch.tensor([0, 2, 2, 5])
    out = part.new_empty(3, width)
    cpu_merge.sum_pass(width, 3, out, part[:0], rows, bounds, part)
    return out


def test_passes_compiled_by_a_helper_are_loaded_and_give_equal_bits(
    request: pytest.FixtureRequest, compiled: list[str]
) -> None:
    expected = sums()  # from a pass that this process compiled or loaded
    request.getfixturevalue("fresh")
    compiled.clear()
    cpu_together._compile_together(SHORT_PASSES, KIND)
    assert compiled == ["merge_pass_0_float32"]
    assert not any(each.is_missing(KIND) for each in SHORT_PASSES)
    assert_bitwise_equal(sums(), expected, name="sums")
    assert compiled == ["merge_pass_0_float32"]


@pytest.mark.parametrize("fate", ["killed", "cannot start"])
def test_a_helper_that_fails_costs_only_time(
    fate: str, fresh: None, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, helpers = subprocess.Popen, list[Any]()

    def start_helper(command: list[str], **options: Any) -> Any:
        if fate == "cannot start":
            raise OSError("no more processes")
        helpers.append(start([*command[:2], "import time; time.sleep(1000)"], **options))
        helpers[-1].kill()
        return helpers[-1]

    monkeypatch.setattr(subprocess, "Popen", start_helper)
    cpu_together._compile_together(SHORT_PASSES, KIND)
    assert [helper.returncode for helper in helpers] == [-9] * (fate == "killed")
    assert [each.is_missing(KIND) for each in SHORT_PASSES] == [False, True]
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out, bounds = torch.zeros(1, 2), torch.tensor([0, 2])
    cpu_merge.sum_pass(2, 1, out, rows[:0], torch.zeros(1, dtype=torch.int32), bounds, rows)
    assert out.tolist() == [[4.0, 6.0]]
    assert compiled == ["merge_pass_0_float32", "sum_pass_0_float32"]


def test_helpers_end_with_their_caller(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    start, helpers = subprocess.Popen, list[Any]()

    def start_sleeper(command: list[str], **options: Any) -> Any:
        helpers.append(start([*command[:2], "import time; time.sleep(1000)"], **options))
        return helpers[-1]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start_sleeper)
    monkeypatch.setattr(cpu_together, "PATIENCE", 0.01)
    cpu_together._compile_together(SHORT_PASSES, KIND)
    monkeypatch.setattr(cpu_together.LayerPass, "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cpu_together._compile_together(SHORT_PASSES, KIND)
    assert [helper.returncode for helper in helpers] == [-9, -9]


@pytest.mark.parametrize(("cores", "threads", "processes"), [(1, 4, 1), (8, 1, 1), (2, 2, 2), (8, 8, 3)])
def test_number_of_processes(
    cores: int, threads: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu_together, "MOST_PROCESSES", 3)
    assert cpu_together._processes() == processes
    shares = cpu_together._shares(FORWARD + BACKWARD, processes)
    assert len(shares) == processes
    assert sorted(itertools.chain(*shares)) == sorted(FORWARD + BACKWARD)


def test_helpers_start_once_and_only_for_known_scores(
    fresh: None, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[tuple[int, Kind]]()
    monkeypatch.setattr(
        cpu_together, "_compile_together", lambda passes, kind: calls.append((len(passes), kind))
    )
    monkeypatch.setattr(cpu_together.LayerPass, "is_missing", lambda *_: True)
    compile_layer = cpu_together.compile_layer
    for differentiated in (False, True, True):
        compile_layer("distmult", 7, "float32", "int16", relations=True, differentiated=differentiated)
    register_score("crossed", Crossed)
    compile_layer("crossed", 8, "float32", "float32", relations=True, differentiated=True)
    monkeypatch.setattr(cpu_together, "_processes", lambda: 1)
    compile_layer("distmult", 64, "float32", "float32", relations=True, differentiated=True)
    kind = Kind("distmult", 0, "float32", "int16")
    assert calls == [(3, kind), (7, kind)]


def test_no_helper_starts_without_a_disk_cache(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder(*_: Any) -> None:
        raise RuntimeError("cannot cache function")

    monkeypatch.setattr(cpu_compiler, "PassCache", no_folder)
    assert not any(each.is_missing(KIND) for each in FORWARD + BACKWARD)
    assert cpu_together._shares([], 2) == [[]]


@pytest.mark.parametrize("differentiated", [True, False])
def test_the_backward_is_compiled_if_a_gradient_is_possible(
    differentiated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedError(Exception):
        """Raised with the arguments of the call."""

    def compile_layer(*kind: Any, **options: Any) -> None:
        raise AskedError(*kind, options)  # before anything is compiled

    monkeypatch.setattr(cpu_together, "compile_layer", compile_layer)
    x, y, graph, _ = layer_inputs("degrees", 7, torch.float32)
    x.requires_grad_()
    with torch.set_grad_enabled(differentiated), pytest.raises(AskedError) as asked:
        context_layer(x, y, graph, rows="bfloat16", backend="numba")
    assert asked.value.args == (
        "distmult",
        7,
        "float32",
        "int16",
        {"relations": True, "differentiated": differentiated},
    )


def test_a_layer_of_some_rows_is_compiled_by_helpers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cpu_together, "compile_layer", lambda *kind, **options: asked.append((kind, options)))
    monkeypatch.setattr(rows_module, "CUTTING", 0)
    x, y, graph, _ = layer_inputs("degrees", 7, torch.float32)
    part = rows_module.part_of(graph, torch.tensor([3]), 7)
    assert part is not None
    rows_module.context_rows(x[part.entities].requires_grad_(), y, part, backend="numba")
    options = {"relations": False, "differentiated": True}
    assert asked == [(("distmult", 7, "float32", "float32"), options)]


@pytest.mark.parametrize("context", ["both", "entity", "relation"])
@pytest.mark.parametrize(
    ("dtype", "rows"),
    [(torch.float32, "float32"), (torch.float32, "bfloat16"), (torch.float64, "bfloat16")],
    ids=["float32", "half rows", "float64"],
)
def test_declared_types_match_the_arguments_of_passes(
    dtype: torch.dtype, rows: str, context: str, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = dict[Any, Any]()

    def compile_nothing(self: Any, *arguments: Any) -> Any:
        key = (self, *arguments[:-1])
        got[key] = arguments[-1]
        return lambda *_: None

    monkeypatch.setattr(cpu_compiler.Pass, "compile", compile_nothing)
    monkeypatch.setattr(cpu_together, "_processes", lambda: 1)
    x, y, graph, mask = layer_inputs("hubs", 7, dtype)
    for left_out in (mask, None):
        layer_results(x, y, graph, mask=left_out, context=context, rows=rows, backend="numba")
    read = "int16" if rows == "bfloat16" and dtype == torch.float32 else str(dtype)[6:]
    kind = Kind("distmult", 0, str(dtype)[6:], read, context != "entity")
    declared = {(each._pass(), *each._key(kind)): each._declared(kind)[1] for each in FORWARD + BACKWARD}
    assert got.keys() <= declared.keys()
    assert len(got) == len(declared) - (context == "relation")  # this context needs no sum for entities
    for key, signature in got.items():
        assert signature == declared[key], key[0]._make.__name__


def layer_in_a_process(cache: Path, processes: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", LAYER, str(processes)],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_concurrent_processes_share_an_empty_cache(tmp_path: Path) -> None:
    """Two processes that start together share a cache. A later process compiles nothing."""
    starts = [("one", 1), ("two", 2), ("two", 2), ("three", 3)]
    runs = [layer_in_a_process(tmp_path / name, processes) for name, processes in starts]
    results = [run.communicate() for run in runs]
    again = layer_in_a_process(tmp_path / "two", 2).communicate()
    assert [run.returncode for run in runs] == [0] * len(runs), results
    assert {output for output, _ in [*results, again]} == {results[0][0]}
    assert all(errors.count("\n") == errors.count("compiling the CPU passes") == 1 for _, errors in results)
    assert again[1] == ""
    assert {len(list((tmp_path / name).rglob("*.nbc"))) for name, _ in starts} == {len(FORWARD + BACKWARD)}
