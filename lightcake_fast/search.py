"""Search hyperparameters on the validation split: `search`, or `python -m lightcake_fast.search`."""

import argparse
import itertools
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast import cli
from lightcake_fast.data import KnowledgeGraph, load_dataset, read_folder, write_folder
from lightcake_fast.errors import DataWarning, DivergedError, InputError, counted
from lightcake_fast.files import check_no_file, lock_folder, replace_text
from lightcake_fast.inference.result import History
from lightcake_fast.models import takers
from lightcake_fast.process import prepare_process, speed_up
from lightcake_fast.scores import import_score, named_by_module
from lightcake_fast.terminal import Console, Table
from lightcake_fast.train import at_hand, checked_settings, prepared
from lightcake_fast.training.arguments import add_flags
from lightcake_fast.training.config import READING, fields
from lightcake_fast.training.experiment import check_settings
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.loop import train_to_end
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import mixed_seed, own_numerics
from lightcake_fast.training.space import (
    Values,
    check_space,
    in_words,
    parse_vary,
    plain,
    points,
    saved_space,
    suggested,
)
from lightcake_fast.training.study import (
    ENDED,
    TRIALS,
    check_asked,
    counting,
    enqueue,
    free_name,
    open_study,
    quiet,
    take_up,
    too_large,
)

if TYPE_CHECKING:
    from optuna import Study, Trial

SAMPLERS = ("tpe", "random", "grid")
VARY: dict[str, dict[str, Values]] = {
    "relation": {
        "dim": [32, 64, 128],
        "layers": [1, 2, 3],
        "lr": (1e-3, 2e-2),
        "l2": (1e-8, 1e-4),
        "input_dropout": (0.0, 0.6),
        "row_dropout": (0.0, 0.8),
        "unseen_rate": (0.0, 0.3),
    },
    "entity": {  # wide rows with N3 to limit their norm, and a decaying learning rate
        "dim": [128, 256, 512],
        "layers": [1, 2],
        "lr": (1e-3, 2e-2),
        "lr_decay": (0.05, 0.3),
        "n3": (0.0, 0.2),
        "input_dropout": (0.0, 0.4),
    },
}
BEST = "best.json"
DESCRIPTION = "Search settings with the best validation MRR. The test split is not used."
EPILOG = """\
examples:
  python -m lightcake_fast.search --dataset ddb14 --out search --trials 20
  python -m lightcake_fast.search --dataset ddb14 --out search --vary lr=1e-3..1e-1 layers=0..3 dim=32,64
  python -m lightcake_fast.search --dataset ddb14 --out grid --vary dim=64,128 l2=0,1e-6 --sampler grid

The other flags are flags of training and apply to every trial. After a stop by a signal, a full disk or
damaged data, repeat the same command: finished trials are kept, and the interrupted trial continues. OUT
contains one run folder per trial. `python -m lightcake_fast.train --resume OUT/TRIAL` evaluates it on the
test split. The search needs Optuna: pip install 'lightcake_fast[search]'.
"""


def search(
    data: Any = None,
    *,
    out: str | Path,
    vary: Mapping[str, Values] | None = None,
    trials: int | None = None,
    sampler: str = "tpe",
    prune: bool = True,
    **settings: Any,
) -> "Study":
    """Search the settings with the best validation MRR, as the command does.

    A trial ends when its training ends or other trials are better. It also ends if its settings are at fault:
    they contradict each other, the training diverges, or memory runs out. Lack of memory counts as a stop in
    two cases: no tried setting changes the memory, or a trial of at least this size has finished. The same
    call resumes an interrupted trial in its folder, after a stop by a signal, a full disk or damaged files.

    Args:
        data: As in `lightcake_fast.train`. Data from memory is saved in `out/data`.
        out: Folder of the search. A stopped search resumes there with the same arguments.
        vary: Values to try by the name of the setting: a list of values, or a tuple of lower and upper bound.
            A range over a factor of ten or more is sampled on a log scale. None takes `VARY` for the task.
        trials: Total number of trials to finish. None takes 30, or every combination of the grid.
        sampler: "tpe", Optuna's estimator, "random", or "grid": every combination of lists.
        prune: End a trial early if its MRR is below the median of the other trials at that epoch. A grid is
            never pruned.
        settings: Settings of `lightcake_fast.train`, the same for all trials.

    Returns:
        Optuna's study: `best_params`, `best_value`, `trials_dataframe()`. `best.json` holds the best settings
            for `--config`. Each trial has a run folder.

    Raises:
        InputError: A setting, a value to try, the data or a trial's folder is wrong. The folder holds another
            search. Optuna is missing. No trial has an MRR.
        MemoryError: Memory ran out, and the tried settings are not the cause.
        OSError: A file cannot be written.
    """
    speed_up()
    with own_numerics():
        vary = None if vary is None else plain(vary)
        settings = plain(checked_settings("search", settings, data))
        return _search(data, Path(out), vary, trials, sampler, prune, settings, Interrupt())


