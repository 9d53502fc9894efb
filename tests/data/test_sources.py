"""Knowledge graphs from Python objects, files and objects of other libraries, and back."""

import gzip
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightcake_fast import cli, train
from lightcake_fast.data import KnowledgeGraph, load_dataset, numbering
from lightcake_fast.data.__main__ import main
from lightcake_fast.data.splitting import parse_shares, split_triples
from lightcake_fast.errors import DataWarning, InputError
from tests.data.test_reader import named, write

TRAIN = [("a", "r", "b"), ("b", "s", "c"), ("c", "r", "a"), ("a", "r", "b")]
VALID, TEST = [("a", "s", "c")], [("c", "s", "d")]
CSV = 'a,r,b\n\nb,s,c\r\n"c","r",a\na,r,b\n'
TRIPLES = (
    "<http://x/a> <http://x/r> <http://x/b> .\n# a remark\n\n_:n1 <http://x/r> <http://x/\\u00e9>. # end\n"
)
LITERALS = (
    '<http://x/a> <http://x/name> "A \\"b\\" . <c>"@en-GB .\n'
    '<http://x/a>\t<http://x/age>\t"7"^^<http://x/int>.\n'
)
MANY = [(f"e{n % 40}", f"r{n % 3}", f"e{(7 * n + 1) % 40}") for n in range(200)]


def assert_same(actual: KnowledgeGraph, expected: KnowledgeGraph) -> None:
    assert actual.fingerprint == expected.fingerprint


@pytest.fixture(scope="module")
def expected() -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(TRAIN, VALID, TEST)


def to_frame(rows: Sequence[tuple[str, ...]], columns: str = "xyz") -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(rows, columns=list(columns))


def to_other_frame(rows: Sequence[tuple[str, ...]]) -> Any:
    frame = to_frame([(t, "?", h, r) for h, r, t in rows], "twhr")
    return frame.rename(columns={"h": "head", "r": "relation", "t": "tail"})


def to_networkx(rows: Sequence[tuple[str, ...]]) -> Any:
    graph = pytest.importorskip("networkx").MultiDiGraph()
    for number, (head, relation, tail) in enumerate(rows):
        graph.add_edge(head, tail, **({"key": number, "relation": relation} if number else {"key": relation}))
    return graph


@pytest.mark.parametrize(
    "form",
    [list, iter, np.array, lambda rows: np.array(rows, object), lambda rows: [list(row) for row in rows]],
    ids=["list", "iterator", "array", "array of objects", "lists"],
)
def test_python_containers_give_the_same_graph(form: Callable[[Any], Any], expected: KnowledgeGraph) -> None:
    assert_same(KnowledgeGraph.from_triples(form(TRAIN), form(VALID), form(TEST)), expected)
    assert named(expected, "train") == TRAIN[:3]
    assert expected.duplicates == {"train": 1, "valid": 0, "test": 0}
    assert expected.entities == ("a", "b", "c", "d")


