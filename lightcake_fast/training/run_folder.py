"""Run folder: its files, and an order of writes that survives a kill at any moment.

At the end of an epoch, `metrics.jsonl` is written, then `last.safetensors`, then `best.safetensors` if the
epoch is the best. After a kill between these writes, a resume drops the lines that are newer than the
checkpoint. If `last` is the best epoch, the resume writes `best` again.
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
_DATA = "data-"  # prefix, before the name of the data set: a folder with data that came from memory
RESULTS = "results.json"
_LEFTOVER = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(TEMPORARY)}")  # names of `replace_file`
RESULT_FIELDS = {
    *("dataset", "model", "task", "ties", "parameters", "epochs", "best_epoch", "valid", "test", "seconds")
}


@dataclass
class Position:
    """Progress of a run.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished steps of the current epoch.
        loss_sum: Sum of the losses of the triples of these steps.
        seconds: Duration of these steps.
        best_mrr: Best validation MRR so far. Before the first epoch, a value below every MRR.
        best_epoch: Epoch with the best validation MRR.
        total_seconds: Duration of the run with validation, without pauses.

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
                raise ValueError(f"{name}: expected {kind.__name__} >= {least}, got {value!r}")

    def finished(self, config: TrainingConfig) -> bool:
        """Whether all epochs are done, or the patience is exhausted."""
        return bool(self.limits(config))

    def limits(self, config: TrainingConfig) -> list[str]:
        """Return which of "epochs" and "patience" are exhausted."""
        done = {"epochs": self.epoch, "patience": self.epoch - self.best_epoch}
        return [name for name, number in done.items() if number >= getattr(config, name)]


