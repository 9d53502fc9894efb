"""Tab-separated files, read block by block: names by row, and where each row stands."""

import gzip
import zlib
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.names import FIELDS, quote, titles
from lightcake_fast.errors import InputError

BLOCK_BYTES = 1 << 20
_TAB, _LINE_END = b"\t\n"


@dataclass
class Table:
    """A tab-separated file, UTF-8, plain or gzip (by its `.gz`).

    Attributes:
        path: The file.
        fields: What a line holds, for the message about a line that does not.
        blank_lines: Numbers of the lines read so far that hold no row, ascending, from 1.
        header: Whether the first row is a header, which is left out. None leaves out a row that is evidently
            one (`names.titles`), with a note.
    """

    path: Path
    fields: tuple[str, ...]
    blank_lines: list[int] = field(default_factory=list)
    header: bool | None = False
    _header_note: str | None = None
    _separator: ClassVar[str] = "<TAB>"  # in messages

    def place(self, row: int) -> str:
        """`file:line` of a row, for messages."""
        return f"{self.path}:{self._line(row)}"

    def _line(self, row: int) -> int:
        line = row + 1
        for blank in self.blank_lines:
            if blank > line:
                break
            line += 1
        return line

    def notes(self) -> list[str]:
        """What was left out, in words."""
        return [] if self._header_note is None else [self._header_note]

    def read(self) -> Iterator[list[str]]:
        """The names of a block of rows, row after row: `len(fields)` for each.

        Raises:
            InputError: The file cannot be read or is no text; a line has too few, too many or empty fields;
                the columns of a header are in another order.
        """
        first = True
        for names in self._rows():
            if first and self._leaves_out(names[: len(self.fields)]):
                names = names[len(self.fields) :]
            first = False
            if names:
                yield names

    def _rows(self) -> Iterator[list[str]]:
        """What `read` yields, with the header."""
        line = 1
        for block in self._blocks():
            names = self._split(block, line)
            line += block.count(b"\n")
            if names:
                yield names

    def read_bytes(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """What `read` yields as bytes, and where each name ends: one byte lies between two.

        Raises:
            InputError: As in `read`.
        """
        line, first = 1, True
        for block in self._blocks():
            self._decode(block, line)
            data, ends = _ends(block)
            if not self._is_regular(data, ends):
                data, ends = _ends("\t".join(self._split(block, line)).encode())
            line += block.count(b"\n")
            if len(data) > 1 and first:
                first, last = False, ends[len(self.fields) - 1]
                if self._leaves_out(data[:last].tobytes().decode().split("\t")):
                    data, ends = data[last + 1 :], ends[len(self.fields) :] - (last + 1)
            if len(data) > 1:
                yield data, ends

    def _leaves_out(self, row: list[str]) -> bool:
        """Whether the first row is a header; its line then holds no row."""
        found = None if self.header is False else titles(row)
        if found is not None and found != FIELDS:
            raise InputError(
                f"{self.place(0)}: expected the columns head, relation, tail, got the header "
                f"{', '.join(map(quote, row))}: reorder the columns, or say header=False or --no-header"
            )
        if self.header is None and found:
            self._header_note = (
                f"{self.place(0)}: the header {', '.join(map(quote, row))} is left out "
                "(--header: without this warning; --no-header: keep it as a triple)"
            )
        if self.header or found:
            insort(self.blank_lines, self._line(0))
            return True
        return False

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines of the file, without a byte order mark, every line but a cut last one with its end."""
        first = True
        try:
            with (gzip.open if self.path.suffix.lower() == ".gz" else open)(self.path, "rb") as file:
                while block := file.read(BLOCK_BYTES) + file.readline():
                    block = block.removeprefix(b"\xef\xbb\xbf") if first else block
                    first = False
                    if b"\r" in block:
                        block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
                    yield block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: not a whole gzip file ({error})") from error
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _split(self, block: bytes, line: int) -> list[str]:
        """The names of a block that starts at a line."""
        text = self._decode(block, line).removesuffix("\n")
        if self._is_regular(*_ends(block)):
            return text.replace("\n", "\t").split("\t")
        found: list[str] = []
        for number, row in enumerate(text.split("\n"), line):
            found += self._row(row.split("\t"), number)
        return found

    def _row(self, names: list[str], line: int) -> list[str]:
        """The names of a line if they are as many as wanted; none if it is blank."""
        if len(names) == 1 and not names[0].strip():
            self.blank_lines.append(line)
            return []
        if len(names) != len(self.fields):
            count = f"{len(names)} field{'s' * (len(names) > 1)}"
        elif "" in names:
            count = f"an empty {self.fields[names.index('')]}"
        else:
            return names
        raise InputError(f"{self.path}:{line}: got {count}, wanted {self._separator.join(self.fields)}")

    def _is_regular(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> bool:
        """Whether every line has its fields, none of them empty: told from where tabs and line ends lie."""
        if len(ends) % len(self.fields) or (np.diff(ends, prepend=-1) == 1).any():
            return False
        line_ends = data[ends].reshape(-1, len(self.fields)) == _LINE_END
        return bool(line_ends[:, -1].all() and not line_ends[:, :-1].any())

    def _decode(self, block: bytes, line: int) -> str:
        position = block.find(b"\0")
        if position >= 0:
            raise InputError(f"{self.path}:{_line_at(block, position, line)}: got a NUL byte, wanted text")
        try:
            return block.decode()
        except UnicodeDecodeError as error:
            found = f"got byte 0x{block[error.start]:02x}, wanted UTF-8 text"
            raise InputError(f"{self.path}:{_line_at(block, error.start, line)}: {found}") from error


def _line_at(block: bytes, position: int, first: int) -> int:
    return first + block.count(b"\n", 0, position)


def _ends(block: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A block with a line end at its end, and where its fields end."""
    data = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    return data, np.flatnonzero((data == _TAB) | (data == _LINE_END))
