"""Settings searched on the validation split: `search`, or typed as `python -m lightcake_fast.search`."""

import functools
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast import cli
from lightcake_fast.data import KnowledgeGraph, load_dataset, write_folder
from lightcake_fast.errors import InputError
from lightcake_fast.files import lock_folder, replace_text
from lightcake_fast.inference.result import History
from lightcake_fast.models import takers
from lightcake_fast.process import prepare_process
from lightcake_fast.scores import import_score, named_by_module
from lightcake_fast.terminal import Console, Table
from lightcake_fast.train import prepared
from lightcake_fast.training.config import add_flags, fields
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.loop import train_to_end
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.runtime import flushed_denormals, mixed_seed
from lightcake_fast.training.space import Values, check_space, in_words, parse_vary, points, suggested

if TYPE_CHECKING:
    from optuna import Study, Trial

SAMPLERS = ("tpe", "random", "grid")
TRIALS = 30
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
    "entity": {  # wide rows, kept short by their cubes, and steps that fall
        "dim": [128, 256, 512],
        "layers": [1, 2],
        "lr": (1e-3, 2e-2),
        "lr_decay": (0.05, 0.3),
        "n3": (0.0, 0.2),
        "input_dropout": (0.0, 0.4),
    },
}
STUDY, BEST = "study.journal", "best.json"
DESCRIPTION = "Search settings by the best validation MRR of their runs; the test split is not looked at."
EPILOG = """\
examples:
  python -m lightcake_fast.search --dataset ddb14 --out search --trials 20
  python -m lightcake_fast.search --dataset ddb14 --out search --vary lr=1e-3..1e-1 layers=0..3 dim=32,64
  python -m lightcake_fast.search --dataset ddb14 --out grid --vary dim=64,128 l2=0,1e-6 --sampler grid

The other flags are those of training, the same for every trial. After a stop of any kind the same command
goes on: trials that ended are kept, the one that was under way continues. Each trial is a run folder in OUT,
which `python -m lightcake_fast.train --resume OUT/TRIAL` tests. Needs optuna:
pip install 'lightcake_fast[search]'.
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
    """Search the settings that give the best validation MRR, as the command does.

    Args:
        data: As in `lightcake_fast.train`.
        out: The folder of the search. One that was stopped goes on there with the same arguments.
        vary: What to try, by the name of the setting: a list of values, or a tuple of the lowest and the
            highest number, by magnitude where they are a factor of ten apart. None takes what `VARY` has
            for the task.
        trials: How many to end in all; None takes 30, or every combination of the grid.
        sampler: "tpe", Optuna's estimator, "random", or "grid": every combination of lists.
        prune: End a trial early whose MRR is below the median of the others at that epoch; never in a grid.
        settings: Those of `lightcake_fast.train`, the same for all trials.

    Returns:
        Optuna's study: `best_params`, `best_value`, `trials_dataframe()`. What it found lies in `best.json`
        too, for `--config`, and each trial's run folder in a folder of its own.

    Raises:
        InputError: A setting, a value to try or the data is wrong, the folder holds another search, optuna is
            missing, or no trial gave an MRR.
    """
    with flushed_denormals():
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
        raise InputError(f"search needs optuna: pip install 'lightcake_fast[search]' ({error})") from error
    if named_by_module(str(settings.get("score"))):
        import_score(settings["score"])
    if vary is None:
        model, task = settings.get("model", "lightcake"), settings.get("task", "relation")
        known = VARY.get(task, VARY["relation"])  # a task that there is not is refused below
        vary = {name: values for name, values in known.items() if model in (takers(name) or [model])}
    if sampler not in SAMPLERS:
        raise InputError(f"sampler: got {sampler!r}, wanted one of {', '.join(SAMPLERS)}")
    if trials is not None and trials < 1:
        raise InputError(f"trials: got {trials}, wanted at least 1")
    check_space(vary, sampler, settings)
    out = out.expanduser()
    settings, graph = _with_dataset(data, settings, out)
    for point in itertools.islice(points(vary), 1):
        resolve({**settings, **point}, len(graph.train))
    console = Console(quiet=bool(settings.get("quiet")))
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out), _quiet(optuna):
        study = _study(optuna, out, sampler, prune, mixed_seed(settings.get("seed", 0)))
        asked = {"settings": settings, "vary": vary, "sampler": sampler, "data": graph.fingerprint}
        _claim(study, out, json.loads(json.dumps(asked)))
        total = _enqueue(optuna, study, vary, sampler, trials)
        left = total - sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in study.trials)
        objective = functools.partial(_trial, optuna, study, out, vary, settings, interrupt, console, total)
        if left > 0:
            study.optimize(objective, n_trials=left)
        _conclude(study, out, settings, console)
    return study


def _with_dataset(data: Any, settings: Mapping[str, Any], out: Path) -> tuple[dict[str, Any], KnowledgeGraph]:
    """The settings with the data set's place, and the data set: one at hand gets a folder in `out`."""
    settings = dict(settings)
    if data is not None and not isinstance(data, str | Path):
        options = {name: settings.pop(name) for name in ("split", "strip") if name in settings}
        graph = data if isinstance(data, KnowledgeGraph) else KnowledgeGraph.from_triples(data, **options)
        if not (out / "data").exists():
            out.mkdir(parents=True, exist_ok=True)
            write_folder(graph, out / "data")
        return {**settings, "dataset": str((out / "data").absolute())}, graph
    if data is not None:
        settings["dataset"] = str(data)
    config = resolve(settings)
    return settings, load_dataset(config.dataset, config.data_dir, split=config.split, strip=config.strip)