def _search(
    data: Any,
    out: Path,
    vary: Mapping[str, Values] | None,
    trials: int | None,
    sampler: str,
    prune: bool,
    settings: Mapping[str, Any],
    interrupt: Interrupt,
) -> "Study":
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            f"search: expected Optuna, got {error}: pip install 'lightcake_fast[search]'"
        ) from error
    if "resume" in settings:
        raise InputError("--resume: expected no such flag in a search: repeat the same command to resume it")
    if "partition" in settings:
        raise InputError("--partition: expected no such flag: a search trains in one process")
    for score in (settings.get("score"), *(vary or {}).get("score", ())):
        if named_by_module(str(score)):
            import_score(str(score))
    if vary is None:
        model, task = settings.get("model", "lightcake"), settings.get("task", "relation")
        known = VARY.get(task, VARY["relation"])  # an unknown task is rejected below
        vary = {name: values for name, values in known.items() if model in (takers(name) or [model])}
    if sampler not in SAMPLERS:
        raise InputError(f"sampler: expected one of {', '.join(SAMPLERS)}, got {sampler!r}")
    if trials is not None and (type(trials) is not int or trials < 1):
        raise InputError(f"trials: expected an integer of at least 1, got {trials!r}")
    check_space(vary, sampler, settings)
    out = out.expanduser()
    check_no_file(out, "a folder")
    if RunFolder.is_at(out):
        raise InputError(f"{out}: expected a folder for a search, got a run: use another folder")
    own_data = data is not None and not isinstance(data, str | Path)
    settings, graph = _with_dataset(data, settings, out)
    for point in itertools.islice(points(vary), 1):
        resolve({**settings, **point}, len(graph.train))
    console = Console(quiet=bool(settings.get("quiet")))
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out), quiet(optuna):
        study = open_study(optuna, out, sampler, prune, mixed_seed(settings.get("seed", 0)))
        asked: dict[str, Any] = {"settings": counting(settings, out), "vary": saved_space(vary)}
        asked = json.loads(json.dumps({**asked, "sampler": sampler, "data": graph.fingerprint}))
        check_asked(study, out, asked)
        kept = not own_data or _keeps(graph, out / "data")
        if not (kept or "asked" in study.user_attrs) and any((out / "data").glob("*")):
            raise InputError(f"{out / 'data'}: expected data of the search, got other files: change --out")
        study.set_user_attr("asked", asked)
        if not kept:
            write_folder(graph, out / "data")
        take_up(optuna, study)
        total = enqueue(study, out, vary, sampler, trials)
        while sum(trial.state.name in ENDED for trial in study.get_trials(deepcopy=False)) < total:
            _trial(optuna, study, out, vary, settings, graph, interrupt, console, total)
        _conclude(study, out, settings, console)
    return study


def _with_dataset(data: Any, settings: Mapping[str, Any], out: Path) -> tuple[dict[str, Any], KnowledgeGraph]:
    """Return the data set, and settings with its place. Data from memory gets a folder in `out`."""
    settings = dict(settings)
    if data is not None and not isinstance(data, str | Path):
        options: dict[str, Any] = {n: settings.pop(n) for n in READING if n in settings}
        graph = at_hand(data, options)
        return {**settings, "dataset": str((out / "data").absolute())}, graph
    if data is not None:
        settings["dataset"] = str(data)
    config = resolve(settings)
    return settings, load_dataset(config.dataset, **config.reading())


def _keeps(graph: KnowledgeGraph, folder: Path) -> bool:
    """Whether the folder that the trials read contains the complete data set."""
    check_no_file(folder, "a folder")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            return read_folder(folder).fingerprint == graph.fingerprint
    except InputError:
        return False


def _trial(
    optuna: Any,
    study: "Study",
    out: Path,
    vary: Mapping[str, Values],
    settings: Mapping[str, Any],
    graph: KnowledgeGraph,
    interrupt: Interrupt,
    console: Console,
    total: int,
) -> None:
    """Run or resume one trial. After an error that its settings did not cause, it stays unfinished."""
    trial, began = study.ask(), time.monotonic()
    folder = out / (trial.user_attrs.get("folder") or free_name(study, out))
    trial.set_user_attr("folder", folder.name)
    point = {name: suggested(trial, name, values) for name, values in vary.items()}
    outcome = "stopped, repeat the command to resume"
    try:
        mrr = _best_mrr(optuna, trial, folder, {**settings, **point}, graph, interrupt)
        study.tell(trial, mrr)
        outcome = f"validation MRR {mrr:.4f}"
    except optuna.TrialPruned as error:
        trial.set_user_attr("cause", str(error))
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        outcome = f"ended early: {error}"
    except InputError as error:
        if folder.exists():
            raise InputError(f"{error}: remove {folder} and repeat the command to train it anew") from error
        raise
    finally:
        took = f"{time.monotonic() - began:.0f} s"
        console.print(f"{folder.name} of {total}: {outcome}, {took}: {in_words(point)}", soft_wrap=True)


