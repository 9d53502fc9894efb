"""Refined embeddings for other programs: `python -m lightcake_fast.export RUN --to FILE.safetensors`."""

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

DESCRIPTION = "Write the refined embeddings of a trained model, with the names of their rows; or its epochs."
EPILOG = """\
examples:
  python -m lightcake_fast.export runs/family --to family.safetensors    one file, names as tensors
  python -m lightcake_fast.export runs/family --to family                a folder of .npy and .tsv files
  python -m lightcake_fast.export runs/family --history family.csv       loss and metrics, a line an epoch

Row i of `entities` is entity i, row r of `relations` is relation r and, in a model with context, row R + r
its inverse. docs/getting-started.md shows how to read both forms.
"""


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's flags."""
    parser = cli.ArgumentParser("python -m lightcake_fast.export", DESCRIPTION, EPILOG)
    add_run_arguments(parser)
    parser.add_argument(
        "--to",
        metavar="PATH",
        type=Path,
        help=f"a new file, NAME{SUFFIX}, or a new folder",
    )
    parser.add_argument("--history", metavar="FILE", type=Path, help="a new .csv file for the epochs")
    return parser


def main(argv: Sequence[str]) -> None:
    """Export.

    Raises:
        InputError: The run folder is wrong, or there is something where the export shall go.
    """
    options = make_parser().parse_args(argv)
    if options.to is None and options.history is None:
        raise InputError("got neither --to nor --history, wanted one of them")
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
