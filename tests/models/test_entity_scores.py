"""Entity scores against the score of each single triple, and their loss against PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import LightCAKE, PlainModel, RelationModel, TransR, blocks
from lightcake_fast.models.entity_scores import Spread, ask, cross_entropy
from lightcake_fast.models.scorers import of_modulus_one
from lightcake_fast.scores import FUSED, Score, register_score
from tests.support.comparison import assert_close

N, R, D = 23, 4, 6
QUESTIONS = torch.tensor([[0, 0], [3, 7], [22, 4], [3, 7], [5, 3]])
GRAPH = ContextGraph.from_triples(torch.tensor([[0, 0, 1]]), N, R)
PLAIN = ("distmult", "complex", "simple", "transe", "rotate")


def plain_model(score: str) -> PlainModel:
    generator = torch.Generator().manual_seed(0)
    made: dict[str, Any] = {"dim": D, "inverses": True, "generator": generator, "dtype": torch.float64}
    return PlainModel(N, R, score=score, **made)


def one_by_one(model: RelationModel, tables: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
    """Scores (B, N) from the model's pair scores, for the relation of each question."""
    entities, relations = tables
    rows = [
        model._score(entities[h].expand(N, -1), relations[r : r + 1], entities)[:, 0]
        for h, r in questions.tolist()
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("score", PLAIN)
@pytest.mark.parametrize("block", [1, 40, 2**22])
def test_entity_scores_match_triple_scores(score: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", block)
    model = plain_model(score)
    tables = model.inputs(GRAPH)
    found = model.entity_scores(tables, QUESTIONS)
    assert_close(found, one_by_one(model, tables, QUESTIONS), slack=10)


@pytest.mark.parametrize("score", FUSED)
def test_context_models_score_refined_rows(score: str) -> None:
    generator = torch.Generator().manual_seed(1)
    model = LightCAKE(N, R, dim=D, layers=2, score=score, generator=generator, dtype=torch.float64)
    triples = np.random.default_rng(1).integers(0, [N, R, N], (60, 3))
    graph = ContextGraph.from_triples(triples, N, R)
    refined = model.eval().refine(graph, backend="reference")
    found = model.entity_scores(refined, QUESTIONS)
    assert_close(found, one_by_one(model, refined, QUESTIONS), slack=10)


@pytest.mark.parametrize("score", PLAIN)
@pytest.mark.parametrize(("block", "kept"), [(2**22, 2**25), (40, 2**25), (40, 0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_blockwise_loss_and_gradient_match_pytorch(
    score: str, block: int, kept: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(blocks, "KEPT", kept)
    model = plain_model(score)
    question, answers = torch.tensor([0, 1, 1, 2, 4, 3]), torch.tensor([1, 3, 8, 22, 0, 8])
    tables = model.entities, model.relations
    loss = model.entity_loss(model.inputs(GRAPH), QUESTIONS, answers, question, smoothing)
    found = torch.autograd.grad(loss, tables)
    scores = one_by_one(model, model.inputs(GRAPH), QUESTIONS)
    wanted = functional.cross_entropy(scores[question], answers, label_smoothing=smoothing)
    assert_close(loss, wanted, slack=10)
    for name, ours, theirs in zip(
        ("entities", "relations"), found, torch.autograd.grad(wanted, tables), strict=True
    ):
        assert_close(ours, theirs, name=name, slack=100)


@pytest.mark.parametrize("score", PLAIN)
def test_blocks_respect_their_maximum_size(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 40)
    monkeypatch.setattr(blocks, "KEPT", 0)
    model = plain_model(score)
    entities, relations = (table.detach() for table in model.inputs(GRAPH))
    questions = ask(score, entities[:5], relations[:5], Spread.of(entities))
    made, empty = [], Tensor.new_empty

    def watched(self: Tensor, *size: Any, **options: Any) -> Tensor:
        made.append(empty(self, *size, **options))
        return made[-1]

    monkeypatch.setattr(Tensor, "new_empty", watched)
    loss = cross_entropy(questions, entities.requires_grad_(), torch.tensor([2]), torch.tensor([0]))
    torch.autograd.grad(loss, entities)
    assert [tensor.numel() for tensor in made] == 3 * [40]  # one forward, two backward


def test_custom_scores_rank_entities(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register_score(
        "other",
        Score(
            psi=lambda e_h, e_r, e_t: -(e_h * e_r - e_t).abs().sum(-1),
            phi_ent=lambda e_r, e_t: e_r * e_t,
            phi_rel=lambda e_h, e_t: e_h * e_t,
        ),
    )
    model = LightCAKE(N, R, dim=D, layers=0, score="other", inverses=True, dtype=torch.float64)
    tables = model.entities, model.relations
    wanted = one_by_one(model, tables, QUESTIONS)
    assert_close(model.entity_scores(tables, QUESTIONS), wanted, slack=10)
    monkeypatch.setattr(blocks, "BLOCK", 5 * D * 4)  # four entities
    answers, question = torch.tensor([3, 9]), torch.tensor([1, 4])
    loss = model.entity_loss(tables, QUESTIONS, answers, question, 0.1)
    expected = functional.cross_entropy(wanted[question], answers, label_smoothing=0.1)
    assert_close(loss, expected, slack=10)
    for ours, theirs in zip(*(torch.autograd.grad(x, tables) for x in (loss, expected)), strict=True):
        assert_close(ours, theirs, slack=100)


@pytest.mark.parametrize("score", ["transe", "rotate"])
def test_distances_far_from_the_origin_are_accurate(score: str) -> None:
    generator = torch.Generator().manual_seed(2)
    heads, relations, entities = (torch.randn(N, D, generator=generator) for _ in range(3))
    relations = of_modulus_one(relations) if score == "rotate" else relations
    if score == "transe":
        heads, entities = heads + 100, entities + 100
    found, exact = (
        ask(score, heads.to(rows.dtype), relations.to(rows.dtype), Spread.of(rows)).scores(rows)
        for rows in (entities, entities.double())
    )
    assert (found - exact).abs().max() < 2e-5  # measured from the origin: 4e-3


@pytest.mark.parametrize("score", ["transe", "rotate"])
def test_entity_at_the_query_point_has_small_distance_and_zero_gradient(score: str) -> None:
    entities = torch.randn(N, D, generator=torch.Generator().manual_seed(3)).requires_grad_()
    nothing = torch.zeros(N, D)
    nothing[:, : D // 2] = score == "rotate"
    scores = ask(score, entities, nothing, Spread.of(entities)).scores(entities)
    own = scores.diagonal()
    assert (own <= 0).all()
    assert (own > -0.01).all()
    (gradient,) = torch.autograd.grad(own.sum(), entities)
    assert (gradient == 0).all()


def test_zero_entities_have_finite_gradients() -> None:
    heads, entities = (torch.zeros(n, D, requires_grad=True) for n in (2, 3))
    log_sums, _ = ask("rotate", heads, torch.ones(2, D), Spread.of(entities)).log_sums(entities)
    for gradient in torch.autograd.grad(log_sums.sum(), (heads, entities)):
        assert (gradient == 0).all()


def test_models_without_entity_ranking_raise() -> None:
    model = TransR(N, R, dim=D)
    with pytest.raises(InputError, match="expected one that ranks entities, got TransR"):
        model.entity_scores((model.entities, model.relations), QUESTIONS)
    plain = PlainModel(N, R, dim=D, score="distmult")
    with pytest.raises(InputError, match="without rows for inverse relations"):
        plain.entity_scores((plain.entities, plain.relations), QUESTIONS)