def _best_mrr(
    optuna: Any,
    trial: "Trial",
    folder: Path,
    settings: Mapping[str, Any],
    graph: KnowledgeGraph,
    interrupt: Interrupt,
) -> float:
    """Return the best validation MRR of a new or resumed run in `folder`.

    Raises:
        TrialPruned: The settings are at fault, or other trials are better.
    """
    reported = set()  # after a stop, an epoch can have a record and be trained again

    def report(record: Mapping[str, Any]) -> None:
        if record["epoch"] not in reported:
            reported.add(record["epoch"])
            trial.report(record["valid"]["all"]["mrr"], record["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned(f"below the other trials in epoch {record['epoch']}")

    if folder.exists():
        for record in History.read(folder):
            report(record)
        settings = {"resume": str(folder)}
    else:
        try:
            check_settings(resolve(settings, len(graph.train)), graph)
        except InputError as error:
            raise optuna.TrialPruned(str(error)) from error
        settings = {**settings, "out": str(folder)}
    config, data, run = prepared(None, settings)
    with run:
        try:
            return train_to_end(config, data, run, Reporter(quiet=True), interrupt, [report], test=False)
        except (DivergedError, MemoryError) as error:
            if isinstance(error, MemoryError) and not too_large(trial):
                raise
            raise optuna.TrialPruned(str(error)) from error


def _conclude(study: "Study", out: Path, settings: Mapping[str, Any], console: Console) -> None:
    """Show the best trials and save the settings of the best one."""
    ended = [trial for trial in study.trials if trial.state.name in ENDED]
    best = [trial for trial in ended if trial.state.name == "COMPLETE"]
    if not best:
        last = ended[-1].user_attrs
        cause = f"{last['folder']} ended early: {last.get('cause')}"
        raise InputError(f"{out}: expected a trial with an MRR, got none: {cause}: try other values")
    best.sort(key=lambda trial: -trial.value)  # type: ignore[operator]
    table = Table()
    table.add_names("trial")
    table.add_figures("validation MRR")
    table.add_names("settings")
    for trial in best[:10]:
        table.add_row(trial.user_attrs["folder"], f"{trial.value:.4f}", in_words(trial.params))
    console.print_table(f"the best of {counted(len(ended), 'trial')}", table)
    chosen = {**settings, **best[0].params}
    saved, anchored = {field.name for field, flag, _ in fields() if flag.saved}, resolve(chosen).anchored()
    found = {name: value for name, value in chosen.items() if name in saved}
    found |= {name: getattr(anchored, name) for name in ("dataset", "data_dir") if name in found}
    replace_text(out / BEST, json.dumps(found, indent=2) + "\n")
    first, config = (shlex.quote(str(out / name)) for name in (best[0].user_attrs["folder"], BEST))
    score = str(found.get("score"))
    allowed = f" --score {score}" if named_by_module(score) else ""  # to run code, the user types it
    for line in (
        f"test the best: python -m lightcake_fast.train --resume {first}{allowed}",
        f"train with its settings: python -m lightcake_fast.train --config {config}{allowed}",
    ):
        console.print(cli.as_typed(line), soft_wrap=True)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the search: another process would take its running trial for an interrupted one."""
    lock = lock_folder(out, "this search")
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def make_parser() -> cli.ArgumentParser:
    """Make the command's parser."""
    parser = cli.ArgumentParser("python -m lightcake_fast.search", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s --out DIR [--vary NAME=VALUES ...] [--trials N] [flags of training]"
    own = parser.add_argument_group("search")
    own.add_argument(
        "--vary",
        nargs="+",
        action="extend",
        metavar="NAME=VALUES",
        help="settings to try, NAME=A,B,C or NAME=LOW..HIGH (default: width, layers, learning rate, l2 and "
        "dropout; for entities learning rate decay and N3 instead of l2)",
    )
    own.add_argument(
        "--trials", type=int, metavar="N", help=f"total number of trials (default: {TRIALS}, or the grid)"
    )
    own.add_argument("--sampler", choices=SAMPLERS, default="tpe", help="search method (default: tpe)")
    own.add_argument("--no-prune", action="store_true", help="no early end of bad trials (default: prune)")
    helps = dict.fromkeys(("resume", "partition"), argparse.SUPPRESS)
    helps["out"] = "folder of the search: a new one, or the folder of a stopped search to resume it"
    helps["seed"] = "seed of the sampler and of every run (default: 0)"
    parser.leave_to_help_all(add_flags(parser, helps))
    return parser


def main(argv: Sequence[str]) -> None:
    """Run or resume a search.

    Raises:
        InputError: See `search`.
        SystemExit: A signal was received: 128 + its number, after the current trial was saved.
    """
    settings = vars(make_parser().parse_args(argv))
    vary, trials, sampler = (settings.pop(name) for name in ("vary", "trials", "sampler"))
    prune = not settings.pop("no_prune")
    del settings["debug"]  # `cli.run` reads it
    if "out" not in settings:
        raise InputError("--out: expected the folder of the search, got none: add --out DIR")
    out = Path(settings.pop("out"))
    tried = None if vary is None else parse_vary(vary)
    with Interrupt() as interrupt:
        _search(None, out, tried, trials, sampler, prune, settings, interrupt)


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
