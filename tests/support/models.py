"""Small models in float64, on the graphs of the tests."""

from typing import Any

import torch

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS, RelationModel
from tests.support.graphs import layer_inputs

D = 6


def graph_named(name: str) -> ContextGraph:
    """The test graph of this name."""
    return layer_inputs(name, 1, torch.float64)[2]


def made(name: str, graph: ContextGraph, **options: Any) -> RelationModel:
    """A small model in float64 with random values in every parameter."""
    settings: dict[str, Any] = {
        "dim": D,
        "dtype": torch.float64,
        "generator": torch.Generator().manual_seed(0),
    }
    settings |= {"layers": 2} if "layers" in MODELS[name].arguments else {}
    model = MODELS[name].make(graph.num_entities, graph.num_relations, **settings | options).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=settings["generator"]).mul_(0.5)
    return model
