"""Evaluate run folders: `python -m lightcake_fast.evaluate RUN`."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lightcake_fast import cli
from lightcake_fast.data import SPLITS
from lightcake_fast.errors import InputError
from lightcake_fast.inference.arguments import add_run_arguments, open_run
from lightcake_fast.inference.breakdown import GROUPINGS, Group
from lightcake_fast.metrics import TIES, RankMetrics, summarise_ranks
from lightcake_fast.process import prepare_process
from lightcake_fast.terminal import Console, Table
from lightcake_fast.training.progress import METRICS, format_figure, metrics_table

DESCRIPTION = "Evaluate run folders on a split. The metrics are bitwise equal to the metrics of training."
EPILOG = """\
examples:
  python -m lightcake_fast.evaluate runs/ddb14
  python -m lightcake_fast.evaluate runs/ddb14 --split valid --ties index
  python -m lightcake_fast.evaluate runs/ddb14 --by relation
  python -m lightcake_fast.evaluate runs/context runs/plain --by degree    where does context help?

The degree of an entity is its number of training triples. The degree of a triple is the smaller degree of its
two entities.
"""


def make_parser() -> cli.ArgumentParser:
    """Make the command's parser."""
    parser = cli.ArgumentParser("python -m lightcake_fast.evaluate", DESCRIPTION, EPILOG)
    add_run_arguments(parser, several=True)
    parser.add_argument("--split", choices=SPLITS, default="test", help="split to evaluate (default: test)")
    parser.add_argument("--ties", choices=TIES, help="tie policy (default: the run's)")
    parser.add_argument(
        "--by",
        choices=tuple(GROUPINGS),
        action="append",
        default=[],
        help="grouping of a breakdown; may be repeated (default: no breakdown)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line per run (default: tables)")
    return parser


def main(argv: Sequence[str]) -> None:
    """Evaluate the runs.

    Raises:
        InputError: A run folder is wrong. The runs have different data sets or, with `--by`, different tasks.
    """
    options = make_parser().parse_args(argv)
    console = Console()
    groups: dict[str, list[Group]] = {}
    ranks: dict[str, Tensor] = {}
    fingerprint, task = None, None
    for run in options.runs:
        trained = open_run(run, options)
        data, ties = trained.data, options.ties or trained.config.ties
        if fingerprint not in (None, data.fingerprint):
            raise InputError(
                f"{run}: expected the data set of {options.runs[0]}, got {data.name}: "
                "compare runs on the same data set"
            )
        fingerprint = data.fingerprint
        task = task or trained.config.task
        if options.by and not options.json and trained.config.task != task:  # one table compares their ranks
            raise InputError(
                f"{run}: expected the task of {options.runs[0]}, {task!r}, got {trained.config.task!r}: "
                "compare runs of one task, or use --json"
            )
        ranks[run] = trained.ranks(options.split, ties)
        evaluation = summarise_ranks(ranks[run], data.split(options.split), data.seen_entities).to_dict()
        groups = {by: GROUPINGS[by](data, options.split) for by in options.by}
        if options.json:
            print(json.dumps(_record(run, options, ties, evaluation, groups, ranks[run])))
        else:
            title = f"{run}: {data.name} {options.split}, {ties} ties"
            console.print_table(title, metrics_table(evaluation))
    for by in {} if options.json else groups:
        title = f"{options.split} by {by}" + (", MRR" if len(ranks) > 1 else "")
        console.print_table(title, _breakdown_table(by, groups[by], ranks))


def _record(
    run: str,
    options: argparse.Namespace,
    ties: str,
    evaluation: dict[str, Any],
    groups: dict[str, list[Group]],
    ranks: Tensor,
) -> dict[str, Any]:
    record = {"run": run, "split": options.split, "ties": ties, **evaluation}
    if groups:
        record["by"] = {
            by: [
                {"name": group.name, **dataclasses.asdict(RankMetrics.from_ranks(ranks[group.rows]))}
                for group in found
            ]
            for by, found in groups.items()
        }
    return record


def _breakdown_table(by: str, groups: list[Group], ranks: dict[str, Tensor]) -> Table:
    """Table per group: all metrics of one run, or the MRR of several runs."""
    table = Table()
    table.add_names(by)
    table.add_figures("triples", 7)
    for title in ranks if len(ranks) > 1 else METRICS:
        table.add_figures(title)
    for group in groups:
        means = [dataclasses.asdict(RankMetrics.from_ranks(each[group.rows])) for each in ranks.values()]
        if len(ranks) > 1:
            figures = [mean["mrr"] for mean in means]
        else:
            figures = [means[0][key] for key in METRICS.values()]
        table.add_row(group.name, f"{len(group.rows):,}", *map(format_figure, figures))
    return table


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
