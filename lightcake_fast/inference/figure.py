"""Draw an explanation: the neighborhoods of head and tail, and the parts of the score."""

import io
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast.errors import InputError
from lightcake_fast.inference.fonts import families_for, no_warnings
from lightcake_fast.inference.report import term_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightcake_fast.inference.answers import Context, ContextTriple, Explanation, Term

SUFFIXES = (".png", ".svg", ".pdf")
FOR, AGAINST, PREDICTED, INK = "#2166ac", "#d6604d", "#1b7837", "#333333"
MIN_WIDTH, MAX_WIDTH = 0.8, 6.0  # line widths in points, for weights 0 and 1
MAX_NAME = 26

Point = tuple[float, float]


def check_matplotlib(what: str) -> None:
    """Check early that matplotlib is installed; `what` starts the message.

    Raises:
        InputError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise InputError(
            f"{what}: expected matplotlib, which is missing: pip install 'lightcake_fast[plots]'"
        )


def new_figure(width: float, height: float) -> "Figure":
    """Make an empty figure, with its size in inches. A notebook shows it.

    Raises:
        InputError: matplotlib is missing.
    """
    check_matplotlib("plot")
    from matplotlib.figure import Figure  # without pyplot, which keeps global state

    class Picture(Figure):
        """A figure that Jupyter can show without pyplot."""

        def _repr_png_(self) -> bytes:
            png = io.BytesIO()
            self.savefig(png, format="png")
            return png.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def check_figure(path: Path) -> None:
    """Check early that `draw` can write to `path`.

    Raises:
        InputError: matplotlib is missing, the suffix is not in `SUFFIXES`, or the folder does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"figure: expected a name that ends in {', '.join(SUFFIXES)}, got {path.name!r}: "
            "change the suffix"
        )
    if not path.expanduser().parent.is_dir():
        raise InputError(f"figure: expected an existing folder, got {path.parent}: create it")
    check_matplotlib("figure")


def draw(explanation: "Explanation", path: Path) -> str:
    """Draw head and tail between their neighbors. The width of a line is the weight in the last layer.

    Below are the pairs of the relation's context, and one bar per part of the score. A line or
    bar is blue if the score falls without it, and red if the score rises. Names are plain text, without
    mathematical notation.

    Args:
        explanation: The explanation.
        path: The file; its suffix sets the format.

    Returns:
        The characters without an installed font. Boxes replace them.

    Raises:
        InputError: See `check_figure`.
    """
    check_figure(path)
    with _fonts(explanation) as missing:
        _drawn(explanation).savefig(path.expanduser(), dpi=150)
    return missing


def plotted(explanation: "Explanation") -> "Figure":
    """Make the figure of `draw`, for a notebook.

    Raises:
        InputError: matplotlib is missing.
    """
    check_matplotlib("plot")
    with _fonts(explanation):
        figure = _drawn(explanation)
        figure.draw_without_rendering()  # creates the ticks while the fonts are set
    return figure


@contextmanager
def _fonts(explanation: "Explanation") -> Iterator[str]:
    """Set fonts for all names; yield the characters without an installed font."""
    from matplotlib import rc_context

    families, missing = families_for(_names(explanation))
    settings: Any = {"font.family": families, "text.parse_math": False, "text.usetex": False}
    with rc_context(settings), no_warnings():
        yield missing


def _names(explanation: "Explanation") -> set[str]:
    """All names in the figure."""
    triples = [triple for context in explanation.contexts for triple in context.triples]
    names = {explanation.head, explanation.relation, explanation.tail}
    relations = [name for term in explanation.terms for name in (term.relation, term.second)]
    names.update(name for name in relations if name is not None)
    return names.union(*((triple.head, triple.relation, triple.tail) for triple in triples))


def _drawn(explanation: "Explanation") -> "Figure":
    labels = shortened(_names(explanation))
    near = [context for context in explanation.contexts if context.of != "relation"]
    pairs = [t for context in explanation.contexts if context.of == "relation" for t in context.triples]
    rows = max([len(context.triples) for context in near], default=0)
    terms = [term for term in explanation.terms if term.share]
    terms = terms if len(terms) > 1 else []  # with only the context, bars would show nothing new
    heights = [max(3.4, 0.68 * rows), 0.45 + 0.32 * len(pairs), *[0.5 + 0.25 * len(terms)][: len(terms)]]
    figure = new_figure(12, sum(heights) + 0.9)
    title = (
        f"{explanation.head} — {explanation.relation} → {explanation.tail}   "
        f"(probability\N{NO-BREAK SPACE}{explanation.probability:.3f})"
    )
    figure.suptitle("\n".join(textwrap.wrap(title, 110)))
    _draw_legend(figure)
    top, bottom, *bars = figure.subplots(len(heights), 1, height_ratios=heights)
    for axes in (top, bottom):
        axes.set_axis_off()
        axes.set_xlim(-4.2, 4.2)
    _draw_neighbours(top, explanation, near, labels)
    _draw_pairs(bottom, explanation.relation, pairs, labels)
    for axes in bars:
        _draw_terms(axes, explanation, terms, labels)
    return figure


