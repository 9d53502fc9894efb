"""Optuna's study of a search: what it asked, what it asks again after a stop, and what counts as ended."""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast.errors import InputError
from lightcake_fast.training.config import fields
from lightcake_fast.training.runtime import mixed_seed
from lightcake_fast.training.space import Values, points

if TYPE_CHECKING:
    from optuna import Study, Trial

STUDY = "study.journal"
TRIALS = 30
ENDED = ("COMPLETE", "PRUNED")
SIZES = ("dim", "layers", "batch_size")  # more of them takes more memory
WEIGHTLESS = ("seed", "epochs", "patience")  # and of these, or of any float, does not


def open_study(optuna: Any, out: Path, sampler: str, prune: bool, seed: int) -> "Study":
    """The study of the folder, new or to go on with.

    Raises:
        InputError: Its journal is damaged.
    """
    journal = (out / STUDY).absolute()
    _cut_to_lines(journal)
    journal.with_name(f"{STUDY}.lock").unlink(missing_ok=True)  # of a killed process: the folder is locked
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
        study: Study = optuna.create_study(
            study_name="search", storage=storage, direction="maximize", load_if_exists=True
        )
        for trial in study.get_trials(deepcopy=False):
            complete = trial.state.name != "COMPLETE" or isinstance((trial.values or [None])[0], float)
            if trial.state.name in ENDED and not (complete and "folder" in trial.user_attrs):
                raise ValueError(f"trial {trial.number} ended without a folder or an MRR")
    except (ValueError, TypeError, LookupError, AssertionError) as error:  # whatever its lines lead Optuna to
        cause = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"{journal}: damaged: {cause[0]} (with it removed, the search begins anew)"
        ) from error
    seed = mixed_seed(seed, len(study.trials))  # going on draws anew, and not the first draws again
    samplers = optuna.samplers
    study.sampler = samplers.TPESampler(seed=seed) if sampler == "tpe" else samplers.RandomSampler(seed=seed)
    pruners = optuna.pruners
    study.pruner = pruners.MedianPruner(5, 3) if prune and sampler != "grid" else pruners.NopPruner()
    return study


def _cut_to_lines(journal: Path) -> None:
    """Leave out the start of a line that a full disk cut short, to which Optuna would append."""
    if journal.exists():
        with journal.open("rb+") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)


def check_asked(study: "Study", out: Path, asked: Mapping[str, Any]) -> None:
    """See that what is searched is what was searched before, if anything was.

    Raises:
        InputError: It is something else.
    """
    before = study.user_attrs.get("asked", asked)
    before = {**before, "settings": counting(before["settings"], out)}
    for name, value in asked.items():
        if before[name] != value:
            found = f"{out}: holds a search with {name} {before[name]}, got {value}"
            raise InputError(f"{found}: wanted the same, or another folder")


def counting(settings: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The settings that must stay the same: not where data of the search's own lie, which may be moved."""
    own = {"dataset": str((out / "data").absolute()), "quiet": settings.get("quiet")}
    return {name: value for name, value in settings.items() if name not in own or value != own[name]}


def take_up(optuna: Any, study: "Study") -> None:
    """Ask again for the trials that a stop cut off, each in its folder."""
    last = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "RUNNING":
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        last[trial.user_attrs.get("folder")] = trial
    last.pop(None, None)  # cut off before anything was done
    for folder, trial in last.items():
        if trial.state.name in ("RUNNING", "FAIL"):
            params = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            study.enqueue_trial(params, user_attrs={"folder": folder})


def enqueue(study: "Study", out: Path, vary: Mapping[str, Values], sampler: str, trials: int | None) -> int:
    """Ask for all trials of a grid; returns how many shall end in all."""
    if sampler != "grid":
        return trials or TRIALS
    grid = list(points(vary))[:trials]
    for point in grid:
        study.enqueue_trial(point, user_attrs={"folder": free_name(study, out)}, skip_if_exists=True)
    return len(grid)


def free_name(study: "Study", out: Path) -> str:
    """The first name for a trial's folder that no trial has."""
    taken = {trial.user_attrs.get("folder") for trial in study.get_trials(deepcopy=False)}
    names = (f"trial-{number:03}" for number in itertools.count())
    return next(name for name in names if name not in taken and not (out / name).exists())


def too_large(trial: "Trial") -> bool:
    """Whether what a trial tried may be why memory ran out: none that was no smaller came to its end."""
    weightless = {*WEIGHTLESS, *(field.name for field, _, kind in fields() if kind == "float")}
    tried = {name: value for name, value in trial.params.items() if name not in weightless}

    def no_smaller(other: Mapping[str, Any]) -> bool:
        return all(
            other[name] >= value if name in SIZES else other[name] == value for name, value in tried.items()
        )

    trials = trial.study.get_trials(deepcopy=False)
    return bool(tried) and not any(t.state.name == "COMPLETE" and no_smaller(t.params) for t in trials)


@contextmanager
def quiet(optuna: Any) -> Iterator[None]:
    """Leave out Optuna's own line for each trial, and that its journal is new."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
