"""Training with several ranks, here threads: losses, weights and metrics match a single process."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from lightcake_fast.data import load_dataset
from lightcake_fast.metrics import SCORES_PER_BLOCK, TIES, Evaluation
from lightcake_fast.models import MODELS, takers
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.partition import owners
from lightcake_fast.sharding.world import World
from lightcake_fast.training import experiment, sharded_entities
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.sharded import ShardedExperiment
from tests.support.models import Shifted
from tests.support.worlds import in_threads

DATA = load_dataset("family:60")
PLAIN = {
    "dim": 6,
    "layers": 2,
    "batch_size": 100,
    "lr": 0.05,
    "seed": 3,
    "backend": "reference",
    "mask_targets": True,
}
PLAIN |= {"input_dropout": 0.0, "row_dropout": 0.0, "unseen_rate": 0.0, "relation_bias": True}
TERMS = {"profile": "both", "links": True, "paths": True}
ALL = {**TERMS, "mixing": True, "l2": 1e-3}
DROPPING = {"input_dropout": 0.2, "row_dropout": 0.3, "unseen_rate": 0.3}
ENTITIES = {"task": "entity", "relation_bias": False}
STEPS = 4


def config(**flags: Any) -> TrainingConfig:
    takes = MODELS[flags.get("model", "lightcake")].own
    plain = {name: value for name, value in PLAIN.items() if name in takes or not takers(name)}
    return resolve({"dataset": "family:60", "preset": "paper", **plain, **flags})


def trained(one: Experiment | ShardedExperiment) -> tuple[float, Evaluation, dict[str, Tensor]]:
    """The loss of a few steps, then the metrics and the weights, in float64."""
    one.model.double()
    for batch in one.epoch(0)[:STEPS]:
        one.advance(batch)
    loss = one.loss_sum()
    return loss, one.evaluate("valid"), {name: w.detach() for name, w in one.model.named_parameters()}


def of_ranks(settings: TrainingConfig, ranks: int, owner: npt.NDArray[np.int64]) -> list[Any]:
    def work(world: World) -> Any:
        data = ShardData.of(DATA, owner, world.rank, ranks)
        one = ShardedExperiment(settings, data, world)
        return *trained(one), one.data.layout.rows, one.parameters

    return in_threads(ranks, work)


def assert_equal_to(found: list[Any], loss: float, metrics: Evaluation, weights: dict[str, Tensor]) -> None:
    for its_loss, its_metrics, its_weights, rows, _ in found:
        assert its_loss == pytest.approx(loss, rel=1e-12)
        assert its_metrics.all.mrr == pytest.approx(metrics.all.mrr, rel=1e-12)
        assert its_metrics.seen.mrr == pytest.approx(metrics.seen.mrr, rel=1e-12)
        assert its_weights.keys() == weights.keys()
        for name, weight in its_weights.items():
            own = len(weight) == len(rows) < len(weights[name])
            wanted = weights[name][torch.from_numpy(rows)] if own else weights[name]
            torch.testing.assert_close(weight, wanted, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        ALL,
        {"score": "rotate"},
        {"score": "transh"},
        {"score": "transe", "context": "entity"},
        {"layers": 0},
        {"layers": 0, "paths": True},
        {"model": "rgcn"},
        {"model": "rgcn", "decomposition": "block", "bases": 2, **TERMS},
        {"model": "compgcn", "composition": "sub"},
        {"model": "compgcn", "composition": "corr", **TERMS},
        {"model": "a2n", "mask_targets": False},
        {"model": "a2n", **TERMS},
        ENTITIES,
        {**ENTITIES, "mask_targets": False, "n3": 0.1, "label_smoothing": 0.2, "ties": "index"},
        {**ENTITIES, "score": "rotate", "context": "entity", "label_smoothing": 0.2, "ties": "optimistic"},
        {**ENTITIES, "score": "complex", "n3": 0.1, "mixing": True, "weight_average": 0.5},
        {**ENTITIES, "layers": 0, "score": "transe"},
        {**ENTITIES, "model": "rgcn", "decomposition": "full"},
        {**ENTITIES, "model": "compgcn", "n3": 0.1},
        {**ENTITIES, "model": "a2n"},
    ],
    ids=str,
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_like_a_single_process(flags: dict[str, Any], ranks: int) -> None:
    settings = config(**flags)
    one = Experiment(settings, DATA)
    owner = owners(DATA.train, DATA.num_entities, ranks)
    if ranks == 3:
        owner[owner == 1] = 2  # a rank without entities
    found = of_ranks(settings, ranks, owner)
    assert {parameters for *_, parameters in found} == {one.parameters}
    assert_equal_to(found, *trained(one))


@pytest.mark.parametrize("flags", [{}, {"weight_average": 0.5, **ENTITIES}], ids=["relations", "entities"])
def test_ranks_train_a_model_with_more_rows_per_entity(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "distmult", replace(MODELS["distmult"], make=Shifted))
    settings = config(model="distmult", **flags)
    assert experiment.by_entity(settings) == {"entities", "shift"}
    one = Experiment(settings, DATA)
    found = of_ranks(settings, 2, owners(DATA.train, DATA.num_entities, 2))
    assert {parameters for *_, parameters in found} == {one.parameters}
    assert_equal_to(found, *trained(one))


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("rows", [SCORES_PER_BLOCK, 150])
def test_ties_count_over_ranks(ties: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_entities, "SCORES_PER_BLOCK", rows)
    settings = config(**ENTITIES, layers=0, ties=ties)
    one, owner = Experiment(settings, DATA), np.arange(DATA.num_entities) % 4
    owner[owner == 1] = 0  # a rank without entities
    generator = torch.Generator().manual_seed(0)
    values = {  # few distinct scores, exact in floating point
        name: torch.randint(-1, 2, weight.shape, generator=generator).float()
        for name, weight in one.model.named_parameters()
    }
    one.model.load_state_dict(values)
    assert (one.ranks("valid", "optimistic") != one.ranks("valid", "pessimistic")).any()

    def work(world: World) -> Evaluation:
        shard = ShardedExperiment(settings, ShardData.of(DATA, owner, world.rank, 4), world)
        own = values["entities"][torch.from_numpy(shard.data.layout.rows)]
        shard.model.load_state_dict({**values, "entities": own})
        return shard.evaluate("valid")

    assert in_threads(4, work) == 4 * [one.evaluate("valid")]


def test_initial_weights_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "BLOCK", 13)
    settings = config(**ALL, unseen_rate=0.1)
    wanted = dict(Experiment(settings, DATA).model.named_parameters())
    data = ShardData.of(DATA, np.zeros(DATA.num_entities, np.int64), 0, 1)
    for name, weight in ShardedExperiment(settings, data, World()).model.named_parameters():
        torch.testing.assert_close(weight, wanted[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(
    "flags",
    [
        {**ALL, **DROPPING},
        {**ENTITIES, "input_dropout": 0.2, "row_dropout": 0.3, "negatives": 20},
        {**ENTITIES, "row_dropout": 0.3, "negatives": 20, "score": "rotate", "layers": 0},
    ],
    ids=["relations", "entities", "rows of zeros"],
)
def test_ranks_draw_the_same_numbers_as_one_process(flags: dict[str, Any]) -> None:
    settings = config(**flags)
    (one,) = of_ranks(settings, 1, np.zeros(DATA.num_entities, np.int64))
    found = of_ranks(settings, 3, owners(DATA.train, DATA.num_entities, 3))
    assert_equal_to(found, *one[:3])
    again = of_ranks(settings, 3, owners(DATA.train, DATA.num_entities, 3))
    for before, after in zip(found, again, strict=True):
        assert before[0] == after[0]
        for name, weight in before[2].items():
            assert torch.equal(weight, after[2][name]), name
