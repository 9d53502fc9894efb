"""The error that the command line shows as one line, and how a lack of memory is told from other errors."""

import difflib
import re
from collections.abc import Sequence


class InputError(ValueError):
    """Something the user gave is wrong: a file, a flag, a checkpoint.

    The message is one line that says what was got and what was wanted. Command-line modules print it
    and exit with code 2.
    """


class DivergedError(InputError):
    """The training ran off to scores that are no numbers: its settings do not do."""


class LostRankError(RuntimeError):
    """Another of the processes that train together has ended, or does not answer."""


class DataWarning(UserWarning):
    """Data is taken as it is, but looks like a mistake, or is not all there.

    Command-line modules print it as one line.
    """


def memory_wanted(error: BaseException) -> str | None:
    """What could not be had, in words, if an error of Python, NumPy or PyTorch says that memory ran out.

    Returns:
        None for every other error.
    """
    text = str(error)
    if not isinstance(error, MemoryError) and not (
        isinstance(error, RuntimeError)
        and re.search("out of memory|can(no|')t allocate memory|ALLOC_FAILED", text, re.IGNORECASE)
    ):
        return None
    asked = re.search(r"allocate ([\d.]+) ([KMGTPE]?i?B|bytes)", text)
    if asked is None:
        return text if isinstance(error, MemoryError) and text else "wanted more memory than there is"
    if asked[2] == "bytes":
        return f"wanted {int(asked[1]) / 2**30:.2f} GiB at once"
    return f"wanted {asked[1]} {asked[2]} at once"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 triple", "2,000 entities"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a message about a word that is none of those known: the nearest, if one is near."""
    return "".join(f" (did you mean {near}?)" for near in difflib.get_close_matches(word, known, 1))
