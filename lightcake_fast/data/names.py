"""Names and where they come from; what looks like a mistake in them, and is kept as it is."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.errors import InputError

FIELDS = ("head", "relation", "tail")
_MAX_SHOWN = 60
_BREAKS = "\t\n\r\0"  # what parts names and lines in the files that this package writes
_BLOCK = 1 << 16
# spaces of any kind, spaces of no width, and a byte order mark in the middle of a file
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\u2060\ufeff"
_TITLES = (
    {"head", "h", "subject", "s", "source", "from"},
    {"relation", "r", "rel", "relationship", "predicate", "property", "p", "edge", "type", "label"},
    {"tail", "t", "object", "o", "target", "to"},
)


class Source(Protocol):
    """Where a split's triples come from.

    Attributes:
        header: Whether the first row is a header, which is left out; None where that is not said.
    """

    header: bool | None

    def read(self) -> Iterator[list[str]]:
        """The names of a block of triples: head, relation, tail, head, relation, tail, ..."""
        ...

    def place(self, row: int) -> str:
        """Where a triple stands, for messages."""
        ...

    def notes(self) -> list[str]:
        """What was left out, in words."""
        ...


def columns_by_name(frame: Any, fields: Sequence[str]) -> Any:
    """A DataFrame's columns of these names, in this order, if it has them all; else the frame as it is."""
    return frame[list(fields)] if set(fields) <= set(frame.columns) else frame


def titles(row: Sequence[str]) -> tuple[str, ...] | None:
    """The `FIELDS` in the order of a first row with their titles; None if the row is not a header."""
    words = [trim(name).lower() for name in row]
    found = tuple(
        field for word in words for field, known in zip(FIELDS, _TITLES, strict=True) if word in known
    )
    if found != FIELDS and min(map(len, words)) == 1:  # letters in another order are names
        return None
    return found if sorted(found) == sorted(FIELDS) else None


def quote(name: str) -> str:
    """A name for a message: quoted, control characters escaped, cut when very long."""
    return repr(name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "...")


def check_encoding(kind: str, names: Sequence[str]) -> None:
    """Check that names have a UTF-8 form, as those of any file do: half of a surrogate pair has none.

    Raises:
        InputError: One has not.
        TypeError: One is no string.
    """
    try:
        "".join(names).encode()
    except TypeError as error:
        name = next(name for name in names if not isinstance(name, str))
        raise TypeError(f"{kind}: got the name {name!r}, wanted a string") from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        name = next(name for name in names if half in name)
        raise InputError(f"{kind}: got the name {quote(name)}, which UTF-8 cannot encode") from error


def check_no_header(place: str, header: bool | None) -> None:
    """Check that no header is asked for, where there can be none.

    Raises:
        InputError: One is.
    """
    if header:
        remedy = "leave it out, only .tsv, .txt and .csv files have one"
        raise InputError(f"{place}: expected no header, got header={header}: {remedy}")


def check_names(kind: str, names: Sequence[str]) -> None:
    """Check that names can stand in a tab-separated file.

    Raises:
        InputError: A name is empty or holds a tab, a line break or a NUL.
    """
    if "" in names:
        raise InputError(f"{kind}: expected a name for each id, got an empty one for id {names.index('')}")
    broken = _first_broken(names)
    if broken is not None:
        raise _broken_name(f"{kind}: ", "name", broken)


def check_unbroken(
    sources: Sequence[Source],
    triples: Sequence[NDArray[Any]],
    entities: Sequence[str],
    relations: Sequence[str],
) -> None:
    """Check that names as they were read can stand in a tab-separated file.

    Args:
        sources: One for each part of the data.
        triples: Their triples as ids `[T, 3]`.
        entities: The entities' names by id.
        relations: The same for relations.

    Raises:
        InputError: A name holds a tab, a line break or a NUL. The message gives the first triple with it.
    """
    for kind, names, columns in (("entity", entities, (0, 2)), ("relation", relations, (1,))):
        broken = _first_broken(names)
        if broken is not None:
            raise _broken_name(_first_place(sources, triples, columns, names.index(broken)), kind, broken)


def _first_broken(names: Sequence[str]) -> str | None:
    """The first name that holds one of `_BREAKS`."""
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
    """Where an id stands first in these columns, for the start of a message; empty if it is nowhere."""
    for source, rows in zip(sources, triples, strict=True):
        found = np.flatnonzero((rows[:, columns] == number).any(axis=1))
        if len(found):
            return f"{source.place(int(found[0]))}: "
    return ""


def check_distinct(kind: str, names: Sequence[str]) -> None:
    """Check that names stand for one id each.

    Raises:
        InputError: One stands for two.
    """
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InputError(f"{kind}: got the name {quote(twice)} twice, wanted one for each id")


def trim(name: str) -> str:
    """A name without what nobody sees around it: spaces of any kind and byte order marks."""
    return name.strip(_BLANKS)


def odd_names(
    sources: Sequence[Source],
    triples: Sequence[NDArray[Any]],
    entities: Sequence[str],
    relations: Sequence[str],
) -> list[str]:
    """What looks like a mistake, each with the place where it stands first.

    Args:
        sources: One for each part of the data.
        triples: Their triples as ids `[T, 3]`.
        entities: The entities' names by id.
        relations: The same for relations.
    """
    notes = []
    for source, rows in zip(sources, triples, strict=True):
        line = [names[row] for names, row in zip((entities, relations, entities), rows[0], strict=True)]
        if source.header is None and titles(line):
            shown = ", ".join(map(quote, line))
            notes.append(f"{source.place(0)}: {shown} is taken for a triple: remove it if it is a header")
    for kind, names, columns in (("entity", entities, (0, 2)), ("relation", relations, (1,))):
        twins = _twins(names)
        if twins:
            odd, plain = twins[0]
            place = _first_place(sources, triples, columns, names.index(odd))
            more = f" (and {len(twins) - 1:,} more such names)" * (len(twins) > 1)
            difference = f"{kind} {quote(odd)} differs from {quote(plain)} in blanks around it alone"
            notes.append(f"{place}{difference}{more}; strip trims names")
    return notes


def _twins(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names with blanks around them, each with another name that is the same without."""
    odd = {name: plain for name in names if (plain := name.strip(_BLANKS)) != name}
    plain_names = set(odd.values()).intersection(names) if odd else ()
    first: dict[str, str] = {}
    twins = []
    for name, plain in odd.items():
        other = plain if plain in plain_names else first.setdefault(plain, name)
        if other != name:
            twins.append((name, other))
    return twins
