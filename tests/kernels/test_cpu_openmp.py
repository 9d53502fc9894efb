"""Idle threads of PyTorch's OpenMP sleep, even in a process that loaded PyTorch before this package.

GNU's library lets them sleep if it has more threads than there are processors. The tests count its threads.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is Linux's")

COUNT = """
import os, sys, threading
import torch, lightcake_fast
def sum_rows():
    torch.ones(1 << 20).add_(1)
def native_threads():
    return len(os.listdir("/proc/self/task")) - threading.active_count()
def added():
    return [thread.name for thread in threading.enumerate()].count("idle OpenMP")
"""
TWO_PROCESSORS = "os.sched_getaffinity = lambda process: range(2); torch.set_num_threads(2)"
LAYER = """
graph = lightcake_fast.ContextGraph.from_triples(torch.zeros(2000, 3, dtype=torch.int64), 1, 1)
lightcake_fast.context_layer(torch.ones(1, 4), torch.ones(2, 4), graph, backend="numba")
"""
TRAIN = "lightcake_fast.train('family:20', epochs=1, dim=4, layers=0, quiet=True, device='cpu')"
SEARCH = f"{TRAIN.replace('train(', 'search(')[:-1]}, out=sys.argv[1], vary={{'lr': [0.1]}}, trials=1)"


def count(code: str, *arguments: str, **environment: str) -> list[int]:
    unset = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", COUNT + code, *arguments],
        env=unset | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_openmp_has_more_threads_than_there_are_processors(threads: int) -> None:
    before, first, second, processors = count(f"""
torch.set_num_threads({threads})
sum_rows()
print(native_threads())
for _ in range(2):
    lightcake_fast.prepare_process()
    sum_rows()
    print(native_threads())
print(len(os.sched_getaffinity(0)))
""")
    assert first == second
    # a single thread never waits for others
    added = max(0, processors + 1 - threads)
    assert first - before == (0 if threads == 1 or 2 * threads < processors else added)


@pytest.mark.parametrize(("processors", "expected"), [(8, 5), (9, 0), (192, 0)])
def test_few_threads_on_a_large_machine_add_no_threads(processors: int, expected: int) -> None:
    before, after = count(f"""
os.sched_getaffinity = lambda process: range({processors})
torch.set_num_threads(4)
sum_rows()
print(native_threads())
lightcake_fast.prepare_process()
print(native_threads())
""")
    assert after - before == expected


def test_threads_that_call_it_together_add_threads_once() -> None:
    assert count("""
os.sched_getaffinity = lambda process: range(4)
torch.set_num_threads(2)
from lightcake_fast.kernels.cpu_openmp import let_idle_threads_sleep
callers = [threading.Thread(target=let_idle_threads_sleep) for _ in range(20)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
print(added())
""") == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_WAIT_POLICY", "active"), ("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "9")],
)
def test_a_setting_in_the_environment_is_respected(name: str, value: str) -> None:
    assert count("lightcake_fast.prepare_process(); print(added())", **{name: value}) == [0]


@pytest.mark.parametrize("call", [LAYER, TRAIN, SEARCH], ids=["layer", "train", "search"])
def test_layers_training_and_search_let_idle_threads_sleep(call: str, tmp_path: Path) -> None:
    code = f"{TWO_PROCESSORS}\nprint(added())\n{call}\nprint(added())"
    assert count(code, str(tmp_path / "search")) == [0, 1]


def test_a_trained_model_sees_to_it(unbroken: Path) -> None:
    code = f"{TWO_PROCESSORS}\nlightcake_fast.load(sys.argv[1]); print(added())"
    assert count(code, str(unbroken)) == [1]
