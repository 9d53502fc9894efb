"""The folder of a run: what lies in it, and the order of writes that lets a kill strike at any moment.

An epoch ends with `metrics.jsonl`, then `last.safetensors`, then (if it is the best) `best.safetensors`.
A kill in between leaves lines beyond the checkpoint, which are dropped on resume, or a best epoch whose
weights are still those of `last`, which are written again.
"""

import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from lightcake_fast.data import KnowledgeGraph, id_map, load_dataset, write_folder
from lightcake_fast.errors import InputError
from lightcake_fast.files import TEMPORARY, check_no_file, lock_folder, parse_json, replace_text
from lightcake_fast.metrics import RankMetrics
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.shard import Ids
from lightcake_fast.sharding.world import World
from lightcake_fast.training import parts
from lightcake_fast.training.config import TrainingConfig, dataset_key
from lightcake_fast.training.study import STUDY

CONFIG = "config.json"
FINGERPRINT = "dataset.sha256"
METRICS = "metrics.jsonl"
LAST = "last"
BEST = "best"
_DATA = "data-"  # and its name: a folder of data that lay in no file
RESULTS = "results.json"
_LEFTOVER = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}")  # as `replace_file` names them
RESULT_FIELDS = {
    *("dataset", "model", "task", "ties", "parameters", "epochs", "best_epoch", "valid", "test", "seconds")
}


