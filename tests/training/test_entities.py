"""Training for `--task entity`: order, step and settings. Its ranks agree with PyKEEN."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast import load, train
from lightcake_fast.data import KnowledgeGraph, family
from lightcake_fast.errors import InputError
from lightcake_fast.metrics import RankMetrics
from lightcake_fast.models import MODELS, LightCAKE
from lightcake_fast.scores import score_named
from lightcake_fast.train import main
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.runtime import ANSWERS_TOGETHER, question_order
from tests.support.comparison import assert_close
from tests.support.training_runs import assert_equal_runs

SMALL: dict[str, Any] = {"task": "entity", "dim": 6, "batch_size": 64}


@pytest.fixture(scope="module")
def data() -> KnowledgeGraph:
    return family(people=60)


def experiment(data: KnowledgeGraph, **flags: Any) -> Experiment:
    return Experiment(resolve({**SMALL, "device": "cpu", "backend": "reference", **flags}), data)


def test_order_keeps_answers_of_a_question_together() -> None:
    random = np.random.default_rng(0)
    heads, relations = (torch.from_numpy(ids) for ids in random.integers(0, [[3], [2]], (2, 400)))
    orders = [question_order(0, epoch, heads, relations) for epoch in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    for order in orders:
        assert sorted(order.tolist()) == list(range(400))
        asked = (heads * 2 + relations)[order]
        starts = (asked.diff() != 0).sum().item() + 1
        groups = sum(-(-count // ANSWERS_TOGETHER) for count in asked.bincount().tolist())
        assert starts <= groups  # two groups of one question can be adjacent


@pytest.mark.parametrize("mask_targets", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_step_uses_gradient_of_question_loss(
    data: KnowledgeGraph, mask_targets: bool, smoothing: float
) -> None:
    plain = {"input_dropout": 0.0, "l2": 0.0, "mixing": False}
    made = experiment(data, mask_targets=mask_targets, label_smoothing=smoothing, **plain)
    model, graph, step = made.model, made.graph, made.step
    assert isinstance(model, LightCAKE)
    T = graph.num_triples
    batch = torch.tensor([3, 0, 17, T + 3, T + 41, 0 + T])
    mask = torch.zeros(T, dtype=torch.bool)
    mask[batch % T] = mask_targets
    entities, relations = model.refine(graph, mask=mask, backend="reference")
    h, r, t = (ids[batch] for ids in graph.context_triples)
    loss = functional.cross_entropy((entities[h] * relations[r]) @ entities.T, t, label_smoothing=smoothing)
    torch.autograd.backward(loss)
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    step(batch)
    for name, weight in model.named_parameters():
        wanted = expected[name]
        assert weight.grad is not None
        assert wanted is not None
        assert_close(weight.grad, wanted, name=name, slack=10)
    assert_close(step.loss_sum, 3 * loss.detach().double(), dtype=torch.float32)


@pytest.mark.parametrize("score", ["distmult", "complex", "rotate"])
@pytest.mark.parametrize("negatives", [0, 7])
def test_step_uses_gradient_of_n3_and_sampled_loss(data: KnowledgeGraph, score: str, negatives: int) -> None:
    """The gradients with N3 and sampled entities agree with the plain formula."""
    plain = {"input_dropout": 0.0, "l2": 0.0, "label_smoothing": 0.0, "layers": 2, "context": "entity"}
    made = experiment(data, score=score, n3=0.3, negatives=negatives, **plain)
    model, graph, step = made.model, made.graph, made.step
    T, N = graph.num_triples, graph.num_entities
    batch = torch.tensor([3, 0, 17, T + 3, T + 41, 0 + T])
    mask = torch.zeros(T, dtype=torch.bool)
    mask[batch % T] = True
    h, r, t = (ids[batch] for ids in graph.context_triples)
    among = torch.arange(N)
    if negatives:
        again = torch.Generator().manual_seed(0)
        again.set_state(made.generator.get_state())
        among = torch.unique(torch.cat([h, t, torch.randint(N, (negatives,), generator=again)]))
        assert len(among) < N
    entities, relations = model.refine(graph, mask=mask, backend="reference")
    psi = score_named(score).psi
    scores = psi(entities[h][:, None], relations[r][:, None], entities[among][None])
    loss = functional.cross_entropy(scores, (among == t[:, None]).int().argmax(1))
    for rows in (entities[h], relations[r], entities[t]):
        moduli = rows.abs() if score == "distmult" else torch.complex(*rows.chunk(2, 1)).abs()
        loss = loss + 0.3 * moduli.pow(3).sum(1).mean()
    torch.autograd.backward(loss)
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    step(batch)
    for name, weight in model.named_parameters():
        wanted = expected[name]
        if wanted is None:
            assert weight.grad is None or not weight.grad.any()
            continue
        assert weight.grad is not None
        assert_close(weight.grad, wanted, name=name, slack=50)
    assert_close(step.loss_sum, 3 * loss.detach().double(), dtype=torch.float32, slack=10)


def test_each_step_draws_new_entities(data: KnowledgeGraph) -> None:
    made = experiment(data, negatives=5, lr=1e-9, mask_targets=False, input_dropout=0.0)
    batch, losses = made.epoch(0)[0][:4], set()
    for _ in range(3):
        made.step.loss_sum.zero_()
        made.step(batch)
        losses.add(made.step.loss_sum.item())
    assert len(losses) == 3


@pytest.mark.parametrize("drawn", [0, "all", 2**31 - 1])
def test_drawing_all_entities_compares_with_all(data: KnowledgeGraph, drawn: Any) -> None:
    """The draw must not allocate memory for a number above the number of entities."""
    negatives = data.num_entities if drawn == "all" else drawn
    losses = []
    for each in (negatives, 0):
        made = experiment(data, negatives=each, input_dropout=0.0, mask_targets=False)
        made.step(made.epoch(0)[0][:4])
        losses.append(made.step.loss_sum.item())
    assert losses[0] == losses[1]


def test_epoch_asks_for_head_and_tail_of_every_triple(data: KnowledgeGraph) -> None:
    batches = experiment(data).epoch(0)
    assert {len(batch) for batch in batches[:-1]} == {2 * SMALL["batch_size"]}
    assert sorted(torch.cat(batches).tolist()) == list(range(2 * len(data.train)))


@pytest.mark.parametrize("negatives", [0, 40])
@pytest.mark.parametrize("model", [name for name, spec in MODELS.items() if spec.ranks_entities])
def test_every_model_that_ranks_entities_learns(model: str, negatives: int, data: KnowledgeGraph) -> None:
    flags = {**SMALL, "epochs": 6, "lr": 0.05, "input_dropout": 0.0, "negatives": negatives, "quiet": True}
    if "backend" in MODELS[model].own:
        flags["backend"] = "reference"
    found = train(data, model=model, **flags)
    losses = [record["loss"] for record in found.history]
    assert losses[-1] < losses[0] - 0.1
    assert found.metrics.all.count == 2 * len(data.test)
    assert found.summary["task"] == "entity"
    again = found.model.ranks("test")
    assert again.shape == (len(data.test), 2)
    assert again.reciprocal().mean().item() == pytest.approx(found.metrics.all.mrr, abs=1e-12)


@pytest.mark.parametrize("beside", [[], ["--n3", "0.1", "--negatives", "9"]])
def test_resumed_run_is_bitwise_equal(beside: list[str], tmp_path: Path) -> None:
    flags = ["--dataset", "family:60", "--task", "entity", "--dim", "6", "--batch-size", "64", "--quiet"]
    flags += ["--backend", "reference", "--device", "cpu", *beside]
    assert main([*flags, "--epochs", "2", "--out", str(tmp_path / "whole")]) == 0
    assert main([*flags, "--epochs", "1", "--out", str(tmp_path / "parts")]) == 0
    assert main(["--resume", str(tmp_path / "parts"), "--epochs", "2", "--quiet"]) == 0
    assert_equal_runs(tmp_path / "parts", tmp_path / "whole")
    results = json.loads((tmp_path / "whole" / "results.json").read_text())
    assert load(tmp_path / "whole").evaluate("test").to_dict() == results["test"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model": "transh"}, "model: expected one of lightcake, transe, .* for task 'entity', got 'transh'"),
        ({"score": "transh"}, "score: expected one of distmult, transe, .* for task 'entity', got 'transh'"),
        ({"relation_bias": True}, "relation_bias: expected no value for task 'entity', got True"),
        ({"links": True}, "links: expected no value for task 'entity', got True"),
        ({"profile": "score"}, "profile: expected no value for task 'entity', got 'score'"),
        ({"unseen_rate": 0.1}, "unseen_rate: expected no value for task 'entity', got 0.1"),
        ({"cuda_graph": "on"}, "cuda_graph: expected 'auto' or 'off' for task 'entity'"),
        ({"task": "relations"}, "task: expected one of relation, entity, got 'relations'"),
    ],
)
def test_settings_for_relations_are_rejected_for_entities(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve({"task": "entity", **flags})


@pytest.mark.parametrize("dataset", ["family", "fb15k-237", "wn18rr", "my/folder"])
@pytest.mark.parametrize("task", ["relation", "entity"])
def test_saved_configuration_is_accepted_again(dataset: str, task: str) -> None:
    for model, spec in MODELS.items():
        if task == "relation" or spec.ranks_entities:
            found = resolve({"task": task, "dataset": dataset, "model": model}, 1000)
            assert resolve(found.saved(), 1000) == found, model
            assert model == "lightcake" or (found.context == "both" and not found.mixing)


@pytest.mark.parametrize("dataset", ["wn18rr", "fb15k-237", "family", "ddb14"])
@pytest.mark.parametrize("score", ["complex", "rotate"])
def test_score_without_layers_has_preset_of_its_model(dataset: str, score: str) -> None:
    common = {"task": "entity", "dataset": dataset, "preset": "best"}
    ours, baseline = resolve({**common, "score": score, "layers": 0}), resolve({**common, "model": score})
    for name in ("dim", "epochs", "lr", "lr_decay", "n3", "negatives", "weight_average", "mask_targets"):
        assert getattr(ours, name) == getattr(baseline, name), name
    assert ours.mixing is False
    assert (ours.n3 == 0) == (score == "rotate" or ours.negatives == 0), "lengths say nothing of distances"


@pytest.mark.parametrize("flag", ["n3", "negatives"])
def test_settings_for_entities_are_rejected_for_relations(flag: str) -> None:
    with pytest.raises(InputError, match=f"{flag}: expected no value for task .relation., got 3"):
        resolve({flag: 3})


@pytest.mark.parametrize("preset", ["paper", "best"])
@pytest.mark.parametrize("dataset", ["family", "fb15k-237", "wn18rr", "ddb14", "my/folder"])
def test_every_preset_supports_entity_task(preset: str, dataset: str) -> None:
    for model, spec in MODELS.items():
        if spec.ranks_entities:
            found = resolve({"task": "entity", "preset": preset, "dataset": dataset, "model": model}, 1000)
            assert found.profile == "none"
            assert not found.relation_bias


def test_metrics_agree_with_pykeen(data: KnowledgeGraph, peer: Callable[[str], Any]) -> None:
    """PyKEEN's evaluator gives the same metrics for the scores of a trained model."""
    evaluation, models = peer("pykeen.evaluation"), peer("pykeen.models")
    found = train(data, epochs=2, quiet=True, backend="reference", **SMALL)
    made = Experiment(found.model.config, data, found.model.model)
    refined = made.refined()

    class Ours(models.EvaluationOnlyModel):  # type: ignore[misc, name-defined]
        def score_t(self, hr_batch: Tensor, **_: Any) -> Tensor:
            return made.entity_scores(refined, hr_batch).float()

        def score_h(self, rt_batch: Tensor, **_: Any) -> Tensor:
            heads = torch.stack([rt_batch[:, 1], rt_batch[:, 0] + data.num_relations], 1)
            return made.entity_scores(refined, heads).float()

    model = Ours(triples_factory=data.to_pykeen("train"))
    model.register_buffer("where", torch.zeros(1))  # PyKEEN takes the device from it
    evaluator = evaluation.RankBasedEvaluator(filtered=True, clear_on_finalize=False)
    results = evaluator.evaluate(
        model,
        mapped_triples=torch.from_numpy(data.test),
        additional_filter_triples=[torch.from_numpy(data.train), torch.from_numpy(data.valid)],
        batch_size=16,
        use_tqdm=False,
    )
    ranks = found.model.ranks("test", "realistic")
    for column, side in enumerate(("tail", "head")):
        theirs = np.concatenate(evaluator.ranks[side, "realistic"])
        assert ranks[:, column].tolist() == theirs.tolist()
    names = {"mrr": "inverse_harmonic_mean_rank", "mr": "arithmetic_mean_rank"}
    names |= {f"hits_at_{k}": f"hits_at_{k}" for k in (1, 3, 10)}
    figures = vars(RankMetrics.from_ranks(ranks))
    for ours, name in names.items():
        assert figures[ours] == pytest.approx(results.get_metric(f"both.realistic.{name}"), rel=1e-7)
