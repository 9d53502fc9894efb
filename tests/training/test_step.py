import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast import rows
from lightcake_fast.data import KnowledgeGraph, family
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import LightCAKE
from lightcake_fast.training import runtime
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.runtime import device_name, epoch_order, mixed_seed, resolve_device
from lightcake_fast.training.step import TrainingStep
from tests.support.comparison import assert_bitwise_equal, assert_close


@pytest.fixture(scope="module")
def data() -> KnowledgeGraph:
    return family(people=60)


def build(data: KnowledgeGraph, **flags: Any) -> tuple[LightCAKE, ContextGraph, TrainingStep]:
    """Make a step on a small model without randomness."""
    plain = {"preset": "paper", "relation_bias": True, "mask_targets": True, "lr": 0.01}
    small = {"backend": "reference", "device": "cpu", "dim": 5, "layers": 1, "l2": 0.1}
    experiment = Experiment(resolve({**plain, **small, **flags}), data)
    assert isinstance(experiment.model, LightCAKE)
    return experiment.model, experiment.graph, experiment.step


@pytest.mark.parametrize("mask_targets", [True, False])
def test_step_uses_gradient_of_batch_loss(data: KnowledgeGraph, mask_targets: bool) -> None:
    model, graph, step = build(data, mask_targets=mask_targets, l2=0.0)
    batch = torch.tensor([3, 0, 17, 41])
    mask = torch.zeros(graph.num_triples, dtype=torch.bool)
    mask[batch] = mask_targets
    entities, relations = model.refine(graph, mask=mask, backend="reference")
    h, r, t = graph.triples[batch].T
    assert model.relation_bias is not None
    scores = (entities[h] * entities[t]) @ relations[: data.num_relations].T + model.relation_bias
    loss = functional.cross_entropy(scores, r)
    torch.autograd.backward(loss)
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    step(batch)
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        wanted = expected[name]
        assert wanted is not None
        assert_close(weight.grad, wanted, name=name)
    assert_close(step.loss_sum, 4 * loss.detach().double(), dtype=torch.float32)


@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_last_layer_for_batch_rows_has_same_loss(
    data: KnowledgeGraph, backend: str, mixing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: dict[str, Any] = {"profile": "both", "links": True, "mixing": mixing}
    batch, found = torch.tensor([3, 0, 17, 41]), []
    for cutting in (2**20, 0):  # full layers, then only the needed rows
        monkeypatch.setattr(rows, "CUTTING", cutting)
        model, _, step = build(data, context="entity", layers=2, backend=backend, **terms)
        step(batch)
        found.append((step.loss_sum, {name: w.grad for name, w in model.named_parameters()}))
    (loss, gradients), (expected, wanted) = found[1], found[0]
    assert_bitwise_equal(loss, expected)
    for name, gradient in wanted.items():
        assert gradient is not None
        actual = gradients[name]
        assert actual is not None
        assert_close(actual, gradient, name=name, slack=10)


def test_mask_contains_triples_of_the_batch(data: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step = build(data, mask_targets=True)
    masked = []
    refine = model.refine

    def watched(*arguments: Any, mask: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        masked.append(mask.nonzero().flatten().tolist())
        return refine(*arguments, mask=mask, **keywords)

    monkeypatch.setattr(model, "refine", watched)
    step(torch.tensor([7, 2]))
    step(torch.tensor([5]))
    assert masked == [[2, 7], [5]]


def test_l2_is_half_c_times_sum_of_squares_of_tables(data: KnowledgeGraph) -> None:
    batch = torch.arange(50)
    model, graph, step = build(data, mask_targets=False, l2=0.1)
    twin, *_ = build(data, mask_targets=False)
    twin_optimizer = torch.optim.Adam(twin.parameters(), lr=resolve({}).lr, fused=True)
    for _ in range(3):
        step(batch)
        refined = twin.refine(graph, backend="reference")
        loss = functional.cross_entropy(
            twin.relation_scores(refined, graph.triples[batch][:, ::2]), graph.triples[batch][:, 1]
        )
        twin_optimizer.zero_grad()
        penalty = 0.1 / 2 * (twin.entities.square().sum() + twin.relations.square().sum())
        torch.autograd.backward(loss + penalty)
        twin_optimizer.step()
    for (name, weight), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert_close(weight, other, name=name, slack=10.0)


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0.01), (1, 0.005), (3, 0.00125)])
def test_learning_rate_decays_per_epoch(data: KnowledgeGraph, epoch: int, expected: float) -> None:
    model, *_, step = build(data, lr=0.01, lr_decay=0.5, l2=0.0)
    before = model.relations.detach().clone()
    step.start_epoch(epoch)
    step(torch.arange(50))
    largest = (model.relations.detach() - before).abs().max().item()
    assert largest == pytest.approx(expected, rel=1e-3)  # Adam's first step is the learning rate


