"""Atomic file replacement, folder locks, and one-line errors for damaged JSON."""

import errno
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

if sys.platform != "win32":
    import fcntl

TEMPORARY = ".tmp"  # suffix of temporary folders: files are written there first, then moved


def lock_folder(path: Path, what: str) -> int | None:
    """Lock a folder against other processes until the file descriptor is closed or this process ends.

    Args:
        path: The folder.
        what: Description of its content, for the message.

    Returns:
        The file descriptor. None on Windows, which does not have this lock.

    Raises:
        InputError: Another process holds the lock.
    """
    if sys.platform == "win32":
        return None
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise InputError(
            f"{path}: expected {what} without another process, got one that works on it: wait until it ends"
        ) from error
    return lock


def check_no_file(path: Path, wanted: str) -> None:
    """Check that a folder can exist here: this path and its parents are not files.

    Args:
        path: The folder.
        wanted: Description of the folder, for the message.

    Raises:
        InputError: This path or a parent is a file.
    """
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"{place}: expected {wanted}, got a file")


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: after a crash, the complete old or the complete new file is there.

    Args:
        path: The file.
        write: Function that writes the new content to the path it gets. This path is in a temporary folder
            next to the file.

    Raises:
        OSError: The file cannot be written; the old file is unchanged. `errno` is from the original error.
        BaseException: An exception that a signal handler raised during the write, for example SystemExit.
    """
    try:
        # in a new private folder, an attacker cannot place a symbolic link that redirects the write
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            temporary = Path(folder) / path.name
            temporary.touch()
            mode = temporary.stat().st_mode

            def finish() -> None:
                write(temporary)
                temporary.chmod(mode)  # safetensors makes files that only their owner can read
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())

            _interruptibly(finish)
            temporary.replace(path)
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error}); it is left as it was"
        raise OSError(error.errno, problem, str(path)) from error


def _interruptibly(work: Callable[[], object]) -> None:
    """Run a function in a thread, so that the main thread can run signal handlers, which may end the wait."""
    if threading.current_thread() is not threading.main_thread():  # no signal handler runs in this thread
        work()
        return
    raised: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised below
            raised.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, daemon=True).start()  # a daemon, so that the program can end without it
    except RuntimeError:  # the system has no free thread, or the interpreter is shutting down
        run()
    while not done.wait(timeout=0.5):  # the timeout lets the main thread see signals to other threads
        pass
    if raised:
        raise raised[0]


def replace_text(path: Path, text: str) -> None:
    """Write UTF-8 text with `replace_file`."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def replace_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> None:
    """Write contiguous CPU tensors as a safetensors file with `replace_file`."""
    import safetensors.torch  # imported here because downloads use this module without tensors

    def write(temporary: Path) -> None:
        try:
            safetensors.torch.save_file(dict(tensors), temporary, metadata=dict(metadata))
        except safetensors.SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code) if number else str(error)) from error

    replace_file(path, write)


def parse_json(text: str) -> Any:
    """Parse JSON from a file that can be damaged or forged.

    Raises:
        InputError: The text is not JSON, or it is nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