def _study(optuna: Any, out: Path, sampler: str, prune: bool, seed: int) -> "Study":
    """The study of the folder, new or to go on with."""
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / STUDY)))
    study: Study = optuna.create_study(
        study_name="search", storage=storage, direction="maximize", load_if_exists=True
    )
    seed = mixed_seed(seed, len(study.trials))  # going on draws anew, and not the first draws again
    samplers = optuna.samplers
    study.sampler = samplers.TPESampler(seed=seed) if sampler == "tpe" else samplers.RandomSampler(seed=seed)
    pruners = optuna.pruners
    study.pruner = pruners.MedianPruner(5, 3) if prune and sampler != "grid" else pruners.NopPruner()
    return study


def _claim(study: "Study", out: Path, asked: Mapping[str, Any]) -> None:
    """Note what is searched, or see that it is what was searched before."""
    before = study.user_attrs.get("asked")
    if before is None:
        study.set_user_attr("asked", asked)
        return
    for name, value in asked.items():
        if before[name] != value:
            found = f"{out}: holds a search with {name} {before[name]}, got {value}"
            raise InputError(f"{found}: wanted the same, or another folder")


def _enqueue(
    optuna: Any, study: "Study", vary: Mapping[str, Values], sampler: str, trials: int | None
) -> int:
    """Ask for the trial that a stop cut off, and for all of a grid; returns how many there shall be."""
    for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"folder": trial.user_attrs.get("folder")})
    if sampler != "grid":
        return trials or TRIALS
    grid = list(points(vary))[:trials]
    for point in grid:
        study.enqueue_trial(point, skip_if_exists=True)
    return len(grid)


