"""The predict command: single pairs and files, tables, TSV, JSON, explanations and figures."""

import errno
import io
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lightcake_fast import cli, load, predict
from lightcake_fast.inference import Candidate, Context, ContextTriple, Explanation, figure
from tests.support.trained_runs import PAIR, UNSEEN, train_run

ONE = ["--head", PAIR[0], "--tail", PAIR[1]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(train_run(tmp_path_factory.mktemp("trained")))


@pytest.fixture(scope="module")
def plain(run: str) -> str:
    """A run without unknown-entity embeddings and without context."""
    return str(train_run(Path(run).parent, "--unseen-rate", "0", "--layers", "0"))


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = cli.run(predict.main, list(arguments))
    found = capsys.readouterr()
    assert (code, found.err) == (0, "")
    return found.out


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.run(predict.main, list(arguments)) == 2
    found = capsys.readouterr()
    assert found.out == "", "an error prints nothing to stdout"
    (line,) = found.err.splitlines()
    return line.removeprefix("error: ")


def test_one_pair_prints_as_a_table(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, run, *ONE, "--top", "3")
    (expected,) = load(run).predict([PAIR], top=3)
    assert f"{PAIR[0]} → {PAIR[1]}" in text
    rows = [line.split("│")[1:3] for line in text.splitlines() if line.startswith("│")]
    assert [name.strip() for name, _ in rows] == [candidate.relation for candidate in expected.relations]
    for (_, probability), candidate in zip(rows, expected.relations, strict=True):
        assert float(probability) == pytest.approx(candidate.probability, abs=5e-5)
    assert "note" not in text
    assert "alpha" not in text


def test_unknown_names_get_a_note_and_suggestions(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, run, "--head", UNSEEN, "--tail", "Dmitri Novak 21")
    assert f"note: head {UNSEEN!r} has no training triple" in text
    assert "note: tail 'Dmitri Novak 21' is not in the data" in text
    assert "names near 'Dmitri Novak 21': 'Dmitri Novák 21'" in text
    assert f"names near {UNSEEN!r}" not in text


def test_unknown_names_are_rejected_without_learned_embeddings(
    plain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'Dmitri Novák 21'" in error(capsys, plain, "--head", PAIR[0], "--tail", "Dmitri Novak 21")


def test_explanation_prints_as_tables(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, run, *ONE, "--explain", "--top", "2")
    explanation = load(run).explain(*PAIR, top=2)
    assert f"{explanation.relation}: score {explanation.score:.4f}" in text
    for context in explanation.contexts:
        assert f"context of {context.of} {context.name}" in text
        held = sum(triple.weights[-1] for triple in context.triples)
        assert f"2 of {context.size} triples, with {held:.0%} of the last layer's weight" in text
        for triple in context.triples:
            cells = [*(f" {weight:.4f} " for weight in triple.weights), f" {triple.share:+.1%} "]
            cells += [f" {triple.probability_without:.4f} ", triple.head, triple.tail]
            own = {context.name}  # this name is in the title of the table
            wanted = [cell for cell in cells if cell not in own]
            assert any(all(cell in line for cell in wanted) for line in text.splitlines())


def test_json_contains_the_explanation(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(output(capsys, run, *ONE, "--explain", "--json"))
    explanation = load(run).explain(*PAIR)
    assert record["relations"][0]["relation"] == record["explanation"]["relation"] == explanation.relation
    weights = [triple["weights"] for triple in record["explanation"]["contexts"][0]["triples"]]
    assert weights == [list(triple.weights) for triple in explanation.contexts[0].triples]
    assert "explanation" not in json.loads(output(capsys, run, *ONE, "--json"))


def test_explanation_needs_a_model_with_context(plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected a model with LightCAKE layers" in error(capsys, plain, *ONE, "--explain")


def rows_of(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_pairs_from_a_file(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict, "ROWS_PER_BLOCK", 3)
    trained = load(run)
    names = trained.data.entities
    pairs = [*zip(names[:7], names[7:14], strict=True), ("no such name", UNSEEN)]
    file = tmp_path / "pairs.tsv"
    file.write_text("\ufeff" + "\r\n\r\n".join("\t".join(pair) for pair in pairs), encoding="utf-8")
    expected = [trained.predict([pair], top=2)[0] for pair in pairs]

    header, *rows = rows_of(output(capsys, run, "--pairs", str(file), "--top", "2"))
    assert header == ["head", "tail", "rank", "relation", "probability", "in_training", "note"]
    flat = [
        (prediction, rank, candidate)
        for prediction in expected
        for rank, candidate in enumerate(prediction.relations, 1)
    ]
    for row, (prediction, rank, candidate) in zip(rows, flat, strict=True):
        assert row[:4] == [prediction.head, prediction.tail, str(rank), candidate.relation]
        assert float(row[4]) == pytest.approx(candidate.probability, rel=1e-4)
        assert row[5] == ("yes" if candidate.in_training else "no")
        assert row[6] == "; ".join(prediction.notes)
    assert rows[-1][6].count("the learned embedding of unknown") == 2

    lines = output(capsys, run, "--pairs", str(file), "--top", "2", "--json").splitlines()
    for line, prediction in zip(map(json.loads, lines), expected, strict=True):
        assert (line["head"], line["tail"], line["notes"]) == (
            prediction.head,
            prediction.tail,
            list(prediction.notes),
        )
        assert [c["relation"] for c in line["relations"]] == [c.relation for c in prediction.relations]


def test_progress_bar_does_not_print_to_stdout(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict, "Console", partial(Console, force_terminal=True))
    file = tmp_path / "pairs.tsv"
    file.write_text("\t".join(PAIR), encoding="utf-8")
    assert cli.run(predict.main, [run, "--pairs", str(file), "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert [row[:2] for row in rows_of(out)] == [["head", "tail"], list(PAIR)]
    assert "pairs" in err


def test_pairs_from_stdin(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO("\t".join(PAIR).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    _, row = rows_of(output(capsys, run, "--pairs", "-", "--top", "1"))
    assert row[:2] == list(PAIR)


def test_triples_from_a_file(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load(run)
    graph = trained.data
    triples = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.train[:5]]
    triples.append((UNSEEN, graph.relations[0], PAIR[1]))
    file = tmp_path / "triples.tsv"
    file.write_text("".join("\t".join(triple) + "\n" for triple in triples), encoding="utf-8")
    header, *rows = rows_of(output(capsys, run, "--triples", str(file)))
    assert header == list(predict.COLUMNS["triples"])
    for row, expected in zip(rows, trained.score(triples), strict=True):
        assert row[:3] == [expected.head, expected.relation, expected.tail]
        assert float(row[3]) == pytest.approx(expected.score, rel=1e-4)
        assert float(row[4]) == pytest.approx(expected.probability, rel=1e-4)
        assert row[5:] == [
            str(expected.rank),
            "yes" if expected.in_training else "no",
            "; ".join(expected.notes),
        ]
    records = [
        json.loads(line) for line in output(capsys, run, "--triples", str(file), "--json").splitlines()
    ]
    assert [record["in_training"] for record in records] == [True] * 5 + [False]
    file.write_text("\t".join([PAIR[0], "cousn", PAIR[1]]), encoding="utf-8")
    assert error(capsys, run, "--triples", str(file)).startswith(
        f"{file}:1: relation: expected a relation of "
    )


def test_explanation_of_another_relation(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load(run)
    other = trained.predict([PAIR], top=3)[0].relations[2].relation
    expected = trained.explain(*PAIR, relation=other)
    text = output(capsys, run, *ONE, "--explain", "--relation", other)
    assert f"{other}: score {expected.score:.4f}, probability {expected.probability:.4f}, rank 3" in text
    assert f"context of relation {other}" in text


def test_closed_stdin_is_rejected(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert error(capsys, run, "--pairs", "-") == (
        "pairs: expected lines of head, tail, got a closed stdin: use a file"
    )


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_file_without_pairs_prints_only_the_header(
    run: str, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(content)
    assert rows_of(output(capsys, run, "--pairs", str(file))) == [list(predict.COLUMNS["pairs"])]
    assert output(capsys, run, "--pairs", str(file), "--json") == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n", "expected head<TAB>tail, got 1 field: correct the line"),
        (b"a\tb\tc\n", "expected head<TAB>tail, got 3 fields: correct the line"),
        (b"\tb\n", "expected head<TAB>tail, got an empty name: correct the line"),
        (b"\t\n", "expected head<TAB>tail, got an empty name: correct the line"),
        (b"a\0\tb\n", "expected UTF-8 text, got a NUL byte: convert the file to UTF-8"),
        (b"a\xff\tb\n", "expected UTF-8 text, got byte 0xff: convert the file to UTF-8"),
        (b"a" * 100_000, "expected head<TAB>tail, got a line of 65,536 bytes or more: shorten it"),
    ],
)
def test_wrong_lines_are_rejected_with_their_number(
    run: str, tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_bytes("\t".join(PAIR).encode() + b"\n\n" + content)
    assert error(capsys, run, "--pairs", str(file)) == f"{file}:3: {message}"


def test_top_0_is_rejected_for_a_file(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("\t".join(PAIR), encoding="utf-8")
    assert error(capsys, run, "--pairs", str(file), "--top", "0") == (
        "top: expected at least 1, got 0: use a larger number"
    )


def test_unknown_name_in_a_file_is_rejected_with_its_line(
    plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(f"{PAIR[0]}\t{PAIR[1]}\n{PAIR[0]}\tnobody\n", encoding="utf-8")
    assert error(capsys, plain, "--pairs", str(file)).startswith(f"{file}:2: tail: expected an entity of ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head", "a"], "expected --head and --tail, got one of them"),
        (["--tail", "a"], "expected --head and --tail, got one of them"),
        ([], "expected --head and --tail, or --pairs, or --triples"),
        ([*ONE, "--pairs", "x"], "expected --head and --tail, or --pairs, or --triples"),
        (["--pairs", "x", "--explain"], "--explain and --figure: expected one pair"),
        (["--pairs", "x", "--figure", "x.png"], "--explain and --figure: expected one pair"),
        ([*ONE, "--relation", "cousin"], "--relation: expected --explain or --figure, got neither"),
        ([*ONE, "--explain", "--relation", "x"], "relation: expected a relation of "),
        ([*ONE, "--figure", "x.gif"], "figure: expected a name that ends in .png, .svg, .pdf, got 'x.gif'"),
        ([*ONE, "--figure", "no/such/x.png"], "figure: expected an existing folder, got no/such"),
        ([*ONE, "--top", "0"], "top: expected at least 1, got 0"),
        (["--pairs", "no such file"], "no such file: No such file or directory"),
    ],
)
def test_wrong_arguments_are_rejected(
    run: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error(capsys, run, *arguments)


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figure_formats(
    run: str, tmp_path: Path, suffix: str, magic: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    path = tmp_path / f"why.{suffix}"
    assert "alpha" not in output(capsys, run, *ONE, "--figure", str(path))
    assert path.read_bytes().startswith(magic)


def test_figure_shows_names_and_weights(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib_figure = pytest.importorskip("matplotlib.figure", reason="needs the plots extra")
    drawn = []
    monkeypatch.setattr(matplotlib_figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    explanation = load(run).explain(*PAIR, top=4)
    figure.draw(explanation, tmp_path / "why.png")
    top, bottom = drawn[0].axes
    for context in explanation.contexts:
        axes = bottom if context.of == "relation" else top
        shown = texts(axes)
        widths = sorted(
            text.arrow_patch.get_linewidth() for text in axes.texts if getattr(text, "arrow_patch", None)
        )
        for triple in context.triples:
            assert triple.head in shown
            assert triple.tail in shown
        heaviest = max(triple.weights[-1] for triple in context.triples)
        assert widths[-1] >= figure.MIN_WIDTH + (figure.MAX_WIDTH - figure.MIN_WIDTH) * heaviest - 1e-6
    assert explanation.relation in texts(top)


NAMES = ["Film $x and $y", "\\frac{", 'd\'Or "q"', "$", "^{_", "100 %", "[a] :smile:", "\N{SCRIPT SMALL G}"]


def explanation_of(names: list[str]) -> Explanation:
    first, relation, last = names[0], names[1], names[-1]
    triples = tuple(ContextTriple(first, relation, name, (0.5,), -1.0, 0.2, 0.1) for name in names[1:])
    contexts = (Context("head", first, 9, triples), Context("relation", relation, 9, triples))
    return Explanation(first, relation, last, -1.0, 0.5, 1, Candidate(relation, 0.5, False), contexts, (), ())


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_draws_any_names(tmp_path: Path, suffix: str, recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    path = tmp_path / f"why.{suffix}"
    assert figure.draw(explanation_of(NAMES), path) == "", "the script g has a font"
    assert set(figure.draw(explanation_of([*NAMES, "東"]), path)) <= {"東"}
    assert path.stat().st_size > 1000
    assert [str(warning.message) for warning in recwarn] == []


def test_figure_shows_plain_names_and_a_legend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib_figure = pytest.importorskip("matplotlib.figure", reason="needs the plots extra")
    drawn = []
    monkeypatch.setattr(matplotlib_figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    figure.draw(explanation_of(NAMES), tmp_path / "why.png")
    top, bottom = drawn[0].axes
    assert set(NAMES) - {NAMES[1]} <= set(texts(top))
    assert f"context pairs of the relation {NAMES[1]}" in texts(bottom)
    (legend,) = drawn[0].legends
    assert len(legend.get_texts()) == len(legend.legend_handles) == 4


def test_long_names_are_shortened_and_stay_distinct() -> None:
    base = "http://example.org/a/rather/long/path/"
    names = [f"{base}{n}/to/an/entity" for n in range(20)] + [f"{base}{n}" for n in range(20)] + ["short"]
    labels = figure.shortened(names)
    assert labels["short"] == "short"
    assert len(set(labels.values())) == len(names)
    assert labels[f"{base}7"] == "http://examp…r/long/path/7"
    assert all(label.startswith("http://e") for name, label in labels.items() if name != "short")


def test_missing_fonts_are_reported_after_the_answer(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    monkeypatch.setattr(figure, "families_for", lambda names: (["sans-serif"], "東"))
    assert cli.run(predict.main, [run, *ONE, "--figure", str(tmp_path / "why.png")]) == 0
    out, err = capsys.readouterr()
    assert PAIR[0] in out
    assert err == "figure: no installed font has '東': boxes replace these characters\n"


def test_answer_is_printed_before_a_failing_figure(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(predict, "draw", fail)
    assert cli.run(predict.main, [run, *ONE, "--figure", str(tmp_path / "why.png")]) == 1
    assert PAIR[0] in capsys.readouterr().out


def test_figure_of_a_pair_with_one_entity(run: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    figure.draw(load(run).explain(PAIR[0], PAIR[0]), tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 1000


def test_figure_needs_matplotlib(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figure, "find_spec", lambda name: None)
    message = error(capsys, run, *ONE, "--figure", str(tmp_path / "why.png"))
    assert message == "figure: expected matplotlib, which is missing: pip install 'lightcake_fast[plots]'"