@dataclass
class Position:
    """How far a run is.

    Attributes:
        epoch: Epochs completed.
        step: Steps done of the epoch under way.
        loss_sum: Sum of the losses of the triples of these steps.
        seconds: Time that these steps took.
        best_mrr: Best validation MRR so far; below every MRR before the first.
        best_epoch: The epoch that reached it.
        total_seconds: Time since the run began, validation included, pauses not.

    Raises:
        ValueError: A value has the wrong type or is negative.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    best_mrr: float = -1.0
    best_epoch: int = 0
    total_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            kind, least = (int, 0) if name in ("epoch", "step", "best_epoch") else (float, -1.0)
            if type(value) is not kind or value < least:
                raise ValueError(f"{name}: got {value!r}")

    def finished(self, config: TrainingConfig) -> bool:
        """Whether all epochs are done, or patience is at its end."""
        return bool(self.limits(config))

    def limits(self, config: TrainingConfig) -> list[str]:
        """Which of "epochs" and "patience" are at their end."""
        done = {"epochs": self.epoch, "patience": self.epoch - self.best_epoch}
        return [name for name, number in done.items() if number >= getattr(config, name)]


class RunFolder:
    """An open run folder; no other process can open it meanwhile. Use it as a context manager.

    Attributes:
        path: The folder.
        config: The configuration saved in it.
        kept: Whether it stays when the training ends, so that its place is worth showing.
        world: The processes at work on it, of which the first alone writes all but parts of checkpoints.
    """

    def __init__(
        self, path: Path, config: TrainingConfig, kept: bool = True, world: World | None = None
    ) -> None:
        self.path = path
        self.config = config
        self.kept = kept
        self.world = world or World()
        self._lock: int | None = None

    @classmethod
    def create(
        cls, config: TrainingConfig, name: str, *, data: KnowledgeGraph | None = None, kept: bool = True
    ) -> "RunFolder":
        """Make the folder of a new run: `config.out`, else one under `runs/` named after `name` and time.

        Args:
            config: What to save in it.
            name: That of the data set.
            data: A data set that lies in no file: it gets a folder in this one, which `config` then names.
            kept: See the attribute.

        Raises:
            InputError: The folder holds a run or a search, or is a file.
        """
        path = Path(config.out).expanduser() if config.out is not None else _free_path(config, name)
        if cls.is_at(path):
            raise InputError(f"{path} holds a run: wanted a new folder (--resume {path} goes on with it)")
        if (path / STUDY).exists():
            raise InputError(f"{path} holds a search: wanted a new folder")
        check_no_file(path, "a new folder")
        inside = _DATA + _readable(name)
        if data is not None:
            config = dataclasses.replace(config, dataset=str((path / inside).absolute()))

        def fill(place: Path) -> None:
            if data is not None:
                write_folder(data, place / inside)
            replace_text(place / CONFIG, config.to_json())

        if path.is_dir():
            fill(path)
            return cls(path, config, kept)
        # the folder appears with its configuration in it: at any moment it is no run, or one that resumes
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
        _remove(staging)  # a process of the same number may have been killed here
        try:
            staging.mkdir()
            fill(staging)
            staging.rename(path)
        except InputError:
            _remove(staging)
            raise
        except OSError as error:
            _remove(staging)
            raise OSError(
                error.errno, f"cannot be made ({os.strerror(error.errno or 0)})", str(path)
            ) from error
        return cls(path, config, kept)

    @classmethod
    def create_or_open(cls, config: TrainingConfig, name: str, *, kept: bool = True) -> "RunFolder":
        """The folder of a run: that of one with the same settings, if `config.out` holds it, else a new one.

        Raises:
            InputError: It holds a run of other settings; see also `create` and `open`.
        """
        if config.out is None or not cls.is_at(Path(config.out)):
            return cls.create(config, name, kept=kept)
        run = cls.open(Path(config.out).expanduser())
        for setting in (*config.fixed(), "epochs", "patience"):
            before, now = getattr(run.config, setting), getattr(config, setting)
            more = setting in ("epochs", "patience")
            if now != before and not (more and now > before):
                found = f"{run.path} holds a run with {setting} {before}, got {now}"
                wanted = "as many or more" if more else "the same"
                raise InputError(f"{found}: wanted {wanted}, or another folder")
        return run

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether a folder is that of a run."""
        return (path.expanduser() / CONFIG).exists()

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an earlier run.

        Raises:
            InputError: It holds no run, or its configuration is damaged.
        """
        file = path / CONFIG
        if not file.is_file():
            raise InputError(f"{path} holds no run: there is no {CONFIG} in it")
        try:
            return cls(path, TrainingConfig.from_json(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise InputError(f"{file}: {error}") from error

    @classmethod
    def of_all(cls, world: World, make: Callable[[], "RunFolder"]) -> "RunFolder":
        """The folder that the first process makes or opens, for each that is at work on it."""
        made = make() if world.first else None
        if made is not None and world.ranks == 1:
            made.world = world
            return made
        told = world.from_first(None if made is None else [str(made.path), made.config.to_json(), made.kept])
        return cls(Path(told[0]), TrainingConfig.from_json(told[1]), told[2], world)

    @property
    def shown(self) -> Path | None:
        """Its place, if it is kept."""
        return self.path if self.kept else None

    def __enter__(self) -> "RunFolder":
        if not self.world.first:
            return self
        self._lock = lock_folder(self.path, "this run")
        for leftover in self.path.glob(".*" + TEMPORARY):
            if _LEFTOVER.fullmatch(leftover.name):
                _remove(leftover)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def load_dataset(self, config: TrainingConfig) -> KnowledgeGraph:
        """The run's data set, from where `config` says that it lies now.

        Raises:
            InputError: It is not there, or its files are wrong.
        """
        if config.dataset != self.config.dataset or dataset_key(config.dataset) is not None:
            places = [Path(config.dataset)]
        else:
            places = [place for place in self._places(Path(config.dataset)) if place.exists()]
        if not places:
            raise InputError(
                f"{self.path}: its data set was {config.dataset}, which is not there now: "
                "wanted its new place, with --dataset"
            )
        for place in places:
            data = load_dataset(str(place), **config.reading())
            if self.is_of(self.path, data):
                break
        if data.name.startswith(_DATA) and place.parent.resolve() == self.path.expanduser().resolve():
            return dataclasses.replace(data, name=data.name.removeprefix(_DATA))
        return data

    def _places(self, known: Path) -> Iterator[Path]:
        """Where the run's data set may lie: data at hand lie in the run's own folder, or its search's."""
        yield known
        path = self.path.expanduser().absolute()
        yield path / known.name
        if (path.parent / STUDY).exists():
            yield path.parent / known.name

    @staticmethod
    def is_of(path: Path, data: KnowledgeGraph | ShardData) -> bool:
        """Whether the run in a folder began on a data set, or on none yet."""
        file = path / FINGERPRINT
        return not file.exists() or file.read_bytes().strip() == data.fingerprint.encode()

    def update(self, config: TrainingConfig) -> None:
        """Save the configuration of a run that goes on with other flags."""
        if config.saved() != self.config.saved():
            self._write(CONFIG, config.to_json())
        self.config = config

    def claim(self, data: KnowledgeGraph | ShardData) -> None:
        """Note whose run this is, before anything is saved: a run goes on with its own data set alone.

        Raises:
            InputError: It is that of another data set.
        """
        if not self.world.first:
            return
        file = self.path / FINGERPRINT
        if not file.exists():
            replace_text(file, data.fingerprint + "\n")
        elif not self.is_of(self.path, data):
            raise InputError(f"{file}: the run began on another data set than {data.name}: wanted that one")

    def write_id_maps(self, data: KnowledgeGraph | ShardData) -> None:
        """Write the names of entities and relations as `id<TAB>name` lines."""
        if self.world.first:
            self._write("entities.tsv", id_map(data.entities))
            self._write("relations.tsv", id_map(data.relations))

    def read_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """The records of the first `epochs` epochs; lines after them are dropped from the file too.

        Raises:
            InputError: A line of these epochs is missing or damaged.
        """
        file = self.path / METRICS
        lines: list[str] = []
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
            records = [parse_json(line) for line in lines[:epochs]]
            complete = [record["epoch"] for record in records] == list(range(1, epochs + 1)) and all(
                "all" in record["valid"] for record in records
            )
        except (ValueError, TypeError, KeyError):
            complete = False
        if not complete:
            raise InputError(f"{file}: wanted one line for each of the epochs 1 to {epochs}")
        if len(lines) > epochs:
            self.write_metrics(records)
        return records

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write one JSON line an epoch."""
        self._write(METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def save_last(
        self, tensors: Mapping[str, Tensor], position: Position, fingerprint: str, **notes: Any
    ) -> None:
        """Save everything that going on needs."""
        notes["position"] = dataclasses.asdict(position)
        self._save(LAST, tensors, f"{position.epoch}-{position.step}", fingerprint, notes)

    def load_last(
        self, fingerprint: str, rows: Ids | None = None
    ) -> tuple[dict[str, Tensor], Position, dict[str, Any]] | None:
        """What `save_last` saved; None before the first time.

        Args:
            fingerprint: That of the data set.
            rows: The entities whose rows are wanted; None for all.

        Raises:
            InputError: It is gone, though there was one; see also `load_checkpoint`.
        """
        if not parts.exists(self.path, LAST):
            if parts.exists(self.path, BEST):
                raise InputError(
                    f"{self.path}: its {LAST}.safetensors is gone, without which a run cannot go on; "
                    f"{BEST}.safetensors predicts and ranks as before"
                )
            return None
        tensors, notes = parts.load(self.path, LAST, config=self.config, fingerprint=fingerprint, rows=rows)
        try:
            return tensors, Position(**notes["position"]), notes
        except (KeyError, TypeError, ValueError) as error:
            file = self.path / f"{LAST}.safetensors"
            raise InputError(f"{file}: damaged: it does not say where the run stands") from error

    def save_best(self, weights: Mapping[str, Tensor], position: Position, fingerprint: str) -> None:
        """Save the weights of the best epoch so far, under the model's own names."""
        notes = {"epoch": position.best_epoch, "valid_mrr": position.best_mrr}
        self._save(BEST, weights, str(position.best_epoch), fingerprint, notes)

    def load_best(self, epoch: int, fingerprint: str, rows: Ids | None = None) -> dict[str, Tensor]:
        """The weights of the best epoch; `rows` as in `load_last`.

        Raises:
            InputError: They are not those of `epoch`; see also `load_checkpoint`.
        """
        weights, notes = parts.load(self.path, BEST, config=self.config, fingerprint=fingerprint, rows=rows)
        if notes.get("epoch") != epoch:
            raise InputError(
                f"{self.path / BEST}.safetensors: got the weights of epoch {notes.get('epoch')}, "
                f"wanted {epoch}"
            )
        return weights

    def load_weights(self, fingerprint: str) -> dict[str, Tensor]:
        """The weights of the best epoch so far, whichever it is.

        Raises:
            InputError: No epoch has ended yet; see also `load_checkpoint`.
        """
        if not parts.exists(self.path, BEST):
            raise InputError(f"{self.path} holds no weights yet: wanted a run with an epoch behind it")
        return parts.load(self.path, BEST, config=self.config, fingerprint=fingerprint)[0]

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the final figures: with them the run is finished."""
        self._write(RESULTS, json.dumps(results, indent=2) + "\n")

    def read_results(self) -> dict[str, Any] | None:
        """The final figures; None while the run is not finished.

        Raises:
            InputError: The file is damaged.
        """
        file = self.path / RESULTS
        if not file.exists():
            return None
        try:
            results = parse_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{file}: damaged: {error}") from error
        if not isinstance(results, dict):
            raise InputError(f"{file}: damaged: got a JSON {type(results).__name__}, wanted an object")
        try:
            for part in ("all", "seen"):
                RankMetrics(**results["test"][part])
            missing = RESULT_FIELDS - results.keys()
        except (KeyError, TypeError) as error:
            raise InputError(f"{file}: damaged: it lacks test metrics") from error
        if missing:
            raise InputError(f"{file}: damaged: it lacks {', '.join(sorted(missing))}")
        return results

    def drop_results(self) -> None:
        """Forget the final figures: a finished run goes on with more epochs."""
        if self.world.first:
            (self.path / RESULTS).unlink(missing_ok=True)

    def _write(self, file: str, text: str) -> None:
        if self.world.first:
            replace_text(self.path / file, text)

    def _save(
        self,
        stem: str,
        tensors: Mapping[str, Tensor],
        tag: str,
        fingerprint: str,
        notes: Mapping[str, Any],
    ) -> None:
        """Save tensors in one file, or those of a rank as its part."""
        more: dict[str, Any] = {"config": self.config, "fingerprint": fingerprint, "notes": notes}
        if parts.ROWS in tensors:
            parts.save_part(self.path, stem, tensors, tag, self.world, **more)
        else:
            parts.save_whole(self.path, stem, tensors, **more)


def _remove(leftover: Path) -> None:
    """Remove what a killed process left, if it is there; of a link the link alone."""
    if leftover.is_dir() and not leftover.is_symlink():
        shutil.rmtree(leftover)
    else:
        leftover.unlink(missing_ok=True)


def _readable(name: str) -> str:
    """A name as a part of a file's."""
    return re.sub(r"[^\w.-]+", "-", name)


def _free_path(config: TrainingConfig, name: str) -> Path:
    """A folder under `runs/` that is not there yet."""
    stem = f"{_readable(f'{name}-{config.title}')}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in count(1))
    return next(path for path in candidates if not path.exists())
