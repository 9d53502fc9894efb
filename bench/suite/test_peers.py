"""One layer on a CPU and its peers, in alternating rounds, so the ratios hold on a busy machine."""

import importlib.util
from typing import Any

import pytest
import torch

from bench.layers import BUILDERS, SCORE_OF, TOLERANCE, context_step, largest_difference, layer_input
from bench.measuring import found, timed

DIM = 256


@pytest.mark.parametrize("name", SCORE_OF)
@pytest.mark.parametrize("dataset", ["family", "ddb14", "wn18rr"])
def test_peers(dataset: str, name: str, measure: Any) -> None:
    """Time forward and backward, alternately with plain PyTorch and, if installed, PyG."""
    data, device = found(dataset), torch.device("cpu")
    given = layer_input(dataset, DIM, SCORE_OF[name])
    step, eager = BUILDERS[name](given), context_step(given, "reference")
    difference = largest_difference(step.both(), eager.both())
    assert difference < TOLERANCE, f"not timed: the results differ by {difference:.1e}"
    beside = {"lightcake eager": eager.both}
    if importlib.util.find_spec("torch_geometric") is not None and given.score == "distmult":
        beside["PyG RGCNConv"] = BUILDERS["PyG RGCNConv"](given).both
    _, warm = timed(step.both, device)
    measure(
        step.both,
        warm=warm,
        device=device,
        beside=beside,
        kind="peers",
        mode="both",
        model=name,
        data=dataset,
        items=given.context_triples,
        entities=data.num_entities,
        relations=data.num_relations,
        dim=DIM,
    )
