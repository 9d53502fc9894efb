"""Output of the commands, for any encoding, any width and closed streams."""

import codecs
import json
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import rich.console
import rich.table

WHOLE = 1_000_000  # width of files and pipes: tables are printed in full
_PLAIN = {"→": "->", "—": "-", "…": "..."}  # replacements for encodings without these characters


class Console(rich.console.Console):
    """A console that shows text unchanged: no markup, no emoji codes, no colors.

    If the output is not a terminal, tables have their full width.

    Args:
        options: As for rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        if not self.is_terminal:
            self.width = WHOLE
        elif os.environ.get("COLUMNS") == "0":  # with 0 columns rich prints nothing
            self.width = shutil.get_terminal_size().columns

    def print_table(self, title: str, table: "Table") -> None:
        """Print a title and a table in full. The terminal breaks lines that are too wide."""
        self.print(title, soft_wrap=True)
        self.print(table, crop=False)

    def on_broken_pipe(self) -> NoReturn:
        """Report the error to `cli.run`. By default, rich exits with code 1."""
        self.quiet = True
        raise  # the BrokenPipeError that rich handles


def shown_on(console: Console, bar: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """Show a progress bar only on a terminal. Elsewhere rich before 14.3 always prints an empty line."""
    return bar if console.is_terminal else nullcontext()


class Table(rich.table.Table):
    """A table that loses no text when it is narrow: names fold, and figures stay on one line."""

    def add_names(self, title: str, at_least: int = 16) -> None:
        """Add a column of names."""
        self.add_column(title, overflow="fold", min_width=at_least)

    def add_figures(self, title: str, at_least: int = 6) -> None:
        """Add a column of figures of up to `at_least` characters. Only the title folds."""
        self.add_column(title, justify="right", overflow="fold", min_width=at_least)


def prepare_streams() -> None:
    """Make prints succeed: characters that cannot be encoded are escaped, closed streams are replaced."""
    codecs.register_error("lightcake_fast.plain", _plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the parent process closed it
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="lightcake_fast.plain")


def tell(kind: str, text: str) -> None:
    """Print `kind: text` as one line on stderr.

    The line is one write. With `python -u`, which torchrun uses, `print` writes several times, and the lines
    of processes mix.
    """
    with suppress(OSError):  # stderr may be closed
        sys.stderr.write(f"{kind}: {' '.join(text.splitlines())}\n")


def silence_stdout() -> None:
    """Discard the buffered output, because the interpreter flushes stdout at exit and must not fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a file: a notebook's or a test's stream
        return


def json_line(value: Any) -> str:
    """Format a value as JSON for stdout. Names stay readable if the encoding has their characters."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Handle encoding errors for `codecs`: use a similar ASCII text, else an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    escaped = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in characters)
    return "".join(escaped), error.end
