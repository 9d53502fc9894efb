"""Processes that tests start: what waits for them, and what sends them a signal at a chosen step."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import Popen

HANG = 600  # seconds after which a process hangs: far beyond the delay on a loaded machine
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
    """Wait until running processes have made a condition true."""
    end = time.monotonic() + HANG
    while not condition():
        assert all(process.poll() is None for process in processes), "a process ended too early"
        assert time.monotonic() < end, "the processes hang"
        time.sleep(0.05)


def signalled(folder: Path, number: int, events: Sequence[str], text: str, count: int = 1) -> dict[str, str]:
    """Variables of an environment in which Python sends a signal to itself: the load does not change when.

    Args:
        folder: Gets a `sitecustomize.py`, which Python imports first.
        number: The signal.
        events: The audit events that are counted.
        text: Part of the first argument of these events.
        count: The event before which the signal comes.
    """
    site = _SITE.format(events=tuple(events), text=text, count=count, number=int(number))
    (folder / "sitecustomize.py").write_text(site)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
