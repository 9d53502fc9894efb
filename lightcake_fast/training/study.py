"""Optuna study of a search: its trials, their resumption after a stop, and its end."""

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
SIZES = ("dim", "layers", "batch_size")  # larger values need more memory
WEIGHTLESS = ("seed", "epochs", "patience")  # these settings, and floats, do not change the memory


def open_study(optuna: Any, out: Path, sampler: str, prune: bool, seed: int) -> "Study":
    """Open the study of a folder, or make a new one.

    Raises:
        InputError: The journal is damaged.
    """
    journal = (out / STUDY).absolute()
    _cut_to_lines(journal)
    journal.with_name(f"{STUDY}.lock").unlink(missing_ok=True)  # stale: the folder is locked
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
        study: Study = optuna.create_study(
            study_name="search", storage=storage, direction="maximize", load_if_exists=True
        )
        for trial in study.get_trials(deepcopy=False):
            complete = trial.state.name != "COMPLETE" or isinstance((trial.values or [None])[0], float)
            if trial.state.name in ENDED and not (complete and "folder" in trial.user_attrs):
                raise ValueError(f"trial {trial.number}: expected a folder and an MRR, got at most one")
    except (ValueError, TypeError, LookupError, AssertionError) as error:  # Optuna's, for damaged lines
        cause = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"{journal}: expected a journal of Optuna, got a damaged file: {cause[0]}: "
            "remove it to start the search anew"
        ) from error
    seed = mixed_seed(seed, len(study.trials))  # a resumed search must not repeat its first draws
    samplers = optuna.samplers
    study.sampler = samplers.TPESampler(seed=seed) if sampler == "tpe" else samplers.RandomSampler(seed=seed)
    pruners = optuna.pruners
    study.pruner = pruners.MedianPruner(5, 3) if prune and sampler != "grid" else pruners.NopPruner()
    return study


def _cut_to_lines(journal: Path) -> None:
    """Remove an incomplete last line, left by a full disk, because Optuna would append to it."""
    if journal.exists():
        with journal.open("rb+") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)


def check_asked(study: "Study", out: Path, asked: Mapping[str, Any]) -> None:
    """Compare a search with the earlier search in its folder, if there is one.

    Raises:
        InputError: They differ.
    """
    before = study.user_attrs.get("asked", asked)
    before = {**before, "settings": counting(before["settings"], out)}
    for name, value in asked.items():
        if before[name] != value:
            found = f"{out}: expected {name} {before[name]} of its search, got {value}"
            raise InputError(f"{found}: use the same, or another folder")


def counting(settings: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Settings that must stay the same. The place of data from memory may change with the folder.

    `header` may change if the data stays the same: older versions did not have it, and kept every first row.
    """
    own: dict[str, Any] = {"dataset": str((out / "data").absolute())}
    own |= {name: settings.get(name) for name in ("quiet", "header")}
    return {name: value for name, value in settings.items() if name not in own or value != own[name]}


def take_up(optuna: Any, study: "Study") -> None:
    """Queue the interrupted trials again, each with its folder."""
    last = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "RUNNING":
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        last[trial.user_attrs.get("folder")] = trial
    last.pop(None, None)  # interrupted before it had a folder
    for folder, trial in last.items():
        if trial.state.name in ("RUNNING", "FAIL"):
            params = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            study.enqueue_trial(params, user_attrs={"folder": folder})


def enqueue(study: "Study", out: Path, vary: Mapping[str, Values], sampler: str, trials: int | None) -> int:
    """Queue all trials of a grid. Returns the total number of trials to finish."""
    if sampler != "grid":
        return trials or TRIALS
    grid = list(points(vary))[:trials]
    for point in grid:
        study.enqueue_trial(point, user_attrs={"folder": free_name(study, out)}, skip_if_exists=True)
    return len(grid)


def free_name(study: "Study", out: Path) -> str:
    """Return the first folder name that no trial uses."""
    taken = {trial.user_attrs.get("folder") for trial in study.get_trials(deepcopy=False)}
    names = (f"trial-{number:03}" for number in itertools.count())
    return next(name for name in names if name not in taken and not (out / name).exists())


def too_large(trial: "Trial") -> bool:
    """Whether a trial may be too large for the memory: no trial of at least this size finished."""
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
    """Hide Optuna's line per trial and its warning about the new journal format."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
