"""A step and an epoch of training, for LightCAKE by its number of layers and for R-GCN by its matrices."""

from typing import Any

import pytest
import torch

from bench.conftest import found, timed
from lightcake_fast.efficiency import Training, peak_in_child, peak_of_call

FLAGS: dict[str, Any] = {"dim": 64, "batch_size": 512}
MODELS: dict[str, dict[str, Any]] = {
    "distmult": {"model": "distmult"},
    **{f"lightcake {layers}": {"model": "lightcake", "layers": layers} for layers in range(1, 6)},
    "rgcn full": {"model": "rgcn", "layers": 1, "decomposition": "full"},
    "rgcn basis": {"model": "rgcn", "layers": 1, "decomposition": "basis"},
    "rgcn block": {"model": "rgcn", "layers": 1, "decomposition": "block"},
}
MEMORY_OF = ("distmult", "lightcake 2", "rgcn basis")  # the others' would take a child process each too


@pytest.fixture(scope="session", params=["family", "ddb14", "wn18rr"])
def dataset(request: pytest.FixtureRequest) -> str:
    """A data set that is there."""
    found(request.param)
    return str(request.param)


def ready(flags: dict[str, Any]) -> Training:
    """A training after two steps, whose losses are those of the layers in plain PyTorch."""
    training = Training(flags)
    twins = [training]
    if flags["model"] == "lightcake" and flags["dataset"] == "family":
        twins.append(Training({**flags, "backend": "reference"}))
    for twin in twins:
        twin.step()
        twin.step()
    losses = [twin.loss_sum for twin in twins]
    assert max(losses) - min(losses) < 1e-3 * losses[0], f"the losses differ, not timed: {losses}"
    return training


@pytest.mark.parametrize("mode", ["step", "epoch"])
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, mode: str, dataset: str, device: torch.device, measure: Any) -> None:
    """Time a step, or on the smallest graph all steps of an epoch."""
    if mode == "epoch" and dataset != "family":
        pytest.skip("an epoch is timed on the generated graph only")
    flags = {**FLAGS, **MODELS[name], "dataset": dataset, "device": device.type}
    training = ready(flags)
    peak = None
    if mode == "step" and device.type == "cuda":
        peak = peak_of_call(training.step, device)
    elif mode == "step" and name in MEMORY_OF:
        peak = peak_in_child("lightcake_fast.efficiency:training_step", flags)
    call = getattr(training, mode)
    _, warm = timed(call, device)
    triples = len(training.graph.train)
    measure(
        call,
        warm=warm,
        device=device,
        kind="training",
        mode=mode,
        model=name,
        data=dataset,
        items=triples if mode == "epoch" else min(training.config.batch_size, triples),
        entities=training.graph.num_entities,
        relations=training.graph.num_relations,
        dim=training.config.dim,
        layers=training.config.layers,
        parameters=training.parameters,
        peak_bytes=peak,
    )
