"""Rows of names that a model is asked about, from Python or from a stream: pairs, or triples."""

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from lightcake_fast.data import names
from lightcake_fast.data.names import columns_by_name
from lightcake_fast.errors import InputError

MAX_LINE_BYTES = 1 << 16
FIELDS = {"pairs": names.FIELDS[::2], "triples": names.FIELDS, "questions": names.FIELDS}


def name_rows(rows: Any, kind: str) -> list[tuple[Any, ...]]:
    """Rows of an array, a DataFrame or any iterable as tuples; the names themselves are not looked at.

    Args:
        rows: What the user gave.
        kind: "pairs", "triples" or "questions".

    Raises:
        TypeError: They are no rows: a lone string, or one where a row should be.
        InputError: A row has another number of names.
    """
    fields = FIELDS[kind]
    wanted = f"a list of ({', '.join(fields)})"
    if hasattr(rows, "itertuples"):
        rows = columns_by_name(rows, fields).itertuples(index=False, name=None)
    elif hasattr(rows, "tolist"):
        rows = rows.tolist()
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise TypeError(f"{kind}: got {rows!r}, wanted {wanted}")
    found = []
    for row in rows:
        if isinstance(row, (str, bytes)) or not isinstance(row, Iterable):
            raise TypeError(f"{kind}: got {row!r} for a row, wanted {wanted}")
        found.append(tuple(row))
        if len(found[-1]) != len(fields):
            other = {"pairs": "score", "triples": "predict"}.get(kind)
            hint = f"; {other}() takes the others" if other and len(found[-1]) in (2, 3) else ""
            raise InputError(f"{kind}: got {found[-1]!r}, wanted {wanted}{hint}")
    return found


def read_rows(file: BinaryIO, name: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Read a row a line, names parted by tabs; blank lines are skipped, CRLF and a byte order mark are fine.

    Args:
        file: Opened for reading bytes: any number of rows take little memory.
        name: What messages call it.
        kind: "pairs", "triples" or "questions".

    Yields:
        `name:line` and the names.

    Raises:
        InputError: A line is no such row, no text, or too long.
    """
    wanted = "<TAB>".join(FIELDS[kind])
    lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
    for number, data in enumerate(lines, 1):
        place = f"{name}:{number}"
        if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
            raise InputError(f"{place}: got a line of {MAX_LINE_BYTES:,} bytes or more, wanted {wanted}")
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: got byte 0x{data[error.start]:02x}, wanted UTF-8 text") from error
        if "\0" in line:
            raise InputError(f"{place}: got a NUL byte, wanted text")
        fields = line.split("\t")
        if len(fields) == 1 and not line.strip():
            continue
        if len(fields) != len(FIELDS[kind]) or "" in fields:
            count = f"{len(fields)} field{'s' * (len(fields) > 1)}"
            got = "an empty name" if "" in fields else count
            raise InputError(f"{place}: got {got}, wanted {wanted}")
        yield place, fields
