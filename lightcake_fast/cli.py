"""Shared parts of the commands: one-line errors and exit codes."""

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

# shortages of the machine: other arguments would not help
_SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM}

SCRIPT = "lightcake-fast"  # script name in pyproject.toml


class ArgumentParser(argparse.ArgumentParser):
    """`argparse` parser for `run`: adds `--debug`, rejects abbreviations, raises instead of exiting.

    Args:
        prog: The command as `python -m ...`. It is replaced by the typed command (see `as_typed`).
        description: One sentence about the command.
        epilog: Text for `--help`, printed unchanged. The part up to the end of the examples goes above the
            flags, the rest below.

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
        self.add_argument("--debug", action="store_true", help="show the traceback of an error (default: no)")
        self._rare: list[argparse.Action] = []

    def leave_to_help_all(self, actions: Iterable[argparse.Action]) -> None:
        """Add `--help-all`. Only `--help-all` shows these flags."""
        self._rare.extend(actions)
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")

    def format_help(self, *, every: bool = False) -> str:
        """Format the help, with `every` flag or only with the common flags."""
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
    """Add the flags that locate and read a data set. Their names are keywords of `load_dataset`."""
    parser.add_argument(
        "--split", metavar="T,V,T", help="shares of train, valid and test for a file (default: .8,.1,.1)"
    )
    parser.add_argument(
        "--strip",
        action="store_true",
        help="remove spaces and byte order marks around names (default: keep them)",
    )
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="treat the first row of each file of triples as a header (default: only a row such as head, "
        "relation, tail, with a warning)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the public data sets (default: $LIGHTCAKE_FAST_DATA, the cache, or a download)",
    )


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, ArgumentParser)
        print(parser.format_help(every=True), end="")
        parser.exit()


def as_typed(text: str) -> str:
    """Replace commands in a text by the typed form: `lightcake-fast train` for the installed script."""
    if Path(sys.argv[0]).stem != SCRIPT:
        return text
    return text.replace("python -m lightcake_fast.", f"{SCRIPT} ").replace("python -m lightcake_fast", SCRIPT)


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a command. Turn an error into one line on stderr and an exit code.

    Use it as `sys.exit(run(main))`.

    Args:
        main: The command. It takes the arguments after the program's name and returns an exit code, None for
            0.
        argv: The arguments. None takes the arguments of the process.

    Returns:
        The exit code of the command. 1: memory or disk space ran out, or another process of the training was
            lost. 2: an `InputError` or another failed file operation. 130: Ctrl-C. 141: the reader of stdout
            closed it (`... | head`).
        Other exceptions are bugs and propagate. Of several processes under torchrun, only the first that
        fails prints. The others end with their exit codes (1 for a bug).
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    prepare_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by the package during imports
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
    """Whether this process reports an error: a single process, or the first of torchrun's to fail."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from lightcake_fast.sharding.world import first_to_fail  # imports PyTorch

    return first_to_fail()


def _show_warning(
    otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> None:
    """Print a data warning as one line, without the place in the code."""
    if issubclass(category, DataWarning):
        tell("warning", str(message))
    else:
        otherwise(message, category, *place, **more)


def _flushed(main: Callable[[Sequence[str]], int | None], arguments: Sequence[str]) -> int:
    """Run a command and flush stdout here, so that a full or closed stdout is not first noticed at exit."""
    try:
        return main(arguments) or 0
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            silence_stdout()
            raise


def _told(error: Exception) -> tuple[str | None, int]:
    """Return the line to print for an error, None for a bug, and the exit code."""
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
