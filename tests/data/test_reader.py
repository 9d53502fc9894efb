import errno
import gzip
import os
import re
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightcake_fast.data import SPLITS, KnowledgeGraph, load_dataset, read_folder, table
from lightcake_fast.data.assembly import drop_duplicates
from lightcake_fast.errors import InputError

TRAIN = "a\tr\tb\nb\ts\tc\n"
VALID = "a\ts\tc\n"
TEST = "c\tr\ta\n"
ENTITIES = "2\ta\n0\tb\n1\tc\n"
RELATIONS = "0\ts\n1\tr\n"


def write(folder: Path, **changed: str | bytes | None) -> Path:
    """A small data set; `train="..."` replaces train.txt, `entities="..."` adds entities.dict."""
    folder.mkdir(exist_ok=True, parents=True)
    contents: dict[str, str | bytes | None] = {"train": TRAIN, "valid": VALID, "test": TEST, **changed}
    for stem, content in contents.items():
        if content is not None:
            suffix = ".txt" if stem in SPLITS else ".dict"
            data = content if isinstance(content, bytes) else content.encode()
            (folder / f"{stem}{suffix}").write_bytes(data)
    return folder


def named(graph: KnowledgeGraph, split: str) -> list[tuple[str, str, str]]:
    names = graph.entities, graph.relations, graph.entities
    return [(names[0][h], names[1][r], names[2][t]) for h, r, t in graph.split(split).tolist()]


def message(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_folder(folder)
    text = str(caught.value)
    assert text.isprintable()
    assert str(folder) in text
    return text.replace(f"{folder}/", "")


def test_ids_follow_first_appearance(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path / "tiny", test="c\tr\tlate\n"))
    assert graph.name == "tiny"
    assert graph.entities == ("a", "b", "c", "late")
    assert graph.relations == ("r", "s")
    assert graph.train.tolist() == [[0, 0, 1], [1, 1, 2]]
    assert graph.valid.tolist() == [[0, 1, 2]]
    assert graph.test.tolist() == [[2, 0, 3]]
    assert graph.train.dtype == np.int32
    assert graph.seen_entities.tolist() == [True, True, True, False]


def test_id_files_fix_the_ids(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path, entities=ENTITIES, relations=RELATIONS))
    assert graph.entities == ("b", "c", "a")
    assert graph.relations == ("s", "r")
    assert graph.train.tolist() == [[2, 1, 0], [0, 0, 1]]


def test_id_files_may_name_what_no_triple_has(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path, entities=ENTITIES + "3\tlone\n", relations=RELATIONS + "2\tq\n"))
    assert (graph.num_entities, graph.num_relations) == (4, 3)
    assert graph.seen_entities.tolist() == [True, True, True, False]


def test_either_id_file_alone(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path, relations=RELATIONS))
    assert (graph.entities, graph.relations) == (("a", "b", "c"), ("s", "r"))


