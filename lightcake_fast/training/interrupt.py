"""Ctrl-C and SIGTERM: immediate exit before the first step, later a save between two steps first."""

import os
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Handle SIGINT and SIGTERM inside a `with` block.

    Before `defer` is called, a signal ends the program at once: `SystemExit` with 128 + its number. After
    that, a signal is only recorded, and the training saves first. A second Ctrl-C prints a notice. A third
    Ctrl-C ends the program at once. The previous checkpoint stays intact, because files are replaced
    atomically. SIGTERM never aborts a save.

    Args:
        abortable: Whether a third Ctrl-C ends the program. False for one of several ranks: the other ranks
            wait for it, and the terminal and torchrun both send the same Ctrl-C to it.

    Attributes:
        signal: The last received signal, or None.
        presses: Number of Ctrl-C signals since `defer`.
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
        """From now on, only record signals."""
        self._deferred = True

    def leave(self) -> None:
        """End the program if a signal was received.

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
    """Write the message of a signal handler to stderr. `print` may already be active and cannot be used."""
    with suppress(OSError):  # stderr may be closed
        os.write(2, f"\n{text}\n".encode())
