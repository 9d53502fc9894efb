"""Names of entities and relations: sources, checks, and warnings about suspicious names."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.errors import InputError

FIELDS = ("head", "relation", "tail")
_MAX_SHOWN = 60
_BREAKS = "\t\n\r\0"  # separators in the files that this package writes
_BLOCK = 1 << 16
# white space of any kind, zero-width spaces, and byte order marks in the middle of a file
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\u2060\ufeff"
_TITLES = (
    {"head", "h", "subject", "s", "source", "from"},
    {"relation", "r", "rel", "relationship", "predicate", "property", "p", "edge", "type", "label"},
    {"tail", "t", "object", "o", "target", "to"},
)


class Source(Protocol):
    """Source of the triples of a split.

    Attributes:
        header: Whether to skip the first row as a header; None if the user did not say.
    """

    header: bool | None

    def read(self) -> Iterator[list[str]]:
        """Yield blocks of names: head, relation, tail, head, relation, tail, ..."""
        ...

    def place(self, row: int) -> str:
        """The place of a triple, for messages."""
        ...

    def notes(self) -> list[str]:
        """Warnings about skipped rows."""
        ...


def columns_by_name(frame: Any, fields: Sequence[str]) -> Any:
    """Select the columns `fields` of a DataFrame in this order; without all of them, keep the frame."""
    return frame[list(fields)] if set(fields) <= set(frame.columns) else frame


def titles(row: Sequence[str]) -> tuple[str, ...] | None:
    """The `FIELDS` in the order of the titles in a first row; None if the row is not a header."""
    words = [trim(name).lower() for name in row]
    found = tuple(
        field for word in words for field, known in zip(FIELDS, _TITLES, strict=True) if word in known
    )
    if found != FIELDS and min(map(len, words)) == 1:  # single letters in another order are names
        return None
    return found if sorted(found) == sorted(FIELDS) else None


def quote(name: str) -> str:
    """A name for a message: quoted, with escaped control characters, and cut if very long."""
    return repr(name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "...")


def check_encoding(kind: str, names: Sequence[str]) -> None:
    """Check that UTF-8 can encode all names. Half of a surrogate pair has no UTF-8 form.

    Raises:
        InputError: UTF-8 cannot encode a name.
        TypeError: A name is not a string.
    """
    try:
        "".join(names).encode()
    except TypeError as error:
        name = next(name for name in names if not isinstance(name, str))
        raise TypeError(
            f"{kind}: expected strings, got the name {name!r}: convert names to strings"
        ) from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        name = next(name for name in names if half in name)
        raise InputError(
            f"{kind}: expected names that UTF-8 can encode, got {quote(name)}: replace the lone surrogate"
        ) from error


def check_no_header(place: str, header: bool | None) -> None:
    """Check that `header` is not set for a source without headers.

    Raises:
        InputError: It is set.
    """
    if header:
        remedy = "leave it out, only .tsv, .txt and .csv files have headers"
        raise InputError(f"{place}: expected no header, got header={header}: {remedy}")


def check_names(kind: str, names: Sequence[str]) -> None:
    """Check that a tab-separated file can hold all names.

    Raises:
        InputError: A name is empty or contains a tab, a line break or a NUL.
    """
    if "" in names:
        raise InputError(
            f"{kind}: expected a name per id, got an empty name for id {names.index('')}: add the name"
        )
    broken = _first_broken(names)
    if broken is not None:
        raise _broken_name(f"{kind}: ", "name", broken)


def check_unbroken(
    sources: Sequence[Source],
    triples: Sequence[NDArray[Any]],
    entities: Sequence[str],
    relations: Sequence[str],
) -> None:
    """Check that a tab-separated file can hold the names of the sources.

    Args:
        sources: The sources.
        triples: Triples of each source, ids `[T, 3]`.
        entities: Entity names by id.
        relations: Relation names by id.

    Raises:
        InputError: A name contains a tab, a line break or a NUL. The message gives its first triple.
    """
    for kind, names, columns in (("entity", entities, (0, 2)), ("relation", relations, (1,))):
        broken = _first_broken(names)
        if broken is not None:
            raise _broken_name(_first_place(sources, triples, columns, names.index(broken)), kind, broken)


def _first_broken(names: Sequence[str]) -> str | None:
    """The first name with a character of `_BREAKS`."""
    for start in range(0, len(names), _BLOCK):
        text = "".join(names[start : start + _BLOCK])
        if any(mark in text for mark in _BREAKS):
            return next(name for name in names[start:] if any(mark in name for mark in _BREAKS))
    return None


def _broken_name(place: str, kind: str, name: str) -> InputError:
    wanted = "expected names without tabs, line breaks and NUL characters"
    return InputError(f"{place}{wanted}, got the {kind} {quote(name)}: replace these characters")


def _first_place(
    sources: Sequence[Source], triples: Sequence[NDArray[Any]], columns: tuple[int, ...], number: int
) -> str:
    """The first place of an id in these columns, as the start of a message; empty if not found."""
    for source, rows in zip(sources, triples, strict=True):
        found = np.flatnonzero((rows[:, columns] == number).any(axis=1))
        if len(found):
            return f"{source.place(int(found[0]))}: "
    return ""


def check_distinct(kind: str, names: Sequence[str]) -> None:
    """Check that all names differ.

    Raises:
        InputError: Two ids have the same name.
    """
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InputError(f"{kind}: expected distinct names, got {quote(twice)} twice: rename one")


def trim(name: str) -> str:
    """A name without leading and trailing white space of any kind and byte order marks."""
    return name.strip(_BLANKS)


def odd_names(
    sources: Sequence[Source],
    triples: Sequence[NDArray[Any]],
    entities: Sequence[str],
    relations: Sequence[str],
) -> list[str]:
    """Warnings about names that look like mistakes, each with its first place.

    Args:
        sources: The sources.
        triples: Triples of each source, ids `[T, 3]`.
        entities: Entity names by id.
        relations: Relation names by id.
    """
    notes = []
    for source, rows in zip(sources, triples, strict=True):
        line = [names[row] for names, row in zip((entities, relations, entities), rows[0], strict=True)]
        if source.header is None and titles(line):
            shown = ", ".join(map(quote, line))
            notes.append(
                f"{source.place(0)}: the first triple {shown} looks like a header: remove it if it is one"
            )
    for kind, names, columns in (("entity", entities, (0, 2)), ("relation", relations, (1,))):
        twins = _twins(names)
        if twins:
            odd, plain = twins[0]
            place = _first_place(sources, triples, columns, names.index(odd))
            more = f" (and {len(twins) - 1:,} more such names)" * (len(twins) > 1)
            difference = f"{kind} {quote(odd)} differs from {quote(plain)} only in white space around it"
            notes.append(f"{place}{difference}{more}: use --strip or strip=True to trim names")
    return notes


def _twins(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ only in white space around them."""
    odd = {name: plain for name in names if (plain := name.strip(_BLANKS)) != name}
    plain_names = set(odd.values()).intersection(names) if odd else ()
    first: dict[str, str] = {}
    twins = []
    for name, plain in odd.items():
        other = plain if plain in plain_names else first.setdefault(plain, name)
        if other != name:
            twins.append((name, other))
    return twins
