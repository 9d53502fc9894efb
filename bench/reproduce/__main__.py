"""Reproduce the paper's tables and figures: `python -m bench.reproduce`."""

import argparse
import dataclasses
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.reproduce.experiments import (
    QUICK,
    QUICK_DATASETS,
    Experiment,
    configuration,
    experiments,
    run_settings,
)
from bench.reproduce.paper import DATASETS
from bench.reproduce.runs import check_data, finished_run, finished_runs, folder_of, run
from bench.reproduce.tables import Table, draw
from bench.reproduce.targets import BUILDERS, Finished, table_1
from lightcake_fast import __version__, cli
from lightcake_fast.data import KnowledgeGraph, load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_text
from lightcake_fast.scores import BUILT_IN
from lightcake_fast.terminal import Console
from lightcake_fast.training.arguments import add_flags
from lightcake_fast.training.config import PRESETS, READING, dataset_key
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.runtime import device_name, resolve_device

TARGETS = ("table1", *BUILDERS)
OWN_FLAGS = ("dataset", "data_dir", "out", "resume", "preset", "model", "score", "seed")
DESCRIPTION = "Train the models of the paper's tables and figures, and write them as Markdown, CSV and PNG."
EPILOG = """\
targets:
  table1      statistics of the data sets
  table2      every model on every data set, without profile, links, paths and mixing
  rivals      models with these terms: LightCAKE, scores without layers, R-GCN, CompGCN-like, A2N-like
  ablation    LightCAKE with no context, one context or both; without each of these terms
  layers      LightCAKE with 1 to 5 layers
  efficiency  LightCAKE by score, R-GCN and no layers: contexts, size, time per step, memory
  speed       LightCAKE, R-GCN and the plain score: validation MRR by seconds of training
  options     each option beyond the paper switched off alone
  entities    DistMult, ComplEx and RotatE for --task entity, with and without context

examples:
  python -m bench.reproduce table1
  python -m bench.reproduce table2 --datasets ddb14 wn18rr --seeds 0 1 2
  python -m bench.reproduce rivals speed --seeds 0 1 2 --runs runs
  python -m bench.reproduce rivals --datasets ddb14 --seeds 0 1 2 3 4 --runs runs --finished
  python -m bench.reproduce ablation --datasets fb15k-237 -- --dim 64 --batch-size 4096
  python -m bench.reproduce entities --datasets fb15k-237 wn18rr
  python -m bench.reproduce all --quick

The flags after -- are flags of lightcake_fast.train and apply to every run. OUT/runs keeps the finished runs.
To resume a stopped run, repeat the same command. Finished runs with the same settings are reused, also under
another name and from the folders of --runs.
"""


