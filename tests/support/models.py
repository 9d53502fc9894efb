"""Small models in float64, on the graphs of the tests."""

from typing import Any

import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS, RelationModel
from lightcake_fast.models.plain import PlainModel
from lightcake_fast.models.weights import xavier
from lightcake_fast.sharding.layer import AnyGraph
from tests.support.graphs import layer_inputs

D = 6


class Shifted(PlainModel):
    """DistMult with rows that are the sum of ``entities`` and a second weight with a row per entity."""

    def __init__(self, num_entities: int, num_relations: int, *, dim: int, **options: Any) -> None:
        super().__init__(num_entities, num_relations, dim=dim, score="distmult", **options)
        self.shift = xavier(num_entities, dim, generator=options.get("generator"), dtype=self.entities.dtype)

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        return entities + self.shift, relations


def graph_named(name: str) -> ContextGraph:
    """Return the test graph of this name."""
    return layer_inputs(name, 1, torch.float64)[2]


def made(name: str, graph: ContextGraph, **options: Any) -> RelationModel:
    """Return a small model in float64 with random values in every parameter."""
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
