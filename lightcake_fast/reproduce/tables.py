"""Tables and figures of a reproduction: Markdown, CSV and PNG, each number beside the paper's."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightcake_fast.inference.fonts import families_for, no_warnings
from lightcake_fast.reproduce.paper import Scores
from lightcake_fast.reproduce.runs import Outcome

Cell = str | int | float | None
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
        axes: Names of the figure's axes.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    records: Sequence[Mapping[str, Cell]] = ()
    curves: Mapping[str, Sequence[tuple[str, float, float]]] = field(default_factory=dict)
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


def mean_scores(outcomes: Sequence[Outcome]) -> tuple[Scores, float | None]:
    """(mean test figures over seeds, deviation of the MRR, unknown with one seed)."""
    tests = [outcome.results["test"]["all"] for outcome in outcomes]
    means = Scores(*(statistics.fmean(test[key] for test in tests) for key in ("mrr", "mr", "hits_at_3")))
    return means, statistics.stdev(test["mrr"] for test in tests) if len(tests) > 1 else None


def verdict(ours: float, deviation: float | None, theirs: float) -> str:
    """How our MRR stands to the paper's: "above", "equal" within the deviation, or "below"."""
    if abs(ours - theirs) <= (HALF_A_DIGIT if deviation is None else deviation):
        return "equal"
    return "above" if ours > theirs else "below"


def score_cells(outcomes: Sequence[Outcome], paper: Scores | None) -> list[str]:
    """The cells of a row for a data set: ours, the paper's, and the verdict."""
    means, deviation = mean_scores(outcomes)
    spread = "" if deviation is None else f" ± {deviation:.4f}"
    ours = f"{means.mrr:.4f}{spread} / {means.mr:.3f} / {means.hits_at_3:.4f}"
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
    """Draw the table's curves as a PNG, with bars of one deviation where there are several seeds.

    Args:
        table: With `curves`.
        path: The file.
    """
    from matplotlib import rc_context

    families, _ = families_for([table.title, *table.axes, *table.curves])
    with rc_context({"font.family": families, "text.parse_math": False}), no_warnings():
        _drawn(table).savefig(path, dpi=150)


def _drawn(table: Table) -> Any:
    from matplotlib.figure import Figure  # the figure's own class: pyplot would keep global state

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes: Any = figure.subplots()
    for name, points in table.curves.items():
        x, mean, deviation = zip(*points, strict=True)
        axes.errorbar(x, mean, yerr=deviation if any(deviation) else None, fmt="o-", capsize=3, label=name)
    axes.set_title(table.title, fontsize=11)
    axes.set_xlabel(table.axes[0])
    axes.set_ylabel(table.axes[1])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
