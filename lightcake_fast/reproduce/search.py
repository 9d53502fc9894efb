"""`python -m lightcake_fast.reproduce.search`: a grid of settings by their best validation MRR.

The test split is not looked at: a run ends with its test metrics, but they are not printed.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from lightcake_fast import cli
from lightcake_fast.errors import InputError
from lightcake_fast.reproduce.runs import run
from lightcake_fast.reproduce.tables import Table
from lightcake_fast.training.config import add_flags

EPILOG = """\
example:
  python -m lightcake_fast.reproduce.search --out search --grid dim=64,128 l2=0,0.1 -- --dataset ddb14

What stands behind -- goes to every run, as flags of lightcake_fast.train. A finished run is kept, and one
that was stopped goes on: give the same command again.
"""


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's own flags, those in front of the `--`."""
    description = "Train a grid of settings; print them by their best validation MRR."
    parser = cli.ArgumentParser("python -m lightcake_fast.reproduce.search", description, EPILOG)
    parser.usage = (
        "%(prog)s --out DIR --grid NAME=VALUE,... [NAME=VALUE,...] -- flags of lightcake_fast.train"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs")
    parser.add_argument(
        "--grid", nargs="+", required=True, metavar="NAME=VALUE,...", help="settings to combine"
    )
    return parser


def grid(axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of "name=value,value" as words "--name=value".

    Raises:
        InputError: An axis is not of that form.
    """
    words = []
    for axis in axes:
        name, _, values = axis.partition("=")
        if not values:
            raise InputError(f"--grid: got {axis!r}, wanted NAME=VALUE,...")
        words.append([f"--{name}={value}" for value in values.split(",")])
    return list(itertools.product(*words))


def main(argv: Sequence[str]) -> None:
    """Train what is missing, then print the table.

    Raises:
        InputError: A flag is wrong, or a run failed.
        SystemExit: A signal came: 128 + its number, after the run under way was saved.
    """
    place = list(argv).index("--") if "--" in argv else len(argv)
    options = make_parser().parse_args(argv[:place])
    flags = cli.ArgumentParser("python -m lightcake_fast.train", "")
    add_flags(flags)
    found = []
    for words in grid(options.grid):
        settings = vars(flags.parse_args([*argv[place + 1 :], *words]))
        del settings["debug"]
        name = " ".join(word.removeprefix("--").replace("=", " ") for word in words)
        outcome = run(settings, options.out / name.replace(" ", "_"), silent=True)
        valid, epoch = outcome.results["valid"], outcome.results["best_epoch"]
        found.append((valid["all"]["mrr"], epoch, outcome.triples_per_second, name))
    rows = [
        [f"{mrr:.4f}", str(epoch), f"{speed:,.0f}", name] for mrr, epoch, speed, name in sorted(found)[::-1]
    ]
    head = ["validation MRR", "epoch", "training triples/s", "settings"]
    print(Table("Search on the validation split", head, rows).markdown(), end="")


if __name__ == "__main__":
    sys.exit(cli.run(main))
