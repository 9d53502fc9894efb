"""Helpers for tests that start processes: wait for them, and send them a signal at a chosen step."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import Popen

HANG = 600  # seconds after which a process counts as hung: far more than the delay on a loaded machine
FILE_EVENTS = ("open", "os.chmod", "os.mkdir", "os.remove", "os.rename", "os.rmdir")

_SITE = """
import os, sys

seen = 0

def hook(event, arguments):
    global seen
    if event in {events!r} and {text!r} in str(arguments[0]):
        seen += 1
        if seen == {count}:
            os.kill(os.getpid(), {number})

sys.addaudithook(hook)
"""


def until(condition: Callable[[], object], *processes: "Popen[str]") -> None:
    """Wait until running processes make a condition true."""
    end = time.monotonic() + HANG
    while not condition():
        assert all(process.poll() is None for process in processes), "a process ended too early"
        assert time.monotonic() < end, "the processes hang"
        time.sleep(0.05)


def signalled(folder: Path, number: int, events: Sequence[str], text: str, count: int = 1) -> dict[str, str]:
    """Return environment variables that make Python send a signal to itself at an event.

    The time of the signal does not depend on the load of the machine.

    Args:
        folder: Gets a `sitecustomize.py`, which Python imports first.
        number: The signal.
        events: The audit events to count.
        text: Part of the first argument of these events.
        count: The signal is sent before the event with this number.
    """
    site = _SITE.format(events=tuple(events), text=text, count=count, number=int(number))
    (folder / "sitecustomize.py").write_text(site)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
