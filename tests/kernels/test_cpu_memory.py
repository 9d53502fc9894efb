"""Results of the CPU passes reuse memory of earlier results, but never while it is read."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import lightcake_fast
from lightcake_fast.kernels import cpu_memory
from tests.support.comparison import assert_bitwise_equal
from tests.support.graphs import layer_inputs, layer_results

LIKE = torch.empty(0)


@pytest.fixture
def kept() -> Iterator[None]:
    """Keep results of every size."""
    cpu_memory.keep_results(1)
    yield
    cpu_memory.keep_results(float("inf"))


@pytest.mark.usefixtures("kept")
def test_memory_is_reused_when_nothing_reads_it() -> None:
    first = cpu_memory.new_result(LIKE, 8, 3)
    place, part = first.data_ptr(), first[2:]
    del first
    assert cpu_memory.new_result(LIKE, 8, 3).data_ptr() != place  # a part of it is still read
    part.fill_(7)
    del part
    again = [cpu_memory.new_result(LIKE.double(), 12) for _ in range(2)]  # the same number of bytes
    assert place in [tensor.data_ptr() for tensor in again]
    assert [tensor.dtype for tensor in again] == [torch.float64] * 2
    assert [tensor.shape for tensor in again] == [(12,)] * 2


def idle() -> int:
    """Return the number of idle blocks of this size."""
    return len(cpu_memory._ended) + sum(map(len, cpu_memory._idle.values()))


@pytest.mark.usefixtures("kept")
def test_varying_sizes_keep_no_memory() -> None:
    for rows in range(1, 9):
        cpu_memory.new_result(LIKE, rows)
        assert idle() == 1
    assert cpu_memory.new_result(LIKE, 0, 5).shape == (0, 5)


@pytest.mark.usefixtures("kept")
def test_memory_that_is_idle_for_long_is_released() -> None:
    several = [cpu_memory.new_result(LIKE, 8) for _ in range(5)]
    del several
    assert idle() == 5
    for _ in range(2 * cpu_memory.PATIENCE):
        cpu_memory.new_result(LIKE, 8)
    assert idle() == 1
    cpu_memory.keep_results(10**6)
    kept = cpu_memory.new_result(LIKE, 10**6)
    del kept
    for _ in range(2 * cpu_memory.PATIENCE):  # small results count too
        cpu_memory.new_result(LIKE, 8)
    assert idle() == 0


@pytest.mark.usefixtures("kept")
def test_training_releases_its_memory_when_it_ends() -> None:
    lightcake_fast.train("family:20", dim=6, layers=2, epochs=1, quiet=True)
    assert idle() == 0
    assert not cpu_memory._leases


def test_no_memory_is_kept_by_default() -> None:
    cpu_memory.new_result(LIKE, 1 << 20)
    assert idle() == 0


@pytest.mark.usefixtures("kept")
def test_the_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        assert cpu_memory.new_result(LIKE, 3).device == LIKE.device


INTERRUPTED = """
import signal
import torch
from lightcake_fast.kernels import cpu_memory

def interrupt(*_):
    global sent
    sent += 1
    signal.setitimer(signal.ITIMER_REAL, 60)  # the next one, if this one is lost
    raise KeyboardInterrupt

cpu_memory.keep_results(1)
signal.signal(signal.SIGALRM, interrupt)
sent, raised, like = 0, 0, torch.empty(0)
for n in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + n * 1e-5)
        while True:
            cpu_memory.new_result(like, 8, 3)
    except KeyboardInterrupt:
        raised += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(sent, raised)
"""


def test_an_interrupt_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("200 200\n", "")


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("options", [{}, {"score": "transe", "residual": False}, {"rows": "bfloat16"}])
def test_reused_memory_changes_no_results(options: dict[str, Any]) -> None:
    cases = [layer_inputs("degrees", 5, torch.float32, seed=seed) for seed in range(3)] * 2
    found = [layer_results(x, y, graph, mask=mask, **options) for x, y, graph, mask in cases]
    with ThreadPoolExecutor(3) as threads:
        found += threads.map(lambda case: layer_results(*case[:3], mask=case[3], **options), cases)
    cpu_memory.keep_results(float("inf"))
    expected = [layer_results(x, y, graph, mask=mask, **options) for x, y, graph, mask in cases]
    for actual, wanted in zip(found, [*expected, *expected], strict=True):
        for name, tensor in wanted.items():
            assert_bitwise_equal(actual[name], tensor, name=name)


PREPARED = """
import lightcake_fast
lightcake_fast.prepare_process()
import torch
from lightcake_fast import ContextGraph, context_layer
graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1]]), 140_000, 1)
x, y = torch.ones(140_000, 256), torch.ones(2, 256)
places = []
for step in range(4):
    new, _ = context_layer(x, y, graph)
    places.append(new.data_ptr())
    del new
print(len(set(places)))
"""


def test_a_prepared_process_keeps_the_memory_of_big_results() -> None:
    done = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
