"""Errors that the command line shows as one line, and the detection of out-of-memory errors."""

import difflib
import re
from collections.abc import Sequence


class InputError(ValueError):
    """A wrong input from the user: a file, a flag, a checkpoint.

    The message is one line with the expected and the actual value. Command-line modules print it and exit
    with code 2.
    """


class DivergedError(InputError):
    """The training diverged: scores are NaN or infinite. The settings are unsuitable."""


class LostRankError(RuntimeError):
    """Another process of a distributed training has ended, or does not answer."""


class DataWarning(UserWarning):
    """The data is used, but it looks wrong or incomplete.

    Command-line modules print it as one line.
    """


def memory_wanted(error: BaseException) -> str | None:
    """Describe the missing memory if Python, NumPy or PyTorch reports that memory ran out.

    Returns:
        A description, or None for every other error.
    """
    text = str(error)
    if not isinstance(error, MemoryError) and not (
        isinstance(error, RuntimeError)
        and re.search("out of memory|can(no|')t allocate memory|ALLOC_FAILED", text, re.IGNORECASE)
    ):
        return None
    asked = re.search(r"allocate ([\d.]+) ([KMGTPE]?i?B|bytes)", text)
    if asked is None:
        return text if isinstance(error, MemoryError) and text else "needed more memory than is available"
    if asked[2] == "bytes":
        return f"needed {int(asked[1]) / 2**30:.2f} GiB at once"
    return f"needed {asked[1]} {asked[2]} at once"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 triple", "2,000 entities"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known word, if one is near."""
    return "".join(f" (did you mean {near}?)" for near in difflib.get_close_matches(word, known, 1))
