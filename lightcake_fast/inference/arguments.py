"""The arguments that all commands on a run share."""

import argparse

from lightcake_fast.inference.trained import TrainedModel, load
from lightcake_fast.ops import BACKENDS
from lightcake_fast.scores import import_score


def add_run_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the run folder (or `several`) and where to compute."""
    parser.add_argument(
        "runs" if several else "run",
        metavar="RUN",
        nargs="+" if several else None,
        help="run folder that the training made",
    )
    parser.add_argument(
        "--dataset", metavar="FOLDER", help="where the run's data set lies now, if it has moved"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="public data sets' folder (default: the run's)")
    parser.add_argument("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (default: the run's)")
    parser.add_argument("--score", metavar="MODULE:NAME", help="the run's own score, whose code is run")
    parser.add_argument("--backend", choices=BACKENDS, help="kernels of the layers (default: the run's)")


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
