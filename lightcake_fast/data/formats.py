"""File formats of triples, by suffix: tab-separated text, comma-separated text and N-Triples."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lightcake_fast.data.names import FIELDS, check_no_header
from lightcake_fast.data.table import Table
from lightcake_fast.errors import InputError, counted

_ROWS = 1 << 16
_STATEMENT = re.compile(
    r"\s*(<[^<>\s]*>|_:\S+)\s*(<[^<>\s]*>)\s*(<[^<>\s]*>|_:\S+?|\"(?:[^\"\\]|\\.)*\"\S*?)\s*\.\s*(?:#.*)?"
)
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})")


class CsvTable(Table):
    """A comma-separated file. Names with commas, quotes or line ends are in double quotes."""

    _separator: ClassVar[str] = ","

    def _rows(self) -> Iterator[list[str]]:
        """As in `Table`."""
        rows = csv.reader(self._lines(), strict=True)
        names: list[str] = []
        line = 0
        try:
            for row in rows:
                first, line = line + 1, rows.line_num
                names += self._row(row or [""], first)
                self.blank_lines += range(first + 1, line + 1)  # a name with line ends spans several lines
                if len(names) >= _ROWS:
                    yield names
                    names = []
        except csv.Error as error:
            raise InputError(
                f"{self.path}:{rows.line_num}: expected comma-separated values, got an error ({error}): "
                "check the quotes"
            ) from error
        if names:
            yield names

    def _lines(self) -> Iterator[str]:
        line = 1
        for block in self._blocks():
            yield from io.StringIO(self._decode(block, line), newline="\n")
            line += block.count(b"\n")


@dataclass
class NTriples(Table):
    """An N-Triples file. Names are blank nodes and IRIs without their angle brackets.

    Attributes:
        literals: Number of skipped triples: a triple with a literal is skipped, because it is not an entity.
    """

    literals: int = 0

    def _split(self, block: bytes, line: int) -> list[str]:
        found: list[str] = []
        for number, row in enumerate(self._decode(block, line).removesuffix("\n").split("\n"), line):
            statement = _STATEMENT.fullmatch(row)
            if statement is not None and not statement[3].startswith('"'):
                try:
                    found += map(_name, statement.groups())
                except (OverflowError, ValueError) as error:
                    place = f"{self.path}:{number}"
                    raise InputError(
                        f"{place}: expected escapes of Unicode characters, got another: correct it"
                    ) from error
                continue
            self.blank_lines.append(number)
            if statement is not None:
                self.literals += 1
            elif row.strip() and not row.lstrip().startswith("#"):
                raise InputError(
                    f"{self.path}:{number}: expected <head> <relation> <tail> . (N-Triples), "
                    "got another line: correct it"
                )
        return found

    def notes(self) -> list[str]:
        """One note on skipped triples, if any."""
        are = "was" if self.literals == 1 else "were"
        left_out = f"{counted(self.literals, 'triple')} with a literal {are} skipped"
        return [f"{self.path.name}: {left_out}"] * bool(self.literals)


def _name(node: str) -> str:
    """An IRI without brackets and escapes, or an unchanged blank node."""
    if not node.startswith("<"):
        return node
    if "\\" not in node:
        return node[1:-1]
    return _ESCAPE.sub(lambda escape: chr(int(escape[1] or escape[2], 16)), node[1:-1])


_KINDS: dict[str, type[Table]] = {".tsv": Table, ".txt": Table, ".csv": CsvTable, ".nt": NTriples}
FILE_SUFFIXES = (*_KINDS, *(f"{suffix}.gz" for suffix in _KINDS))


def open_table(path: Path, header: bool | None = None) -> Table:
    """Open a text file of triples. `header` is an attribute of `Table`.

    Raises:
        InputError: The suffix is unknown, or the format has no headers.
    """
    suffix = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    if suffix not in _KINDS:
        raise InputError(
            f"{path}: expected a file name that ends in one of {', '.join(FILE_SUFFIXES)}, "
            f"got {suffix or 'no suffix'}: rename or convert the file"
        )
    if _KINDS[suffix] is NTriples:
        check_no_header(str(path), header)
        header = False
    return _KINDS[suffix](path, FIELDS, header=header)
