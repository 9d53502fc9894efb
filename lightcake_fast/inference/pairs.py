"""Pairs from a stream, a line each: any number of them in little memory."""

from collections.abc import Iterator
from typing import BinaryIO

from lightcake_fast.errors import InputError

MAX_LINE_BYTES = 1 << 16


def read_pairs(file: BinaryIO, name: str) -> Iterator[tuple[str, str, str]]:
    """Read `head<TAB>tail` lines; blank ones are skipped, CRLF and a byte order mark are fine.

    Args:
        file: Opened for reading bytes.
        name: What messages call it.

    Yields:
        `name:line`, head and tail.

    Raises:
        InputError: A line is not such a pair, no text, or too long.
    """
    lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
    for number, data in enumerate(lines, 1):
        place = f"{name}:{number}"
        if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
            raise InputError(f"{place}: got a line of {MAX_LINE_BYTES:,} bytes or more, wanted head<TAB>tail")
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: got byte 0x{data[error.start]:02x}, wanted UTF-8 text") from error
        if "\0" in line:
            raise InputError(f"{place}: got a NUL byte, wanted text")
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2 or "" in fields:
            count = f"{len(fields)} field{'s' * (len(fields) > 1)}"
            got = "an empty name" if "" in fields else count
            raise InputError(f"{place}: got {got}, wanted head<TAB>tail")
        yield place, fields[0], fields[1]
