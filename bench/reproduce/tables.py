"""Tables and figures of a reproduction in Markdown, CSV and PNG, next to the paper's numbers."""

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
_MOST_WORDS = 5  # most labels that fit side by side below a figure
HALF_A_DIGIT = 5e-4  # precision of the paper's three digits; used as the deviation with one seed


@dataclass(frozen=True)
class Table:
    """A table to write.

    Attributes:
        title: Title of the table.
        head: Names of the columns.
        rows: Cells as text.
        notes: Lines below the table.
        records: The same content for programs: numbers or words by column name, one record per row.
        curves: Points (x, mean, deviation) of a figure by name; empty if there is no figure.
        panels: Lines of points (x, y) of a figure by panel and name, one per seed; empty without a figure.
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
        """Return the table in Markdown, with its title and notes."""
        lines = [f"## {self.title}", "", _line(self.head), _line(["---"] * len(self.head))]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

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


def metric(outcomes: Sequence[Outcome], split: str, name: str) -> Mean:
    """Return a metric of all triples of a split over seeds."""
    return Mean.of([outcome.results[split]["all"][name] for outcome in outcomes])


def mean_scores(outcomes: Sequence[Outcome]) -> tuple[Scores, float | None]:
    """Return the mean test results over seeds, and the deviation of the MRR (None with one seed)."""
    mrr, mr, hits = (metric(outcomes, "test", name) for name in ("mrr", "mr", "hits_at_3"))
    return Scores(mrr.mean, mr.mean, hits.mean), mrr.deviation


def best_and_equal(means: Sequence[Mean]) -> tuple[int, set[int]]:
    """Return the index of the highest mean, and the indices less than two deviations below it.

    Each pair uses the larger deviation, or the known one. Two means of one seed each are not equal.
    """
    best = max(range(len(means)), key=lambda n: means[n].mean)
    equal = set()
    for n, (mean, deviation) in enumerate(means):
        known = [d for d in (deviation, means[best].deviation) if d is not None]
        if n != best and known and means[best].mean - mean < 2 * max(known):
            equal.add(n)
    return best, equal


def verdict(ours: float, deviation: float | None, theirs: float) -> str:
    """Compare our MRR with the paper's: "above", "equal" (within the deviation), or "below"."""
    if abs(ours - theirs) <= (HALF_A_DIGIT if deviation is None else deviation):
        return "equal"
    return "above" if ours > theirs else "below"


def score_cells(outcomes: Sequence[Outcome], paper: Scores | None) -> list[str]:
    """Return the cells of a row for a data set: our results, the paper's, and the verdict."""
    means, deviation = mean_scores(outcomes)
    ours = f"{Mean(means.mrr, deviation).cell(4)} / {means.mr:.3f} / {means.hits_at_3:.4f}"
    if paper is None:
        return [ours, "", ""]
    theirs = f"{paper.mrr:.3f} / {paper.mr:.3f} / {paper.hits_at_3:.3f}"
    return [ours, theirs, verdict(means.mrr, deviation, paper.mrr)]


def score_record(outcomes: Sequence[Outcome], paper: Scores | None) -> dict[str, Cell]:
    """Return the same values as numbers."""
    means, deviation = mean_scores(outcomes)
    record: dict[str, Cell] = {**means._asdict(), "mrr_deviation": deviation, "seeds": len(outcomes)}
    if paper is not None:
        record |= {f"paper_{name}": value for name, value in paper._asdict().items()}
        record["ours_is"] = verdict(means.mrr, deviation, paper.mrr)
    return record


def draw(table: Table, path: Path) -> None:
    """Draw the table's panels or curves as a PNG. Several seeds get error bars.

    Args:
        table: A table with `curves` or `panels`.
        path: The file.
    """
    from matplotlib import rc_context

    names = [*table.curves, *table.panels, *(name for lines in table.panels.values() for name in lines)]
    families, _ = families_for([table.title, *table.axes, *names])
    with rc_context({"font.family": families, "text.parse_math": False}), no_warnings():
        (_panels if table.panels else _curves)(table).savefig(path, dpi=150)


def _curves(table: Table) -> Any:
    from matplotlib.figure import Figure  # this class avoids pyplot's global state

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
        # choose the range that shows the ends of the lines; their starts can be cut off
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
