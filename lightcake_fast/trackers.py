"""Callbacks of `lightcake_fast.train` that hand the figures of each epoch to a tracker; an extra for each.

lightcake_fast.train("ddb14", callbacks=to_tensorboard("logs/ddb14"))
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from lightcake_fast.errors import InputError

Callback = Callable[[dict[str, Any]], None]


def to_tensorboard(folder: str | Path) -> Callback:
    """A callback that writes event files into a folder, which `tensorboard --logdir` shows as they grow.

    Raises:
        InputError: tensorboard is missing.
    """
    writer = _imported("tensorboard", "torch.utils.tensorboard").SummaryWriter(Path(folder).expanduser())

    def write(record: dict[str, Any]) -> None:
        for name, value in figures(record).items():
            writer.add_scalar(name, value, record["epoch"])
        writer.flush()

    return write


def to_wandb(**options: Any) -> Callback:
    """A callback that logs to a new run of Weights & Biases, which lasts until `wandb.finish()` or the exit.

    Args:
        options: What `wandb.init` takes: project, name, config, mode="offline" and so on.

    Raises:
        InputError: wandb is missing.
    """
    run = _imported("wandb").init(**options)
    return lambda record: run.log(figures(record), step=record["epoch"], commit=True)


def to_mlflow() -> Callback:
    """A callback that logs to MLflow's active run, or to one that MLflow starts.

    Raises:
        InputError: mlflow is missing.
    """
    mlflow = _imported("mlflow")
    return lambda record: mlflow.log_metrics(figures(record), step=record["epoch"])


def figures(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of an epoch's record by names such as valid/all/mrr; without those that there are not."""
    return {name: value for name, value in flat(record, "/") if name != "epoch" and value is not None}


def flat(record: dict[str, Any], separator: str, prefix: str = "") -> list[tuple[str, Any]]:
    """The values of nested dicts, each under its keys with a separator between them."""
    found: list[tuple[str, Any]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            found += flat(value, separator, f"{prefix}{key}{separator}")
        else:
            found.append((prefix + key, value))
    return found


def _imported(package: str, module: str | None = None) -> Any:
    try:
        return import_module(module or package)
    except ImportError as error:
        raise InputError(
            f"{package} is missing ({error}): pip install 'lightcake_fast[{package}]'"
        ) from error
