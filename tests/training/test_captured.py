"""The captured step: on the CPU by a stand-in that records operations as a CUDA graph records kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightcake_fast import train
from lightcake_fast.data import KnowledgeGraph, family
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS
from lightcake_fast.training import captured
from lightcake_fast.training.captured import WARM_UPS, CapturedStep, wants_capture
from lightcake_fast.training.model import build_model
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.step import TrainingStep
from tests.support.comparison import assert_bitwise_equal

# operations whose result, or its size, the host must wait for: none of them can be captured
WAITING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "bincount")
BATCH = 40


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations with the tensors and numbers that they are given, and refuses those that wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(WAITING), f"{name} waits for the device"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.detach().copy_(new)


class Recorder:
    """In the place of `warm_up` and `record`; like a graph, recording takes no step."""

    def __init__(self, state: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._state = state
        monkeypatch.setattr(captured, "warm_up", self._warm_up)
        monkeypatch.setattr(captured, "record", self._record)

    def _warm_up(self, run: Callable[[], object]) -> None:
        self.events.append("warm-up")
        run()

    def _record(self, run: Callable[[], object], generator: Generator) -> Callable[[], None]:
        self.events.append("record")
        before, random = [t.clone() for t in self._state()], generator.get_state()
        with Recording() as recording:
            run()
        with torch.no_grad():
            for tensor, value in zip(self._state(), before, strict=True):
                tensor.copy_(value)
        generator.set_state(random)

        def replay() -> None:
            self.events.append("replay")
            recording.replay()

        return replay


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    return family(people=60)


class Training:
    """A step on a model with every option in use, and what it changes."""

    def __init__(self, graph: KnowledgeGraph, device: str = "cpu", **flags: Any) -> None:
        options = {"input_dropout": 0.2, "row_dropout": 0.1, "unseen_rate": 0.2, "lr_decay": 0.5}
        config = resolve({"dim": 8, "relation_bias": True, **options, **flags})
        self.generator = Generator(device).manual_seed(0)
        self.model = build_model(config, graph.num_entities, graph.num_relations, self.generator)
        triples = torch.from_numpy(graph.train).to(device)
        context = ContextGraph.from_triples(triples, graph.num_entities, graph.num_relations)
        self.step = TrainingStep(self.model, context, triples, config, self.generator)

    def state(self) -> list[Tensor]:
        averages = [t for entry in self.step.optimizer.state.values() for t in entry.values()]
        return [*self.model.parameters(), *averages, self.step.loss_sum]

    def epochs(self, advance: Callable[[Tensor], None]) -> list[Tensor]:
        """Three epochs of four batches, the last short: the first warms up."""
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
def test_a_replayed_step_is_the_launched_one(
    graph: KnowledgeGraph, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, replayed = Training(graph, **flags), Training(graph, **flags)
    recorder = Recorder(replayed.state, monkeypatch)
    expected = launched.epochs(launched.step)
    actual = replayed.epochs(CapturedStep(replayed.step, BATCH, replayed.generator))
    assert recorder.events == ["warm-up"] * WARM_UPS + ["record"] + ["replay"] * (9 - WARM_UPS)
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert_bitwise_equal(a, b, name=str(number))


def test_adam_is_captured_and_launched_as_it_asks(
    graph: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, seen = Training(graph, layers=1, backend="reference"), []
    groups = training.step.optimizer.param_groups
    monkeypatch.setattr(captured, "warm_up", lambda run: seen.append([g["capturable"] for g in groups]))

    def record(run: Callable[[], object], generator: Generator) -> Callable[[], None]:
        seen.append([g["capturable"] for g in groups])
        return lambda: seen.append([g["capturable"] for g in groups])

    monkeypatch.setattr(captured, "record", record)
    training.epochs(CapturedStep(training.step, BATCH, training.generator))
    assert seen == [[False, False]] * WARM_UPS + [[True, True]] + [[False, False]] * (9 - WARM_UPS)


@pytest.mark.parametrize(
    ("choice", "device", "expected"),
    [("auto", "cpu", False), ("off", "cpu", False), ("auto", "cuda", True), ("on", "cuda:1", True)],
)
def test_capture_is_for_gpus(choice: str, device: str, expected: bool) -> None:
    assert wants_capture(choice, torch.device(device)) == expected
    assert not wants_capture("off", torch.device(device))


def test_on_without_a_gpu_is_an_error(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"^cuda_graph: got 'on' with the device cpu, wanted a GPU$"):
        train.main(["--cuda-graph", "on", "--device", "cpu", "--quiet", "--out", str(tmp_path / "run")])


@pytest.mark.parametrize("number", [0, 1])
def test_a_captured_step_on_a_card_is_the_launched_one(graph: KnowledgeGraph, number: int) -> None:
    if torch.cuda.device_count() <= number:
        pytest.skip(f"captures a step on cuda:{number}, which is not here")
    device = f"cuda:{number}"
    flags: dict[str, Any] = {"backend": "triton", "layers": 2, "mask_targets": True}
    launched, replayed = Training(graph, device, **flags), Training(graph, device, **flags)
    expected = launched.epochs(launched.step)
    actual = replayed.epochs(CapturedStep(replayed.step, BATCH, replayed.generator))
    for place, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert_bitwise_equal(a, b, name=str(place))
