"""`python -m bench.report RESULTS.json`: a benchmark run as Markdown with figures."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.report.figures import draw_figures
from bench.report.measurements import Measurement, NotRun, read_results
from bench.report.tables import as_markdown, tables
from lightcake_fast.cli import ArgumentParser, run

REPORT = "report.md"
EXAMPLES = """\
examples, after pytest bench/ --benchmark-only --benchmark-json results.json:
  python -m bench.report results.json                results-report/report.md with figures
  python -m bench.report results.json --out report   another folder
"""


def make_parser() -> ArgumentParser:
    """The command's flags."""
    description = "Turn a benchmark run into Markdown with figures."
    parser = ArgumentParser("python -m bench.report", description, EXAMPLES)
    parser.add_argument("results", metavar="RESULTS.json", type=Path, help="what --benchmark-json wrote")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of the report (default: RESULTS-report, beside it)"
    )
    return parser


def main(argv: Sequence[str]) -> None:
    """Write the report.

    Raises:
        InputError: The results are missing, damaged or of something else, or matplotlib is not installed.
    """
    options = make_parser().parse_args(argv)
    measurements, left_out = read_results(options.results)
    folder: Path = options.out or options.results.with_name(f"{options.results.stem}-report")
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw_figures(measurements, folder)
    (folder / REPORT).write_text(markdown(measurements, left_out, figures), encoding="utf-8")
    print(folder / REPORT)


def markdown(
    measurements: Sequence[Measurement], left_out: Sequence[NotRun], figures: Sequence[tuple[str, str]]
) -> str:
    """The report.

    Args:
        measurements: What was measured.
        left_out: What was not.
        figures: File name and caption of each.
    """
    machines = dict.fromkeys(
        (m.device_name, ", ".join(f"{name} {version}" for name, version in m.versions.items()))
        for m in measurements
    )
    lines = ["# Benchmarks", "", *(f"- {name}; {versions}" for name, versions in machines)]
    lines += [
        "",
        "Times are those of the fastest round; ratios are to the row of R-GCN (`rgcn`) and of plain ",
    ]
    lines[-1] += (
        "PyTorch (`lightcake eager`). Peak memory is what was held beyond inputs, outputs and gradients."
    )
    parts = ["\n".join(lines) + "\n", *(as_markdown(table) for table in tables(measurements, left_out))]
    parts += [f"## {caption}\n\n![{caption}]({file})\n" for file, caption in figures]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(run(main))
