"""Files that are written whole or not at all, and damaged JSON told in one line."""

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

TEMPORARY = (
    ".tmp"  # ends the names of folders in which files are written before they are moved to their place
)


def lock_folder(path: Path, what: str) -> int | None:
    """Keep other processes from a folder until the number returned is closed, or this process ends.

    Args:
        path: The folder.
        what: What it holds, for the message.

    Returns:
        None where the system has no such lock (Windows).

    Raises:
        InputError: Another process holds it.
    """
    if sys.platform == "win32":
        return None
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise InputError(f"{path}: another process is at work on {what}") from error
    return lock


def check_no_file(path: Path, wanted: str) -> None:
    """Check that a folder can be there: neither it nor one above it is a file.

    Args:
        path: The folder.
        wanted: What it should be, for the message.

    Raises:
        InputError: A file is in its way.
    """
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"{place}: got a file, wanted {wanted}")


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Make or replace a file so that, whenever the process ends, the old or the new one is there whole.

    Args:
        path: The file.
        write: Writes the new content to the path it is given, in a folder of its own beside the file.

    Raises:
        OSError: The file cannot be written, with the error's own number; it is left as it was.
        BaseException: A handler of signals raised it while the file was being written.
    """
    try:
        # a new folder, which no link in a folder from elsewhere can lead away from here
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            temporary = Path(folder) / path.name
            temporary.touch()
            mode = temporary.stat().st_mode

            def finish() -> None:
                write(temporary)
                temporary.chmod(mode)  # safetensors leaves files that only their owner can read
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())

            _interruptibly(finish)
            temporary.replace(path)
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error}); it is left as it was"
        raise OSError(error.errno, problem, str(path)) from error


def _interruptibly(work: Callable[[], object]) -> None:
    """Work in a thread, so that handlers of signals run in the main one, and may end it while it waits."""
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
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

    threading.Thread(
        target=run, daemon=True
    ).start()  # left behind, it does not keep the program from its end
    while not done.wait(timeout=0.5):  # a signal that came to another thread is seen now
        pass
    if raised:
        raise raised[0]


def replace_text(path: Path, text: str) -> None:
    """`replace_file` with UTF-8 text."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def replace_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> None:
    """`replace_file` with a safetensors file of contiguous CPU tensors."""
    import safetensors.torch  # downloads, which also replace files, need no tensors

    def write(temporary: Path) -> None:
        try:
            safetensors.torch.save_file(dict(tensors), temporary, metadata=dict(metadata))
        except safetensors.SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code) if number else str(error)) from error

    replace_file(path, write)


def parse_json(text: str) -> Any:
    """Parse JSON from a file that may be damaged or made up.

    Raises:
        InputError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
