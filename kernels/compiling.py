"""Time that a thread waits for the compiler of the CPU passes, and a message about it (once per process)."""

import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Clock(threading.local):
    """Seconds that a thread waits for the compiler.

    Each thread counts separately, because the others keep working.
    """

    seconds = 0.0
    depth = 0


_clock = _Clock()


@contextmanager
def compiling() -> Iterator[None]:
    """Add the time of the `with` block to the thread's clock.

    Use it around code that may compile. The first compilation in a process prints a message.
    """
    from numba.core import event

    start, outermost = time.monotonic(), not _clock.depth
    _clock.depth += 1
    try:
        with event.install_listener("numba:compile", _notice()):
            yield
    finally:
        _clock.depth -= 1
        if outermost:
            _clock.seconds += time.monotonic() - start


def seconds_compiling() -> float:
    """Return the seconds that this thread has waited for the compiler or for its results on disk."""
    return _clock.seconds


@functools.cache
def _notice() -> Any:
    """Return a listener that prints why the first call waits. Results from disk do not trigger it."""
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            _say()

        def on_end(self, _: Any) -> None:
            """Do nothing: the message is printed at the start."""

    return Notice()


@functools.cache
def _say() -> None:
    if os.environ.get("RANK", "0") == "0":  # only the first process of torchrun
        sys.stderr.write(
            "lightcake_fast: compiling the CPU passes (a few seconds, once per score and width)\n"
        )
