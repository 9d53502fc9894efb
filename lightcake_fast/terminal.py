"""What commands print to: any encoding, any width, and readers that may have gone."""

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

WHOLE = 1_000_000  # columns where nobody looks: a file or a pipe gets every table whole
_PLAIN = {"→": "->", "—": "-", "…": "..."}  # for encodings that lack them


class Console(rich.console.Console):
    """A console that shows text as it is: no markup, no emoji codes, no colours of its own.

    What is no terminal gets tables whole, at whatever width they take.

    Args:
        options: As rich's own.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        if not self.is_terminal:
            self.width = WHOLE
        elif os.environ.get("COLUMNS") == "0":  # which rich believes, and prints nothing
            self.width = shutil.get_terminal_size().columns

    def print_table(self, title: str, table: "Table") -> None:
        """Print a table below its title, in full: where it is too wide the terminal breaks its lines."""
        self.print(title, soft_wrap=True)
        self.print(table, crop=False)

    def on_broken_pipe(self) -> NoReturn:
        """Let `cli.run` know; rich would leave with exit code 1."""
        self.quiet = True
        raise  # the BrokenPipeError that rich is handling


def shown_on(console: Console, bar: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """A progress bar where it is one: elsewhere rich before 14.3 leaves an empty line, told to or not."""
    return bar if console.is_terminal else nullcontext()


class Table(rich.table.Table):
    """A table that loses nothing when it gets narrow: names fold, and a figure stays on one line."""

    def add_names(self, title: str, at_least: int = 16) -> None:
        """Add a column of names."""
        self.add_column(title, overflow="fold", min_width=at_least)

    def add_figures(self, title: str, at_least: int = 6) -> None:
        """Add a column of figures of up to `at_least` characters; only the title folds."""
        self.add_column(title, justify="right", overflow="fold", min_width=at_least)


def prepare_streams() -> None:
    """Let prints succeed: what cannot be encoded is escaped, and a closed stream takes all."""
    codecs.register_error("lightcake_fast.plain", _plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started the process
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="lightcake_fast.plain")


def tell(kind: str, text: str) -> None:
    """Print `kind: text` as one line on stderr.

    One write: `print` makes several under `python -u`, as torchrun starts processes, and their lines mix.
    """
    with suppress(OSError):  # stderr may have gone
        sys.stderr.write(f"{kind}: {' '.join(text.splitlines())}\n")


def silence_stdout() -> None:
    """Drop what stdout still holds: the interpreter flushes it at exit, which must not fail a second time."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no file: the stream of a notebook or a test
        return


def json_line(value: Any) -> str:
    """A value as JSON for stdout, with names readable where its encoding has their characters."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `codecs`: the nearest in ASCII, else an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    escaped = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in characters)
    return "".join(escaped), error.end
