"""Reproduce the paper's tables and figures: `python -m bench.reproduce`."""

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.reproduce.experiments import (
    DATASETS,
    QUICK,
    QUICK_DATASETS,
    Experiment,
    configuration,
    experiments,
    run_settings,
)
from bench.reproduce.runs import Outcome, check_data, digest, finished_runs, folder_of, run
from bench.reproduce.tables import Table, draw
from bench.reproduce.targets import Finished, build
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

TARGETS = {name: experiment.about for name, experiment in experiments("distmult").items()}
OWN_FLAGS = ("dataset", "data_dir", "out", "resume", "preset", "model", "score", "seed")
DESCRIPTION = "Train the models of the paper's tables and figures, and write them as Markdown, CSV and PNG."
EPILOG = f"""\
targets:
{chr(10).join(f"  {name:10}  {about}" for name, about in TARGETS.items())}

examples:
  python -m bench.reproduce table1
  python -m bench.reproduce table2 --datasets ddb14 wn18rr --seeds 0 1 2
  python -m bench.reproduce rivals speed --seeds 0 1 2 --runs runs
  python -m bench.reproduce rivals --datasets ddb14 --seeds 0 1 2 3 4 --runs runs --finished
  python -m bench.reproduce ablation --datasets fb15k-237 -- --dim 64 --batch-size 4096
  python -m bench.reproduce all --quick

The flags after -- are flags of lightcake_fast.train and apply to every run. OUT/runs keeps the finished runs.
To resume a stopped run, repeat the same command. Finished runs with the same settings are reused, also under
another name and from the folders of --runs.
"""


def make_parser() -> cli.ArgumentParser:
    """Create the parser of the command's flags, which stand before the `--`."""
    parser = cli.ArgumentParser("python -m bench.reproduce", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s TARGET [TARGET ...] [flags] [-- flags of lightcake_fast.train]"
    add = parser.add_argument
    add("targets", nargs="+", choices=("all", *TARGETS), metavar="TARGET", help="see below")
    add("--out", default="reproduction", metavar="DIR", help="output folder (default: reproduction)")
    add("--datasets", nargs="+", metavar="NAME", help="data sets (default: the four public ones)")
    add("--data-dir", metavar="DIR", help="as in lightcake_fast.train")
    add("--preset", choices=PRESETS, default="best", help="preset (default: best)")
    score = "score of ablation, layers, options and speed (default: distmult)"
    add("--score", choices=BUILT_IN, default="distmult", help=score)
    add("--runs", nargs="+", default=[], metavar="DIR", help="folders with finished runs to reuse")
    add("--seeds", nargs="+", type=int, default=[0], metavar="S", help="random seeds (default: 0)")
    finished = "use only finished runs, and leave out rows that lack a data set"
    add("--finished", action="store_true", help=finished)
    add("--quick", action="store_true", help="use a small generated graph and few epochs")
    return parser


def main(argv: Sequence[str]) -> None:
    """Train the missing runs of the targets, then write their tables.

    Raises:
        InputError: A flag is wrong, or a run failed.
        SystemExit: A signal stopped the command after the current run was saved: 128 + the signal's number.
    """
    options, common = _parse(argv)
    device = resolve_device(common.get("device", "auto"))
    wanted = TARGETS if "all" in options.targets else dict.fromkeys(options.targets)
    datasets = tuple(dict.fromkeys(options.datasets or (QUICK_DATASETS if options.quick else DATASETS)))
    seeds = tuple(dict.fromkeys(options.seeds))
    chosen = {name: experiments(options.score)[name] for name in wanted}
    if any(experiment.figure for experiment in chosen.values()) and find_spec("matplotlib") is None:
        raise InputError("matplotlib is missing: pip install 'lightcake_fast[plots]'")
    out, given = Path(options.out).expanduser(), [Path(place).expanduser() for place in options.runs]
    out.mkdir(parents=True, exist_ok=True)
    for place in given:
        if not place.is_dir():
            raise InputError(f"--runs: expected a folder, got {place}, which does not exist")
    console = Console()
    with Interrupt():
        places = [out / "runs", *given]
        finished = _train(chosen, datasets, seeds, common, places, console, options.finished)
        tables: dict[str, Table] = {}
        for name, experiment in chosen.items():
            table = _table(experiment, datasets, len(seeds), finished[name], options.data_dir)
            tables |= {name: table} if table else {}
    lacking = ", ".join(name for name in chosen if name not in tables)
    where = f"a finished run with these settings and seeds on each of {', '.join(datasets)}"
    if not tables:
        raise InputError(f"--finished: expected {where}, got no such row for {lacking}")
    if lacking:
        console.print(f"left out: {lacking}: no row has {where}", soft_wrap=True)
    _write(tables, out, {name: origin(argv, device, finished[name]) for name in tables})
    files = ", ".join(f"{name}.md" for name in tables)
    console.print(f"written: {files} and report.md in {out}", soft_wrap=True)


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
    only_finished: bool,
) -> Mapping[str, Finished]:
    """Train every run that a target needs, if no folder has it. New runs go to the first folder.

    Targets share equal runs. With ``only_finished``, runs that are in no folder are skipped.
    """
    found = finished_runs(folders)
    own: dict[str, KnowledgeGraph] = {}
    if any(experiment.rows for experiment in chosen.values()):
        reading = {name: common[name] for name in ("data_dir", *READING) if name in common}
        own = {name: load_dataset(name, **reading) for name in datasets if dataset_key(name) is None}
    settings: dict[Path, dict[str, Any]] = {}
    places: dict[tuple[str, str, str], list[Path]] = {}
    for target, row, dataset, seed in (
        (target, row, dataset, seed)
        for target, experiment in chosen.items()
        for row in experiment.rows
        for dataset in datasets
        for seed in seeds
    ):
        data = own.get(dataset)
        config = configuration(row, dataset, seed, common, data.num_train if data else None)
        done = found.get(digest(config))
        if done is not None and data is not None:
            check_data(done, data)
        if done is not None or not only_finished:
            folder = done or folder_of(config, folders[0])
            settings[folder] = run_settings(row, dataset, seed, common)
            places.setdefault((target, row.label, dataset), []).append(folder)
    outcomes = {}
    for number, (folder, explicit) in enumerate(settings.items(), 1):
        console.print(f"run {number} of {len(settings)}: {folder.name}", soft_wrap=True)
        outcomes[folder] = run(explicit, folder)
    finished: dict[str, dict[tuple[str, str], list[Outcome]]] = {name: {} for name in chosen}
    for (target, label, dataset), trained in places.items():
        finished[target][label, dataset] = [outcomes[folder] for folder in trained]
    return finished


