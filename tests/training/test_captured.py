"""Captured training step. The CPU shows which operations it forbids, only a GPU shows the replay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightcake_fast.data import KnowledgeGraph, family
from lightcake_fast.errors import InputError
from lightcake_fast.models import MODELS
from lightcake_fast.train import main as train
from lightcake_fast.training import captured
from lightcake_fast.training.captured import CapturedStep, wants_capture
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.presets import resolve
from tests.support.comparison import assert_bitwise_equal

# the host must wait for the result of these operations or for its size, so they cannot be captured
WAITING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "bincount")
BATCH = 40


class RefusesToWait(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reject operations that the host must wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(WAITING), f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def data() -> KnowledgeGraph:
    return family(people=60)


class Training:
    """Make a step on a model with all options, and the tensors that the step changes."""

    def __init__(self, data: KnowledgeGraph, device: str = "cpu", **flags: Any) -> None:
        options = {"input_dropout": 0.2, "row_dropout": 0.1, "unseen_rate": 0.2, "lr_decay": 0.5}
        options |= {"weight_average": 0.9}
        experiment = Experiment(
            resolve({"dim": 8, "relation_bias": True, "device": device, **options, **flags}), data
        )
        self.generator, self.model, self.step = experiment.generator, experiment.model, experiment.step

    def state(self) -> list[Tensor]:
        averages = [t for entry in self.step.optimizer.state.values() for t in entry.values()]
        return [*self.model.parameters(), *averages, *self.step.average.tensors.values(), self.step.loss_sum]

    def epochs(self, advance: Callable[[Tensor], None]) -> list[Tensor]:
        """Run three epochs of four batches. The last batch is short. The first epoch is the warm-up."""
        order = torch.arange(3 * BATCH + 7, device=self.generator.device)
        for epoch in range(3):
            self.step.start_epoch(epoch)
            for batch in torch.split(order.roll(epoch), BATCH):
                advance(batch)
        return [*self.state(), self.generator.get_state()]


@pytest.mark.parametrize(
    "flags",
    [
        {"layers": 2, "mask_targets": True, "backend": "reference"},
        {"layers": 1, "mask_targets": False, "backend": "reference", "score": "transe"},
        {"model": "a2n", "backend": "reference"},
        *({"model": model} for model in MODELS if model not in ("lightcake", "a2n")),
    ],
    ids=lambda flags: "-".join(str(value) for value in flags.values()),
)
def test_step_never_waits_for_the_device(data: KnowledgeGraph, flags: dict[str, Any]) -> None:
    training = Training(data, **flags)
    training.step(torch.arange(BATCH))  # the first step can create tensors for later steps
    with RefusesToWait():  # type: ignore[no-untyped-call]
        training.step(torch.arange(BATCH))


@pytest.mark.parametrize(
    ("choice", "device", "expected"),
    [("auto", "cpu", False), ("off", "cpu", False), ("auto", "cuda", True), ("on", "cuda:1", True)],
)
def test_capture_needs_a_gpu(choice: str, device: str, expected: bool) -> None:
    assert wants_capture(choice, torch.device(device)) == expected
    assert not wants_capture("off", torch.device(device))


def test_cuda_graph_on_without_gpu_is_rejected(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"^cuda_graph: expected .* without a GPU, got 'on' on device cpu$"):
        train(["--cuda-graph", "on", "--device", "cpu", "--quiet", "--out", str(tmp_path / "run")])


@pytest.mark.parametrize("number", [0, 1])
def test_captured_step_equals_launched_step_on_gpu(data: KnowledgeGraph, number: int) -> None:
    if torch.cuda.device_count() <= number:
        pytest.skip(f"captures a step on cuda:{number}, which is not here")
    device = f"cuda:{number}"
    flags: dict[str, Any] = {"backend": "triton", "layers": 2, "mask_targets": True}
    launched, replayed = Training(data, device, **flags), Training(data, device, **flags)
    expected = launched.epochs(launched.step)
    actual = replayed.epochs(CapturedStep(replayed.step, BATCH, replayed.generator))
    for place, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert_bitwise_equal(a, b, name=str(place))


def test_step_that_cannot_be_recorded_is_launched(
    data: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(captured, "record", refuse)
    training = Training(data, backend="reference")
    step = CapturedStep(training.step, BATCH, training.generator)
    step._batch.copy_(torch.arange(BATCH))
    step._record()()
    assert training.step.loss_sum > 0
    assert not any(group["capturable"] for group in training.step.optimizer.param_groups)
    assert capsys.readouterr().err == (
        "warning: no CUDA graph of the step, its kernels run one by one: "
        "operation not permitted when stream is capturing\n"
    )


class FakeGenerator:
    """Draw numbers like a CUDA generator. Its state tells whether a capture is active."""

    def __init__(self, state: dict[str, int] | None = None) -> None:
        self.state = state or {"capturing": 0, "offset": 0}

    def clone_state(self) -> "FakeGenerator":
        return FakeGenerator(dict(self.state))

    def graphsafe_set_state(self, other: "FakeGenerator") -> None:
        self.state = other.state

    def draw(self, capturing: int) -> int:
        if self.state["capturing"] != capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.state["offset"] += 4
        return self.state["offset"]


class FakeCUDA:
    """Parts of `torch.cuda` that record a graph, with PyTorch's order of events after a failed capture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.broken = "default", False
        self.default_generators = (FakeGenerator(),)
        self.registered: list[FakeGenerator] = [*self.default_generators]
        for name in ("CUDAGraph", "Stream", "default_generators", "graph", "stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(register_generator_state=self.registered.append, replay=lambda: None)

    def Stream(self) -> Any:  # noqa: N802
        return SimpleNamespace(device_index=0)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self.current = stream
        for generator in self.registered:
            generator.state["capturing"] = 1
        try:
            yield
        finally:  # as `CUDAGraph.capture_end` does: generators and stream are not restored
            if self.broken:
                raise RuntimeError("operation failed due to a previous error during capture")
        for generator in self.registered:
            generator.state["capturing"] = 0
        self.current = "default"


def test_failed_capture_restores_generators_and_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, own = FakeCUDA(monkeypatch), FakeGenerator()
    made: list[int] = [own.draw(0)]

    def fail() -> None:
        own.draw(1)
        cuda.default_generators[0].draw(1)
        cuda.broken = True
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match=r"^operation not permitted when stream is capturing$"):
        captured.record(fail, own)  # type: ignore[arg-type]
    made.append(own.draw(0))
    assert made == [4, 8]  # the same state as without a capture
    assert cuda.default_generators[0].draw(0) == 4
    assert cuda.current == "default"


def test_capture_that_fails_at_its_end_raises_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, own = FakeCUDA(monkeypatch), FakeGenerator()
    cuda.broken = True
    with pytest.raises(RuntimeError, match=r"^operation failed due to a previous error during capture$"):
        captured.record(lambda: own.draw(1), own)  # type: ignore[arg-type]
    assert own.draw(0) == 4


def test_successful_capture_keeps_registered_state(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCUDA(monkeypatch)
    own = FakeGenerator()
    registered = own.state
    captured.record(lambda: own.draw(1), own)()  # type: ignore[arg-type]
    assert own.state is registered  # a replay advances this state