def _trial(
    optuna: Any,
    study: "Study",
    out: Path,
    vary: Mapping[str, Values],
    settings: Mapping[str, Any],
    interrupt: Interrupt,
    console: Console,
    total: int,
    trial: "Trial",
) -> float:
    """Train one trial, or go on with it; returns its best validation MRR."""
    began = time.monotonic()
    folder = out / (trial.user_attrs.get("folder") or f"trial-{trial.number:03}")
    trial.set_user_attr("folder", folder.name)
    point = {name: suggested(trial, name, values) for name, values in vary.items()}

    def report(record: Mapping[str, Any]) -> None:
        trial.report(record["valid"]["all"]["mrr"], record["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned(f"below the others in epoch {record['epoch']}")

    outcome = "stopped, the same command goes on"
    try:
        if folder.exists():
            for record in History.read(folder):
                report(record)
            explicit: dict[str, Any] = {"resume": str(folder)}
        else:
            explicit = {**settings, **point, "out": str(folder)}
        config, data, run = prepared(None, explicit)
        with run:
            mrr = train_to_end(config, data, run, Reporter(quiet=True), interrupt, [report], test=False)
        outcome = f"validation MRR {mrr:.4f}"
    except (InputError, MemoryError, optuna.TrialPruned) as error:
        outcome = f"ended early: {error}"
        raise optuna.TrialPruned(str(error)) from error
    finally:
        took = f"{time.monotonic() - began:.0f} s"
        console.print(f"{folder.name} of {total}: {outcome}, {took}: {in_words(point)}", soft_wrap=True)
    return mrr


def _conclude(study: "Study", out: Path, settings: Mapping[str, Any], console: Console) -> None:
    """Show the best trials, and write down the settings of the best."""
    ended = [trial for trial in study.trials if trial.value is not None]
    if not ended:
        raise InputError(f"{out}: no trial came to a validation MRR: wanted other values to try")
    ended.sort(key=lambda trial: -trial.value)  # type: ignore[operator]
    table = Table()
    table.add_names("trial")
    table.add_figures("validation MRR")
    table.add_names("settings")
    for trial in ended[:10]:
        table.add_row(trial.user_attrs["folder"], f"{trial.value:.4f}", in_words(trial.params))
    console.print_table(f"the best of {len(study.trials)} trials", table)
    saved = {field.name for field, flag, _ in fields() if flag.saved}
    best = {name: value for name, value in {**settings, **study.best_params}.items() if name in saved}
    replace_text(out / BEST, json.dumps(best, indent=2) + "\n")
    first = out / ended[0].user_attrs["folder"]
    for line in (
        f"test the best: python -m lightcake_fast.train --resume {first}",
        f"train with its settings: python -m lightcake_fast.train --config {out / BEST}",
    ):
        console.print(cli.as_typed(line), soft_wrap=True)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other processes off the search: what is under way here would look cut off to them."""
    lock = lock_folder(out, "this search")
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Leave out Optuna's own line for each trial, and that its journal is new."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's flags."""
    parser = cli.ArgumentParser("python -m lightcake_fast.search", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s --out DIR [--vary NAME=VALUES ...] [--trials N] [flags of training]"
    own = parser.add_argument_group("search")
    own.add_argument(
        "--vary",
        nargs="+",
        metavar="NAME=VALUES",
        help="settings to try, NAME=A,B,C or NAME=LOW..HIGH (default: width, layers, step size, l2 and "
        "dropout; for entities decay and N3 for l2)",
    )
    own.add_argument(
        "--trials", type=int, metavar="N", help=f"trials in all (default: {TRIALS}, or the grid)"
    )
    own.add_argument("--sampler", choices=SAMPLERS, default="tpe", help="what to try next (default: tpe)")
    own.add_argument("--no-prune", action="store_true", help="train hopeless trials to their end too")
    add_flags(parser)
    return parser


def main(argv: Sequence[str]) -> None:
    """Search, or go on with a search.

    Raises:
        InputError: See `search`.
        SystemExit: A signal came: 128 + its number, after the trial under way was saved.
    """
    settings = vars(make_parser().parse_args(argv))
    vary, trials, sampler = (settings.pop(name) for name in ("vary", "trials", "sampler"))
    prune = not settings.pop("no_prune")
    del settings["debug"]  # taken up by `cli.run`
    if "resume" in settings:
        raise InputError("got --resume: a search goes on when the same command is given again")
    if "out" not in settings:
        raise InputError("--out: wanted the folder of the search")
    out = Path(settings.pop("out"))
    tried = None if vary is None else parse_vary(vary)
    with Interrupt() as interrupt:
        _search(None, out, tried, trials, sampler, prune, settings, interrupt)


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
