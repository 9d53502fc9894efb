"""One layer, forward, backward and both: this package, plain PyTorch, R-GCN, PyG and a bare gather."""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from bench.layers import (
    BFLOAT16,
    BUILDERS,
    NARROW_TOLERANCE,
    SCORE_OF,
    TOLERANCE,
    LayerInput,
    LayerStep,
    compared,
    largest_difference,
    predicted_peak,
)
from bench.measuring import available_bytes, timed
from bench.memory import peak_in_child, peak_of_call
from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.graph import ContextGraph
from lightcake_fast.training.captured import WARM_UPS, record, warm_up

DIM = 256
# Data sets for slow implementations on a CPU. They keep the suite at about ten minutes on two cores.
SLOW_ON_CPU = {
    "lightcake eager": ("family:300", "family", "family:6000", "ddb14", "wn18rr"),
    "lightcake compiled": ("family", "ddb14", "wn18rr"),
    "PyG RGCNConv": ("family", "ddb14", "wn18rr"),
    "PyG FastRGCNConv": ("family", "ddb14", "wn18rr"),
}
LONG = 2.5  # seconds; slower calls are timed only for both passes together
MEMORY_DATA = ("family", "ddb14", "wn18rr")  # each peak takes a child process

Results = tuple[Tensor, ...]


@dataclass
class Case:
    """A layer that is built, verified and warm."""

    name: str
    given: LayerInput
    step: LayerStep
    seconds: float
    peak: int | None


@pytest.fixture(scope="session")
def given(context: ContextGraph) -> LayerInput:
    """The input of every layer on the data set."""
    return LayerInput.random(context, DIM)


@pytest.fixture(scope="session")
def eager(given: LayerInput, data: KnowledgeGraph, device: torch.device) -> Callable[[], Results] | None:
    """The results of plain PyTorch, computed once; None if this takes too much time or memory."""
    if device.type == "cpu" and data.name not in SLOW_ON_CPU["lightcake eager"]:
        return None
    if predicted_peak(given, "lightcake eager") > available_bytes(device):
        return None
    return functools.cache(BUILDERS["lightcake eager"](given).both)


@pytest.fixture(scope="session", params=BUILDERS)
def case(
    request: pytest.FixtureRequest,
    given: LayerInput,
    data: KnowledgeGraph,
    device: torch.device,
    eager: Callable[[], Results] | None,
    not_run: Callable[..., NoReturn],
) -> Case:
    """A layer on the data set. Skips if it is unavailable, too big or too slow."""
    name = request.param
    what = {"kind": "layer", "model": name, "data": data.name, "device": device.type}
    peak, here = predicted_peak(given, name), available_bytes(device)
    if name.startswith("PyG") and importlib.util.find_spec("torch_geometric") is None:
        not_run("needs torch-geometric", **what)
    if peak > here:
        not_run(f"does not fit: {peak / 1e9:.1f} GB predicted, {here / 1e9:.1f} GB free", **what)
    if device.type == "cpu" and data.name not in SLOW_ON_CPU.get(name, data.name):
        not_run(f"too slow for this suite on a CPU; {peak / 1e9:.2f} GB predicted", **what)
    if name == BFLOAT16 and device.type == "cpu":
        pytest.skip("a CPU computes 16-bit rows in 32 bits")
    try:
        return made(name, given, data, device, eager)
    except torch.OutOfMemoryError as error:
        not_run(f"out of memory: {str(error).splitlines()[0]}", **what)


def made(
    name: str,
    given: LayerInput,
    data: KnowledgeGraph,
    device: torch.device,
    eager: Callable[[], Results] | None,
) -> Case:
    """Build the layer, verify its results and measure one call and its peak memory."""
    step = BUILDERS[name](given)
    results, seconds = timed(step.both, device)
    if name.startswith(("lightcake", "gather")):  # the first call may include compilation
        _, seconds = timed(step.both, device)
    difference = largest_difference(*compared(name, given, results, eager))
    tolerance = NARROW_TOLERANCE if name == BFLOAT16 else TOLERANCE
    assert difference < tolerance, f"not timed: {name} on {data.name} differs by {difference:.1e}"
    if device.type == "cuda":
        return Case(name, given, step, seconds, peak_of_call(step.both, device))
    child = ("bench.layers:layer_run", name, data.name, DIM)
    return Case(name, given, step, seconds, peak_in_child(*child) if data.name in MEMORY_DATA else None)


def captured(run: Callable[[], Results]) -> Callable[[], None]:
    """Record a function as one CUDA graph, and verify that its results are the same."""
    results: list[Tensor] = []

    def keep() -> None:
        results[:] = run()

    for _ in range(WARM_UPS):
        warm_up(keep)
    replay = record(keep)
    replay()
    difference = largest_difference(results, run())
    assert difference < TOLERANCE, f"not timed: the replay differs by {difference:.1e}"
    return replay


@pytest.mark.parametrize("mode", ["forward", "backward", "both", "replay"])
def test_layer(case: Case, mode: str, data: KnowledgeGraph, device: torch.device, measure: Any) -> None:
    """Time a pass. A replay is both passes as one CUDA graph."""
    step = case.step
    if mode == "replay" and (device.type == "cpu" or case.name not in SCORE_OF):
        pytest.skip("only this package's layer is recorded as a CUDA graph")
    if mode != "both" and case.seconds > LONG:
        pytest.skip(f"slow ({case.seconds:.1f} s): only both passes together are timed")
    measure(
        captured(step.both) if mode == "replay" else getattr(step, mode),
        setup=step.forward if mode == "backward" else tuple,
        warm=case.seconds,
        device=device,
        kind="layer",
        mode=mode,
        model=case.name,
        data=data.name,
        items=case.given.context_triples,
        entities=data.num_entities,
        relations=data.num_relations,
        dim=DIM,
        parameters=step.parameters,
        peak_bytes=case.peak if mode == "both" else None,
    )
