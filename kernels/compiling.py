"""The time that this process waits for the compiler of the CPU passes, which it says once."""

import functools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Clock:
    """The time during which any thread waits for the compiler."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock, self._waiting, self._since = threading.Lock(), 0, 0.0

    def start(self) -> None:
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1

    def stop(self) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self.seconds += time.monotonic() - self._since


_clock = _Clock()


@contextmanager
def compiling() -> Iterator[None]:
    """Around what compiles if its result is not on disk: counted, and told once a process if it does."""
    from numba.core import event

    _clock.start()
    try:
        with event.install_listener("numba:compile", _notice()):
            yield
    finally:
        _clock.stop()


def seconds_compiling() -> float:
    """How long this process has waited for the compiler, or for its results on disk."""
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
    print(
        "lightcake_fast: compiling the CPU passes: some seconds, once for a score and width", file=sys.stderr
    )
