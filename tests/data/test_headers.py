"""Header rows of files: known titles are skipped with a warning, other headers with an option."""

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from lightcake_fast import cli, load, partition, train
from lightcake_fast.data import KnowledgeGraph, load_dataset, numbering
from lightcake_fast.data.__main__ import main as statistics
from lightcake_fast.errors import DataWarning, InputError
from lightcake_fast.sharding.data import read_index
from lightcake_fast.train import main as train_command
from lightcake_fast.training.config import TrainingConfig
from tests.data.test_reader import named, write

ROWS = [(f"e{n % 40}", f"r{n % 3}", f"e{(7 * n + 1) % 40}") for n in range(120)]
BODY = "".join(",".join(row) + "\n" for row in ROWS)
SMALL: dict[str, Any] = {"epochs": 1, "layers": 1, "dim": 4, "quiet": True}


def read_quietly(path: Path, **options: Any) -> KnowledgeGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        return load_dataset(str(path), **options)


@pytest.fixture
def plain(tmp_path: Path) -> KnowledgeGraph:
    (tmp_path / "plain.csv").write_text(BODY)
    return read_quietly(tmp_path / "plain.csv")


@pytest.mark.parametrize(
    "header",
    [
        "head,relation,tail",
        "Subject, Predicate ,OBJECT",
        '"source","type","target"',
        "h,r,t",
        "\ufeffs,p,o",
        "\n\nfrom,edge,to",
    ],
)
def test_known_header_is_skipped_with_a_warning(tmp_path: Path, plain: KnowledgeGraph, header: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{header}\n{BODY}", encoding="utf-8")
    line = 1 + header.count("\n")
    with pytest.warns(
        DataWarning, match=rf"x\.csv:{line}: the header '.*' is skipped: use --header .* or --no-header"
    ):
        assert load_dataset(str(path)).fingerprint == plain.fingerprint
    assert read_quietly(path, header=True).fingerprint == plain.fingerprint
    kept = read_quietly(path, header=False)
    assert kept.num_entities == plain.num_entities + 2


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("big", [False, True])
def test_every_file_of_a_folder_may_have_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, big: bool, packed: bool
) -> None:
    expected = read_quietly(write(tmp_path / "plain"))
    if big:
        monkeypatch.setattr(numbering, "SMALLEST_BYTES", 0)
    folder = write(tmp_path / "titled")
    for file in folder.iterdir():
        data = ("\nhead\trelation\ttail\n" + file.read_text()).encode()
        file.unlink()
        (folder / f"{file.name}{'.gz' * packed}").write_bytes(gzip.compress(data) if packed else data)
    with pytest.warns(DataWarning) as caught:
        found = load_dataset(str(folder))
    assert found.fingerprint == expected.fingerprint
    assert [str(warning.message).split(":")[1] for warning in caught] == ["2", "2", "2"]
    assert read_quietly(folder, header=True).fingerprint == expected.fingerprint


@pytest.mark.filterwarnings("ignore::lightcake_fast.errors.DataWarning")
@pytest.mark.parametrize("big", [False, True])
def test_line_numbers_count_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, big: bool) -> None:
    if big:
        monkeypatch.setattr(numbering, "SMALLEST_BYTES", 0)
    text = "\nhead\trelation\ttail\n\na\tr\tb\n\na\tnew\tb\n"
    write(tmp_path, test=text)
    with pytest.raises(
        InputError, match=r"test\.txt:6: expected a relation with a training triple, got 'new'"
    ):
        load_dataset(str(tmp_path))


def test_header_true_skips_any_first_row(tmp_path: Path, plain: KnowledgeGraph) -> None:
    (tmp_path / "x.csv").write_text("film,fact,value\n" + BODY)
    assert read_quietly(tmp_path / "x.csv", header=True).fingerprint == plain.fingerprint
    assert "film" in read_quietly(tmp_path / "x.csv").entities


@pytest.mark.parametrize("header", ["source,target,label", "Tail,Relation,Head"])
def test_columns_in_another_order_are_rejected(tmp_path: Path, header: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{header}\n{BODY}")
    for option in (None, True):
        with pytest.raises(
            InputError, match=r"x\.csv:1: expected the columns head, relation, tail, got the header '"
        ):
            load_dataset(str(path), header=option)
    assert read_quietly(path, header=False).num_train


def test_first_rows_without_titles_are_kept(tmp_path: Path) -> None:
    """Letters in another order, titles of two columns, and triples with id files, which contain all names."""
    for row in ("r,s,t", "head,of,tail", "head,relation,x"):
        (tmp_path / "x.csv").write_text(f"{row}\n{BODY}")
        assert row.split(",")[0] in read_quietly(tmp_path / "x.csv").entities
    ids = "0\thead\n1\ttail\n2\tb\n"
    train_rows = "head\trelation\ttail\ntail\trelation\tb\n"
    write(
        tmp_path / "set",
        train=train_rows,
        valid="b\trelation\thead\n",
        test="b\trelation\ttail\n",
        entities=ids,
    )
    assert named(read_quietly(tmp_path / "set"), "train")[0] == ("head", "relation", "tail")


def test_file_with_only_a_header_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("head,relation,tail\n")
    with pytest.raises(InputError, match="expected at least one triple, got none"):
        load_dataset(str(tmp_path / "x.csv"))


def test_header_is_rejected_for_sources_without_headers(tmp_path: Path) -> None:
    (tmp_path / "x.nt").write_text("<a> <r> <b> .\n")
    for data in ("family:60", "wn18rr", str(tmp_path / "x.nt")):
        with pytest.raises(
            InputError, match=r"expected no header, got header=True: leave it out, only \.tsv"
        ):
            load_dataset(data, header=True)
    with pytest.raises(InputError, match=r"^triples: expected no header"):
        KnowledgeGraph.from_triples(ROWS, header=True)
    with pytest.warns(
        DataWarning, match=r"triples\[0\]: the first triple 'head', 'relation', 'tail' looks like a header"
    ):
        KnowledgeGraph.from_triples([("head", "relation", "tail"), *ROWS])


def test_commands_accept_the_header_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("film,fact,value\n" + BODY)
    assert cli.run(statistics, ["x.csv", "--json", "--header"]) == 0
    assert json.loads(capsys.readouterr().out)["entities"] == 40
    assert cli.run(statistics, ["x.csv", "--json", "--no-header"]) == 0
    assert json.loads(capsys.readouterr().out)["entities"] == 42
    assert cli.run(partition.main, ["x.csv", "--parts", "2", "--header", "--out", "parts"]) == 0
    assert read_index(Path("parts"))["source"]["header"] is True
    flags = ["--epochs", "1", "--layers", "1", "--dim", "4", "--quiet", "--out", "run"]
    assert cli.run(train_command, ["--dataset", "x.csv", "--header", *flags]) == 0
    assert load("run").data.num_entities == 40
    assert train("x.csv", header=True, **SMALL).model.data.num_entities == 40


def test_old_runs_read_headers_as_triples() -> None:
    saved = train(ROWS, **SMALL).model.config.saved()
    del saved["header"]
    assert TrainingConfig.from_json(json.dumps(saved)).header is False
