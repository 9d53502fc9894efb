"""Tables and figures of a reproduction: Markdown, CSV and PNG, each number beside the paper's."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightcake_fast.reproduce.paper import Scores
from lightcake_fast.reproduce.runs import Outcome

HALF_A_DIGIT = 5e-4  # the paper gives three digits: with one seed, all that is known of a deviation


@dataclass(frozen=True)
class Table:
    """A table to write.

    Attributes:
        title: What it shows.
        head: Names of the columns.
        rows: Cells as text.
        notes: Lines to stand below it.
        curves: Points (x, y) of a figure, by name; empty for none.
        axes: Names of the figure's axes.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    curves: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)
    axes: tuple[str, str] = ("", "")

    def markdown(self) -> str:
        """The table in Markdown, with its title and notes."""
        lines = [f"## {self.title}", "", _line(self.head), _line(["---"] * len(self.head))]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.head, *self.rows])
        return text.getvalue()


def mean_scores(outcomes: Sequence[Outcome]) -> tuple[Scores, float]:
    """(mean test figures over seeds, deviation of the MRR): with one seed half a digit of the paper's."""
    tests = [outcome.results["test"]["all"] for outcome in outcomes]
    means = Scores(*(statistics.fmean(test[key] for test in tests) for key in ("mrr", "mr", "hits_at_3")))
    if len(tests) == 1:
        return means, HALF_A_DIGIT
    return means, statistics.stdev(test["mrr"] for test in tests)


def verdict(ours: float, deviation: float, theirs: float) -> str:
    """How our MRR stands to the paper's: "above", "equal" within the deviation, or "below"."""
    if abs(ours - theirs) <= deviation:
        return "equal"
    return "above" if ours > theirs else "below"


def score_cells(outcomes: Sequence[Outcome], paper: Scores | None) -> list[str]:
    """The cells of a row for a data set: ours, the paper's, and the verdict."""
    means, deviation = mean_scores(outcomes)
    spread = f" ± {deviation:.4f}" if len(outcomes) > 1 else ""
    ours = f"{means.mrr:.4f}{spread} / {means.mr:.3f} / {means.hits_at_3:.4f}"
    if paper is None:
        return [ours, "", ""]
    theirs = f"{paper.mrr:.3f} / {paper.mr:.3f} / {paper.hits_at_3:.3f}"
    return [ours, theirs, verdict(means.mrr, deviation, paper.mrr)]


def draw(table: Table, path: Path) -> None:
    """Draw the table's curves as a PNG.

    Args:
        table: With `curves`.
        path: The file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes: Any = figure.subplots()
    for name, points in table.curves.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    axes.set_title(table.title, fontsize=11)
    axes.set_xlabel(table.axes[0])
    axes.set_ylabel(table.axes[1])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=150)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
