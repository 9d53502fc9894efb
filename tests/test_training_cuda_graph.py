from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightcake_fast.data import KnowledgeGraph, family
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.training import step as step_module
from lightcake_fast.training.cuda_graph import WARM_UP, CudaGraph, wants_cuda_graph
from lightcake_fast.training.model import build_model
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.step import TrainingStep
from tests.comparison import assert_bitwise_equal

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
OPTIONS = {
    "dim": 8,
    "layers": 2,
    "batch_size": 32,
    "lr_decay": 0.3,
    "input_dropout": 0.2,
    "row_dropout": 0.2,
    "unseen_rate": 0.3,
    "mask_targets": True,
    "relation_bias": True,
}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation with the tensors that it was given and that it gave."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, given))
        return given


class RecordedGraph:
    """What a CUDA graph does, on the CPU: the same operations again, on the same memory, and nothing else."""

    def __init__(self, function: Any, device: torch.device, generator: torch.Generator | None = None) -> None:
        self.function, self.calls, self.recorder = function, 0, Recorder()

    def __call__(self) -> None:
        self.calls += 1
        if self.calls <= WARM_UP:
            self.function()
        elif self.calls == WARM_UP + 1:
            with self.recorder:
                self.function()
        else:
            with torch.no_grad():
                self.replay()

    def replay(self) -> None:
        for func, args, kwargs, given in self.recorder.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(given), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    return family(people=60)


def trained(graph: KnowledgeGraph, device: torch.device, **flags: Any) -> dict[str, Tensor]:
    """All that two epochs leave, their short last batches included."""
    config = resolve({**OPTIONS, **flags})
    generator = torch.Generator(device).manual_seed(3)
    model = build_model(config, graph.num_entities, graph.num_relations, generator)
    triples = torch.from_numpy(graph.train).to(device)
    context = ContextGraph.from_triples(triples, graph.num_entities, graph.num_relations)
    step = TrainingStep(model, context, triples, config, generator)
    for epoch in range(2):
        step.start_epoch(epoch)
        order = torch.randperm(len(triples), generator=torch.Generator().manual_seed(epoch)).to(device)
        for batch in torch.split(order, config.batch_size):
            step(batch)
    return {
        **{name: weight.detach() for name, weight in model.named_parameters()},
        "loss": step.loss_sum,
        "generator": generator.get_state(),
    }


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert_bitwise_equal(actual[name], value, name=name)


@pytest.mark.parametrize("flags", [{"score": "distmult"}, {"score": "transe", "context": "relation"}])
def test_what_a_step_launches_can_be_replayed(
    flags: dict[str, str], graph: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(graph, CPU, **flags)
    made: list[RecordedGraph] = []

    def record(*arguments: Any) -> RecordedGraph:
        made.append(RecordedGraph(*arguments))
        return made[0]

    monkeypatch.setattr(step_module, "CudaGraph", record)
    monkeypatch.setattr(step_module, "wants_cuda_graph", lambda *_: True)
    assert_equal(trained(graph, CPU, **flags), expected)
    full = len(graph.train) // OPTIONS["batch_size"]
    assert full * OPTIONS["batch_size"] < len(graph.train)
    assert made[0].calls == 2 * full > 2 * WARM_UP


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_a_captured_step_gives_the_same_bits(score: str, graph: KnowledgeGraph) -> None:
    direct = trained(graph, GPU, score=score, cuda_graph="off")
    assert_equal(trained(graph, GPU, score=score, cuda_graph="on"), direct)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_graph_is_captured_once() -> None:
    launched = []
    total = torch.zeros((), device=GPU)

    def add() -> None:
        launched.append(1)
        total.add_(1)

    graph = CudaGraph(add, GPU)
    for _ in range(WARM_UP + 5):
        graph()
    assert len(launched) == WARM_UP + 1
    assert total.item() == WARM_UP + 5


def test_a_step_reads_nothing_back(graph: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the step waited for the device")

    class Refusal(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero")
            return func(*args, **(kwargs or {}))

    run = TrainingStep.__call__

    def watched(step: TrainingStep, batch: Tensor) -> None:
        with monkeypatch.context() as patch, Refusal():  # type: ignore[no-untyped-call]
            for name in ("tolist", "cpu", "numpy"):
                patch.setattr(Tensor, name, refuse)
            run(step, batch)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    for score in ("distmult", "transe"):
        trained(graph, CPU, score=score, backend="reference")  # Numba reads its arrays on the CPU


def test_which_step_is_captured() -> None:
    assert wants_cuda_graph("auto", GPU, "lightcake")
    assert not wants_cuda_graph("auto", GPU, "rgcn")
    assert wants_cuda_graph("on", GPU, "rgcn")
    assert not wants_cuda_graph("off", GPU, "lightcake")
    assert not wants_cuda_graph("auto", CPU, "lightcake")
    with pytest.raises(InputError, match=r"^cuda_graph: got 'on' with device cpu, wanted a GPU"):
        wants_cuda_graph("on", CPU, "lightcake")