ODD_NAMES = [
    "A",
    "a",
    "a ",
    "007",
    "7",
    "1e5",
    "nan",
    "NA",
    " ",
    " a ",
    "belong(s) to [x]",
    '"',
    "#",
    "é",
    "e\u0301",
    "名",
]
ODD_NAMES += ["\U0001d50a", "a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "\ufeff"]


def test_names_stay_as_written(tmp_path: Path) -> None:
    lines = [f"{name}\tr {name}\t{name}!" for name in ODD_NAMES]
    write(tmp_path, train="\n".join(lines), valid=lines[0], test=lines[0])
    assert named(read_folder(tmp_path), "train") == [(name, f"r {name}", f"{name}!") for name in ODD_NAMES]


@pytest.mark.parametrize(
    "train",
    [
        TRAIN.replace("\n", "\r\n"),
        TRAIN.rstrip("\n"),
        TRAIN.replace("\n", "\r\n").rstrip("\n"),
        "\n\r\n" + TRAIN.replace("\n", "\n   \n\n") + "\n\n",
        "\ufeff" + TRAIN,
    ],
    ids=["crlf", "no last newline", "crlf cut", "blank lines", "byte order mark"],
)
def test_line_ends_and_blank_lines_do_not_matter(tmp_path: Path, train: str) -> None:
    plain = read_folder(write(tmp_path / "plain"))
    assert read_folder(write(tmp_path / "other", train=train)).fingerprint == plain.fingerprint


@pytest.mark.parametrize("suffix", [".tsv", ".txt.gz", ".tsv.gz"])
def test_every_file_type_reads_the_same(tmp_path: Path, suffix: str) -> None:
    plain = read_folder(write(tmp_path / "plain"))
    folder = tmp_path / "other"
    folder.mkdir()
    for split, content in zip(SPLITS, (TRAIN, VALID, TEST), strict=True):
        data = content.encode()
        (folder / f"{split}{suffix}").write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert read_folder(folder).fingerprint == plain.fingerprint


def test_duplicates_are_kept_once_and_counted(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path, train=TRAIN + "x\tr\ta\n" + TRAIN, valid=VALID * 3))
    assert graph.duplicates == {"train": 2, "valid": 2, "test": 0}
    assert named(graph, "train") == [("a", "r", "b"), ("b", "s", "c"), ("x", "r", "a")]
    assert named(graph, "valid") == [("a", "s", "c")]


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=60))
def test_drop_duplicates_keeps_the_first_of_each(rows: list[tuple[int, int, int]]) -> None:
    triples = np.array(rows, dtype=np.int32).reshape(-1, 3)
    for size in (4, 2**31 - 1):  # keys of 64 bits, and ids for which they are too few
        kept = drop_duplicates(triples, size, size)
        assert [tuple(row) for row in kept.tolist()] == list(dict.fromkeys(rows))


WANTED = "wanted head<TAB>relation<TAB>tail"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"train": TRAIN + "a\tb\n"}, f"train.txt:3: got 2 fields, {WANTED}"),
        ({"train": "\n \n" + TRAIN + "\na b c\n"}, f"train.txt:6: got 1 field, {WANTED}"),
        ({"train": "a,r,b\n"}, f"train.txt:1: got 1 field, {WANTED}"),
        ({"train": "a;r;b\n"}, f"train.txt:1: got 1 field, {WANTED}"),
        ({"train": TRAIN + "x" * 10_000_000 + "\n"}, f"train.txt:3: got 1 field, {WANTED}"),
        ({"train": b"\x7fELF\x02\x01\x01" + bytes(9)}, "train.txt:1: got a NUL byte, wanted text"),
        ({"train": b"\x89PNG\r\n\x1a\n"}, "train.txt:1: got byte 0x89, wanted UTF-8 text"),
        ({"train": TRAIN.encode("utf-16")}, "train.txt:1: got a NUL byte, wanted text"),
        ({"valid": "a\tr\tb\textra\n"}, f"valid.txt:1: got 4 fields, {WANTED}"),
        (
            {"test": f"a\t{'r' * 1_000_000}\tb\n"},
            f"test.txt:1: relation '{'r' * 60}...' has no training triple",
        ),
        ({"train": "a\tr\nb\tc\ts\td\n"}, f"train.txt:1: got 2 fields, {WANTED}"),
        ({"test": "a\t\tb\n"}, f"test.txt:1: got an empty relation, {WANTED}"),
        ({"test": "\n\t\t\n"}, f"test.txt:2: got an empty head, {WANTED}"),
        ({"train": ""}, "train.txt:1: no triple, wanted at least one"),
        ({"train": "\n \r\n"}, "train.txt:1: no triple, wanted at least one"),
        ({"valid": ""}, "valid.txt:1: no triple, wanted at least one"),
        ({"valid": "a\tr\tb\n\na\tnew\tb\n"}, "valid.txt:3: relation 'new' has no training triple"),
        ({"test": "a\t\x1b[31m\tb\n"}, "test.txt:1: relation '\\x1b[31m' has no training triple"),
        ({"train": b"a\tr\tb\nb\tr\t\xff\n"}, "train.txt:2: got byte 0xff, wanted UTF-8 text"),
        ({"test": b"a\tr\tb\n\na\0\tr\tb\n"}, "test.txt:3: got a NUL byte, wanted text"),
        (
            {"train": None},
            "got no train file, wanted one of train.txt, train.tsv, train.txt.gz, train.tsv.gz",
        ),
        ({"entities": "0\ta\n1\tb\n"}, "train.txt:2: tail 'c' is not in entities.dict"),
        ({"entities": ENTITIES, "valid": "\nq\tr\ta\n"}, "valid.txt:2: head 'q' is not in entities.dict"),
        ({"relations": "0\tr\n"}, "train.txt:2: relation 's' is not in relations.dict"),
        (
            {"relations": RELATIONS + "2\tq\n", "test": "a\tq\tb"},
            "test.txt:1: relation 'q' has no training triple",
        ),
        ({"entities": ENTITIES + "4\td\n"}, "entities.dict:4: got id '4', wanted 0 to 3 for 4 names"),
        ({"entities": ENTITIES + "\n-1\td\n"}, "entities.dict:5: got id '-1', wanted 0 to 3 for 4 names"),
        ({"entities": "0_1\ta\n"}, "entities.dict:1: got id '0_1', wanted 0 to 0 for 1 names"),
        ({"entities": "\u0660\ta\n"}, "entities.dict:1: got id '\u0660', wanted 0 to 0 for 1 names"),
        (
            {"entities": f"{'9' * 5000}\ta\n"},
            f"entities.dict:1: got id '{'9' * 60}...', wanted 0 to 0 for 1 names",
        ),
        ({"entities": "a\t0\n"}, "entities.dict:1: got id 'a', wanted 0 to 0 for 1 names"),
        ({"entities": ENTITIES + "0\td\n"}, "entities.dict:4: got id 0 a second time, wanted each once"),
        ({"entities": ENTITIES + "3\ta\n"}, "entities.dict:4: got name 'a' a second time, wanted each once"),
        ({"entities": "0 a\n"}, "entities.dict:1: got 1 field, wanted id<TAB>name"),
        ({"relations": "0\t\n"}, "relations.dict:1: got an empty name, wanted id<TAB>name"),
        ({"relations": ""}, "train.txt:1: relation 'r' is not in relations.dict"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_mistakes_are_named_with_file_and_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str | bytes | None],
    expected: str,
) -> None:
    write(tmp_path / "set", **changed)
    assert message(tmp_path / "set").endswith(expected)
    monkeypatch.setattr(table, "BLOCK_BYTES", 1)  # a block a line
    assert message(tmp_path / "set").endswith(expected)


