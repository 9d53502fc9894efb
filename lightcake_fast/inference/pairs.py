"""Read rows of names (pairs, triples or questions) from Python objects and streams."""

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from lightcake_fast.data import names
from lightcake_fast.data.names import columns_by_name
from lightcake_fast.errors import InputError

MAX_LINE_BYTES = 1 << 16
FIELDS = {"pairs": names.FIELDS[::2], "triples": names.FIELDS, "questions": names.FIELDS}


def name_rows(rows: Any, kind: str) -> list[tuple[Any, ...]]:
    """Convert an array, a DataFrame or another iterable to a list of tuples, without a check of the names.

    Args:
        rows: The user's rows.
        kind: "pairs", "triples" or "questions".

    Raises:
        TypeError: `rows` or one of its rows is a string or not iterable.
        InputError: A row has a wrong number of names.
    """
    fields = FIELDS[kind]
    wanted = f"a list of ({', '.join(fields)})"
    if hasattr(rows, "itertuples"):
        rows = columns_by_name(rows, fields).itertuples(index=False, name=None)
    elif hasattr(rows, "tolist"):
        rows = rows.tolist()
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise TypeError(f"{kind}: expected {wanted}, got {rows!r}: use rows of names")
    found = []
    for row in rows:
        if isinstance(row, (str, bytes)) or not isinstance(row, Iterable):
            raise TypeError(f"{kind}: expected {wanted}, got {row!r} for a row: use rows of names")
        found.append(tuple(row))
        if len(found[-1]) != len(fields):
            other = {"pairs": "score", "triples": "predict"}.get(kind)
            hint = f"use {other}() for such rows" if other and len(found[-1]) in (2, 3) else "correct the row"
            raise InputError(f"{kind}: expected {wanted}, got {found[-1]!r}: {hint}")
    return found


def read_rows(file: BinaryIO, name: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Read one row per line, with tabs between names.

    Blank lines are skipped. CRLF line ends and a byte order mark are allowed.

    Args:
        file: A file that was opened in binary mode. It is read line by line.
        name: Name of the file in messages.
        kind: "pairs", "triples" or "questions".

    Yields:
        `name:line` and the names.

    Raises:
        InputError: A line is too long, not UTF-8 text, or has wrong fields.
    """
    wanted = "<TAB>".join(FIELDS[kind])
    lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
    for number, data in enumerate(lines, 1):
        place = f"{name}:{number}"
        if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
            raise InputError(
                f"{place}: expected {wanted}, got a line of {MAX_LINE_BYTES:,} bytes or more: shorten it"
            )
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{place}: expected UTF-8 text, got byte 0x{data[error.start]:02x}: convert the file to UTF-8"
            ) from error
        if "\0" in line:
            raise InputError(f"{place}: expected UTF-8 text, got a NUL byte: convert the file to UTF-8")
        fields = line.split("\t")
        if len(fields) == 1 and not line.strip():
            continue
        if len(fields) != len(FIELDS[kind]) or "" in fields:
            count = f"{len(fields)} field{'s' * (len(fields) > 1)}"
            got = "an empty name" if "" in fields else count
            raise InputError(f"{place}: expected {wanted}, got {got}: correct the line")
        yield place, fields
