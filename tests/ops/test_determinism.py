"""Two trainings in separate processes end in equal bits, on the back end of each device."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lightcake_fast.models import MODELS
from lightcake_fast.models.draws import NumberedDraws
from lightcake_fast.models.entity_scores import Spread, ask, cross_entropy
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.world import World
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.sharded import ShardedExperiment
from tests.sharding.test_experiment import DATA, ENTITIES, TERMS, config
from tests.support.comparison import assert_bitwise_equal
from tests.support.training_runs import TINY, assert_equal_runs

COMMAND = """
import sys
import torch
from lightcake_fast.train import main as train
torch.use_deterministic_algorithms(sys.argv[1] == "cuda")
torch.set_num_threads(2)
train(["--device", *sys.argv[1:]])
"""
ON_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.full  # the quick run compares trainings in one process: test_shortages.py
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CARD)])
def test_two_trainings_end_in_equal_bits(device: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        flags = [*TINY, "--backend", "auto", "--epochs", "2", "--out", str(tmp_path / name)]
        subprocess.run(
            [sys.executable, "-c", COMMAND, device, *flags],
            env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRITON_INTERPRET": "0"},
            check=True,
        )
    assert_equal_runs(tmp_path / "first", tmp_path / "second")


# Backward functions of gathers that add with atomics on a GPU. `functional.embedding` sorts instead.
WITH_ATOMICS = {"IndexSelectBackward0", "IndexBackward0", "GatherBackward0", "TakeBackward0"}


def operations(loss: Tensor) -> set[str]:
    """Return the names of the operations in a loss's gradient."""
    found, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return {node.name() for node in found if node is not None}


def losses_of(flags: dict[str, object]) -> list[Tensor]:
    """Return the loss of a batch as computed by one process and as computed by a rank."""
    settings = config(**flags, label_smoothing=0.1, backend="auto", device="cpu")
    one, batch = Experiment(settings, DATA), torch.arange(50)
    rank = ShardedExperiment(settings, ShardData.of(DATA, np.zeros(DATA.num_entities, int), 0, 1), World())
    tables = rank.model.refine_shard(rank.shard, None, None, "auto")
    if rank.questions is not None:
        asked, answers = rank.questions.of(batch)
        refined, which = one.model.refine(one.graph), torch.arange(50)
        loss = one.model.entity_loss(refined, asked, answers, which, 0.1)
        return [loss, rank.questions.loss(tables, asked, answers, None, 0.1, 0.1)]
    triples = one.graph.triples_at(batch)
    pairs, targets = triples[:, ::2], triples[:, 1]
    refined = one.model.refine(one.graph, rows=pairs.T.reshape(-1))
    loss = one.model.relation_loss(refined, targets, one.model.evidence(one.graph, pairs, targets, batch))
    held = rank.data.splits["train"]
    draws = NumberedDraws(torch.arange(DATA.num_entities))
    return [loss, rank.loss(tables, held, held.places(batch.numpy()), draws, 0.1)]


@pytest.mark.parametrize("model", MODELS)
def test_relation_gradients_need_no_atomics(model: str) -> None:
    for loss in losses_of({"model": model, **TERMS, "profile": "score"}):
        assert "EmbeddingBackward0" in operations(loss)
        assert not operations(loss) & WITH_ATOMICS


@pytest.mark.parametrize("model", [name for name, spec in MODELS.items() if spec.ranks_entities])
def test_entity_gradients_need_no_atomics(model: str) -> None:
    for loss in losses_of({"model": model, **ENTITIES}):
        assert "EmbeddingBackward0" in operations(loss)
        assert not operations(loss) & WITH_ATOMICS


@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_entity_gradients_have_equal_bits_on_two_threads(score: str) -> None:
    random = torch.Generator().manual_seed(0)
    entities, heads, relations = (torch.randn(n, 64, generator=random) for n in (500, 300, 300))
    answers, question = (torch.randint(n, (50_000,), generator=random) for n in (500, 300))

    def gradients() -> list[Tensor]:
        e, h, r = (table.clone().requires_grad_() for table in (entities, heads, relations))
        loss = cross_entropy(ask(score, h, r, Spread.of(e)), e, answers, question, 0.1)
        return list(torch.autograd.grad(loss, (e, h, r)))

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, *others = (gradients() for _ in range(4))
    finally:
        torch.set_num_threads(threads)
    for other, (mine, expected) in itertools.product(others, enumerate(first)):
        assert_bitwise_equal(other[mine], expected)
