"""Ctrl-C and SIGTERM: at once while there is nothing to save, between two steps afterwards."""

import os
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Handles SIGINT and SIGTERM inside a `with` block.

    A signal ends the program (`SystemExit` with 128 + its number) at once, until `defer` is called. From then
    on it is only noted, and the training saves first. A second Ctrl-C says so. A third ends the program at
    once: files are replaced whole, so the previous checkpoint stays intact. SIGTERM never aborts a save.

    Args:
        abortable: Whether a third Ctrl-C ends the program. False for one of several ranks: the others wait
            for it, and the terminal and torchrun both send it the same Ctrl-C.

    Attributes:
        signal: The last signal that came; None for none.
        presses: How many times Ctrl-C came since `defer`.
    """

    def __init__(self, *, abortable: bool = True) -> None:
        self.signal: signal.Signals | None = None
        self.presses = 0
        self._abortable, self._deferred = abortable, False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupt":
        self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def defer(self) -> None:
        """Only note signals from now on."""
        self._deferred = True

    def leave(self) -> None:
        """End the program if a signal came.

        Raises:
            SystemExit: With 128 + the number of the signal.
        """
        if self.signal is not None:
            raise SystemExit(128 + self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        if not self._deferred:
            self.leave()
        self.presses += number == signal.SIGINT
        if number == signal.SIGINT and self._abortable:
            if self.presses == 2:
                _tell("stopping: a save is under way, or follows the current step; Ctrl-C again aborts it")
            elif self.presses > 2:
                _tell("the save is aborted; the previous checkpoint is intact")
                self.leave()


def _tell(text: str) -> None:
    """Write to stderr what a handler of signals says: `print` may be at work already."""
    with suppress(OSError):  # stderr may have gone
        os.write(2, f"\n{text}\n".encode())
