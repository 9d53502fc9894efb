"""Divide a data set among P processes: `python -m lightcake_fast.partition DATASET --parts P`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightcake_fast.cli import ArgumentParser, add_reading_flags, run
from lightcake_fast.data import load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.sharding.data import write_partition
from lightcake_fast.sharding.partition import METHODS, owners
from lightcake_fast.terminal import Console, Table
from lightcake_fast.training.config import READING, dataset_key

DESCRIPTION = "Divide a data set among the processes of a training. Each process gets its part in a folder."
EPILOG = """\
examples:
  python -m lightcake_fast.partition wn18rr --parts 4
  python -m lightcake_fast.partition my/folder --parts 8 --method metis --out partitions/mine
  torchrun --nproc-per-node 4 -m lightcake_fast.train --partition partitions/wn18rr-4
"""


def make_parser() -> ArgumentParser:
    """Make the command's parser."""
    parser = ArgumentParser("python -m lightcake_fast.partition", DESCRIPTION, EPILOG)
    parser.add_argument("dataset", metavar="DATASET", help="data set, as --dataset of lightcake_fast.train")
    parser.add_argument("--parts", metavar="P", type=int, required=True, help="number of processes")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="greedy",
        help="greedy by degree, or METIS, which needs pymetis and cuts fewer triples (default: greedy)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the parts (default: partitions/NAME-P)")
    add_reading_flags(parser)
    return parser


def main(argv: Sequence[str]) -> None:
    """Write the partition and print its sizes.

    Raises:
        InputError: A flag or the data set is wrong.
    """
    options = make_parser().parse_args(argv)
    if not 1 <= options.parts <= 4096:
        raise InputError(f"parts: expected an integer from 1 to 4096, got {options.parts}")
    reading = {name: getattr(options, name) for name in ("data_dir", *READING)}
    data = load_dataset(options.dataset, **reading)
    named = dataset_key(options.dataset) is not None
    source = {
        "dataset": options.dataset if named else str(Path(options.dataset).expanduser().absolute()),
        "data_dir": options.data_dir and str(Path(options.data_dir).expanduser().absolute()),
        "split": options.split,
        "strip": options.strip or None,
        "header": options.header,
    }
    out = Path(options.out or f"partitions/{data.name}-{options.parts}").expanduser()
    owner = owners(data.train, data.num_entities, options.parts, options.method)
    _show(out, write_partition(out, data, owner, options.parts, method=options.method, source=source))


def _show(out: Path, index: dict[str, Any]) -> None:
    console, table = Console(), Table()
    table.add_figures("rank")
    for title in ("own rows", "halo rows", "triples"):
        table.add_figures(title, 10)
    columns = zip(index["rows"], index["halo_rows"], index["triples"], strict=True)
    for rank, figures in enumerate(columns):
        table.add_row(str(rank), *(f"{figure:,}" for figure in figures))
    console.print_table(f"{index['name']} in {index['parts']} parts, {index['method']}", table)
    console.print(
        f"halo: {index['halo']:.2f} of all rows; most triples: {index['balance']:.2f} of an even share",
        soft_wrap=True,
    )
    console.print(f"written to {out}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run(main))
