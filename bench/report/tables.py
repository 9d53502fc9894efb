"""The figures of a benchmark run side by side, as tables for a terminal or for Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from bench.report.measurements import Measurement, NotRun
from lightcake_fast import terminal

MODES = ("forward", "backward", "both", "replay")  # of a layer; a replay is both, as one CUDA graph
_NAME = 12  # characters of a name in a line of a narrow terminal
RGCN, EAGER = "rgcn", "lightcake eager"  # what the figures of a layer are divided by


@dataclass
class Table:
    """A table of text.

    Attributes:
        title: What it shows.
        header: Names of the columns.
        text: How many columns are text; the others are figures.
        rows: The cells.
        notes: Lines below it.
    """

    title: str
    header: list[str]
    text: int = 1
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tables(measurements: Sequence[Measurement], left_out: Sequence[NotRun]) -> list[Table]:
    """All tables that the measurements fill, in the order of reading."""
    made = []
    for device in dict.fromkeys(m.device for m in measurements):
        here = [m for m in measurements if m.device == device]
        for kind, make in (
            ("layer", _layer_tables),
            ("training", _training_tables),
        ):
            of_kind = [m for m in here if m.kind == kind]
            # pytest runs data sets in no telling order: the smallest first
            of_kind.sort(key=lambda m: m.entities or 0)
            for data in dict.fromkeys(m.data for m in of_kind):
                found = make([m for m in of_kind if m.data == data])
                found[0].notes += [
                    f"{n.model}: {n.reason}"
                    for n in left_out
                    if (n.kind, n.data, n.device) == (kind, data, device)
                ]
                made += found
        for kind, whole in (("peers", _peers_table), ("scaling", _scaling_table)):
            of_kind = [m for m in here if m.kind == kind]
            made += [whole(of_kind)] if of_kind else []
        others = [m for m in here if m.kind not in ("layer", "training", "peers", "scaling")]
        made += [_other_table(others)] if others else []
    return made


def as_markdown(table: Table) -> str:
    """A Markdown section."""
    lines = [f"## {table.title}", "", _line(table.header)]
    lines.append("|" + "---|" * table.text + "---:|" * (len(table.header) - table.text))
    lines += [_line(row) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def print_table(console: terminal.Console, table: Table) -> None:
    """Show a table on a terminal, or whole in a file or a pipe."""
    shown = terminal.Table(show_edge=False, pad_edge=False)
    for n, name in enumerate(table.header):
        widest = max(len(row[n]) for row in table.rows)
        if n < table.text:
            shown.add_names(name, min(widest, _NAME))
        else:
            shown.add_figures("\n".join(wrap(name, max(widest, 1), break_long_words=False)), widest)
    for row in table.rows:
        shown.add_row(*row)
    console.print()
    console.print_table(table.title, shown)
    for note in table.notes:
        console.print(note, soft_wrap=True)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _layer_tables(measurements: Sequence[Measurement]) -> list[Table]:
    """Models by speed: their times, then memory and parameters, each over R-GCN and eager."""
    one = measurements[0]
    modes = [mode for mode in MODES if mode != "replay" or any(m.mode == mode for m in measurements)]
    times = Table(
        f"One layer on {one.data}, {one.device}: {one.items:,} context triples, width {one.dim}",
        ["model", *(f"{mode} ms" for mode in modes), *_over("M triples/s"), "GB/s"],
    )
    sizes = Table(
        f"Memory and parameters of one layer on {one.data}, {one.device}, width {one.dim}",
        ["model", *_over("peak MB"), *_over("parameters")],
    )
    both = {m.model: m for m in measurements if m.mode == "both"}
    models = dict.fromkeys(m.model for m in measurements)
    for model in sorted(models, key=lambda name: both[name].seconds if name in both else float("inf")):
        seconds = {m.mode: m.seconds for m in measurements if m.model == model}
        whole = both.get(model)
        row = [model, *(_milliseconds(seconds.get(mode)) for mode in modes)]
        if whole is None:
            times.rows.append(row + [""] * (len(times.header) - len(row)))
            continue
        row += [f"{whole.items_per_second / 1e6:.3g}", *_ratios(whole, both, lambda m: m.items_per_second)]
        row.append(f"{whole.gathered_bytes / whole.seconds / 1e9:.1f}" if whole.gathered_bytes else "")
        times.rows.append(row)
        if whole.peak_bytes is not None or whole.parameters is not None:
            row = [model, _megabytes(whole.peak_bytes), *_ratios(whole, both, lambda m: m.peak_bytes)]
            row += [_count(whole.parameters), *_ratios(whole, both, lambda m: m.parameters)]
            sizes.rows.append(row)
    return [times, sizes] if sizes.rows else [times]


def _training_tables(measurements: Sequence[Measurement]) -> list[Table]:
    one = measurements[0]
    steps = [
        mode for mode in ("step", "replay") if mode == "step" or any(m.mode == mode for m in measurements)
    ]
    table = Table(
        f"Training on {one.data}, {one.device}, width {one.dim}",
        [
            "model",
            "layers",
            *(f"{mode} ms" for mode in steps),
            "epoch s",
            "triples/s",
            "peak MB",
            "parameters",
        ],
    )
    for key in dict.fromkeys((m.model, m.layers) for m in measurements):
        modes = {m.mode: m for m in measurements if (m.model, m.layers) == key}
        seconds = {mode: m.seconds for mode, m in modes.items()}
        epoch = modes.get("epoch")
        some = modes.get("step") or next(iter(modes.values()))
        table.rows.append(
            [
                some.model,
                str(some.layers),
                *(_milliseconds(seconds.get(mode)) for mode in steps),
                f"{epoch.seconds:.2f}" if epoch else "",
                f"{some.items_per_second:,.0f}",
                _megabytes(some.peak_bytes),
                _count(some.parameters),
            ]
        )
    return [table]


def _peers_table(measurements: Sequence[Measurement]) -> Table:
    one = measurements[0]
    peers = list(dict.fromkeys(name for m in measurements for name in m.beside or ()))
    table = Table(
        f"A layer and its peers in turn, {one.device}, forward and backward, width {one.dim}, "
        f"freed memory {one.memory}",
        ["data", "model", "ms", *(head for peer in peers for head in (f"{peer} ms", "ratio"))],
        text=2,
    )
    for m in sorted(measurements, key=lambda m: m.entities or 0):
        row = [m.data, m.model, _milliseconds(m.seconds)]
        for peer in peers:
            seconds = (m.beside or {}).get(peer)
            row += [_milliseconds(seconds), "" if seconds is None else _ratio(seconds / m.seconds)]
        table.rows.append(row)
    return table


def _scaling_table(measurements: Sequence[Measurement]) -> Table:
    one = measurements[0]
    table = Table(
        f"Layer by size of the graph, {one.device}, forward and backward, width {one.dim}",
        ["graph", "context triples", "ms", "ns a triple", "gather ns", "/ gather", "peak bytes a triple"],
    )
    gathers = {(m.data, m.items): m for m in measurements if m.model == "gather"}
    for m in measurements:
        if m.model == "gather":
            continue
        limit = gathers.get((m.data, m.items))
        table.rows.append(
            [
                m.data,
                f"{m.items:,}",
                _milliseconds(m.seconds),
                f"{m.seconds / m.items * 1e9:.1f}",
                f"{limit.seconds / limit.items * 1e9:.1f}" if limit else "",
                f"{m.seconds / limit.seconds:.2f}" if limit else "",
                f"{m.peak_bytes / m.items:.0f}" if m.peak_bytes is not None else "",
            ]
        )
    return table


def _other_table(measurements: Sequence[Measurement]) -> Table:
    table = Table(
        f"Evaluation, loading, import and memory, {measurements[0].device}",
        ["what", "model", "data", "ms", "items", "items/s"],
        text=3,
    )
    for m in measurements:
        cells = [f"{m.kind}, {m.mode}", m.model, m.data, _milliseconds(m.seconds)]
        table.rows.append([*cells, f"{m.items:,}", f"{m.items_per_second:,.0f}" if m.items > 1 else ""])
    return table


def _over(figure: str) -> list[str]:
    """The heads of a figure and its ratios."""
    return [figure, "/ R-GCN", "/ eager"]


def _ratios(
    measured: Measurement, beside: dict[str, Measurement], figure: Callable[[Measurement], float | None]
) -> list[str]:
    """A figure over those of R-GCN and of eager, where they are there."""
    own, cells = figure(measured), []
    for name in (RGCN, EAGER):
        other = figure(beside[name]) if name in beside else None
        cells.append(_ratio(own / other) if own is not None and other else "")
    return cells


def _ratio(value: float) -> str:
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:,.1f}"


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
