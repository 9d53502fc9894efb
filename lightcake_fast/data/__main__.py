"""`python -m lightcake_fast.data DATASET`: statistics of a data set."""

import dataclasses
import json
import sys
from collections.abc import Sequence

from lightcake_fast.cli import ArgumentParser, add_reading_flags, run
from lightcake_fast.data import load_dataset
from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.data.statistics import compute_statistics, render_statistics
from lightcake_fast.terminal import Console

DESCRIPTION = "Print the statistics of a data set."
EPILOG = """\
examples:
  python -m lightcake_fast.data family
  python -m lightcake_fast.data wn18rr --data-dir ~/data
  python -m lightcake_fast.data my/folder --json
"""


def make_parser() -> ArgumentParser:
    """Make the command's parser."""
    parser = ArgumentParser("python -m lightcake_fast.data", DESCRIPTION, EPILOG)
    names = ", ".join(PUBLIC_DATASETS)
    parser.add_argument(
        "dataset",
        metavar="DATASET",
        help=f"family, family:PEOPLE[:SEED], {names}, or the path of a folder or file",
    )
    add_reading_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table (default: table)")
    return parser


def main(argv: Sequence[str]) -> None:
    """Print the statistics of a data set."""
    options = make_parser().parse_args(argv)
    reading = {name: getattr(options, name) for name in ("data_dir", "split", "strip", "header")}
    data = load_dataset(options.dataset, **reading)
    figures = compute_statistics(data)
    if options.json:
        print(json.dumps(dataclasses.asdict(figures), indent=2))
    else:
        Console().print(render_statistics(figures))


if __name__ == "__main__":
    sys.exit(run(main))
