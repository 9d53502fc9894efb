"""Export refined embeddings: `python -m lightcake_fast.export RUN --to FILE.safetensors`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lightcake_fast import cli
from lightcake_fast.errors import InputError, counted
from lightcake_fast.inference.arguments import add_run_arguments, open_run
from lightcake_fast.inference.result import History
from lightcake_fast.inference.writing import SUFFIX, check_target, write_embeddings
from lightcake_fast.process import prepare_process

DESCRIPTION = (
    "Write the refined embeddings of a trained model with their names, or the metrics of its epochs."
)
EPILOG = """\
examples:
  python -m lightcake_fast.export runs/family --to family.safetensors    one file with embeddings and names
  python -m lightcake_fast.export runs/family --to family                a folder with .npy and .tsv files
  python -m lightcake_fast.export runs/family --history family.csv       loss and metrics, one row per epoch

Row i of `entities` is entity i. Row r of `relations` is relation r. In a model with context, row R + r is the
inverse of relation r. docs/getting-started.md shows how to read both formats.
"""


def make_parser() -> cli.ArgumentParser:
    """Make the command's parser."""
    parser = cli.ArgumentParser("python -m lightcake_fast.export", DESCRIPTION, EPILOG)
    add_run_arguments(parser)
    parser.add_argument(
        "--to",
        metavar="PATH",
        type=Path,
        help=f"new file, NAME{SUFFIX}, or new folder for the embeddings",
    )
    parser.add_argument(
        "--history", metavar="FILE", type=Path, help="new .csv file for the metrics of the epochs"
    )
    return parser


def main(argv: Sequence[str]) -> None:
    """Export embeddings or the metrics of the epochs.

    Raises:
        InputError: The run folder is wrong, or a target exists.
    """
    options = make_parser().parse_args(argv)
    if options.to is None and options.history is None:
        raise InputError("expected --to or --history, got neither: add one of them")
    if options.history is not None:
        history, file = History.read(options.run), check_target(options.history)
        history.to_csv(file)
        print(f"{file}: {counted(len(history), 'epoch')}")
    if options.to is not None:
        _export(options)


def _export(options: argparse.Namespace) -> None:
    target = check_target(options.to)
    embeddings = open_run(options.run, options).embeddings()
    write_embeddings(embeddings, target)
    rows = f"{len(embeddings.entities):,} entities and {len(embeddings.relations):,} relation rows"
    print(f"{target}: {rows} of width {embeddings.entities.shape[1]}")


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
