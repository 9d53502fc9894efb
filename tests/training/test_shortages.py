"""A full or read-only disk and lack of memory give one line, and no data is lost."""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightcake_fast import cli
from lightcake_fast.errors import memory_wanted
from lightcake_fast.files import replace_text
from lightcake_fast.train import main as train
from lightcake_fast.training.loop import Trainer
from tests.support.training_runs import EPOCHS, TINY, assert_equal_runs, resume, run


@contextmanager
def failing_writes(code: int, after: int) -> Iterator[list[str]]:
    """Let every write after the first ones fail with an error number. The yielded list collects the files."""
    fsync, written = os.fsync, list[str]()

    def full(file: int) -> None:
        written.append(Path(f"/proc/self/fd/{file}").readlink().name)
        if len(written) > after:
            raise OSError(code, os.strerror(code))
        fsync(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield written


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("number", "exit_code", "reason"),
    [
        (errno.ENOSPC, 1, "No space left on device"),
        (errno.EDQUOT, 1, "Disk quota exceeded"),
        (errno.EIO, 1, "Input/output error"),
        (errno.EACCES, 2, "Permission denied"),
        (errno.EROFS, 2, "Read-only file system"),
    ],
)
def test_disk_error_while_saving(
    unbroken: Path,
    tmp_path: Path,
    number: int,
    exit_code: int,
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path / "run", "--epochs", "1") == 0
    before = files(tmp_path / "run")
    capfd.readouterr()
    # already written: configuration with more epochs, best weights, metrics; not yet the checkpoint
    with failing_writes(number, after=3) as written:
        assert cli.run(train, ["--resume", str(tmp_path / "run"), "--quiet", *EPOCHS]) == exit_code
    assert written[-1] == "last.safetensors"
    assert capfd.readouterr().err == (
        f"error: {tmp_path}/run/last.safetensors: cannot be written ({reason}); it is left as it was\n"
    )
    after = files(tmp_path / "run")
    assert after.keys() == before.keys() - {"results.json"}
    assert all(after[f"{name}.safetensors"] == before[f"{name}.safetensors"] for name in ("last", "best"))
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_disk_error_at_every_write(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for after in range(100):
        folder = tmp_path / str(after)
        with failing_writes(errno.ENOSPC, after) as written:
            code = cli.run(train, [*TINY, "--epochs", "1", "--out", str(folder)])
        if code == 0:
            break
        assert code == 1
        assert capfd.readouterr().err.count("\n") == 1
        assert not list(tmp_path.rglob("*.tmp"))
        assert folder.exists() == (after > 0)
        assert written[-1] not in files(folder) or written.count(written[-1]) > 1
    assert after > 5


def test_file_size_limit_while_saving(tmp_path: Path) -> None:
    """With a limit on file sizes, the error occurs inside safetensors, which is not Python code."""
    command = [sys.executable, "-m", "lightcake_fast.train", *TINY, "--dim", "200", "--epochs", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = (
        f"error: {tmp_path}/run/last.safetensors: cannot be written (File too large); it is left as it was\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", wanted)
    assert "last.safetensors" not in files(tmp_path / "run")
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_save_succeeds_without_a_free_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    replace_text(tmp_path / "file", "new")
    assert files(tmp_path) == {"file": b"new"}
    with failing_writes(errno.ENOSPC, after=0), pytest.raises(OSError, match="No space left"):
        replace_text(tmp_path / "file", "newer")
    assert files(tmp_path) == {"file": b"new"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_run_folder_that_cannot_be_made(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *arguments: Any, **keywords: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert cli.run(train, [*TINY, "--out", str(tmp_path / "run")]) == 2
    printed = capfd.readouterr().err
    assert printed == f"error: {tmp_path}: {os.strerror(number)}\n"
    assert not list(tmp_path.iterdir())


def test_links_in_run_folder_do_not_redirect_writes(unbroken: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    assert run(tmp_path / "run", "--epochs", "1") == 0
    for name in ("config.json", "metrics.jsonl", "best.safetensors", "last.safetensors"):
        (tmp_path / "run" / name).rename(outside / name)
        (tmp_path / "run" / name).symlink_to(outside / name)
    (tmp_path / "run" / ".x.abcd_123.tmp").symlink_to(outside)
    (tmp_path / "run" / ".last.safetensors.abcd_123.tmp").symlink_to(outside / "file")
    before = files(outside)
    assert resume(tmp_path / "run", *EPOCHS) == 0
    assert files(outside) == before
    assert_equal_runs(tmp_path / "run", unbroken)


def test_leftovers_of_killed_process_are_removed(unbroken: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--epochs", "1") == 0
    left = tmp_path / "run" / ".last.safetensors.abcd_123.tmp"
    left.mkdir()
    (left / "last.safetensors").write_bytes(b"half")
    assert resume(tmp_path / "run", *EPOCHS) == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_user_files_in_run_folder_are_kept(tmp_path: Path) -> None:
    kept = [tmp_path / "run" / name for name in ("mine.tmp", ".mine.tmp", ".old.tmp/notes", "deep.tmp/x")]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    assert run(tmp_path / "run", "--epochs", "1") == 0
    assert resume(tmp_path / "run", *EPOCHS) == 0
    assert [file.read_text() for file in kept] == ["mine"] * 4


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with failing_writes(errno.ENOSPC, after=0), pytest.raises(OSError, match="No space left") as caught:
        replace_text(tmp_path / "x", "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_out_of_memory_names_size_and_flags(tmp_path: Path) -> None:
    limit = 16 * 2**30
    flags = [*TINY, "--dim", "200000000", "--layers", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "lightcake_fast.train", *flags],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: out of memory: needed ")
    assert " GiB at once; the embeddings with gradients and Adam's averages take " in done.stderr
    assert done.stderr.endswith("reduce --dim (200000000), --layers (1), --batch-size (64)\n")


CUDA = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(CUDA), MemoryError(), RuntimeError("CUDA error: out of memory")]
)
def test_out_of_memory_during_training(
    unbroken: Path, tmp_path: Path, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(trainer: Trainer) -> None:
        raise error

    assert run(tmp_path / "run", "--epochs", "1") == 0
    arguments = ["--resume", str(tmp_path / "run"), "--quiet", *EPOCHS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_train_epoch", fail)
        capfd.readouterr()
        assert cli.run(train, arguments) == 1
        printed = capfd.readouterr().err
        assert printed.startswith("error: out of memory: needed ")
        assert printed.endswith("reduce --dim (6), --layers (1), --batch-size (64)\n")
        assert printed.count("\n") == 1
        assert cli.run(train, [*arguments, "--debug"]) == 1
        assert "Traceback" in capfd.readouterr().err
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


@pytest.mark.parametrize(
    ("allocate", "wanted"),
    [
        (lambda: torch.empty(2**45), "needed 131072.00 GiB at once"),
        (lambda: np.empty(2**45, np.float32), "needed 128. TiB at once"),
        (lambda: bytearray(2**47), "needed more memory than is available"),
    ],
    ids=["torch", "numpy", "python"],
)
def test_allocator_errors_are_recognized(allocate: Callable[[], object], wanted: str) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert memory_wanted(caught.value) == wanted


def test_other_errors_are_not_out_of_memory() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory")):
        assert memory_wanted(error) is None
