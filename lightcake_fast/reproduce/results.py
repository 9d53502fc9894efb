"""`python -m lightcake_fast.reproduce.results`: finished runs as a table, each beside the paper's figures."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lightcake_fast import cli
from lightcake_fast.models import MODELS
from lightcake_fast.reproduce.paper import published
from lightcake_fast.reproduce.runs import read
from lightcake_fast.reproduce.tables import Table, score_cells
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.progress import format_figure

HEAD = [
    "data set",
    "model",
    "preset",
    "MRR / MR / Hits@3",
    "paper",
    "ours is",
    "seen only",
    "valid",
    "epoch",
    "s",
    "seed",
]


def make_parser() -> cli.ArgumentParser:
    """The command's flags."""
    description = "Print finished runs as a table, each beside the paper's figures."
    parser = cli.ArgumentParser("python -m lightcake_fast.reproduce.results", description)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="run folders; unfinished ones are left out"
    )
    return parser


def row(folder: Path) -> list[str]:
    """One finished run.

    Raises:
        InputError: A file of the run is missing or damaged.
    """
    outcome = read(folder)
    results = outcome.results
    config = TrainingConfig.from_json((folder / "config.json").read_text(encoding="utf-8"))
    label = MODELS[config.model].label
    if config.model == "lightcake":
        label += f"-{MODELS[config.score].label}" if config.score in MODELS else f"-{config.score}"
    if config.task == "entity":
        label += " (entities)"  # the paper has none
    return [
        config.dataset,
        label,
        config.preset,
        *score_cells([outcome], published(label, config.dataset)),
        format_figure(results["test"]["seen"]["mrr"]),
        format_figure(results["valid"]["all"]["mrr"]),
        f"{results['best_epoch']} of {results['epochs']}",
        f"{results['seconds']:.0f}",
        str(config.seed),
    ]


def main(argv: Sequence[str]) -> None:
    """Print the table.

    Raises:
        InputError: A finished run is damaged.
    """
    folders = [
        folder for folder in make_parser().parse_args(argv).runs if (folder / "results.json").is_file()
    ]
    print(Table("Runs", HEAD, [row(folder) for folder in folders]).markdown(), end="")


if __name__ == "__main__":
    sys.exit(cli.run(main))
