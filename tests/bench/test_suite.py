"""Measuring tools of the benchmarks: peak memory, and layers to compare."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gather import gathered, gathered_by_definition
from bench.layers import (
    BFLOAT16,
    BUILDERS,
    LayerInput,
    compared,
    largest_difference,
    predicted_peak,
    rgcn_by_definition,
    rgcn_layer,
)
from bench.memory import peak_in_child, peak_of_call
from lightcake_fast.graph import ContextGraph
from tests.support.comparison import assert_close
from tests.support.graphs import layer_inputs

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def given() -> LayerInput:
    return LayerInput.random(layer_inputs("degrees", 1, torch.float32)[2], 64)


def held(megabytes: int, given_back: int = 0) -> Callable[[], Iterable[Tensor]]:
    """Hold this much memory for a moment and return a part of it."""

    def run() -> Iterable[Tensor]:
        passing = torch.ones(megabytes * MEGABYTE, dtype=torch.uint8)
        return [torch.ones(given_back * MEGABYTE, dtype=torch.uint8) * passing[0]]

    return run


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are told by Linux only")
def test_peak_excludes_memory_held_before() -> None:
    kept = torch.ones(64 * MEGABYTE, dtype=torch.uint8)  # allocated before
    peak = peak_of_call(held(200, given_back=50), torch.device("cpu"))
    assert peak == pytest.approx(250 * MEGABYTE, rel=0.1)  # two tensors of 50 while the product is computed
    assert peak_of_call(held(10), torch.device("cpu")) < 30 * MEGABYTE
    assert kept.any()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are told by Linux only")
def test_peak_in_child_process() -> None:
    peak = peak_in_child("tests.bench.test_suite:held", 300)
    assert peak is not None
    assert peak == pytest.approx(300 * MEGABYTE, rel=0.1)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are told by Linux only")
def test_failed_child_process_reports_the_cause() -> None:
    with pytest.raises(
        RuntimeError, match=r"measuring tests\.bench\.test_suite:nothing .*no attribute 'nothing'"
    ):
        peak_in_child("tests.bench.test_suite:nothing")


# layers of this package; each other layer would compile more passes
QUICK = ("lightcake", "lightcake eager")
LAYERS = [
    pytest.param(name, marks=[] if name in QUICK or "lightcake" not in name else pytest.mark.full)
    for name in BUILDERS
    if "compiled" not in name
]


@pytest.mark.parametrize("name", LAYERS)
def test_benchmark_layers_agree(name: str, given: LayerInput, peer: Callable[[str], Any]) -> None:
    if name.startswith("PyG"):
        peer("torch_geometric")
    step = BUILDERS[name](given)
    results = step.both()
    outputs = step.forward()
    split = [*(output.detach() for output in outputs), *step.backward(*outputs)]
    assert largest_difference(results, split) < 1e-6, "forward and backward apart must do the same"
    difference = largest_difference(*compared(name, given, results, BUILDERS["lightcake eager"](given).both))
    assert difference < (1e-2 if name == BFLOAT16 else 1e-4)


def test_wrong_layer_is_detected(given: LayerInput) -> None:
    layer = rgcn_layer(given, "full")
    right = rgcn_by_definition(layer, given)
    with torch.no_grad():
        layer.matrices[3] *= 1.01
    assert largest_difference([layer(given.entities, given.graph)], [right]) > 5e-4


def test_predicted_peaks_bound_measured_peaks(given: LayerInput) -> None:
    row = 64 * 4
    triples = 2 * len(given.graph.triples)
    tables = 2 * given.graph.num_relations * given.graph.num_entities * row
    assert predicted_peak(given, "PyG RGCNConv") == tables
    assert predicted_peak(given, "lightcake eager") == 10 * triples * row
    assert predicted_peak(given, "lightcake") == 0


@pytest.mark.parametrize("width", [64, 5])
def test_bare_gather_reads_the_rows_of_a_layer(width: int) -> None:
    found = LayerInput.random(layer_inputs("degrees", 1, torch.float32)[2], width)
    plan, x, g = found.graph.plan, found.entities.detach(), found.entity_gradient
    for more in (None, g):
        for sums, wanted in zip(gathered(plan, x, more), gathered_by_definition(plan, x, more), strict=True):
            assert_close(sums, wanted)
    entities, relations = gathered(plan, torch.ones_like(x), None)
    assert entities.sum() == relations.sum() == width * 2 * found.graph.num_triples


def test_layer_parameters() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [2, 1, 3]]), 5, 3)
    given = LayerInput.random(graph, 64)
    tables = 5 * 64 + 3 * 64
    assert BUILDERS["lightcake"](given).parameters == tables + 3 * 64
    assert BUILDERS["rgcn"](given).parameters == tables + 64 * 64 + 6 * 64 * 64
    assert BUILDERS["rgcn block"](given).parameters == tables + 64 * 64 + 6 * 64 * 64 // 32
    assert BUILDERS["gather"](given).parameters is None
