"""Tables of answers for pandas, terminals and notebooks."""

import html
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from lightcake_fast.errors import InputError
from lightcake_fast.terminal import Console, Table

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN = 50  # maximum number of printed rows; pandas gets all rows

_NO_MATHS = 'class="tex2jax_ignore mathjax_ignore"'  # a name may contain dollar signs


class Tabular(ABC):
    """Base class of objects that print as a table, and as an HTML table in a notebook.

    Columns without values are not printed. Floats have four decimals. At most `SHOWN` rows are printed.
    """

    @property
    def title(self) -> str:
        """Text above the printed table; may be empty."""
        return ""

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows, one value per column; None means a missing value."""

    def __repr__(self) -> str:
        columns, rows, more = self._shown()
        table = Table(box=None, pad_edge=False)
        for name, values in columns.items():
            table.add_column(name, justify="right" if _is_figures(values) else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        text = io.StringIO()
        Console(file=text, force_terminal=False, force_jupyter=False, color_system=None).print(table)
        lines = [self.title, *(line.rstrip() for line in text.getvalue().splitlines()), more]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """The HTML table for Jupyter, with escaped names."""
        columns, rows, more = self._shown()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
        lines = "".join(f"<tr>{row}</tr>" for row in body)
        above, below = (f"<p>{html.escape(line)}</p>" if line else "" for line in (self.title, more))
        table = f"<table {_NO_MATHS}><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
        return f"{above}{table}{below}"

    def _shown(self) -> tuple[dict[str, list[Any]], list[list[str]], str]:
        """Values of the printed columns, the cells, and a line about the rows that are not printed."""
        every = self.rows()
        rows = list(islice(every, SHOWN))
        more = sum(1 for _ in every)
        values = {name: [row[place] for row in rows] for place, name in enumerate(self.columns)}
        shown = {name: found for name, found in values.items() if not rows or any(map(_is_there, found))}
        cells = [[_cell(value) for value in row] for row in zip(*shown.values(), strict=True)]
        return shown, cells, f"... {more:,} more rows: to_pandas() returns all" if more else ""


def frame(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> "DataFrame":
    """Make a pandas DataFrame of columns and rows.

    Raises:
        InputError: pandas is missing.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        problem = "to_pandas: expected pandas, which is missing: pip install 'lightcake_fast[tables]'"
        raise InputError(problem) from error
    return pandas.DataFrame(list(rows), columns=list(columns))


def _is_there(value: Any) -> bool:
    return value is not None and value != ""


def _is_figures(values: Iterable[Any]) -> bool:
    return not any(isinstance(value, str) for value in values)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
