"""Train the runs of a reproduction, each in a separate process and only once."""

import hashlib
import itertools
import json
import multiprocessing
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast import cli
from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.process import prepare_process
from lightcake_fast.train import main as train
from lightcake_fast.training.config import TrainingConfig, fields
from lightcake_fast.training.run_folder import RunFolder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext

PEAK = "peak_memory.json"


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        folder: The run folder.
        results: The content of its `results.json`.
        peak_bytes: Largest resident memory of its process; None if the system does not report it.
        data_dir: Folder of its data set, if given; None for the folder that the run used.
        history: After each epoch, the seconds of training so far (without validation) and the validation MRR.
    """

    folder: Path
    results: dict[str, Any]
    peak_bytes: int | None
    history: tuple[tuple[float, float], ...] = ()
    data_dir: str | None = None


def folder_of(config: TrainingConfig, runs: Path) -> Path:
    """Return the run folder of a configuration.

    Equal settings give the same folder, so targets share runs.
    """
    readable = re.sub(r"[^\w.-]+", "-", Path(config.dataset).name)
    return runs / f"{readable}-{config.title}-seed{config.seed}-{digest(config)}"


def finished_runs(places: Iterable[Path]) -> dict[str, Path]:
    """Find the finished runs among folders and their subfolders, by `digest`.

    Other folders are skipped.
    """
    found: dict[str, Path] = {}
    for place in places:
        for folder in (place, *sorted(place.glob("*/"))):
            if (folder / "results.json").is_file() and (folder / "config.json").is_file():
                with suppress(InputError, UnicodeDecodeError):
                    config = TrainingConfig.from_json((folder / "config.json").read_text(encoding="utf-8"))
                    found.setdefault(digest(config), folder)
    return found


def check_data(folder: Path, data: KnowledgeGraph) -> None:
    """Check that a finished run used these data. The files can have changed since then.

    Raises:
        InputError: The run used other data.
    """
    if not RunFolder.is_of(folder, data):
        raise InputError(
            f"{folder}: expected a run on the current data of {data.name}, got other data: "
            "remove the folder or choose another --out"
        )


def digest(config: TrainingConfig) -> str:
    """Compute a digest that is equal for configurations that train the same way.

    New settings with default values do not change it.
    """
    usual = {field.name: field.default for field, _, _ in fields()}
    settings = {
        name: value
        for name, value in config.saved().items()
        if name not in ("preset", "data_dir") and value != usual[name]
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]


def run(settings: Mapping[str, Any], folder: Path) -> Outcome:
    """Train a run to its end, unless it is already finished, and read its results.

    Args:
        settings: Values by field of `TrainingConfig`; the preset sets the others.
        folder: Its folder. A stopped run resumes from there.

    Raises:
        InputError: The training failed; its message was printed before.
        SystemExit: The training was interrupted, and is saved.
    """
    if not (folder / "results.json").is_file():
        new = [*flags(settings), "--out", str(folder)]
        code, peak = call(["--resume", str(folder)] if folder.is_dir() else new)
        if code in (130, 143):
            raise SystemExit(code)
        if code:
            raise InputError(f"{folder}: the training failed, with exit code {code}")
        (folder / PEAK).write_text(json.dumps(peak))
    return replace(read(folder), data_dir=settings.get("data_dir"))


def read(folder: Path) -> Outcome:
    """Read a finished run.

    Raises:
        InputError: A file is missing or damaged.
    """
    try:
        results = json.loads((folder / "results.json").read_text())
        epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        seconds = itertools.accumulate(epoch["seconds"] for epoch in epochs)
        mrr = [epoch["valid"]["all"]["mrr"] for epoch in epochs]
        peak = json.loads((folder / PEAK).read_text()) if (folder / PEAK).is_file() else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: expected a finished run, got missing or damaged files: {error}"
        ) from error
    return Outcome(folder, results, peak, tuple(zip(seconds, mrr, strict=True)))


def flags(settings: Mapping[str, Any]) -> Iterator[str]:
    """Give the flags of training for settings."""
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        else:
            yield from (flag, str(value))


def call(arguments: Sequence[str]) -> tuple[int, int | None]:
    """Train in a separate process that prints to the same terminal. Return (exit code, peak memory in bytes).

    If the system has a fork server, it imports PyTorch once for all runs. Its processes have not computed
    before the fork, so no thread pool breaks.
    """
    context: ForkServerContext | SpawnContext
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["lightcake_fast.train"])
    else:
        context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(list(arguments), sender))
    process.start()
    sender.close()
    try:
        process.join()
    except BaseException:
        process.terminate()  # training saves first, even after several signals
        process.join()
        raise
    return process.exitcode or 0, receiver.recv() if receiver.poll() else None


def _train(arguments: list[str], sender: "Connection[int | None, None]") -> None:
    prepare_process()
    code = cli.run(train, arguments)
    try:
        import resource
    except ImportError:  # not on Windows
        sender.send(None)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        sender.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    sys.exit(code)
