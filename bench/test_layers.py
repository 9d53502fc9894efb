"""One layer, forward, backward and both: this package's beside PyTorch, R-GCN, PyG and a bare gather."""

import functools
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.conftest import timed
from bench.layers import (
    BUILDERS,
    LayerInput,
    LayerStep,
    gathered_bytes,
    largest_difference,
    predicted_peak,
    rgcn_layer,
)
from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.efficiency import peak_in_child, peak_of_call
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import RGCNLayer
from lightcake_fast.models.neighbours import neighbours

DIM = 256
NARROW = 32  # width to compare at where a peer is slow; one entry a block
TOLERANCE = 5e-4  # largest difference of a result, over its largest entry
# Where slow ones are timed on a CPU, so that the suite ends within ten minutes on two cores.
SLOW_ON_CPU = {
    "lightcake eager": ("family:300", "family", "family:6000", "ddb14", "wn18rr"),
    "lightcake compiled": ("family", "ddb14", "wn18rr"),
    "PyG RGCNConv": ("family", "ddb14", "wn18rr"),
    "PyG FastRGCNConv": ("family", "ddb14", "wn18rr"),
}
LONG = 2.5  # seconds; of calls that take longer only both passes together are timed
MEMORY_DATA = ("family", "ddb14", "wn18rr")  # peaks take a child process each

Results = tuple[Tensor, ...]


@dataclass
class Case:
    """A layer that is built, compared and warm."""

    name: str
    given: LayerInput
    step: LayerStep
    seconds: float
    peak: int | None


@pytest.fixture(scope="session")
def given(context: ContextGraph) -> LayerInput:
    """What every layer on the data set computes from."""
    return LayerInput.random(context, DIM)


@pytest.fixture(scope="session")
def eager(given: LayerInput, data: KnowledgeGraph, device: torch.device) -> Callable[[], Results] | None:
    """The results of plain PyTorch, computed once; None where they cannot be had at their price."""
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
    not_run: Callable[..., None],
) -> Case:
    """A layer on the data set; skips where it is not to be had, too big or too slow."""
    name = request.param
    what = {"kind": "layer", "model": name, "data": data.name, "device": device.type}
    peak, here = predicted_peak(given, name), available_bytes(device)
    if name.startswith("PyG") and importlib.util.find_spec("torch_geometric") is None:
        not_run("needs torch-geometric", **what)
    if peak > here:
        not_run(f"does not fit: {peak / 1e9:.1f} GB predicted, {here / 1e9:.1f} GB there", **what)
    if device.type == "cpu" and data.name not in SLOW_ON_CPU.get(name, data.name):
        not_run(f"too slow for this suite on a CPU; {peak / 1e9:.2f} GB predicted", **what)
    step = BUILDERS[name](given)
    results, seconds = timed(step.both, device)
    if name in ("lightcake", "lightcake compiled"):  # the first call may have compiled
        _, seconds = timed(step.both, device)
    difference = largest_difference(*compared(name, given, results, eager))
    assert difference < TOLERANCE, f"{name} on {data.name} is off by {difference:.1e}: not timed"
    if device.type == "cuda":
        return Case(name, given, step, seconds, peak_of_call(step.both, device))
    child = ("bench.layers:layer_run", name, data.name, DIM)
    return Case(name, given, step, seconds, peak_in_child(*child) if data.name in MEMORY_DATA else None)


def compared(
    name: str, given: LayerInput, results: Results, eager: Callable[[], Results] | None
) -> tuple[Results, Results]:
    """What must be equal: at full width, or at a small one where the peer has its price."""
    narrow = LayerInput.random(given.graph, NARROW)
    if name.startswith("PyG"):
        return results, BUILDERS["rgcn" if name == "PyG RGCNConv" else "rgcn block"](given).both()
    if name.startswith("rgcn"):
        layer = rgcn_layer(narrow, "full" if name == "rgcn" else "block")
        return (layer(narrow.entities, narrow.graph),), (rgcn_by_definition(layer, narrow),)
    if name == "gather":
        head, _, tail = given.graph.context_triples
        rows = narrow.entities.index_select(0, tail)
        wanted = torch.zeros_like(narrow.entities).index_add(0, head, rows)
        return BUILDERS[name](narrow).forward(), (wanted,)
    if eager is not None:
        return results, eager()
    return BUILDERS[name](narrow).both(), BUILDERS["lightcake eager"](narrow).both()


def rgcn_by_definition(layer: RGCNLayer, given: LayerInput) -> Tensor:
    """R-GCN's sum, relation by relation with a row for each of its triples."""
    found, x = neighbours(given.graph), given.entities
    weights, head = found.mean_weights(None, x.dtype), found.group_head.index_select(0, found.group)
    out = x @ layer.root
    for r, (entries, _, _) in enumerate(found.parts):
        rows = weights[entries, None] * x.index_select(0, found.tail[entries])
        out = out.index_add(0, head[entries], rows @ torch.block_diag(*layer.matrices[r]))  # type: ignore[no-untyped-call]
    return out


def available_bytes(device: torch.device) -> float:
    """Memory that is free; endless where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    file = Path("/proc/meminfo")
    found = re.search(r"MemAvailable: +(\d+) kB", file.read_text()) if file.exists() else None
    return float("inf") if found is None else int(found.group(1)) * 1024


@pytest.mark.parametrize("mode", ["forward", "backward", "both"])
def test_layer(case: Case, mode: str, data: KnowledgeGraph, device: torch.device, measure: Any) -> None:
    """Time a pass."""
    step = case.step
    if mode != "both" and case.seconds > LONG:
        pytest.skip(f"slow ({case.seconds:.1f} s): only both passes together are timed")
    measure(
        getattr(step, mode),
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
        gathered_bytes=gathered_bytes(case.given, case.name, mode),
        peak_bytes=case.peak if mode == "both" else None,
    )