def test_average_is_ema_of_weights(data: KnowledgeGraph) -> None:
    model, *_, step = build(data, weight_average=0.8)
    batch, seen = torch.arange(50), []
    with step.average.applied():
        start = model.entities.detach().clone()
    assert_bitwise_equal(start, model.entities)  # before the first step there is no average
    for _ in range(4):
        step(batch)
        seen.append([weight.detach().clone() for weight in model.parameters()])
    shares = [0.8**age for age in (3, 2, 1, 0)]
    with step.average.applied():
        for n, (name, weight) in enumerate(model.named_parameters()):
            sums = [share * weights[n].double() for share, weights in zip(shares, seen, strict=True)]
            assert_close(weight, torch.stack(sums).sum(0) / sum(shares), name=name)
            assert not torch.equal(weight, seen[-1][n])
    for weight, own in zip(model.parameters(), seen[-1], strict=True):
        assert_bitwise_equal(weight, own)


def test_weights_are_restored_after_an_error(data: KnowledgeGraph) -> None:
    model, *_, step = build(data, weight_average=0.8)
    for _ in range(2):
        step(torch.arange(50))
    own = model.entities.detach().clone()
    with pytest.raises(InputError), step.average.applied():
        raise InputError("diverged")
    assert_bitwise_equal(model.entities, own)


def test_no_average_needs_no_memory(data: KnowledgeGraph) -> None:
    model, *_, step = build(data)
    step(torch.arange(50))
    own = model.entities.detach().clone()
    with step.average.applied():
        assert_bitwise_equal(model.entities, own)
    assert not step.average.tensors


def test_step_reads_nothing_back(data: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, step = build(data, mask_targets=True)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the step waited for the device")

    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(Tensor, name, refuse)
    step(torch.arange(8))


def orders(count: int) -> Iterator[list[int]]:
    for seed in (0, 1):
        for epoch in range(3):
            yield epoch_order(seed, epoch, count).tolist()


def test_order_differs_per_epoch_and_seed() -> None:
    assert all(sorted(order) == list(range(40)) for order in orders(40))
    assert len({tuple(order) for order in orders(40)}) == 6
    assert list(orders(40)) == list(orders(40))


def test_mixed_seeds_never_change() -> None:
    # a resumed run computes the order of its epoch again, so these numbers must never change
    assert (mixed_seed(0, 0), mixed_seed(0, 1), mixed_seed(1, 0)) == (2968811710, 3964924996, 1835504127)


@pytest.mark.parametrize("name", ["tpu", "mps", "meta", "cuda:99", "cuda:x", ""])
def test_missing_devices_are_rejected(name: str) -> None:
    with pytest.raises(InputError, match=f"^device: expected .*, got '{name}'$"):
        resolve_device(name)


@pytest.mark.parametrize("there", [True, False])
def test_auto_selects_a_gpu_if_available(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTCAKE_FAST_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device("auto") == torch.device("cuda" if there else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


def test_environment_selects_auto_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for value, wanted in (("cpu", "cpu"), ("auto", "cuda"), ("", "cuda")):
        monkeypatch.setenv("LIGHTCAKE_FAST_DEVICE", value)
        assert resolve_device("auto") == torch.device(wanted)
    monkeypatch.setenv("LIGHTCAKE_FAST_DEVICE", "tpu")
    with pytest.raises(InputError, match=r"^device: expected .*, got 'tpu'$"):
        resolve_device("auto")


@pytest.mark.parametrize(
    ("cpuinfo", "wanted"),
    [
        (
            "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Xeon @ 2.50GHz\n\nmodel name\t: other\n",
            "Xeon @ 2.50GHz",
        ),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", "aarch64"),
        (None, "aarch64"),
    ],
)
def test_cpu_name_is_model_or_architecture(
    cpuinfo: str | None, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    monkeypatch.setattr(runtime, "Path", lambda path: file)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for threads, words in ((1, "1 thread"), (3, "3 threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert device_name(torch.device("cpu")) == f"{wanted}, {words}"