def _draw_legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    lines: dict[str, dict[str, Any]] = {
        "explained relation": {"color": PREDICTED, "linewidth": 2.0, "linestyle": "--"},
        "without it the score falls": {"color": FOR, "linewidth": 2.0},
        "without it the score rises": {"color": AGAINST, "linewidth": 2.0},
        "width and number: weight in the last layer": {"color": INK, "linewidth": MAX_WIDTH},
    }
    handles = [Line2D([], [], label=label, **look) for label, look in lines.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=9)


def _draw_neighbours(
    axes: Any, explanation: "Explanation", near: Sequence["Context"], labels: Mapping[str, str]
) -> None:
    axes.set_ylim(-1.25, 1.25)
    ends = {explanation.head: (-1.1, 0.0), explanation.tail: (1.1, 0.0)}
    places = {**_neighbour_places(near, ends), **ends}
    for (start, stop), triples in _lines(near, ends).items():
        _draw_line(axes, triples, start, stop, places, labels, aside=stop in ends)
    if len(ends) == 2:
        _arrow(axes, *ends.values(), color=PREDICTED, width=2.0, style="--")
        label = {"ha": "center", "va": "bottom", "color": PREDICTED, "size": 10, "weight": "bold"}
        axes.text(0, 0.04, labels[explanation.relation], bbox=_paper(), **label)
    for name, point in places.items():
        _draw_entity(axes, labels[name], point, end=name in ends)


def _draw_entity(axes: Any, label: str, place: Point, *, end: bool) -> None:
    """Draw a dot with its name: on the outer side in side columns, above or below it in the middle."""
    x, y = place
    axes.plot([x], [y], "o", color=INK, ms=11 if end else 7, zorder=3)
    if end or x == 0:
        above = y > 0
        offset = (0, 9 if above else -12)
        alignment = {"ha": "center", "va": "bottom" if above else "top"}
    else:
        offset = (-9 if x < 0 else 9, 0)
        alignment = {"ha": "right" if x < 0 else "left", "va": "center"}
    look = {"size": 10 if end else 9, "weight": "bold" if end else "normal", "zorder": 4, "bbox": _paper()}
    axes.annotate(label, place, offset, textcoords="offset points", **alignment, **look)


def _neighbour_places(near: Sequence["Context"], ends: dict[str, Point]) -> dict[str, Point]:
    """Points of neighbors: left for the head, right for the tail, in the middle for both."""
    sides: dict[str, set[str]] = {}
    for context in near:
        for triple in context.triples:
            for name in {triple.head, triple.tail} - ends.keys():
                sides.setdefault(name, set()).add(context.of)
    places: dict[str, Point] = {}
    for of, x in (({"head"}, -3.0), ({"tail"}, 3.0), ({"head", "tail"}, 0.0)):
        column = [name for name, found in sides.items() if found == of]
        places.update(zip(column, ((x, y) for y in _spread(len(column), middle=x == 0)), strict=True))
    return places


def _spread(count: int, *, middle: bool) -> Iterator[float]:
    """Heights of a column. The middle column leaves space for the line between head and tail."""
    for n in range(count):
        if middle:
            step = n // 2 / max(1, (count + 1) // 2)
            yield (0.6 + 0.5 * step) * (1 if n % 2 == 0 else -1)
        else:
            yield 1.0 - 2.0 * n / (count - 1) if count > 1 else 0.0


def _lines(
    near: Sequence["Context"], ends: Container[str]
) -> dict[tuple[str, str], dict[tuple[str, str, str], "ContextTriple"]]:
    """Group the context triples by the line that shows them in the figure.

    One line connects the head or the tail of the pair with a neighbor. It shows all their triples, in both
    directions. Between head and tail there are two lines, one per direction. If a triple is in both contexts,
    the context with the larger weight counts.

    Args:
        near: The contexts of head and tail.
        ends: The names of head and tail.
    """
    lines: dict[tuple[str, str], dict[tuple[str, str, str], ContextTriple]] = {}
    for context in near:
        for triple in context.triples:
            head, tail = triple.head, triple.tail
            if head == tail:
                continue
            line = lines.setdefault((head, tail) if head in ends else (tail, head), {})
            key = head, triple.relation, tail
            if key not in line or triple.weights[-1] > line[key].weights[-1]:
                line[key] = triple
    return lines


