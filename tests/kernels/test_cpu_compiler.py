"""Compiled passes without a writable disk cache, and threads that outlive the main thread."""

import subprocess
import sys

import pytest

AGGREGATE = """
import torch
from lightcake_fast import Segments, segment_softmax_aggregate
segments = Segments.from_csr(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 1, 3, 2]), 4)
def run():
    found = segment_softmax_aggregate(torch.zeros(5), torch.ones(4, 7), segments, backend="numba")
    assert found[:, 0].tolist() == [1.0, 0.0, 1.0], found
"""
NO_FOLDER = "from numba.core import caching; caching.CacheImpl._locator_classes = []"
FULL_DISK = """
import errno
from numba.core import caching
def fail(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
caching.FunctionCache._save_overload = fail
caching.FunctionCache._load_overload = lambda *_: None
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("shortage", "reason"),
    [(NO_FOLDER, "no writable folder"), (FULL_DISK, "No space left on device")],
    ids=["no folder", "full disk"],
)
def test_passes_without_a_writable_cache_run_and_warn_once(shortage: str, reason: str) -> None:
    done = run(f"{shortage}\n{AGGREGATE}\nrun()\nrun()")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "cannot cache the compiled CPU passes" in line]
    assert reason in line
    assert "NUMBA_CACHE_DIR" in line


def test_a_thread_that_outlives_the_main_thread_can_compute() -> None:
    late = """
import threading
torch.set_num_threads(2)
def wait_then_run():
    threading.main_thread().join()
    for _ in range(3):
        big.sum(); layer()
    print("computed")
from lightcake_fast import ContextGraph, context_layer
torch.manual_seed(0)
triples = torch.randint(0, 300, (4000, 3)) % torch.tensor([300, 3, 300])
graph = ContextGraph.from_triples(triples, 300, 3)
big, relations = torch.randn(300, 7), torch.randn(6, 7)
def layer():
    context_layer(big, relations, graph, backend="numba")
layer()
threading.Thread(target=wait_then_run).start()
"""
    done = run(AGGREGATE + late)
    assert (done.returncode, done.stdout) == (0, "computed\n"), done.stderr