class RunFolder:
    """An open run folder, locked for other processes. Use it as a context manager.

    Attributes:
        path: The folder.
        config: Its saved configuration.
        kept: Whether the folder remains after the training. Only then its path is shown.
        world: The processes of the run. The first process writes everything except parts of checkpoints.
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
        """Make the folder of a new run at `config.out`, or under `runs/` with `name` and time.

        Args:
            config: Configuration to save.
            name: Name of the data set.
            data: Data set from memory. It is saved in the run folder, and `config` then points to it.
            kept: See the attribute.

        Raises:
            InputError: The folder holds a run or a search, or is a file.
        """
        path = Path(config.out).expanduser() if config.out is not None else _free_path(config, name)
        if cls.is_at(path):
            raise InputError(f"{path}: expected a new folder, got a run: use another, or --resume {path}")
        if (path / STUDY).exists():
            raise InputError(f"{path}: expected a new folder, got a search: use another folder")
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
        # the folder appears together with its configuration: at any moment it is no run or a resumable run
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
        _remove(staging)  # left by a killed process with the same number
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
                error.errno, f"cannot make this folder ({os.strerror(error.errno or 0)})", str(path)
            ) from error
        return cls(path, config, kept)

    @classmethod
    def create_or_open(cls, config: TrainingConfig, name: str, *, kept: bool = True) -> "RunFolder":
        """Open the run at `config.out` if it has the same settings, or make a new folder.

        Raises:
            InputError: The folder holds a run with other settings. See also `create` and `open`.
        """
        if config.out is None or not cls.is_at(Path(config.out)):
            return cls.create(config, name, kept=kept)
        run = cls.open(Path(config.out).expanduser())
        for setting in (*config.fixed(), "epochs", "patience"):
            before, now = getattr(run.config, setting), getattr(config, setting)
            more = setting in ("epochs", "patience")
            if now != before and not (more and now > before):
                found = f"{run.path}: expected {setting}"
                wanted = f"at least {before}" if more else f"{before}"
                raise InputError(f"{found} {wanted} of its run, got {now}: use this value or another folder")
        return run

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether the folder contains a run."""
        return (path.expanduser() / CONFIG).exists()

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an earlier run.

        Raises:
            InputError: The folder holds no run, or its configuration is damaged.
        """
        file = path / CONFIG
        if not file.is_file():
            raise InputError(f"{path}: expected a run folder, got no {CONFIG} in it")
        try:
            return cls(path, TrainingConfig.from_json(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise InputError(f"{file}: {error}") from error

    @classmethod
    def of_all(cls, world: World, make: Callable[[], "RunFolder"]) -> "RunFolder":
        """Make or open the folder in the first process, and share it with all processes."""
        made = make() if world.first else None
        if made is not None and world.ranks == 1:
            made.world = world
            return made
        told = world.from_first(None if made is None else [str(made.path), made.config.to_json(), made.kept])
        return cls(Path(told[0]), TrainingConfig.from_json(told[1]), told[2], world)

    @property
    def shown(self) -> Path | None:
        """The folder if it is kept, else None."""
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
        """Load the run's data set from the place in `config`.

        Raises:
            InputError: The data set is missing, or its files are wrong.
        """
        if config.dataset != self.config.dataset or dataset_key(config.dataset) is not None:
            places = [Path(config.dataset)]
        else:
            places = [place for place in self._places(Path(config.dataset)) if place.exists()]
        if not places:
            raise InputError(
                f"{self.path}: expected the run's data set at {config.dataset}, got nothing there: "
                "give its new place with --dataset"
            )
        for place in places:
            data = load_dataset(str(place), **config.reading())
            if self.is_of(self.path, data):
                break
        if data.name.startswith(_DATA) and place.parent.resolve() == self.path.expanduser().resolve():
            return dataclasses.replace(data, name=data.name.removeprefix(_DATA))
        return data

    def _places(self, known: Path) -> Iterator[Path]:
        """Yield possible places of the data set. Data from memory lies in the folder of the run or search."""
        yield known
        path = self.path.expanduser().absolute()
        yield path / known.name
        if (path.parent / STUDY).exists():
            yield path.parent / known.name

    @staticmethod
    def is_of(path: Path, data: KnowledgeGraph | ShardData) -> bool:
        """Whether the run in a folder uses this data set, or has not started yet."""
        file = path / FINGERPRINT
        return not file.exists() or file.read_bytes().strip() == data.fingerprint.encode()

    def update(self, config: TrainingConfig) -> None:
        """Save the configuration of a run that resumes with other flags."""
        if config.saved() != self.config.saved():
            self._write(CONFIG, config.to_json())
        self.config = config

    def claim(self, data: KnowledgeGraph | ShardData) -> None:
        """Save the fingerprint of the data set first. A run resumes only with the same data set.

        Raises:
            InputError: The run started with another data set.
        """
        if not self.world.first:
            return
        file = self.path / FINGERPRINT
        if not file.exists():
            replace_text(file, data.fingerprint + "\n")
        elif not self.is_of(self.path, data):
            raise InputError(f"{file}: expected the run's own data set, got another one, {data.name}")

    def write_id_maps(self, data: KnowledgeGraph | ShardData) -> None:
        """Write the names of entities and relations as `id<TAB>name` lines."""
        if self.world.first:
            self._write("entities.tsv", id_map(data.entities))
            self._write("relations.tsv", id_map(data.relations))

    def read_metrics(self, epochs: int) -> list[dict[str, Any]]:
        """Read the records of the first `epochs` epochs. Later lines are removed from the file.

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
            raise InputError(f"{file}: expected one line per epoch from 1 to {epochs}, got other lines")
        if len(lines) > epochs:
            self.write_metrics(records)
        return records

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write one JSON line per epoch."""
        self._write(METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def save_last(
        self, tensors: Mapping[str, Tensor], position: Position, fingerprint: str, **notes: Any
    ) -> None:
        """Save the state that a resume needs."""
        notes["position"] = dataclasses.asdict(position)
        self._save(LAST, tensors, f"{position.epoch}-{position.step}", fingerprint, notes)

    def load_last(
        self, fingerprint: str, rows: Ids | None = None
    ) -> tuple[dict[str, Tensor], Position, dict[str, Any]] | None:
        """Load the state that `save_last` saved. Return None if nothing was saved yet.

        Args:
            fingerprint: Fingerprint of the data set.
            rows: Entities to load. None loads all.

        Raises:
            InputError: The last checkpoint is missing, but the best checkpoint exists. See also
                `load_checkpoint`.
        """
        if not parts.exists(self.path, LAST):
            if parts.exists(self.path, BEST):
                raise InputError(
                    f"{self.path}: expected {LAST}.safetensors to resume the run, got no such file; "
                    f"predictions need only {BEST}.safetensors"
                )
            return None
        tensors, notes = parts.load(self.path, LAST, config=self.config, fingerprint=fingerprint, rows=rows)
        try:
            return tensors, Position(**notes["position"]), notes
        except (KeyError, TypeError, ValueError) as error:
            file = self.path / f"{LAST}.safetensors"
            raise InputError(f"{file}: expected the position of the run, got a damaged file") from error

    def save_best(self, weights: Mapping[str, Tensor], position: Position, fingerprint: str) -> None:
        """Save the weights of the best epoch so far, under the names in the model."""
        notes = {"epoch": position.best_epoch, "valid_mrr": position.best_mrr}
        self._save(BEST, weights, str(position.best_epoch), fingerprint, notes)

    def load_best(self, epoch: int, fingerprint: str, rows: Ids | None = None) -> dict[str, Tensor]:
        """Load the weights of the best epoch. `rows` is as in `load_last`.

        Raises:
            InputError: The weights belong to another epoch than `epoch`. See also `load_checkpoint`.
        """
        weights, notes = parts.load(self.path, BEST, config=self.config, fingerprint=fingerprint, rows=rows)
        if notes.get("epoch") != epoch:
            raise InputError(
                f"{self.path / BEST}.safetensors: expected the weights of epoch {epoch}, "
                f"got epoch {notes.get('epoch')}"
            )
        return weights

    def load_weights(self, fingerprint: str) -> dict[str, Tensor]:
        """Load the weights of the best epoch so far.

        Raises:
            InputError: No epoch has ended yet. See also `load_checkpoint`.
        """
        if not parts.exists(self.path, BEST):
            raise InputError(f"{self.path}: expected weights of a finished epoch, got none: resume the run")
        return parts.load(self.path, BEST, config=self.config, fingerprint=fingerprint)[0]

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the final results. They mark the run as finished."""
        self._write(RESULTS, json.dumps(results, indent=2) + "\n")

    def read_results(self) -> dict[str, Any] | None:
        """Read the final results. None for an unfinished run.

        Raises:
            InputError: The file is damaged.
        """
        file = self.path / RESULTS
        if not file.exists():
            return None
        try:
            results = parse_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{file}: expected JSON, got a damaged file: {error}") from error
        if not isinstance(results, dict):
            raise InputError(f"{file}: expected a JSON object, got a JSON {type(results).__name__}")
        try:
            for part in ("all", "seen"):
                RankMetrics(**results["test"][part])
            missing = RESULT_FIELDS - results.keys()
        except (KeyError, TypeError) as error:
            raise InputError(f"{file}: expected test metrics, got a damaged file") from error
        if missing:
            raise InputError(f"{file}: expected all results, got none for {', '.join(sorted(missing))}")
        return results

    def drop_results(self) -> None:
        """Delete the final results, because a finished run continues with more epochs."""
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
        """Save tensors in one file, or a rank's tensors as its part."""
        more: dict[str, Any] = {"config": self.config, "fingerprint": fingerprint, "notes": notes}
        if parts.ROWS in tensors:
            parts.save_part(self.path, stem, tensors, tag, self.world, **more)
        else:
            parts.save_whole(self.path, stem, tensors, **more)


def _remove(leftover: Path) -> None:
    """Remove the leftover of a killed process if it exists. For a link, remove only the link."""
    if leftover.is_dir() and not leftover.is_symlink():
        shutil.rmtree(leftover)
    else:
        leftover.unlink(missing_ok=True)


def _readable(name: str) -> str:
    """Turn a name into a part of a file name."""
    return re.sub(r"[^\w.-]+", "-", name)


def _free_path(config: TrainingConfig, name: str) -> Path:
    """Return a new folder under `runs/`."""
    stem = f"{_readable(f'{name}-{config.title}')}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in count(1))
    return next(path for path in candidates if not path.exists())
