"""Shared arguments of the commands that read run folders."""

import argparse

from lightcake_fast.backends import BACKENDS
from lightcake_fast.inference.trained import TrainedModel, load
from lightcake_fast.scores import import_score


def add_run_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add arguments for a run folder (or `several`), its data set and the device."""
    parser.add_argument(
        "runs" if several else "run",
        metavar="RUN",
        nargs="+" if several else None,
        help="run folder of a training",
    )
    parser.add_argument(
        "--dataset", metavar="FOLDER", help="new place of the data set, if it has moved (default: the run's)"
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder of the public data sets (default: the run's)"
    )
    parser.add_argument(
        "--device", metavar="DEVICE", help="device: auto, cpu, cuda or cuda:N (default: the run's)"
    )
    parser.add_argument(
        "--score", metavar="MODULE:NAME", help="custom score of the run; its code is executed"
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="back end of the context layers (default: the run's)"
    )


def open_run(run: str, options: argparse.Namespace) -> TrainedModel:
    """Open a run folder with the options of `add_run_arguments`.

    Raises:
        InputError: See `load` and `import_score`.
    """
    if options.score is not None:
        import_score(options.score)
    return load(
        run,
        dataset=options.dataset,
        data_dir=options.data_dir,
        device=options.device,
        backend=options.backend,
    )
