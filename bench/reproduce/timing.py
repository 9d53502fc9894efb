"""Time the training of a run's model. The original training time may include other load on the machine."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import own_numerics

_WARM, _TIMED = 3, 12


class Timing(NamedTuple):
    """Time of training.

    Attributes:
        triples_per_second: Training triples per second, from the median of steps on the first batch.
        layer_seconds: Seconds per layer, forward and backward: the time to refine both tables divided by the
            number of layers. None without layers.
    """

    triples_per_second: float
    layer_seconds: float | None


def time_training(folder: Path, data_dir: str | None = None) -> Timing:
    """Time a new model with a run's settings, on the run's device and the threads of this process.

    Args:
        folder: The run folder.
        data_dir: As in `load_dataset`; None uses the run's.

    Raises:
        InputError: The run folder or its data set is missing or damaged.
    """
    run = RunFolder.open(folder)
    config = replace(run.config, data_dir=data_dir or run.config.data_dir)
    experiment = Experiment(config, run.load_dataset(config))
    batch = experiment.epoch(0)[0]
    with own_numerics():
        step = _median(experiment, lambda: experiment.advance(batch))
        refined = config.layers and experiment.model.has_context
        layer = _median(experiment, lambda: _refine(experiment)) / config.layers if refined else None
    return Timing(len(batch) / step, layer)


def _refine(experiment: Experiment) -> None:
    """Refine both tables as in training, and run the backward."""
    tables = experiment.model.refine(
        experiment.graph, generator=experiment.generator, backend=experiment.config.backend
    )
    torch.autograd.backward(tables, [torch.ones_like(table) for table in tables])


def _median(experiment: Experiment, work: Callable[[], None]) -> float:
    """Return the median seconds of a function after compilation and memory allocation."""
    seconds = []
    for _ in range(_WARM + _TIMED):
        start = time.perf_counter()
        work()
        experiment.loss_sum()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_WARM:])
