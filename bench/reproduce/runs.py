"""Training the runs of a reproduction, each in a process of its own, each once."""

import hashlib
import itertools
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
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
    """What a finished run gave.

    Attributes:
        folder: Where it lies.
        results: The content of its `results.json`.
        peak_bytes: Largest resident memory of its process; None where the system does not tell.
        data_dir: Where its data set lies, if that was given; None for where the run had it.
        history: After each epoch the seconds of training so far, without validation, and the validation MRR.
    """

    folder: Path
    results: dict[str, Any]
    peak_bytes: int | None
    history: tuple[tuple[float, float], ...] = ()
    data_dir: str | None = None


def folder_of(config: TrainingConfig, runs: Path) -> Path:
    """The run folder of a configuration: equal for equal settings, so that targets share their runs."""
    readable = re.sub(r"[^\w.-]+", "-", Path(config.dataset).name)
    return runs / f"{readable}-{config.title}-seed{config.seed}-{_digest(config)}"


def finished_runs(places: Iterable[Path]) -> dict[str, Path]:
    """The finished runs among folders and in them, by the configuration that `finished_run` asks for.

    Folders that hold something else are passed over.
    """
    found: dict[str, Path] = {}
    for place in places:
        for folder in (place, *sorted(place.glob("*/"))):
            if (folder / "results.json").is_file() and (folder / "config.json").is_file():
                with suppress(InputError, UnicodeDecodeError):
                    config = TrainingConfig.from_json((folder / "config.json").read_text(encoding="utf-8"))
                    found.setdefault(_digest(config), folder)
    return found


def finished_run(config: TrainingConfig, found: Mapping[str, Path]) -> Path | None:
    """The folder of a finished run of a configuration among those of `finished_runs`."""
    return found.get(_digest(config))


def check_data(folder: Path, data: KnowledgeGraph) -> None:
    """See that a finished run is of these data: files may have changed since.

    Raises:
        InputError: It is of others.
    """
    if not RunFolder.is_of(folder, data):
        raise InputError(
            f"{folder}: is of other data than {data.name} holds now: wanted it away, or another --out"
        )


def _digest(config: TrainingConfig) -> str:
    """What is equal for configurations that train the same; settings to come leave it as it is."""
    usual = {field.name: field.default for field, _, _ in fields()}
    settings = {
        name: value
        for name, value in config.saved().items()
        if name not in ("preset", "data_dir") and value != usual[name]
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]


def run(settings: Mapping[str, Any], folder: Path, *, silent: bool = False) -> Outcome:
    """Train a run to its end, unless that was done before, and read what it gave.

    Args:
        settings: Values by field of `TrainingConfig`; the preset has the others.
        folder: Its folder; a run that was stopped goes on.
        silent: Print nothing but errors.

    Raises:
        InputError: The training failed: its own message stands above.
        SystemExit: It was interrupted, and is saved.
    """
    if not (folder / "results.json").is_file():
        flags = ["--resume", str(folder)] if folder.is_dir() else [*_flags(settings), "--out", str(folder)]
        code, peak = _call(flags, silent)
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
        raise InputError(f"{folder}: no finished run, or a damaged one: {error}") from error
    return Outcome(folder, results, peak, tuple(zip(seconds, mrr, strict=True)))


def _flags(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        else:
            yield from (flag, str(value))


def _call(arguments: Sequence[str], silent: bool) -> tuple[int, int | None]:
    """(exit code, peak memory in bytes) of a training in a process of its own, on this one's terminal.

    Where there is a fork server, it imports PyTorch once for all runs; its processes have computed nothing
    yet, so that no thread pool is cut in two.
    """
    context: ForkServerContext | SpawnContext
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["lightcake_fast.train"])
    else:
        context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(list(arguments), silent, sender))
    process.start()
    sender.close()
    try:
        process.join()
    except BaseException:
        process.terminate()  # training saves first, however many signals come
        process.join()
        raise
    return process.exitcode or 0, receiver.recv() if receiver.poll() else None


def _train(arguments: list[str], silent: bool, sender: "Connection[int | None, None]") -> None:
    prepare_process()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere if silent else sys.stdout):
        code = cli.run(train, arguments)
    try:
        import resource
    except ImportError:  # not on Windows
        sender.send(None)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        sender.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    sys.exit(code)
