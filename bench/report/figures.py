"""The figures of a report: models side by side, time by number of layers, time by size of the graph."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.measurements import Measurement
from lightcake_fast.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = {
    "lightcake": "#D55E00",
    "lightcake compiled": "#E69F00",
    "lightcake eager": "#F0E442",
    "rgcn": "#0072B2",
    "rgcn block": "#56B4E9",
    "PyG RGCNConv": "#009E73",
    "PyG FastRGCNConv": "#CC79A7",
    "gather": "#999999",
}
DPI = 150


def draw_figures(measurements: Sequence[Measurement], folder: Path) -> list[tuple[str, str]]:
    """Draw every figure that the measurements fill.

    Args:
        measurements: Of one run.
        folder: Where the PNG files go.

    Returns:
        File name and caption of each.

    Raises:
        InputError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise InputError("figures need matplotlib: pip install 'lightcake_fast[plots]'")
    made = []
    for device in dict.fromkeys(m.device for m in measurements):
        here = sorted((m for m in measurements if m.device == device), key=lambda m: m.entities or 0)
        for name, caption, chosen, draw in (
            (
                "models",
                "One layer, forward and backward, by model and data set",
                [m for m in here if m.kind == "layer" and m.mode == "both"],
                _models,
            ),
            (
                "layers",
                "A training step by number of layers",
                [m for m in here if m.kind == "training" and m.mode == "step"],
                _layers,
            ),
            (
                "sizes",
                "A layer by size of the graph, forward and backward",
                [m for m in here if m.kind == "scaling"],
                _sizes,
            ),
        ):
            if chosen:
                file = f"{name}-{device}.png"
                draw(chosen, folder / file)
                made.append((file, f"{caption}, {device}"))
    return made


def _models(measurements: Sequence[Measurement], path: Path) -> None:
    """Dots on log axes: throughput, peak memory and parameters; a model has its place in every group."""
    panels: list[tuple[str, Callable[[Measurement], float | None]]] = [
        ("million context triples a second\n(more is better)", lambda m: m.items_per_second / 1e6),
        ("peak memory, MB\n(less is better)", lambda m: m.peak_bytes and m.peak_bytes / 1e6),
        ("million parameters\n(less is better)", lambda m: m.parameters and m.parameters / 1e6),
    ]
    groups = list(dict.fromkeys(m.data for m in measurements))
    models = [model for model in COLOURS if any(m.model == model for m in measurements)]
    width = len(models) + 1.5
    figure, axes = _subplots(len(panels), 1, figsize=(max(6, 1 + 1.6 * len(groups)), 9), sharex=True)
    for axis, (label, value) in zip(axes, panels, strict=True):
        for m in measurements:
            height = value(m)
            if height and m.model in models:
                place = groups.index(m.data) * width + models.index(m.model)
                axis.plot(place, height, "o", color=COLOURS[m.model])
        _log_scale(axis)
        axis.margins(x=0.01)
        axis.set_ylabel(label)
        _tidy(axis)
    middles = [n * width + (len(models) - 1) / 2 for n in range(len(groups))]
    axes[-1].set_xticks(middles, groups)
    patches = [_patch(COLOURS[model]) for model in models]
    figure.legend(patches, models, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=DPI)


def _layers(measurements: Sequence[Measurement], path: Path) -> None:
    """Milliseconds a step over the number of LightCAKE's layers, R-GCN beside, a panel for each data set."""
    groups = dict.fromkeys(m.data for m in measurements)
    figure, axes = _subplots(1, len(groups), figsize=(1 + 3.2 * len(groups), 4))
    for axis, data in zip(axes, groups, strict=True):
        here = [m for m in measurements if m.data == data]
        own = [m for m in here if m.layers == 0 or m.model.startswith("lightcake")]
        points = sorted((m.layers or 0, m.seconds * 1e3) for m in own)
        axis.plot(
            *zip(*points, strict=True),
            "o-",
            color=COLOURS["lightcake"],
            label="LightCAKE (0 layers: DistMult)",
        )
        for m, mark in zip((m for m in here if m.model.startswith("rgcn")), "s^v", strict=False):
            axis.plot(m.layers or 0, m.seconds * 1e3, mark, color=COLOURS["rgcn"], label=m.model)
        axis.set_title(data)
        axis.set_xlabel("layers")
        axis.set_xticks(sorted({layers for layers, _ in points}))
        axis.set_ylim(bottom=0)
        _tidy(axis)
    axes[0].set_ylabel("ms a training step")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=DPI)


def _sizes(measurements: Sequence[Measurement], path: Path) -> None:
    """Log axes: milliseconds, and nanoseconds a context triple, over the context triples."""
    figure, axes = _subplots(1, 2, figsize=(9, 3.8))
    for data, line in zip(dict.fromkeys(m.data for m in measurements), ("-", "--", ":"), strict=False):
        for model in dict.fromkeys(m.model for m in measurements):
            points = sorted(
                (m for m in measurements if (m.data, m.model) == (data, model)), key=lambda m: m.items
            )
            x, colour = [m.items for m in points], COLOURS.get(model, "#000000")
            label = f"{model}, {data}"
            axes[0].plot(x, [m.seconds * 1e3 for m in points], "o" + line, color=colour, label=label)
            axes[1].plot(x, [m.seconds / m.items * 1e9 for m in points], "o" + line, color=colour)
    for axis, label in zip(axes, ("ms", "ns a context triple"), strict=True):
        axis.set_xscale("log")
        _log_scale(axis)
        axis.set_xlabel("context triples")
        axis.set_ylabel(label)
        _tidy(axis)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=DPI)


def _subplots(
    rows: int, columns: int, figsize: tuple[float, float], *, sharex: bool = False
) -> tuple[Any, "list[Axes]"]:
    from matplotlib.figure import Figure  # the figure's own class: pyplot would keep global state

    figure = Figure(figsize, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=sharex).flat)


def _patch(colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour)


def _log_scale(axis: "Axes") -> None:
    """Powers of ten written out, and between them the numbers that there is room for."""
    from matplotlib.ticker import LogFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(LogFormatter())


def _tidy(axis: "Axes") -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
