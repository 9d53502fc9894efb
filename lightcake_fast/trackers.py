"""Callbacks of `lightcake_fast.train` that send the metrics of each epoch to a tracker.

Each tracker needs the extra with its name, for example `lightcake_fast[wandb]`.

lightcake_fast.train("ddb14", callbacks=to_tensorboard("logs/ddb14"))
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from lightcake_fast.errors import InputError

Callback = Callable[[dict[str, Any]], None]


def to_tensorboard(folder: str | Path) -> Callback:
    """Make a callback that writes event files to a folder, for `tensorboard --logdir`.

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
    """Make a callback that logs to a new Weights & Biases run, until `wandb.finish()` or the program exit.

    Args:
        options: Arguments of `wandb.init`, such as project, name, config and mode="offline".

    Raises:
        InputError: wandb is missing.
    """
    run = _imported("wandb").init(**options)
    return lambda record: run.log(figures(record), step=record["epoch"], commit=True)


def to_mlflow() -> Callback:
    """Make a callback that logs to the active MLflow run, or to a run that MLflow starts.

    Raises:
        InputError: mlflow is missing.
    """
    mlflow = _imported("mlflow")
    return lambda record: mlflow.log_metrics(figures(record), step=record["epoch"])


def figures(record: dict[str, Any]) -> dict[str, float]:
    """The metrics of an epoch's record, with names such as valid/all/mrr and without missing values."""
    return {name: value for name, value in flat(record, "/") if name != "epoch" and value is not None}


def flat(record: dict[str, Any], separator: str, prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten nested dicts: join the keys of each value with a separator."""
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
            f"{package}: expected an installed package, got an error ({error}): "
            f"pip install 'lightcake_fast[{package}]'"
        ) from error
