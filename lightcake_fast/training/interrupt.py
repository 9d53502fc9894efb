"""Ctrl-C and SIGTERM: at once while there is nothing to save, between two steps afterwards."""

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Handles SIGINT and SIGTERM inside a `with` block.

    A signal ends the program (`SystemExit` with 128 + its number) at once, until `defer` is called; from then
    on it is only noted, so that no save is ever cut off, whatever number of signals comes.

    Attributes:
        signal: The last signal that came; None for none.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._deferred = False
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
