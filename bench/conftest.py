"""The benchmark suite: its data and devices, how a call is measured, and the tables after the run."""

import dataclasses
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console

from lightcake_fast.data import KnowledgeGraph, load_dataset
from lightcake_fast.data.public import DATA_VARIABLE, PUBLIC_DATASETS, find_folder
from lightcake_fast.graph import ContextGraph
from lightcake_fast.report.measurements import NOT_RUN, Measurement, NotRun
from lightcake_fast.report.tables import as_rich, tables
from lightcake_fast.training.runtime import device_name, prepare_process

DATA = ("family:300", "family", "family:6000", *PUBLIC_DATASETS)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
SECONDS = 0.5  # of rounds for one figure, at least one round and at most ten
_NOT_RUN = pytest.StashKey[list[NotRun]]()


@pytest.fixture(scope="session", autouse=True)
def _like_a_training_process() -> None:
    prepare_process()


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device there is."""
    return torch.device(request.param)


@pytest.fixture(scope="session", params=DATA)
def data(request: pytest.FixtureRequest) -> KnowledgeGraph:
    """Generated graphs always, the public sets where found."""
    return found(request.param)


def found(name: str) -> KnowledgeGraph:
    """A data set; skips where a public one is not on this machine."""
    public = PUBLIC_DATASETS.get(name)
    if public is not None and find_folder(public) is None:
        pytest.skip(f"no {name}: put its folder {public.folder} into the one that {DATA_VARIABLE} names")
    return dataclasses.replace(load_dataset(name), name=name)  # the size of a generated one is in its name


@pytest.fixture(scope="session")
def context(data: KnowledgeGraph, device: torch.device) -> ContextGraph:
    """The training graph on the device."""
    graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
    return graph.to(device)


@pytest.fixture(scope="session")
def not_run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Note for the report what is not measured here and why, and skip."""

    def note(reason: str, **what: str) -> None:
        entry = NotRun(reason=reason, **what)
        entries = request.config.stash[_NOT_RUN]
        if entry not in entries:
            entries.append(entry)
        pytest.skip(reason)

    return note


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Callable[..., None]:
    """Time a call and note what it did.

    The call takes what `setup` gives. `warm` is how many seconds a call took before, the compilation not
    counted; `items` how many things one call deals with; the rest goes into `extra_info`.
    """

    def run(
        call: Callable[..., object],
        *,
        warm: float,
        device: torch.device,
        items: int,
        setup: Callable[[], tuple[Any, ...]] = tuple,
        **info: Any,
    ) -> None:
        def synchronised(*arguments: Any) -> None:
            call(*arguments)
            synchronise(device)

        benchmark.group = " ".join(info[key] for key in ("kind", "mode", "data")) + f" {device}"
        benchmark.extra_info |= {**machine(device), "items": items, **info}
        rounds = max(1, min(10, int(SECONDS / max(warm, 1e-9))))
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            synchronised, setup=lambda: (setup(), {}), rounds=rounds, iterations=1
        )
        if benchmark.stats is not None:  # None with --benchmark-disable
            seconds = benchmark.stats.stats.min
            benchmark.extra_info["items_per_second"] = items / seconds
            if info.get("gathered_bytes"):
                benchmark.extra_info["gathered_bytes_per_second"] = info["gathered_bytes"] / seconds

    return run


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """What a call gives and how many seconds it took."""
    start = time.perf_counter()
    result = call()
    synchronise(device)
    return result, time.perf_counter() - start


def machine(device: torch.device) -> dict[str, Any]:
    """The device and the versions that decide its speed."""
    peers = ["torch", "numpy", "numba", "triton", "torch_geometric"]
    versions = {peer: metadata.version(peer) for peer in peers if importlib.util.find_spec(peer)}
    return {
        "device": device.type,
        "device_name": device_name(device),
        "versions": {"python": platform.python_version(), **versions},
    }


def pytest_configure(config: pytest.Config) -> None:
    """Begin the list of what is not run."""
    config.stash[_NOT_RUN] = []


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: object, output_json: dict[str, Any]
) -> None:
    """Put what was not run beside the figures."""
    output_json[NOT_RUN] = [entry.to_dict() for entry in config.stash[_NOT_RUN]]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    """Print the figures side by side."""
    session = getattr(config, "_benchmarksession", None)
    benchmarks = [] if session is None else [bench for bench in session.benchmarks if bench]
    entries = json.loads(json.dumps([bench.as_dict(include_data=False) for bench in benchmarks]))
    measurements = [Measurement.from_entry(entry) for entry in entries]
    left_out = config.stash[_NOT_RUN]
    console = Console(width=None if Console().is_terminal else 160)
    for table in tables(measurements, left_out):
        console.print()
        console.print(as_rich(table))
