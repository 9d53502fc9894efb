"""The rows that a batch reads, and its loss, without what only other rows need."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS, RelationModel
from tests.support.comparison import assert_close
from tests.support.graphs import CONTEXTS, QUICK_SCORES, layer_inputs

D = 6


def made(name: str, graph: ContextGraph, **options: Any) -> RelationModel:
    """A small model in float64 with random values in every parameter."""
    generator = torch.Generator().manual_seed(0)
    model = MODELS[name].make(graph.num_entities, graph.num_relations, dim=D, **options).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=generator).mul_(0.5)
    return model


def assert_same_rows(model: RelationModel, graph: ContextGraph, mask: Tensor, rows: Tensor) -> None:
    """Rows and gradients are those of all rows, of which these are taken."""
    parameters = dict(model.named_parameters())
    found = []
    for wanted in (rows, None):
        entities, relations = model.refine(graph, mask=mask, backend="reference", rows=wanted)
        entities = entities if wanted is not None else entities.index_select(0, rows)
        g = torch.arange(entities.numel(), dtype=torch.float64).sin().view_as(entities)
        loss = (g * entities).sum() + relations.cos().sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        found.append((entities, relations, *gradients))
    for name, actual, expected in zip(("entities", "relations", *parameters), *found, strict=True):
        assert (actual is None) == (expected is None), name
        if actual is not None and expected is not None:
            assert_close(actual, expected, name=name, slack=10)


@pytest.mark.parametrize("rows", ["few", "repeated", "more than there are", "none"])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("mixing", [False, True])
def test_some_rows_are_those_of_all(mixing: bool, context: str, rows: str) -> None:
    _, _, graph, mask = layer_inputs("degrees", 1, torch.float64)
    chosen = {
        "few": torch.tensor([7, 0, 59]),
        "repeated": torch.tensor([7, 3, 3, 7, 7]),
        "more than there are": torch.arange(200) * 7 % graph.num_entities,
        "none": torch.tensor([], dtype=torch.int64),
    }[rows]
    for score in QUICK_SCORES:
        model = made("lightcake", graph, layers=2, score=score, context=context, mixing=mixing)
        assert_same_rows(model, graph, mask, chosen)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_some_rows(name: str) -> None:
    _, _, graph, mask = layer_inputs("duplicates", 1, torch.float64)
    layers = [{"layers": layers} for layers in (0, 1) if layers or name == "lightcake"]
    for options in layers if "layers" in MODELS[name].arguments else [{}]:
        assert_same_rows(made(name, graph, **options), graph, mask, torch.tensor([3, 0, 3]))