@pytest.mark.parametrize("form", [to_frame, to_other_frame, to_networkx])
def test_containers_of_other_libraries_give_the_same_graph(
    form: Callable[[Any], Any], expected: KnowledgeGraph
) -> None:
    graph = KnowledgeGraph.from_triples(form(TRAIN), form(VALID), form(TEST))
    assert {split: sorted(named(graph, split)) for split in ("train", "valid", "test")} == {
        split: sorted(named(expected, split)) for split in ("train", "valid", "test")
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", ["tsv", "txt", "csv", "CSV"])
def test_files_give_the_same_graph(
    tmp_path: Path, expected: KnowledgeGraph, suffix: str, packed: bool
) -> None:
    text = CSV if suffix.lower() == "csv" else "".join("\t".join(row) + "\n" for row in TRAIN)
    path = tmp_path / f"films.v2.{suffix}{'.gz' * packed}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    graph = KnowledgeGraph.from_triples(path, VALID, TEST)
    assert_same(graph, expected)
    assert graph.name == "films"


def test_csv_names_may_contain_commas_and_quotes(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text('a,"r, s","b ""c"""\n b,t,"d;e"\n')
    graph = KnowledgeGraph.from_triples(tmp_path / "odd.csv", [("a", "t", "x")], [("a", "t", "y")])
    assert named(graph, "train") == [("a", "r, s", 'b "c"'), (" b", "t", "d;e")]


def as_csv(name: str) -> str:
    return f'a,r,b\nb,r,c\nb,r,"{name}"\n'


def as_n_triples(name: str) -> str:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
    return f"<a> <r> <b> .\n# a remark\n<b> <r> <c> .\n<b> <r> <{escaped}> .\n"


@pytest.mark.parametrize("name", ["New\nYork", "a\tb", "a\rb", "c\r", "\n"])
@pytest.mark.parametrize(
    ("file", "write_rows", "place"),
    [
        ("x.csv", as_csv, "x.csv:3"),
        ("x.nt", as_n_triples, "x.nt:4"),
        (None, to_frame, "triples[2]"),
        (None, to_networkx, "triples[2]"),
        (None, list, "triples[2]"),
    ],
)
def test_names_with_tabs_and_line_breaks_are_rejected(
    tmp_path: Path, file: str | None, write_rows: Callable[[Any], Any], place: str, name: str
) -> None:
    """Such names would break every tab-separated file with them."""
    triples = (
        write_rows([("a", "r", "b"), ("b", "r", "c"), ("b", "r", name)]) if file is None else tmp_path / file
    )
    if file is not None:
        (tmp_path / file).write_text(write_rows(name), newline="")
    with pytest.raises(InputError) as caught:
        KnowledgeGraph.from_triples(triples, [("b", "r", "a")], [("c", "r", "a")])
    wanted = "expected names without tabs, line breaks and NUL characters, got the entity"
    assert (
        str(caught.value).removeprefix(f"{tmp_path}/")
        == f"{place}: {wanted} {name!r}: replace these characters"
    )


def test_relation_with_a_line_break_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test\[1\]: .*, got the relation 'r\\ns'"):
        KnowledgeGraph.from_triples(TRAIN, VALID, [("a", "r", "b"), ("a", "r\ns", "b")])


def test_names_without_triples_are_checked_for_tabs() -> None:
    class Factory:
        mapped_triples = pytest.importorskip("torch").tensor([[0, 0, 1], [1, 0, 0]])
        num_entities, real_num_relations = 3, 1
        entity_id_to_label, relation_id_to_label = ("a", "b", "c\td"), ("r",)

    with pytest.raises(
        InputError, match=r"^expected names without tabs, .*, got the entity 'c\\td': replace"
    ):
        KnowledgeGraph.from_triples(Factory, [("a", "r", "b")], [("b", "r", "a")])


@pytest.mark.parametrize("big", [False, True])
def test_carriage_return_in_a_name_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, big: bool
) -> None:
    """At the end of a line, the reader would remove it with the line end."""
    if big:
        monkeypatch.setattr(numbering, "SMALLEST_BYTES", 0)
    write(tmp_path, train="a\tr\tb\r\n\nb\ts\tc\nc\r\ts\ta\n", valid="a\tr\tc\n", test="b\tr\ta\n")
    with pytest.raises(InputError, match=r"train\.txt:4: expected names .*, got the entity 'c\\r': replace"):
        load_dataset(str(tmp_path))


def test_strip_trims_line_breaks_around_names(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('"a\n",r,b\nb,r,"\tc"\n')
    graph = KnowledgeGraph.from_triples(tmp_path / "x.csv", [("a", "r", "c")], [("c", "r", "a")], strip=True)
    assert graph.entities == ("a", "b", "c")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,r,b\na,r\n", "x.csv:2: expected head,relation,tail, got 2 fields"),
        ('a,"r\n\n",b\na,,b\n', "x.csv:4: expected head,relation,tail, got an empty relation"),
        ('a,r,"b\n', "x.csv:1: expected comma-separated values, got an error ("),
        ("a;r;b\n", "x.csv:1: expected head,relation,tail, got 1 field"),
        ("", "x.csv:1: expected at least one triple, got none"),
    ],
)
def test_wrong_csv_files_are_rejected(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(InputError) as caught:
        KnowledgeGraph.from_triples(tmp_path / "x.csv", VALID, TEST)
    assert problem in str(caught.value)


def test_line_numbers_after_a_name_with_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('"a\n",r,b\na,new,b\n')
    with pytest.raises(InputError, match=r"x\.csv:3: expected a relation with a training triple, got 'new'"):
        KnowledgeGraph.from_triples(TRAIN, tmp_path / "x.csv", TEST, strip=True)


def test_n_triples_skip_literals(tmp_path: Path) -> None:
    path = tmp_path / "x.nt"
    path.write_text(TRIPLES + LITERALS)
    held = [("http://x/a", "http://x/r", "_:n1")]
    with pytest.warns(DataWarning, match=r"x\.nt: 2 triples with a literal were skipped"):
        graph = KnowledgeGraph.from_triples(path, held, held)
    assert named(graph, "train") == [
        ("http://x/a", "http://x/r", "http://x/b"),
        ("_:n1", "http://x/r", "http://x/é"),
    ]
    path.write_text(TRIPLES + LITERALS + "<http://x/a> <http://x/r> <http://x/b>\n")
    with pytest.raises(
        InputError, match=r"x\.nt:7: expected <head> <relation> <tail> \. \(N-Triples\), got another"
    ):
        KnowledgeGraph.from_triples(path, held, held)
    path.write_text(LITERALS + TRIPLES + "<http://x/a> <http://x/s> <http://x/b> .\n")
    with pytest.raises(
        InputError, match=r"x\.nt:7: expected a relation with a training triple, got 'http://x/s'"
    ):
        KnowledgeGraph.from_triples(held, held, path)


def test_invalid_escape_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.nt"
    path.write_text("<a> <r> <b> .\n<a> <r> <\\UFFFFFFFF> .\n")
    with pytest.raises(InputError, match=r"x\.nt:2: expected escapes of Unicode characters, got another"):
        KnowledgeGraph.from_triples(path)


@pytest.mark.filterwarnings("ignore::lightcake_fast.errors.DataWarning")
def test_suffixes_ignore_case(tmp_path: Path) -> None:
    path = tmp_path / "X.TSV.GZ"
    path.write_bytes(gzip.compress(b"a\tr\tb\nb\ts\tc\n"))
    assert KnowledgeGraph.from_triples(path, path, path).train.tolist() == [[0, 0, 1], [1, 1, 2]]


def test_parquet_file_gives_the_same_graph(
    tmp_path: Path, expected: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, pandas = to_other_frame(TRAIN), pytest.importorskip("pandas")
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)
    assert_same(KnowledgeGraph.from_triples(tmp_path / "x.parquet", VALID, TEST), expected)

    def lacking(path: Path) -> None:
        raise ImportError("pyarrow or fastparquet is required")

    monkeypatch.setattr(pandas, "read_parquet", lacking)
    with pytest.raises(
        InputError, match=r"x\.parquet: expected pandas and pyarrow, got an import error: pip inst"
    ):
        KnowledgeGraph.from_triples(tmp_path / "x.parquet", VALID, TEST)


def test_pykeen_round_trip(expected: KnowledgeGraph) -> None:
    pytest.importorskip("pykeen")
    factories = [expected.to_pykeen(split) for split in ("train", "valid", "test")]
    assert factories[0].num_entities == 4
    graph = KnowledgeGraph.from_triples(*factories)
    assert_same(graph, expected)
    assert graph.entities == expected.entities


def test_pyg_round_trip(expected: KnowledgeGraph) -> None:
    pytest.importorskip("torch_geometric")
    data = [expected.to_pyg(split) for split in ("train", "valid", "test")]
    assert data[0].edge_index.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert data[0].edge_type.tolist() == [0, 1, 0]
    assert_same(KnowledgeGraph.from_triples(*data), expected)
    for item in data:
        del item.entity_names, item.relation_names
    graph = KnowledgeGraph.from_triples(*data)
    assert (graph.entities, graph.relations) == (("0", "1", "2", "3"), ("0", "1"))
    assert graph.train.tolist() == expected.train.tolist()
    del data[0].edge_type
    with pytest.raises(InputError, match="triples: expected Data with edge_type, got none"):
        KnowledgeGraph.from_triples(*data)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"relation_names": ["r", "r"]}, "relations: expected distinct names, got 'r' twice: rename one"),
        ({"entity_names": ["a", "b", "b", "c"]}, "entities: expected distinct names, got 'b' twice"),
        ({"relation_names": ["r"]}, "triples: expected relation ids from 0 to 0, got 0 to 1"),
        ({"num_nodes": 2, "entity_names": None}, "triples: expected head ids from 0 to 1, got 0 to 2"),
        ({"edge_type": [0, -1, 0]}, "triples: expected relation ids from 0 to 1, got -1 to 0"),
        ({"edge_index": [[0, 1, 2], [1, -1, 0]]}, "triples: expected tail ids from 0 to 3, got -1 to 1"),
        ({"edge_type": [0.0, 1.0, 0.0]}, "triples: expected integer ids, got float64"),
        ({"edge_type": [[0], [1], [0]]}, r"expected edge_type of shape \(3,\), got \(3, 1\)"),
        ({"edge_type": [[1, 0], [0, 1], [1, 0]]}, r"got \(3, 2\): give each edge one .*argmax"),
        ({"edge_type": [0, 1]}, r"triples: expected edge_type of shape \(3,\), got \(2,\)"),
        ({"edge_type": 0}, r"triples: expected edge_type of shape \(3,\), got \(\)"),
        ({"edge_index": [[0, 1], [1, 2], [2, 0]]}, r"expected edge_index of shape \(2, E\), got \(3, 2\)"),
        ({"edge_index": None}, "triples: expected edge_index as a tensor, got none: set edge_index"),
    ],
)
def test_pyg_data_with_wrong_edges_is_rejected(
    expected: KnowledgeGraph, changed: dict[str, Any], problem: str
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    data = expected.to_pyg()
    for name, value in changed.items():
        tensor = name.startswith("edge") and value is not None
        setattr(data, name, torch.tensor(value) if tensor else value)
    with pytest.raises(InputError, match=problem):
        KnowledgeGraph.from_triples(data, data, data)


def test_pyg_data_with_an_array_of_names(expected: KnowledgeGraph) -> None:
    pytest.importorskip("torch_geometric")
    data = [expected.to_pyg(split) for split in ("train", "valid", "test")]
    for item in data:
        item.entity_names = np.array(item.entity_names)
    assert_same(KnowledgeGraph.from_triples(*data), expected)


def test_pyg_heterodata_gives_typed_names() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    data["author"].num_nodes, data["paper"].num_nodes = 2, 3
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    data["paper", "to", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    data["paper", "to", "author"].edge_index = torch.tensor([[0, 2], [0, 1]])
    with pytest.warns(DataWarning, match="no training triple"):
        graph = KnowledgeGraph.from_triples(data, split=(0.4, 0.3, 0.3))
    assert graph.entities == ("author:0", "author:1", "paper:0", "paper:1", "paper:2")
    assert graph.relations == ("writes", "paper__to__paper", "paper__to__author")
    triples = [row for split in ("train", "valid", "test") for row in named(graph, split)]
    assert sorted(triples) == sorted(
        [
            ("author:0", "writes", "paper:2"),
            ("author:1", "writes", "paper:0"),
            ("author:1", "writes", "paper:1"),
            ("paper:0", "paper__to__paper", "paper:1"),
            ("paper:1", "paper__to__paper", "paper:2"),
            ("paper:0", "paper__to__author", "author:0"),
            ("paper:2", "paper__to__author", "author:1"),
        ]
    )


@pytest.mark.parametrize(
    ("triples", "error", "problem"),
    [
        ([("a", "r", 7)], TypeError, r"triples\[0\]: expected a string, got 7 for the tail"),
        (
            [*TRAIN, (float("nan"), "r", "b")],
            TypeError,
            r"triples\[4\]: expected a string, got nan for the head",
        ),
        (
            [*TRAIN, ("a", None, "b")],
            TypeError,
            r"triples\[4\]: expected a string, got None for the relation",
        ),
        ([(b"a", "r", "b")], TypeError, r"triples\[0\]: expected a string, got b'a' for the head"),
        (np.zeros((2, 3), int), TypeError, r"triples\[0\]: expected a string, got 0 for the head"),
        (["arb"], TypeError, r"triples\[0\]: expected \(head, relation, tail\), got 'arb'"),
        ([3], TypeError, r"triples\[0\]: expected .*, got 3:"),
        (
            [{"head": "a", "relation": "r", "tail": "b"}],
            TypeError,
            r"triples\[0\]: expected .*, got \{'head': 'a'",
        ),
        ([{"a", "r", "b"}], TypeError, r"triples\[0\]: expected \(head, relation, tail\), got \{"),
        (b"file", TypeError, "triples: expected an array, list or DataFrame .*, got bytes"),
        (7, TypeError, "triples: expected an array, .*, got int"),
        ([*TRAIN, ("a", "b")], InputError, r"triples\[4\]: expected head, relation and tail, got 2 names"),
        (
            [*TRAIN, ("a\udc00", "r", "b")],
            InputError,
            r"entities: expected names that UTF-8 can encode, got .*udc00'",
        ),
        ([*TRAIN, ("a", "", "b")], InputError, r"triples\[4\]: expected a name, got an empty relation"),
        ([], InputError, r"triples\[0\]: expected at least one triple, got none"),
        ("nowhere.tsv", InputError, r"nowhere\.tsv: expected a readable file, got No such file or directory"),
        (
            "films.xlsx",
            InputError,
            r"films\.xlsx: expected a file name that ends in one of \.tsv, .*, got \.xlsx",
        ),
    ],
)
def test_wrong_triples_are_rejected(triples: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        KnowledgeGraph.from_triples(triples)


def test_wrong_containers_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    hetero = pytest.importorskip("torch_geometric.data").HeteroData()
    hetero["a"].num_nodes = 2
    hetero["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="triples: expected num_nodes or x for node type 'b', got neither"):
        KnowledgeGraph.from_triples(hetero)
    hetero["b"].num_nodes = 2
    hetero["a", "adj", "b"].adj_t = None
    problem = r"triples: edge type \('a', 'adj', 'b'\): expected edge_index as a tensor, got none"
    with pytest.raises(InputError, match=problem):
        KnowledgeGraph.from_triples(hetero)
    hetero["a", "adj", "b"].edge_index = [[0], [1]]
    with pytest.raises(InputError, match="expected edge_index as a tensor, got a list"):
        KnowledgeGraph.from_triples(hetero)
    with pytest.raises(InputError, match="triples: expected the columns head, relation and tail, got a, b"):
        KnowledgeGraph.from_triples(to_frame([("x", "y")], "ab"))
    networkx = pytest.importorskip("networkx")
    with pytest.raises(InputError, match="triples: expected a MultiDiGraph, got a DiGraph"):
        KnowledgeGraph.from_triples(networkx.DiGraph())
    with pytest.raises(InputError, match="valid and test: expected both or neither, got one"):
        KnowledgeGraph.from_triples(TRAIN, VALID)


def test_lists_do_not_import_other_libraries() -> None:
    code = (
        "import sys; from lightcake_fast import KnowledgeGraph\n"
        f"KnowledgeGraph.from_triples({MANY!r})\n"
        "print(*sorted({'pandas', 'networkx', 'pykeen', 'torch_geometric', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 9)), min_size=4, unique=True
    ),
    seed=st.integers(0, 5),
)
def test_split_keeps_relations_and_counts_lost_entities(rows: list[tuple[int, int, int]], seed: int) -> None:
    triples = np.array(rows)
    relations = np.unique(triples[:, 1])
    if len(rows) - len(relations) < 2:
        with pytest.raises(InputError, match="expected triples for train, valid and test, got "):
            split_triples(triples, 10, 4, (0.5, 0.25, 0.25), seed)
        return
    splits, notes = split_triples(triples, 10, 4, (0.5, 0.25, 0.25), seed)
    assert sorted(map(tuple, np.concatenate(splits).tolist())) == sorted(rows)
    again, _ = split_triples(triples, 10, 4, (0.5, 0.25, 0.25), seed)
    for one, other in zip(splits, again, strict=True):
        assert len(one)
        assert np.array_equal(one, other)
        places = [rows.index(tuple(row)) for row in one.tolist()]
        assert places == sorted(places)
    assert np.array_equal(np.unique(splits[0][:, 1]), relations)
    asked = 2 * max(round(len(rows) / 4), 1)
    held = len(splits[1]) + len(splits[2])
    assert held == min(asked, len(rows) - len(relations))
    assert any("held out instead of" in note for note in notes) == (held < asked)
    lost = len(np.unique(triples[:, ::2])) - len(np.unique(splits[0][:, ::2]))
    told = "1 entity has" if lost == 1 else f"{lost:,} entities have"
    assert any(note == f"split: {told} no training triple" for note in notes) == (lost > 0)


def test_split_keeps_all_entities_if_possible() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        graph = KnowledgeGraph.from_triples(MANY, seed=3)
    assert graph.seen_entities.all()
    assert [len(graph.split(split)) for split in ("train", "valid", "test")] == [96, 12, 12]
    assert_same(graph, KnowledgeGraph.from_triples(MANY, seed=3))
    assert graph.fingerprint != KnowledgeGraph.from_triples(MANY, seed=4).fingerprint
    wrong: Any
    for wrong in (-1, "3", 0.5, None):
        with pytest.raises(InputError, match=f"seed: expected an integer of at least 0, got {wrong!r}"):
            KnowledgeGraph.from_triples(MANY, seed=wrong)
    star = [("hub", f"r{n % 2}", f"leaf{n}") for n in range(50)]
    with pytest.warns(DataWarning, match="split: 10 entities have no training triple"):
        KnowledgeGraph.from_triples(star)


def test_one_triple_is_too_few_to_split() -> None:
    with pytest.raises(InputError, match=r"^split: expected triples .*, got 1 triple of 1 relation"):
        KnowledgeGraph.from_triples([("a", "r", "b")])


@pytest.mark.parametrize("split", [(0.8, 0.2), (0.8, 0.1, 0.2), (1, 0, 0), ".8,.1", "a,b,c", 3, None])
def test_wrong_shares_are_rejected(split: Any) -> None:
    with pytest.raises(InputError, match=r"split: expected three positive shares with sum 1, got "):
        parse_shares(split)


def test_load_dataset_takes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "films.csv"
    path.write_text("".join(",".join(row) + "\n" for row in MANY))
    graph = load_dataset(str(path))
    assert graph.name == "films"
    assert_same(graph, KnowledgeGraph.from_triples(MANY))
    assert len(load_dataset(str(path), split=".5,.3,.2").train) == 60
    with pytest.raises(InputError, match=r"split: expected None for 'family', got '\.8,\.1,\.1'"):
        load_dataset("family", split=".8,.1,.1")


def test_statistics_command_reads_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "films.csv"
    path.write_text("".join(",".join(row) + "\n" for row in [*MANY, ("e1 ", "r1", "e2")]))
    assert cli.run(main, [str(path), "--json", "--split", ".5,.3,.2"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["entities"] == 41
    assert err == (
        f"warning: {path}:201: entity 'e1 ' differs from 'e1' only in white space around it: "
        "use --strip or strip=True to trim names\n"
    )
    assert cli.run(main, [str(path), "--json", "--strip"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["entities"], err) == (40, "")


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        (
            {"train": "head\trelation\ttail\na\tr\tb\nb\ts\tc\n"},
            "train.txt:1: the header 'head', 'relation', 'tail' is skipped",
        ),
        ({"test": "a\tr\tb\nb\ts\ta\n"}, "test: 1 of 2 triples are also in train or valid"),
        ({"train": "a\tr\tb\nb\ts\tc\n" + "c\tr\ta\n", "test": "head\ts\ttail\n"}, None),
        ({"train": "a\tr\tb\nb\ts\tc\n\nb \tr\tc\n"}, "train.txt:4: entity 'b ' differs from 'b' only"),
        ({"valid": "a\ts\t\u00a0c\n"}, r"valid.txt:1: entity '\xa0c' differs from 'c'"),
        ({"train": "a\tr\tb\nb\ts\tc\n\ufeffa\tr\tc\n"}, r"train.txt:3: entity '\ufeffa' differs from 'a'"),
        ({"train": "a\tr\tb\nb\ts\tc\nb\tr \tc\nb\t r\tc\n"}, "train.txt:3: relation 'r ' differs from 'r'"),
        ({"train": "a\tr\tb\nb\ts\tc\n d\tr\td \n"}, "train.txt:3: entity 'd ' differs from ' d'"),
    ],
)
def test_suspicious_names_give_a_warning(tmp_path: Path, changed: dict[str, str], note: str | None) -> None:
    write(tmp_path / "set", **changed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = load_dataset(str(tmp_path / "set"))
    found = [str(warning.message).replace(f"{tmp_path}/set/", "") for warning in caught]
    if note is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith(note)
        assert found[0].isprintable()
    assert len(graph.notes) == len(found)


def test_strip_trims_names(tmp_path: Path) -> None:
    plain = load_dataset(str(write(tmp_path / "plain")))
    write(tmp_path / "padded", train=" a\tr\u00a0\tb\n\ufeffb \ts\tc\n", valid="a\ts \tc\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        assert_same(load_dataset(str(tmp_path / "padded"), strip=True), plain)
        assert_same(
            KnowledgeGraph.from_triples(
                [("a ", "r", "b"), ("b", "s", " c")], VALID, [("c", "r", "a")], strip=True
            ),
            plain,
        )
    write(tmp_path / "blank", valid="a\ts\t \n")
    with pytest.raises(InputError, match=r"valid\.txt:1: expected a name, got a blank tail"):
        load_dataset(str(tmp_path / "blank"), strip=True)


def test_fingerprints_of_names_with_line_ends_differ() -> None:
    """Two different lists of names must not give the same text."""
    one = np.zeros((1, 3), np.int64)
    variants = [("a\nb", "c"), ("a", "b\nc"), ("a\\nb", "c"), ("a\n", "\nc"), ("a", "b"), ("a\\\nb", "c")]
    made = [KnowledgeGraph("x", names, ("r",), one, one, one) for names in variants]
    assert len({graph.fingerprint for graph in made}) == len(variants)


def test_repr_is_one_line(expected: KnowledgeGraph) -> None:
    assert repr(expected) == (
        "KnowledgeGraph('triples', 4 entities, 2 relations, 3 train, 1 valid, 1 test triples)"
    )


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"train": [[0, 0, 1], [1, 1, 2], [0, 0, 1]]}, "train: expected distinct triples, got 1 duplicates"),
        ({"test": [[0, 1, 2], [0, 1, 2], [0, 1, 2]]}, "test: expected distinct triples, got 2 duplicates"),
        ({"entities": ("a", "b", "a")}, "entities: expected distinct names, got 'a' twice"),
        ({"relations": ("r", "r")}, "relations: expected distinct names, got 'r' twice"),
        ({"entities": ("a", "b\n", "c")}, r"entities: expected names .*, got the name 'b\\n': replace these"),
        ({"entities": ("a", "", "c")}, "entities: expected a name per id, got an empty name for id 1"),
        (
            {"relations": ("r", "s", "\ud800")},
            "relations: expected names that UTF-8 can encode, got .*ud800'",
        ),
        ({"train": [[0, 0, 1]]}, "valid: expected a relation with a training triple, got 's'"),
    ],
)
def test_graph_of_ids_is_checked_before_training(changed: dict[str, Any], problem: str) -> None:
    """A run folder with such a graph could not be read back."""
    rows = {"train": [[0, 0, 1], [1, 1, 2]], "valid": [[0, 1, 1]], "test": [[0, 1, 2]]}
    parts = {"entities": ("a", "b", "c"), "relations": ("r", "s"), **rows, **changed}
    arrays: dict[str, Any] = {n: np.array(part) if n in rows else part for n, part in parts.items()}
    with pytest.raises(InputError, match=problem):
        train(KnowledgeGraph("x", **arrays), epochs=1, layers=1, dim=4)