def _table(
    experiment: Experiment, datasets: Sequence[str], seeds: int, finished: Finished, data_dir: str | None
) -> Table | None:
    """Build a table from the rows with a run on every data set; None if there are no such rows."""
    rows = [row for row in experiment.rows if all((row.label, name) in finished for name in datasets)]
    if experiment.rows and not rows:
        return None
    table = build(replace(experiment, rows=tuple(rows)), datasets, finished, data_dir)
    fewer = [
        f"{len(finished[row.label, name])} of {row.label} on {name}"
        for row in rows
        for name in datasets
        if len(finished[row.label, name]) < seeds and "seeds" not in table.head
    ]
    return (
        replace(table, notes=[*table.notes, f"Fewer than {seeds} seeds: {'; '.join(fewer)}."])
        if fewer
        else table
    )


def _write(tables: Mapping[str, Table], out: Path, origins: Mapping[str, str]) -> None:
    for name, table in tables.items():
        picture = f"\n![{table.title}]({name}.png)\n" if table.figure else ""
        replace_text(out / f"{name}.md", f"{table.markdown()}{picture}\n{origins[name]}\n")
        replace_text(out / f"{name}.csv", table.csv())
        if table.figure:
            draw(table.title, table.figure, out / f"{name}.png")
    written = [file for name in TARGETS if (file := out / f"{name}.md").is_file()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in written)
    replace_text(out / "report.md", f"# Reproduction of LightCAKE's tables and figures\n\n{text}")


def origin(argv: Sequence[str], device: torch.device, finished: Finished) -> str:
    """Describe how a table was made: date, command, versions, device, and training time of its runs."""
    seconds = {run.folder: run.results["seconds"] for runs in finished.values() for run in runs}
    trained = f"; total training time {in_words(sum(seconds.values()))}" if seconds else ""
    return (
        f"Made on {time.strftime('%Y-%m-%d')} by `python -m bench.reproduce {shlex.join(argv)}` "
        f"with lightcake_fast {__version__} and torch {torch.__version__} on {device_name(device)} "
        f"({platform.system()}){trained}."
    )


def in_words(seconds: float) -> str:
    """Format a duration."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(cli.run(main))
