"""Tables on narrow terminals: names are not cut, numbers are not broken, and rows stay distinct."""

import dataclasses
import io
from collections.abc import Iterator

import pytest

from lightcake_fast.inference import Candidate, Context, ContextTriple, Explanation, Prediction, Term
from lightcake_fast.inference.report import explanation_tables, prediction_table
from lightcake_fast.terminal import Console, Table
from lightcake_fast.training.progress import metrics_table

BASE = "http://dbpedia.example.org/resource/of/films/"
NAMES = [f"{BASE}Person_of_a_long_name_(actor)_{number}" for number in range(4)]
LAYERS = 4


def shown(table: Table, width: int = 80, *, title: str = "") -> list[str]:
    """Lines of a table on a terminal with this width."""
    file = io.StringIO()
    Console(file=file, force_terminal=True, width=width, color_system=None).print_table(title, table)
    return file.getvalue().splitlines()[1:]


def cells(lines: list[str]) -> Iterator[list[str]]:
    """Cells of each row, with folded lines joined. A new row has text in its last cell."""
    row: list[str] = []
    for line in lines:
        if line[0] != "│":
            continue
        parts = [part.strip() for part in line.strip("│").split("│")]
        if row and not parts[-1] and not parts[1]:
            row[0] += parts[0]
            continue
        if row:
            yield row
        row = parts
    yield row


def explanation() -> Explanation:
    triples = tuple(
        ContextTriple(NAMES[0], BASE + "starring", name, (0.25,) * LAYERS, -1.5, 0.1234, -1.255)
        for name in NAMES
    )
    contexts = (Context("head", NAMES[0], 1234, triples), Context("relation", BASE + "starring", 99, triples))
    likeliest = Candidate(BASE + "starring", 0.5, False)
    return Explanation(NAMES[0], BASE + "starring", NAMES[1], -1.0, 0.5, 1, likeliest, contexts, (), ())


@pytest.mark.parametrize("width", [72, 80, 100, 200])
def test_explanation_tables_fit_the_width(width: int) -> None:
    for title, table in explanation_tables(explanation(), width):
        assert "4 of 1,234 triples" in title or "4 of 99 triples" in title
        lines = shown(table, width)
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        rows = list(cells(lines))
        assert len(rows) == len(NAMES)
        for row, name in zip(rows, NAMES, strict=True):
            assert row[0].replace(" ", "").endswith(name)
            assert set(row[1:-2]) == {"0.2500"}
            assert row[-2:] == ["-125.5%", "0.1234"]


@pytest.mark.parametrize("width", [72, 80, 100])
def test_terms_table_fits_the_width(width: int) -> None:
    terms = (
        Term("context", None, False, 99, -1.5, 0.1234, -1.255),
        Term("profile of head", BASE + "starring", False, 1234, -1.5, 0.1234, 0.5),
        Term("profile of head", BASE + "starring", True, 1, -1.5, 0.1234, 0.5),
        Term("links", BASE + "starring", True, 1, -1.5, 0.1234, 0.5),
        Term("paths", BASE + "starring", True, 1, -1.5, 0.1234, 0.5, BASE + "starring", False),
    )
    _, table = next(explanation_tables(dataclasses.replace(explanation(), terms=terms), width))
    lines = shown(table, width)
    assert max(map(len, lines)) <= width
    names = ["context", f"{BASE}starring →", f"→ {BASE}starring", f"{NAMES[1]} — {BASE}starring → {NAMES[0]}"]
    names.append(f"{NAMES[0]} ← {BASE}starring — · — {BASE}starring → {NAMES[1]}")
    for row, name, term in zip(cells(lines), names, terms, strict=True):
        assert row[0].replace(" ", "") == name.replace(" ", "")
        assert row[1:] == [f"{term.count:,}", f"{term.share:+.1%}", "0.1234"]


def test_wide_terminals_show_all_layers() -> None:
    for width, layers in ((80, 2), (200, LAYERS)):
        _, table = next(explanation_tables(explanation(), width))
        titles = [str(column.header) for column in table.columns]
        assert titles[1:-2] == [f"alpha {n}" for n in ([1, LAYERS] if layers == 2 else range(1, LAYERS + 1))]


def test_prediction_table_fits_the_width() -> None:
    prediction = Prediction("a", "b", tuple(Candidate(name, 0.25, True) for name in NAMES), ())
    lines = shown(prediction_table(prediction), 60)
    assert [row[0] for row in cells(lines)] == NAMES
    assert max(map(len, lines)) <= 60


def test_wide_tables_are_not_cut() -> None:
    table = Table()
    table.add_names("relation")
    for run in range(12):
        table.add_figures(f"runs/some-name-{run}")
    table.add_row("r", *(f"0.{run:04}" for run in range(12)))
    text = "\n".join(shown(table, 80))
    assert all(f" 0.{run:04} " in text for run in range(12))


def test_metrics_table_with_a_long_title() -> None:
    metrics = {
        "count": 12_345_678,
        "mrr": 0.5,
        "mr": 1234.5,
        "hits_at_1": 0.1,
        "hits_at_3": None,
        "hits_at_10": 1,
    }
    seen = {**metrics, "count": 12_345_677}
    lines = shown(metrics_table({"all": metrics, "seen": seen}), 40, title="a long path " * 20)
    assert any("1234.5000" in line for line in lines)
    assert max(map(len, lines[-8:])) <= 40


def test_seen_entities_have_a_column_if_their_metrics_differ() -> None:
    metrics = dict.fromkeys(("mrr", "mr", "hits_at_1", "hits_at_3", "hits_at_10"), 0.5)
    every, fewer = ({**metrics, "count": count} for count in (294, 293))
    assert "seen only (293)" in shown(metrics_table({"all": every, "seen": fewer}), 80)[1]
    same = "\n".join(shown(metrics_table({"all": every, "seen": every}), 80))
    assert "all (294)" in same
    assert "seen" not in same