def _draw_line(
    axes: Any,
    triples: Mapping[tuple[str, str, str], "ContextTriple"],
    start: str,
    stop: str,
    places: Mapping[str, Point],
    labels: Mapping[str, str],
    *,
    aside: bool,
) -> None:
    """Draw a line of `_lines`; with `aside`, bend it away from the line of the prediction."""
    widest = max(triples.values(), key=lambda triple: triple.weights[-1])
    heads = {head for head, _, _ in triples}
    arrow = ("<|" if stop in heads else "") + "-" + ("|>" if start in heads else "")
    bend = 0.25 if aside else 0.0
    a, b = places[start], places[stop]
    _arrow(axes, a, b, color=_color(widest), width=_width(widest), arrow=arrow, bend=bend)
    x, y = (p + (q - p) * (0.5 if aside else 0.6) for p, q in zip(a, b, strict=True))
    if aside:
        y = -0.3 if a < b else 0.3
    label = "\n".join(f"{labels[t.relation]}  {t.weights[-1]:.2f}" for t in triples.values())
    look = {"ha": "center", "va": "center", "size": 8, "color": _color(widest), "zorder": 4}
    axes.text(x, y, label, bbox=_paper(), **look)


def _draw_pairs(
    axes: Any, relation: str, pairs: Sequence["ContextTriple"], labels: Mapping[str, str]
) -> None:
    axes.set_ylim(len(pairs) - 0.3, -1.0)
    if pairs:
        title = f"context pairs of the relation {labels[relation]}"
        axes.text(0, -0.6, title, ha="center", size=9, color=INK)
    for row, triple in enumerate(pairs):
        color = _color(triple)
        _arrow(axes, (-0.7, row), (0.7, row), color=color, width=_width(triple))
        axes.text(-0.8, row, labels[triple.head], ha="right", va="center", size=9)
        axes.text(0.8, row, labels[triple.tail], ha="left", va="center", size=9)
        axes.text(
            0, row, f"{triple.weights[-1]:.3f}", ha="center", va="center", size=8, color=color, bbox=_paper()
        )


def _draw_terms(
    axes: Any, explanation: "Explanation", terms: Sequence["Term"], labels: Mapping[str, str]
) -> None:
    """Draw one bar per term, with its share as length. Relations of a term are indented below it."""
    names = [term_text(explanation, term, labels.__getitem__) for term in terms]
    axes.barh(range(len(terms)), [t.share for t in terms], color=[_color(t) for t in terms], height=0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(terms)), names, size=8)
    axes.invert_yaxis()
    texts = axes.get_yticklabels()
    widest = max(text.get_window_extent().width for text in texts) * 72 / axes.figure.dpi
    axes.tick_params(axis="y", length=0, pad=widest + 4)  # space for left-aligned labels
    for text in texts:
        text.set_horizontalalignment("left")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:+.0%}")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title("share of the score that is lost without it", size=9, color=INK)
    axes.spines[["left", "top", "right"]].set_visible(False)


def _arrow(
    axes: Any,
    start: Point,
    stop: Point,
    *,
    color: str,
    width: float,
    arrow: str = "-|>",
    style: str = "-",
    bend: float = 0.0,
) -> None:
    shape = {
        "arrowstyle": arrow,
        "color": color,
        "linewidth": width,
        "linestyle": style,
        "mutation_scale": 10 + 2 * width,
        "shrinkA": 6,
        "shrinkB": 7,
        "connectionstyle": f"arc3,rad={bend}",
        "zorder": 1,
    }
    axes.annotate("", stop, start, arrowprops=shape)


def _width(triple: "ContextTriple") -> float:
    return MIN_WIDTH + (MAX_WIDTH - MIN_WIDTH) * triple.weights[-1]


def _color(part: "ContextTriple | Term") -> str:
    return FOR if part.share >= 0 else AGAINST


def _paper() -> dict[str, Any]:
    """White background of a text, so that lines do not cross it."""
    return {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Labels of names. Long names lose a part of their middle; labels stay distinct."""
    labels: dict[str, str] = {}
    size, left = MAX_NAME, set(names)
    while left:
        short = {name: _without_middle(name, size) for name in left}
        common = [*labels.values(), *short.values()]
        unique = {name for name in left if common.count(short[name]) == 1}
        labels.update((name, short[name]) for name in unique)
        left -= unique
        size *= 2
    return labels


def _without_middle(name: str, size: int) -> str:
    start = (size - 1) // 2
    return name if len(name) <= size else f"{name[:start]}…{name[len(name) - size + start + 1 :]}"
