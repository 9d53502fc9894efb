"""The time that a thread waits for the compiler of the CPU passes, which the process says once."""

import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Clock(threading.local):
    """The time for which a thread waits for the compiler: its own, since the others go on working."""

    seconds = 0.0
    depth = 0


_clock = _Clock()


@contextmanager
def compiling() -> Iterator[None]:
    """Around what compiles if its result is not on disk: counted, and told once a process if it does."""
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
    """How long this thread has waited for the compiler, or for its results on disk."""
    return _clock.seconds


@functools.cache
def _notice() -> Any:
    """Says why the first call waits; what is found on disk is not compiled."""
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            _say()

        def on_end(self, _: Any) -> None:
            """Nothing to say."""

    return Notice()


@functools.cache
def _say() -> None:
    if os.environ.get("RANK", "0") == "0":  # of several processes under torchrun the first
        sys.stderr.write(
            "lightcake_fast: compiling the CPU passes: some seconds, once for a score and width\n"
        )