def make_parser() -> cli.ArgumentParser:
    """Create the parser of the command's flags, which stand before the `--`."""
    parser = cli.ArgumentParser("python -m bench.reproduce", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s TARGET [TARGET ...] [flags] [-- flags of lightcake_fast.train]"
    parser.add_argument("targets", nargs="+", choices=("all", *TARGETS), metavar="TARGET", help="see below")
    parser.add_argument(
        "--out", default="reproduction", metavar="DIR", help="output folder (default: reproduction)"
    )
    parser.add_argument(
        "--datasets", nargs="+", metavar="NAME", help="data sets (default: the four public ones)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="as in lightcake_fast.train")
    parser.add_argument("--preset", choices=PRESETS, default="best", help="preset (default: best)")
    parser.add_argument(
        "--score",
        choices=BUILT_IN,
        default="distmult",
        help="score of ablation, layers, options and speed (default: distmult)",
    )
    parser.add_argument(
        "--runs", nargs="+", default=[], metavar="DIR", help="folders with finished runs to reuse"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], metavar="S", help="random seeds (default: 0)"
    )
    parser.add_argument(
        "--finished",
        action="store_true",
        help="use only finished runs, and leave out rows that lack a data set",
    )
    parser.add_argument("--quick", action="store_true", help="use a small generated graph and few epochs")
    return parser


def main(argv: Sequence[str]) -> None:
    """Train the missing runs of the targets, then write their tables.

    Raises:
        InputError: A flag is wrong, or a run failed.
        SystemExit: A signal stopped the command after the current run was saved: 128 + the signal's number.
    """
    options, common = _parse(argv)
    device = resolve_device(common.get("device", "auto"))
    wanted = TARGETS if "all" in options.targets else tuple(dict.fromkeys(options.targets))
    datasets = tuple(dict.fromkeys(options.datasets or (QUICK_DATASETS if options.quick else DATASETS)))
    seeds = tuple(dict.fromkeys(options.seeds))
    chosen = {name: experiments(options.score)[name] for name in wanted if name != "table1"}
    if {"ablation", "layers", "speed"} & chosen.keys() and find_spec("matplotlib") is None:
        raise InputError("matplotlib is missing: pip install 'lightcake_fast[plots]'")
    out = Path(options.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    tables = {"table1": table_1(datasets, options.data_dir)} if "table1" in wanted else {}
    with Interrupt():
        given = [Path(place).expanduser() for place in options.runs]
        for place in given:
            if not place.is_dir():
                raise InputError(f"--runs: expected a folder, got {place}, which does not exist")
        places = [out / "runs", *given]
        finished = _train(chosen, datasets, seeds, common, places, console, options.finished)
    tables |= _tables(chosen, datasets, len(seeds), finished)
    lacking = ", ".join(name for name in chosen if name not in tables)
    where = f"a finished run with these settings and seeds on each of {', '.join(datasets)}"
    if not tables:
        raise InputError(f"--finished: expected {where}, got no such row for {lacking}")
    if lacking:
        console.print(f"left out: {lacking}: no row has {where}", soft_wrap=True)
    _write(tables, out, {name: _origin(argv, device, finished.get(name, {})) for name in tables})
    console.print(
        f"written: {', '.join(f'{name}.md' for name in tables)} and report.md in {out}", soft_wrap=True
    )


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the command's flags and the settings for every run."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    options = make_parser().parse_args(words[:place])
    runs = cli.ArgumentParser("python -m lightcake_fast.train", "")
    add_flags(runs)
    common = vars(runs.parse_args(words[place + 1 :]))
    del common["debug"]
    refused = [name for name in common if name in OWN_FLAGS]
    if refused:
        raise InputError(f"--{refused[0].replace('_', '-')}: not allowed after --: this command sets it")
    settings = {"preset": options.preset, **(QUICK if options.quick else {}), **common}
    return options, settings | ({"data_dir": options.data_dir} if options.data_dir else {})


def _train(
    chosen: Mapping[str, Experiment],
    datasets: Sequence[str],
    seeds: Sequence[int],
    common: Mapping[str, Any],
    folders: Sequence[Path],
    console: Console,
    finished_alone: bool = False,
) -> dict[str, Finished]:
    """Train every run that a target needs, if no folder has it. Targets share equal runs.

    Args:
        chosen: The experiments by target.
        datasets: Their data sets.
        seeds: One run per seed.
        common: Settings for every run.
        folders: Folders to search for finished runs. New runs go to the first folder.
        console: Receives messages about the progress.
        finished_alone: Skip the runs that are in no folder.
    """
    found = finished_runs(folders)
    own = {name: _own_data(name, common) for name in datasets if dataset_key(name) is None}
    settings: dict[Path, dict[str, Any]] = {}
    places: dict[str, dict[tuple[str, str], list[Path]]] = {}
    for name, experiment in chosen.items():
        places[name] = {}
        for row in experiment.rows:
            for dataset in datasets:
                for seed in seeds:
                    data = own.get(dataset)
                    triples = None if data is None else data.num_train
                    config = configuration(row, dataset, seed, common, triples)
                    done = finished_run(config, found)
                    if done is not None and data is not None:
                        check_data(done, data)
                    if finished_alone and done is None:
                        continue
                    folder = done or folder_of(config, folders[0])
                    settings[folder] = run_settings(row, dataset, seed, common)
                    places[name].setdefault((row.label, dataset), []).append(folder)
    outcomes = {}
    for number, (folder, explicit) in enumerate(settings.items(), 1):
        console.print(f"run {number} of {len(settings)}: {folder.name}", soft_wrap=True)
        outcomes[folder] = run(explicit, folder)
    return {
        name: {cell: [outcomes[folder] for folder in folders] for cell, folders in cells.items()}
        for name, cells in places.items()
    }


def _own_data(dataset: str, common: Mapping[str, Any]) -> KnowledgeGraph:
    options = {name: common[name] for name in ("data_dir", *READING) if name in common}
    return load_dataset(dataset, **options)


def _tables(
    chosen: Mapping[str, Experiment],
    datasets: Sequence[str],
    seeds: int,
    finished: Mapping[str, Finished],
) -> dict[str, Table]:
    """Build the tables of the targets from rows with a run on every data set. Skip targets without rows."""
    tables = {}
    for name, experiment in chosen.items():
        cells = finished[name]
        rows = [row for row in experiment.rows if all((row.label, dataset) in cells for dataset in datasets)]
        if not rows:
            continue
        shown = dataclasses.replace(experiment, rows=tuple(rows))
        table = BUILDERS[name](shown, datasets, cells)
        if "seeds" not in table.head:
            notes = [*table.notes, *_fewer_seeds(shown, datasets, cells, seeds)]
            table = dataclasses.replace(table, notes=notes)
        tables[name] = table
    return tables


def _fewer_seeds(
    experiment: Experiment, datasets: Sequence[str], finished: Finished, seeds: int
) -> list[str]:
    """Return a note that lists rows with fewer seeds than requested, or no note."""
    fewer = [
        f"{count} of {row.label} on {dataset}"
        for row in experiment.rows
        for dataset in datasets
        if (count := len(finished[row.label, dataset])) < seeds
    ]
    return [f"Fewer than {seeds} seeds: {'; '.join(fewer)}."] if fewer else []


def _write(tables: Mapping[str, Table], out: Path, origins: Mapping[str, str]) -> None:
    for name, table in tables.items():
        drawn = table.curves or table.panels
        picture = f"\n![{table.title}]({name}.png)\n" if drawn else ""
        replace_text(out / f"{name}.md", f"{table.markdown()}{picture}\n{origins[name]}\n")
        replace_text(out / f"{name}.csv", table.csv())
        if drawn:
            draw(table, out / f"{name}.png")
    written = [file for name in TARGETS if (file := out / f"{name}.md").is_file()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in written)
    replace_text(out / "report.md", f"# Reproduction of LightCAKE's tables and figures\n\n{text}")


def _origin(argv: Sequence[str], device: torch.device, finished: Finished) -> str:
    """Describe how a table was made: date, command, versions, device, and training time of its runs."""
    seconds = {run.folder: run.results["seconds"] for runs in finished.values() for run in runs}
    trained = f"; total training time {_in_words(sum(seconds.values()))}" if seconds else ""
    return (
        f"Made on {time.strftime('%Y-%m-%d')} by `python -m bench.reproduce {shlex.join(argv)}` "
        f"with lightcake_fast {__version__} and torch {torch.__version__} on {device_name(device)} "
        f"({platform.system()}){trained}."
    )


def _in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(cli.run(main))
