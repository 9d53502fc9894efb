"""What all command-line modules share: one-line errors and exit codes."""

import argparse
import errno
import functools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lightcake_fast.errors import DataWarning, InputError, LostRankError, memory_wanted
from lightcake_fast.terminal import prepare_streams, silence_stdout, tell

# what a machine lacks, and no other argument mends
_SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM}

SCRIPT = "lightcake-fast"  # what pyproject.toml installs


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse` parser for `run`: has `--debug`, takes no abbreviations, raises instead of exiting.

    Args:
        prog: The command as `python -m ...`, which stands for what was typed (see `as_typed`).
        description: What it does, in a sentence.
        epilog: Text for `--help`, printed as it is: up to the end of the examples above the flags, the rest
            below.

    Raises:
        InputError: From `parse_args`, for unknown flags and wrong values.
    """

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        before, title, after = as_typed(epilog).partition("examples:\n")
        examples, _, notes = after.partition("\n\n")
        super().__init__(
            prog=as_typed(prog),
            description="\n\n".join(filter(None, (description, (before + title + examples).rstrip()))),
            epilog=notes,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        self._rare: list[argparse.Action] = []

    def leave_to_help_all(self, actions: Iterable[argparse.Action]) -> None:
        """Add `--help-all`, which alone shows these flags."""
        self._rare.extend(actions)
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")

    def format_help(self, *, every: bool = False) -> str:
        """The help, with `every` flag or with the common flags."""
        texts = [action.help for action in self._rare]
        try:
            for action in () if every else self._rare:
                action.help = argparse.SUPPRESS
            return super().format_help()
        finally:
            for action, text in zip(self._rare, texts, strict=True):
                action.help = text

    def error(self, message: str) -> NoReturn:
        """Raise `InputError` with argparse's message."""
        raise InputError(f"{message} (see {self.prog} --help)")


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags for finding and reading a data set, named as keywords of `load_dataset`."""
    parser.add_argument(
        "--split", metavar="T,V,T", help="shares of train, valid and test, for a file (default: .8,.1,.1)"
    )
    parser.add_argument("--strip", action="store_true", help="trim names")
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="whether the first row of each file of triples is a header, which is left out (default: a row "
        "such as head, relation, tail is, with a warning)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the public data sets' folders; else $LIGHTCAKE_FAST_DATA, the cache, a download",
    )


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, ArgumentParser)
        print(parser.format_help(every=True), end="")
        parser.exit()


def as_typed(text: str) -> str:
    """Text with the commands in it as this process was called: `lightcake-fast train` by the script."""
    if Path(sys.argv[0]).stem != SCRIPT:
        return text
    return text.replace("python -m lightcake_fast.", f"{SCRIPT} ").replace("python -m lightcake_fast", SCRIPT)


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a command and turn what goes wrong into one line on stderr and an exit code.

    Use it as `sys.exit(run(main))`.

    Args:
        main: The command. Takes the arguments after the program's name; returns an exit code, None for 0.
        argv: The arguments; None takes those of the process.

    Returns:
        The command's own code; 1 when memory or disk space ran out, or another process of the training was
        lost; 2 after an `InputError` or another failed file operation; 130 after Ctrl-C; 141 when the reader
        of stdout has gone (`... | head`).
        Other exceptions are bugs and propagate. Of several processes under torchrun, the first that fails
        prints; the others end with their exit codes (1 for a bug).
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    prepare_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # the package's own doing, while modules loaded
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            return _flushed(main, arguments)
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        if _reports():
            print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        problem, code = _told(error)
        if not _reports():
            return code
        if problem is None:
            raise
        if "--debug" in arguments:
            traceback.print_exc()
        tell("error", problem)
        return code


def _reports() -> bool:
    """Whether this process is the one that reports an error: alone, or the first of torchrun's to fail."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from lightcake_fast.sharding.world import first_to_fail  # loads PyTorch

    return first_to_fail()


def _show_warning(
    otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> None:
    """A warning of the data as one line, without the place in the code."""
    if issubclass(category, DataWarning):
        tell("warning", str(message))
    else:
        otherwise(message, category, *place, **more)


def _flushed(main: Callable[[Sequence[str]], int | None], arguments: Sequence[str]) -> int:
    """Run a command to its last byte: that stdout is full or gone shows here, and not at exit."""
    try:
        return main(arguments) or 0
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            silence_stdout()
            raise


def _told(error: Exception) -> tuple[str | None, int]:
    """The line to print for an error, None for a bug, and the exit code."""
    wanted = memory_wanted(error)
    if wanted is not None:
        return f"out of memory: {wanted}", 1
    if isinstance(error, LostRankError):
        return str(error), 1
    if isinstance(error, OSError):
        problem = error.strerror or str(error)
        problem = f"{error.filename}: {problem}" if error.filename else problem
        return problem, 1 if error.errno in _SHORTAGES else 2
    return (str(error), 2) if isinstance(error, InputError) else (None, 1)
