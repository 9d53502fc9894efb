"""Print tables and draw a figure of a benchmark run: `python -m bench.report RESULTS.json`."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightcake_fast import terminal
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.errors import InputError

NOT_RUN = "not_run"  # key in the results file: skipped benchmarks and the reasons
PEERS = {"R-GCN": "rgcn", "eager": "lightcake eager", "PyG": "PyG RGCNConv", "gather": "gather"}
EXAMPLES = """\
examples, after pytest bench/ --benchmark-only --benchmark-json results.json:
  python -m bench.report results.json                       Markdown tables
  python -m bench.report results.json --figure layers.png   the same and a figure
"""

Reasons = list[dict[str, str]]  # of skipped benchmarks
Row = dict[str, Any]  # `extra_info` of a benchmark, and `seconds` of its fastest round


def rows_of(benchmarks: Iterable[Any]) -> list[Row]:
    """Convert benchmarks in the format of pytest-benchmark to rows.

    Raises:
        InputError: An entry is not a benchmark of this project's suite.
    """
    rows = []
    for entry in benchmarks:
        try:
            row = {**entry["extra_info"], "seconds": float(entry["stats"]["min"])}
            _ = [row[name] for name in ("kind", "mode", "model", "data", "device", "items")]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"expected benchmarks of this project's bench/, got {str(entry)[:60]}"
            ) from error
        rows.append(row)
    return sorted(rows, key=lambda row: row.get("entities") or 0)


def tables(rows: Sequence[Row], left_out: Reasons) -> dict[str, list[list[str]]]:
    """Build one table per kind of benchmark and device.

    Return a dict from titles to tables. The first line of a table is its header.
    """
    found = {}
    for kind, device in dict.fromkeys((row["kind"], row["device"]) for row in rows):
        some = [row for row in rows if (row["kind"], row["device"]) == (kind, device)]
        columns: dict[str, Callable[[Row], str]] = {
            "data": lambda row: row["data"],
            "model": lambda row: row["model"],
            "mode": lambda row: row["mode"],
            "items": lambda row: f"{row['items']:,}",
            "ms": lambda row: f"{row['seconds'] * 1e3:,.4g}",
            "M items/s": lambda row: f"{row['items'] / row['seconds'] / 1e6:.3g}" if row["items"] > 1 else "",
            **{f"{peer} / this": _ratio(some, model) for peer, model in PEERS.items()},
            "peak MB": lambda row: f"{row['peak_bytes'] / 1e6:,.1f}" if row.get("peak_bytes") else "",
            "parameters": lambda row: f"{row['parameters']:,}" if row.get("parameters") else "",
        }
        cells = {name: [cell(row) for row in some] for name, cell in columns.items()}
        cells = {name: column for name, column in cells.items() if any(column)}
        found[f"{kind}, {device}"] = [list(cells), *map(list, zip(*cells.values(), strict=True))]
    if left_out:
        names = ("kind", "data", "model", "device", "reason")
        found["not run"] = [list(names), *([entry[name] for name in names] for entry in left_out)]
    return found


def _ratio(rows: Sequence[Row], model: str) -> Callable[[Row], str]:
    """Build a column: the seconds of a peer divided by the seconds of the row.

    The peer was measured alternately with the row, or it is in the same group.
    """

    def group(row: Row) -> tuple[Any, ...]:
        return row["data"], row["mode"], row["items"]

    seconds = {group(row): row["seconds"] for row in rows if row["model"] == model}

    def cell(row: Row) -> str:
        peer = (row.get("beside") or {}).get(model) or seconds.get(group(row))
        return "" if peer is None or row["model"] == model else f"{peer / row['seconds']:.2g}"

    return cell


def markdown(rows: Sequence[Row], left_out: Reasons) -> str:
    """Return the tables as Markdown, after the machine and the versions."""
    lines = [
        "# Benchmarks",
        "",
        "Fastest rounds. A ratio above 1 means that the model is faster.",
        "",
    ]
    machines = (f"- {row['device_name']}; {row['versions']}" for row in rows)
    lines += dict.fromkeys(machines)
    for title, (header, *cells) in tables(rows, left_out).items():
        lines += ["", f"## {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines) + "\n"


def print_tables(console: terminal.Console, rows: Sequence[Row], left_out: Reasons) -> None:
    """Print the tables."""
    for title, (header, *cells) in tables(rows, left_out).items():
        shown = terminal.Table(show_edge=False, pad_edge=False)
        for name in header:
            shown.add_names(name, 0)
        for row in cells:
            shown.add_row(*row)
        console.print()
        console.print_table(title, shown)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw milliseconds per layer, forward and backward, by data set and model.

    Raises:
        InputError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("figure: matplotlib is missing: pip install 'lightcake_fast[plots]'") from error
    some = [row for row in rows if row["kind"] == "layer" and row["mode"] == "both"]
    figure = Figure((7, 4), layout="constrained")
    axis = figure.subplots()
    for model in dict.fromkeys(row["model"] for row in some):
        points = [(row["data"], row["seconds"] * 1e3) for row in some if row["model"] == model]
        axis.plot(*zip(*points, strict=True), "o", label=model)
    axis.set_yscale("log")
    axis.set_ylabel("ms per layer")
    if some:
        axis.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=150)


def read_results(path: Path) -> tuple[list[Row], list[dict[str, str]]]:
    """Read a file written by `pytest bench/ --benchmark-only --benchmark-json FILE`.

    Raises:
        InputError: The file is missing or damaged, or it has no benchmark of this project's suite.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = rows_of(content["benchmarks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: expected a file that --benchmark-json wrote, got {error!r}") from error
    return rows, content.get(NOT_RUN, [])


def make_parser() -> ArgumentParser:
    """Create the parser of the command."""
    parser = ArgumentParser("python -m bench.report", "Print the tables of a benchmark run.", EXAMPLES)
    parser.add_argument("results", metavar="RESULTS.json", type=Path, help="file that --benchmark-json wrote")
    parser.add_argument("--figure", metavar="FILE", type=Path, help="file of a figure, PNG or SVG")
    return parser


def main(argv: Sequence[str]) -> None:
    """Print the report."""
    options = make_parser().parse_args(argv)
    rows, left_out = read_results(options.results)
    if options.figure is not None:
        draw(rows, options.figure)
    print(markdown(rows, left_out), end="")


if __name__ == "__main__":
    sys.exit(run(main))
