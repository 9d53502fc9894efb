"""Tables and figures in Markdown, CSV and PNG."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightcake_fast.inference.fonts import families_for, no_warnings

Cell = str | int | float | None
Point = tuple[str | float, float, float | None]  # x, y, deviation of y


@dataclass(frozen=True)
class Figure:
    """Lines of points. Several seeds get error bars, or one line each.

    Attributes:
        panels: Lines by panel and name.
        axes: Names of the axes.
        log: Whether x is on a logarithmic axis. The panels then show the ends of the lines.
    """

    panels: Mapping[str, Mapping[str, Sequence[Sequence[Point]]]]
    axes: tuple[str, str]
    log: bool = False


@dataclass(frozen=True)
class Table:
    """A table to write.

    Attributes:
        title: Title of the table.
        head: Names of the columns.
        rows: Cells as text.
        notes: Lines below the table.
        records: The same content for programs: numbers or words by column name, one record per row.
        figure: Its figure, if it has one.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    records: Sequence[Mapping[str, Cell]] = ()
    figure: Figure | None = None

    def markdown(self) -> str:
        """Return the table in Markdown, with its title and notes."""
        lines = [f"| {' | '.join(cells)} |" for cells in (self.head, ["---"] * len(self.head), *self.rows)]
        for note in self.notes:
            lines += ["", note]
        return "\n".join([f"## {self.title}", "", *lines]) + "\n"

    def csv(self) -> str:
        """Return the records as comma-separated values. An empty cell is a missing number."""
        text = io.StringIO()
        columns = list(dict.fromkeys(name for record in self.records for name in record))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


class Mean(NamedTuple):
    """Mean and deviation over seeds."""

    mean: float
    deviation: float | None  # unknown with one seed

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Compute it from one value per seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def cell(self, digits: int) -> str:
        """Format the mean and the deviation, if known."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def draw(title: str, figure: Figure, path: Path) -> None:
    """Draw a figure as a PNG, with up to two panels side by side."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas  # this class avoids pyplot's global state

    words = [title, *figure.axes, *figure.panels, *(name for one in figure.panels.values() for name in one)]
    families, _ = families_for(words)
    with rc_context({"font.family": families, "text.parse_math": False}), no_warnings():
        rows, columns = -(-len(figure.panels) // 2), min(len(figure.panels), 2)
        canvas = Canvas(figsize=(1.6 + 4.6 * columns, 1 + 3.2 * rows), layout="constrained")
        panels: Any = canvas.subplots(rows, columns, squeeze=False).flat
        for axes in panels[len(figure.panels) :]:
            axes.set_visible(False)
        for axes, (name, lines) in zip(panels, figure.panels.items(), strict=False):
            _panel(axes, lines, figure)
            axes.set(title=name, xlabel=figure.axes[0], ylabel=figure.axes[1])
        handles = panels[0].get_legend_handles_labels()
        canvas.legend(*handles, loc="outside upper center", ncols=3, frameon=False)
        canvas.savefig(path, dpi=150)


def _panel(axes: Any, lines: Mapping[str, Sequence[Sequence[Point]]], figure: Figure) -> None:
    for n, (name, seeds) in enumerate(lines.items()):
        for seed, line in enumerate(seeds):
            x, y, deviation = zip(*line, strict=True)
            label = None if seed else name
            bars = deviation if any(deviation) else None
            axes.errorbar(x, y, bars, fmt="o-", color=f"C{n}", markersize=4, capsize=3, label=label)
    axes.grid(alpha=0.3)
    if figure.log:
        every = [[y for _, y, _ in line] for seeds in lines.values() for line in seeds]
        tops, least = [max(line) for line in every], min(min(line) for line in every)
        axes.set_ylim(bottom=max(least, 2 * min(tops) - max(tops)) - 0.02)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    elif max(len(str(x)) for seeds in lines.values() for line in seeds for x, _, _ in line) > 2:
        axes.tick_params(axis="x", labelrotation=30)