def test_a_folder_where_a_file_belongs(tmp_path: Path) -> None:
    (write(tmp_path, train=None) / "train.txt").mkdir()
    assert message(tmp_path) == "train.txt: got a folder, wanted a file"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Injected: the tests may run as root, whom no permission stops."""

    def refuse(path: Path, mode: str) -> NoReturn:
        raise OSError(number, os.strerror(number), str(path))

    write(tmp_path)
    monkeypatch.setattr("builtins.open", refuse)
    assert message(tmp_path) == f"train.txt: cannot be read ({os.strerror(number)})"


def test_two_files_for_a_split(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train.tsv").write_text(TRAIN)
    assert message(tmp_path).endswith("got train.txt and train.tsv, wanted only one of them")


@pytest.mark.parametrize("cut", [3, 12, -1])
def test_a_gzip_file_cut_short(tmp_path: Path, cut: int) -> None:
    write(tmp_path, train=None)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(TRAIN.encode())[:cut])
    assert "train.txt.gz: not a whole gzip file" in message(tmp_path)


def test_a_gzip_file_damaged_or_none(tmp_path: Path) -> None:
    write(tmp_path, train=None)
    data = bytearray(gzip.compress(TRAIN.encode()))
    data[-6] ^= 0xFF
    (tmp_path / "train.txt.gz").write_bytes(data)
    assert "train.txt.gz: not a whole gzip file" in message(tmp_path)
    (tmp_path / "train.txt.gz").write_text(TRAIN)
    assert "train.txt.gz: not a whole gzip file" in message(tmp_path)


def test_no_such_folder(tmp_path: Path) -> None:
    assert "got no folder" in message(tmp_path / "nowhere")


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0"), min_size=1, max_size=6
)
triples = st.lists(st.tuples(names, st.sampled_from(["r", "s t", "0"]), names), min_size=1, max_size=30)


@pytest.mark.filterwarnings("ignore:.* as well:lightcake_fast.errors.DataWarning")
@given(train=triples, held_out=triples, crlf=st.booleans(), block=st.integers(1, 200))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    train: list[tuple[str, str, str]],
    held_out: list[tuple[str, str, str]],
    crlf: bool,
    block: int,
) -> None:
    train += [("x", relation, "y") for relation in ("r", "s t", "0")]
    end = "\r\n" if crlf else "\n"
    splits = {"train": train, "valid": held_out, "test": held_out[::-1]}
    texts = {split: "".join(end.join(map("\t".join, rows)) + end) for split, rows in splits.items()}
    # a name may start with the character that a byte order mark is
    write(folder := tmp_path_factory.mktemp("set"), **{k: "\ufeff" + v for k, v in texts.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BLOCK_BYTES", block)
        graph = read_folder(folder)
    for split, rows in splits.items():
        assert named(graph, split) == list(dict.fromkeys(rows))
        assert graph.duplicates[split] == len(rows) - len(set(rows))


@settings(max_examples=200)
@given(
    pieces=st.lists(
        st.sampled_from([b"a", b"\t", b"\n", b"\r", b" ", b"\0", b"\xc3", b"\xa9", b"r"]), max_size=24
    ),
    block=st.integers(1, 20),
)
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], block: int
) -> None:
    data = TRAIN.encode() + b"".join(pieces)
    folder = write(tmp_path_factory.mktemp("set"), train=data)
    lines = re.split(r"\r?\n|\r\Z", data.decode(errors="replace"))
    rows = [tuple(line.split("\t")) for line in lines if line.strip() or "\t" in line]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BLOCK_BYTES", block)
        if b"\0" in data or "\ufffd" in "".join(lines) or any(len(row) != 3 or "" in row for row in rows):
            assert "train.txt:" in message(folder)
        else:
            assert named(read_folder(folder), "train") == list(dict.fromkeys(rows))


def test_fingerprint_tells_graphs_apart(tmp_path: Path) -> None:
    variants = [
        {},
        {"train": TRAIN + "c\tr\tb\n"},
        {"train": "b\ts\tc\na\tr\tb\n"},
        {"valid": TEST, "test": VALID},
        {"train": TRAIN.replace("a", "d"), "valid": "d\ts\tc\n", "test": "c\tr\td\n"},
        {"entities": ENTITIES},
    ]
    found = {
        read_folder(write(tmp_path / str(i), **changed)).fingerprint for i, changed in enumerate(variants)
    }
    assert len(found) == len(variants)
    assert all(len(fingerprint) == 64 for fingerprint in found)


def test_a_graph_checks_its_ids() -> None:
    good = np.zeros((1, 3), dtype=np.int64)
    wide = KnowledgeGraph("one", ("a",), ("r",), good, good, good)
    ids = good.astype(np.int32)
    narrow = KnowledgeGraph("one", ("a",), ("r",), ids, ids, ids)
    assert {graph.train.dtype for graph in (wide, narrow)} == {np.dtype(np.int32)}
    assert wide.fingerprint == narrow.fingerprint
    with pytest.raises(ValueError, match="valid: got ids out of range"):
        KnowledgeGraph("one", ("a",), ("r",), good, good + np.array([0, 1, 0]), good)
    with pytest.raises(ValueError, match=r"test: got int64 \[3\], wanted int32 \[T, 3\]"):
        KnowledgeGraph("one", ("a",), ("r",), good, good, good[0])
    with pytest.raises(ValueError, match=r"train: got float64 \[1, 3\], wanted int32 \[T, 3\]"):
        KnowledgeGraph("one", ("a",), ("r",), good.astype(float), good, good)


def test_load_dataset_takes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    graph = load_dataset("mine")
    assert (graph.name, graph.num_entities) == ("mine", 3)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("~/mine").fingerprint == graph.fingerprint
    with pytest.raises(InputError, match="no data set 'yours': wanted one of family, fb15k-237"):
        load_dataset("yours")


@pytest.mark.parametrize(
    ("typed", "meant"), [("nel995", "nell995"), ("famly", "family"), ("WN18R", "wn18rr")]
)
def test_a_misspelt_data_set_is_told_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"no data set '{typed}': wanted .* \(did you mean {meant}\?\)$"):
        load_dataset(typed)
