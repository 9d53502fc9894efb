"""Read tab-separated files in blocks: names per row, and the line number of each row."""

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
    """A tab-separated UTF-8 file, plain or gzip (suffix `.gz`).

    Attributes:
        path: The file.
        fields: Names of the fields of a line.
        blank_lines: Numbers of the lines without a row so far, ascending, from 1.
        header: Whether to skip the first row as a header. None skips a first row with known titles
            (`names.titles`), with a note.
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
        """A note on a skipped header, if any."""
        return [] if self._header_note is None else [self._header_note]

    def read(self) -> Iterator[list[str]]:
        """Yield blocks of names, `len(fields)` names per row.

        Raises:
            InputError: The file cannot be read or is not text. A line has too few, too many or empty fields.
                The columns of a header are in another order.
        """
        first = True
        for names in self._rows():
            if first and self._leaves_out(names[: len(self.fields)]):
                names = names[len(self.fields) :]
            first = False
            if names:
                yield names

    def _rows(self) -> Iterator[list[str]]:
        """Yield the blocks of `read`, with the header."""
        line = 1
        for block in self._blocks():
            names = self._split(block, line)
            line += block.count(b"\n")
            if names:
                yield names

    def read_bytes(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Yield the blocks of `read` as bytes, with the end position of each name in the bytes.

        One byte separates two names.

        Raises:
            InputError: See `read`.
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
        """Whether to skip the first row as a header; if so, add its line to `blank_lines`."""
        found = None if self.header is False else titles(row)
        if found is not None and found != FIELDS:
            raise InputError(
                f"{self.place(0)}: expected the columns head, relation, tail, got the header "
                f"{', '.join(map(quote, row))}: reorder the columns, or set header=False or --no-header"
            )
        if self.header is None and found:
            self._header_note = (
                f"{self.place(0)}: the header {', '.join(map(quote, row))} is skipped: "
                "use --header to hide this warning, or --no-header to keep the row"
            )
        if self.header or found:
            insort(self.blank_lines, self._line(0))
            return True
        return False

    def _blocks(self) -> Iterator[bytes]:
        """Blocks of whole lines with LF line ends, without a byte order mark."""
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
            raise InputError(
                f"{self.path}: expected a complete gzip file, got an error ({error}): replace the file"
            ) from error
        except OSError as error:
            raise InputError(
                f"{self.path}: expected a readable file, got {error.strerror}: check path and permissions"
            ) from error

    def _split(self, block: bytes, line: int) -> list[str]:
        """Names of a block that starts at line number `line`."""
        text = self._decode(block, line).removesuffix("\n")
        if self._is_regular(*_ends(block)):
            return text.replace("\n", "\t").split("\t")
        found: list[str] = []
        for number, row in enumerate(text.split("\n"), line):
            found += self._row(row.split("\t"), number)
        return found

    def _row(self, names: list[str], line: int) -> list[str]:
        """Check and return the names of a line; an empty list for a blank line."""
        if len(names) == 1 and not names[0].strip():
            self.blank_lines.append(line)
            return []
        if len(names) != len(self.fields):
            count = f"{len(names)} field{'s' * (len(names) > 1)}"
        elif "" in names:
            count = f"an empty {self.fields[names.index('')]}"
        else:
            return names
        raise InputError(
            f"{self.path}:{line}: expected {self._separator.join(self.fields)}, got {count}: correct the line"
        )

    def _is_regular(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> bool:
        """Whether every line has all fields and no empty field, from the positions of tabs and line ends."""
        if len(ends) % len(self.fields) or (np.diff(ends, prepend=-1) == 1).any():
            return False
        line_ends = data[ends].reshape(-1, len(self.fields)) == _LINE_END
        return bool(line_ends[:, -1].all() and not line_ends[:, :-1].any())

    def _decode(self, block: bytes, line: int) -> str:
        position = block.find(b"\0")
        if position >= 0:
            raise InputError(
                f"{self.path}:{_line_at(block, position, line)}: expected UTF-8 text, got a NUL byte: "
                "convert the file to UTF-8"
            )
        try:
            return block.decode()
        except UnicodeDecodeError as error:
            found = f"expected UTF-8 text, got byte 0x{block[error.start]:02x}: convert the file to UTF-8"
            raise InputError(f"{self.path}:{_line_at(block, error.start, line)}: {found}") from error


def _line_at(block: bytes, position: int, first: int) -> int:
    return first + block.count(b"\n", 0, position)


def _ends(block: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of a block with a final line end, and the positions of the field ends."""
    data = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    return data, np.flatnonzero((data == _TAB) | (data == _LINE_END))
