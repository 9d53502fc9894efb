"""Tables and figures of a reproduction: Markdown, CSV and PNG, each number beside the paper's."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.reproduce.paper import Scores
from bench.reproduce.runs import Outcome
from lightcake_fast.inference.fonts import families_for, no_warnings

Cell = str | int | float | None
Line = Sequence[tuple[float, float]]
_MOST_WORDS = 5  # below a figure, side by side
HALF_A_DIGIT = 5e-4  # the paper gives three digits: with one seed, all that is known of a deviation


@dataclass(frozen=True)
class Table:
    """A table to write.

    Attributes:
        title: What it shows.
        head: Names of the columns.
        rows: Cells as text.
        notes: Lines to stand below it.
        records: The same for programs: a number or a word a cell, by the name of its column.
        curves: Points (x, mean, deviation) of a figure, by name; empty for none.
        panels: Lines of points (x, y) of a figure, one a seed, by panel and name; empty for none.
        axes: Names of the figure's axes.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    records: Sequence[Mapping[str, Cell]] = ()
    curves: Mapping[str, Sequence[tuple[str, float, float]]] = field(default_factory=dict)
    panels: Mapping[str, Mapping[str, Sequence[Line]]] = field(default_factory=dict)
    axes: tuple[str, str] = ("", "")

    def markdown(self) -> str:
        """The table in Markdown, with its title and notes."""
        lines = [f"## {self.title}", "", _line(self.head), _line(["---"] * len(self.head))]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The records as comma-separated values; an empty cell is a number that there is not."""
        text = io.StringIO()
        columns = list(dict.fromkeys(name for record in self.records for name in record))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


class Mean(NamedTuple):
    """A figure over seeds."""

    mean: float
    deviation: float | None  # unknown with one seed

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Of a value a seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def cell(self, digits: int) -> str:
        """The mean and, where it is known, the deviation."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def metric(outcomes: Sequence[Outcome], split: str, name: str) -> Mean:
    """A metric of all triples of a split over seeds."""
    return Mean.of([outcome.results[split]["all"][name] for outcome in outcomes])


def mean_scores(outcomes: Sequence[Outcome]) -> tuple[Scores, float | None]:
    """(mean test figures over seeds, deviation of the MRR, unknown with one seed)."""
    mrr, mr, hits = (metric(outcomes, "test", name) for name in ("mrr", "mr", "hits_at_3"))
    return Scores(mrr.mean, mr.mean, hits.mean), mrr.deviation


def best_and_equal(means: Sequence[Mean]) -> tuple[int, set[int]]:
    """(which mean is highest, which others are less than two deviations below it).

    Of a pair's deviations the larger counts, or the one that is known; two of one seed each are not equal.
    """
    best = max(range(len(means)), key=lambda n: means[n].mean)
    equal = set()
    for n, (mean, deviation) in enumerate(means):
        known = [d for d in (deviation, means[best].deviation) if d is not None]
        if n != best and known and means[best].mean - mean < 2 * max(known):
            equal.add(n)
    return best, equal


def verdict(ours: float, deviation: float | None, theirs: float) -> str:
    """How our MRR stands to the paper's: "above", "equal" within the deviation, or "below"."""
    if abs(ours - theirs) <= (HALF_A_DIGIT if deviation is None else deviation):
        return "equal"
    return "above" if ours > theirs else "below"


def score_cells(outcomes: Sequence[Outcome], paper: Scores | None) -> list[str]:
    """The cells of a row for a data set: ours, the paper's, and the verdict."""
    means, deviation = mean_scores(outcomes)
    ours = f"{Mean(means.mrr, deviation).cell(4)} / {means.mr:.3f} / {means.hits_at_3:.4f}"
    if paper is None:
        return [ours, "", ""]
    theirs = f"{paper.mrr:.3f} / {paper.mr:.3f} / {paper.hits_at_3:.3f}"
    return [ours, theirs, verdict(means.mrr, deviation, paper.mrr)]


def score_record(outcomes: Sequence[Outcome], paper: Scores | None) -> dict[str, Cell]:
    """The same as numbers."""
    means, deviation = mean_scores(outcomes)
    record: dict[str, Cell] = {**means._asdict(), "mrr_deviation": deviation, "seeds": len(outcomes)}
    if paper is not None:
        record |= {f"paper_{name}": value for name, value in paper._asdict().items()}
        record["ours_is"] = verdict(means.mrr, deviation, paper.mrr)
    return record


def draw(table: Table, path: Path) -> None:
    """Draw the table's panels as a PNG, or its curves, with bars of a deviation where seeds are several.

    Args:
        table: With `curves` or `panels`.
        path: The file.
    """
    from matplotlib import rc_context

    names = [*table.curves, *table.panels, *(name for lines in table.panels.values() for name in lines)]
    families, _ = families_for([table.title, *table.axes, *names])
    with rc_context({"font.family": families, "text.parse_math": False}), no_warnings():
        (_panels if table.panels else _curves)(table).savefig(path, dpi=150)


def _curves(table: Table) -> Any:
    from matplotlib.figure import Figure  # the figure's own class: pyplot would keep global state

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes: Any = figure.subplots()
    for name, points in table.curves.items():
        x, mean, deviation = zip(*points, strict=True)
        axes.errorbar(x, mean, yerr=deviation if any(deviation) else None, fmt="o-", capsize=3, label=name)
    if len(points) > _MOST_WORDS:
        axes.tick_params(axis="x", labelrotation=30)
    axes.set_title(table.title, fontsize=11)
    axes.set_xlabel(table.axes[0])
    axes.set_ylabel(table.axes[1])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _panels(table: Table) -> Any:
    from matplotlib.figure import Figure

    rows, columns = -(-len(table.panels) // 2), min(len(table.panels), 2)
    figure = Figure(figsize=(0.6 + 4.5 * columns, 0.6 + 3.2 * rows), layout="constrained")
    panels: Any = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(table.panels) :]:
        axes.set_visible(False)
    for axes, (title, names) in zip(panels.flat, table.panels.items(), strict=False):
        for n, (name, lines) in enumerate(names.items()):
            for seed, line in enumerate(lines):
                label = None if seed else name
                axes.plot(*zip(*line, strict=True), "o-", color=f"C{n}", markersize=3, label=label)
        every = [[y for _, y in line] for lines in names.values() for line in lines]
        tops, least = [max(line) for line in every], min(min(line) for line in every)
        # shows where lines end, not where they begin
        axes.set_ylim(bottom=max(least, 2 * min(tops) - max(tops)) - 0.02)
        axes.set_title(title, fontsize=11)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel(table.axes[0])
        axes.set_ylabel(table.axes[1])
        axes.grid(alpha=0.3)
    figure.legend(
        *panels.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False
    )
    return figure


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
