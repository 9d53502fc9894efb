"""Fixtures of the benchmark suite, its command-line option, and the tables after the run."""

import gc
import json
import signal
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measuring import DATA, DEVICES, found, machine, synchronise, timed
from bench.report import NOT_RUN, print_tables, rows_of
from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.graph import ContextGraph
from lightcake_fast.process import prepare_process
from lightcake_fast.terminal import Console

SECONDS = 0.5  # time for the rounds of one benchmark: at least one round and at most ten
_NOT_RUN = pytest.StashKey[list[dict[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the suite."""
    parser.addoption(
        "--fresh-memory", action="store_true", help="return freed memory to the system, unlike training"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Create the list of skipped benchmarks. On SIGTERM, still write the results so far."""
    config.stash[_NOT_RUN] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _like_a_training_process(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--fresh-memory"):
        prepare_process()


@pytest.fixture(autouse=True)
def _leave_no_memory_behind() -> Any:
    """Free the GPU memory of each benchmark, even after a failure, so that the next one can use it."""
    yield
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each available device."""
    return torch.device(request.param)


@pytest.fixture(scope="session", params=DATA)
def data(request: pytest.FixtureRequest) -> KnowledgeGraph:
    """Generated graphs, and the public data sets that are on this machine."""
    return found(request.param)


@pytest.fixture(scope="session")
def context(data: KnowledgeGraph, device: torch.device) -> ContextGraph:
    """The training graph on the device."""
    graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
    return graph.to(device)


@pytest.fixture(scope="session")
def not_run(request: pytest.FixtureRequest) -> Callable[..., NoReturn]:
    """Return a function that records a skipped benchmark and its reason for the report, and then skips."""

    def note(reason: str, **what: str) -> NoReturn:
        entry = {**what, "reason": reason}
        entries = request.config.stash[_NOT_RUN]
        if entry not in entries:
            entries.append(entry)
        pytest.skip(reason)

    return note


@pytest.fixture
def measure(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that times a call and records a description of it.

    `setup` returns the arguments of the call. `warm` is the duration of an earlier call in seconds, without
    compilation. `items` is the number of items that one call processes. `beside` holds other calls, which run
    alternately with this one. All further arguments go to `extra_info`.
    """

    def run(
        call: Callable[..., object],
        *,
        warm: float,
        device: torch.device,
        items: int,
        setup: Callable[[], tuple[Any, ...]] = tuple,
        beside: Mapping[str, Callable[[], object]] | None = None,
        **info: Any,
    ) -> None:
        best = dict.fromkeys(beside or {}, float("inf"))

        def before() -> tuple[tuple[Any, ...], dict[str, Any]]:
            for name, other in (beside or {}).items():
                best[name] = min(best[name], timed(other, device)[1])
            arguments = setup()
            synchronise(device)
            return arguments, {}

        def synchronised(*arguments: Any) -> None:
            call(*arguments)
            synchronise(device)

        benchmark.group = " ".join(info[key] for key in ("kind", "mode", "data")) + f" {device}"
        rounds = max(1, min(10, int(SECONDS / max(warm, 1e-9))))
        benchmark.pedantic(synchronised, setup=before, rounds=rounds, iterations=1)  # type: ignore[no-untyped-call]
        memory = "fresh" if request.config.getoption("--fresh-memory") else "kept"
        benchmark.extra_info |= {**machine(device), "memory": memory, "items": items, **info, "beside": best}

    return run


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: object, output_json: dict[str, Any]
) -> None:
    """Add the skipped benchmarks to the results file."""
    output_json[NOT_RUN] = config.stash[_NOT_RUN]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    """Print the tables."""
    session = getattr(config, "_benchmarksession", None)
    benchmarks = [] if session is None else [bench for bench in session.benchmarks if bench]
    entries = json.loads(json.dumps([bench.as_dict(include_data=False) for bench in benchmarks]))
    print_tables(Console(), rows_of(entries), config.stash[_NOT_RUN])
