"""A step and an epoch of training: LightCAKE by number of layers, R-GCN by type of matrices."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch

from bench.measuring import found, timed
from bench.memory import Computation, peak_in_child, peak_of_call
from lightcake_fast.training.captured import WARM_UPS
from lightcake_fast.training.experiment import Experiment

FLAGS: dict[str, Any] = {"dim": 64, "batch_size": 512}
MODELS: dict[str, dict[str, Any]] = {
    "distmult": {"model": "distmult"},
    **{f"lightcake {layers}": {"model": "lightcake", "layers": layers} for layers in range(1, 6)},
    "rgcn full": {"model": "rgcn", "layers": 1, "decomposition": "full"},
    "rgcn basis": {"model": "rgcn", "layers": 1, "decomposition": "basis"},
    "rgcn block": {"model": "rgcn", "layers": 1, "decomposition": "block"},
}
MEMORY_OF = ("distmult", "lightcake 2", "rgcn basis")  # each peak takes a child process


@pytest.fixture(scope="session", params=["family", "ddb14", "wn18rr"])
def dataset(request: pytest.FixtureRequest) -> str:
    """An available data set."""
    found(request.param)
    return str(request.param)


def ready(flags: dict[str, Any]) -> tuple[Experiment, Callable[[], None]]:
    """Return a training after two steps, and its next step.

    For LightCAKE on the generated graph, the losses must match the layers in plain PyTorch.
    """
    experiment, step = started(flags)
    losses = [experiment.step.loss_sum.item()]
    if flags["model"] == "lightcake" and flags["dataset"] == "family":
        twin, _ = started({**flags, "backend": "reference"})
        losses.append(twin.step.loss_sum.item())
    assert max(losses) - min(losses) < 1e-3 * losses[0], f"not timed: the losses differ: {losses}"
    return experiment, step


def started(flags: dict[str, Any]) -> tuple[Experiment, Callable[[], None]]:
    """Return a training after two steps, and its next step. The first step creates Adam's averages."""
    experiment = Experiment.of(**flags)
    batches = cycle(experiment.epoch(0))

    def step() -> None:
        experiment.advance(next(batches))

    step()
    step()
    return experiment, step


def training_step(flags: dict[str, Any]) -> Computation:
    """Return a later step of a training, for `peak_in_child`."""
    return started(flags)[1]


@pytest.mark.parametrize("mode", ["step", "replay", "epoch"])
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, mode: str, dataset: str, device: torch.device, measure: Any) -> None:
    """Time a step, the step as one CUDA graph, or all steps of an epoch (on the smallest data set)."""
    if mode == "epoch" and dataset != "family":
        pytest.skip("an epoch is timed on the generated graph only")
    if mode == "replay" and device.type == "cpu":
        pytest.skip("a CUDA graph needs a GPU")
    graph = "on" if mode == "replay" else "off"
    flags = {**FLAGS, **MODELS[name], "dataset": dataset, "device": device.type, "cuda_graph": graph}
    experiment, step = ready(flags)
    for _ in range(WARM_UPS * (mode == "replay")):
        step()  # until it is recorded

    def epoch() -> None:
        for batch in experiment.epoch(0):
            experiment.advance(batch)

    peak = None
    if mode == "step" and device.type == "cuda":
        peak = peak_of_call(step, device)
    elif mode == "step" and name in MEMORY_OF:
        peak = peak_in_child("bench.suite.test_training:training_step", flags)
    call = epoch if mode == "epoch" else step
    _, warm = timed(call, device)
    data, config = experiment.data, experiment.config
    triples = len(data.train)
    measure(
        call,
        warm=warm,
        device=device,
        kind="training",
        mode=mode,
        model=name,
        data=dataset,
        items=triples if mode == "epoch" else min(config.batch_size, triples),
        entities=data.num_entities,
        relations=data.num_relations,
        dim=config.dim,
        layers=config.layers,
        parameters=experiment.parameters,
        peak_bytes=peak,
    )
