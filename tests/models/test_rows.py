"""Requested rows without unnecessary work, and the loss in blocks of pairs."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from lightcake_fast import metrics
from lightcake_fast import rows as rows_module
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS, RelationModel, blocks, lightcake
from lightcake_fast.rows import context_rows
from tests.support.comparison import assert_close
from tests.support.graphs import CONTEXTS, QUICK_SCORES, layer_inputs

D = 6


def made(name: str, graph: ContextGraph, **options: Any) -> RelationModel:
    """A small model in float64 with random values in every parameter."""
    generator = torch.Generator().manual_seed(0)
    options = ({"layers": 1} if "layers" in MODELS[name].arguments else {}) | options
    model = MODELS[name].make(graph.num_entities, graph.num_relations, dim=D, **options).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=generator).mul_(0.5)
    return model


def assert_same_rows(model: RelationModel, graph: ContextGraph, mask: Tensor, rows: Tensor) -> None:
    """Compare rows and gradients with a selection from all rows."""
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
@pytest.mark.parametrize("cutting", [0, 80])
def test_requested_rows_equal_rows_of_the_whole_layer(
    cutting: int, mixing: bool, context: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "CUTTING", cutting)
    _, _, graph, mask = layer_inputs("degrees", 1, torch.float64)
    chosen = {
        "few": torch.tensor([7, 0, 59]),
        "repeated": torch.tensor([7, 3, 3, 7, 7]),
        "more than there are": torch.arange(200) * 7 % graph.num_entities,
        "none": torch.tensor([], dtype=torch.int64),
    }[rows]
    for score in (*QUICK_SCORES, "transh"):
        model = made("lightcake", graph, layers=2, score=score, context=context, mixing=mixing)
        assert_same_rows(model, graph, mask, chosen)


def test_earlier_layers_compute_only_the_rows_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CUTTING", 0)
    chain = ContextGraph.from_triples([[n, 0, n + 1] for n in range(40)], 41, 1)
    model, made_rows = made("lightcake", chain, layers=3, context="entity"), []

    def counted(entities: Tensor, *others: Any, **options: Any) -> Tensor:
        made_rows.append(len(entities))
        return context_rows(entities, *others, **options)

    monkeypatch.setattr(lightcake, "context_rows", counted)
    model.refine(chain, backend="reference", rows=torch.tensor([20]))
    assert made_rows == [7, 5, 3], "neighbours of neighbours' neighbours, and so on"


@pytest.mark.parametrize("name", MODELS)
def test_every_model_computes_requested_rows(name: str) -> None:
    _, _, graph, mask = layer_inputs("duplicates", 1, torch.float64)
    layers = [{"layers": layers} for layers in (0, 1) if layers or name == "lightcake"]
    for options in layers if "layers" in MODELS[name].arguments else [{}]:
        assert_same_rows(made(name, graph, **options), graph, mask, torch.tensor([3, 0, 3]))


def pair_losses(
    name: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Loss and gradients of a model with every term: in blocks of five pairs, and from all scores."""
    _, _, graph, _ = layer_inputs("duplicates", 1, torch.float64)
    model = made(name, graph, profile="score", links=True, relation_bias=True, unseen_rate=0.3)
    pairs, targets = graph.triples[:, ::2], graph.triples[:, 1]
    rows, evidence = pairs.T.reshape(-1), model.evidence(graph, pairs, targets)
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]

    def with_gradients(loss: Tensor) -> dict[str, Tensor]:
        weights = dict(model.named_parameters())
        found = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        return {"loss": loss, **dict(zip(weights, found, strict=True))}

    scores = model.relation_scores(
        model.refine(graph, backend="reference"), pairs, evidence, generator=draws[0]
    )
    whole = with_gradients(functional.cross_entropy(scores, targets, label_smoothing=smoothing))
    monkeypatch.setattr(blocks, "BLOCK", 5 * model.entries)  # seven blocks, the last of four pairs
    loss = model.relation_loss(
        model.refine(graph, backend="reference", rows=rows),
        targets,
        evidence,
        generator=draws[1],
        label_smoothing=smoothing,
    )
    return with_gradients(loss), whole


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_blockwise_pair_loss_matches_the_whole_loss(
    name: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, expected = pair_losses(name, smoothing, monkeypatch)
    for each, wanted in expected.items():
        assert_close(actual[each], wanted, name=each, slack=10)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the size of the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            self.numbers = max(self.numbers, each.numel() if isinstance(each, Tensor) else 0)
        return made


@pytest.mark.parametrize("name", ["distmult", "transe", "transh", "transr"])
def test_loss_tensors_are_at_most_one_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, relations = 600, 50
    model = made(name, ContextGraph.from_triples([[0, 0, 0]], 5, relations), relation_bias=True)
    rows, targets = torch.randn(2 * pairs, D, dtype=torch.float64), torch.arange(pairs) % relations

    def largest() -> int:
        with Largest() as seen:
            loss = model.relation_loss((rows, model.relations), targets)
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return int(seen.numbers)

    assert largest() >= pairs * model.entries
    monkeypatch.setattr(blocks, "BLOCK", 8000)  # larger than rows and weights, smaller than the scores
    assert largest() == 8000 // model.entries * model.entries


def test_evaluation_scores_as_many_pairs_as_fit_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.pairs_per_block(237) == metrics.PAIRS_PER_BLOCK
    monkeypatch.setattr(metrics, "SCORES_PER_BLOCK", 100)
    assert [metrics.pairs_per_block(entries) for entries in (7, 100, 101)] == [14, 1, 1]
