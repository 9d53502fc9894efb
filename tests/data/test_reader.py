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
    """Write a small data set; `train="..."` replaces train.txt, `entities="..."` adds entities.dict."""
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


def test_id_files_define_the_ids(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path, entities=ENTITIES, relations=RELATIONS))
    assert graph.entities == ("b", "c", "a")
    assert graph.relations == ("s", "r")
    assert graph.train.tolist() == [[2, 1, 0], [0, 0, 1]]


def test_id_files_may_contain_names_without_triples(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path, entities=ENTITIES + "3\tlone\n", relations=RELATIONS + "2\tq\n"))
    assert (graph.num_entities, graph.num_relations) == (4, 3)
    assert graph.seen_entities.tolist() == [True, True, True, False]


def test_one_id_file_is_enough(tmp_path: Path) -> None:
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


def test_names_are_not_parsed_or_trimmed(tmp_path: Path) -> None:
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
def test_all_file_types_give_the_same_graph(tmp_path: Path, suffix: str) -> None:
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
def test_drop_duplicates_keeps_the_first_copy(rows: list[tuple[int, int, int]]) -> None:
    triples = np.array(rows, dtype=np.int32).reshape(-1, 3)
    for size in (4, 2**31 - 1):  # with 64-bit keys, and with ids that are too large for them
        kept = drop_duplicates(triples, size, size)
        assert [tuple(row) for row in kept.tolist()] == list(dict.fromkeys(rows))


WANTED = "expected head<TAB>relation<TAB>tail"
UTF_8, CONVERT = "expected UTF-8 text", "convert the file to UTF-8"
TRAINED = "expected a relation with a training triple"
NO_TRIPLE = "expected at least one triple, got none: add triples"


def ids_to(last: int) -> str:
    return f"expected an id from 0 to {last} (number of names: {last + 1})"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"train": TRAIN + "a\tb\n"}, f"train.txt:3: {WANTED}, got 2 fields: correct the line"),
        ({"train": "\n \n" + TRAIN + "\na b c\n"}, f"train.txt:6: {WANTED}, got 1 field: correct the line"),
        ({"train": "a,r,b\n"}, f"train.txt:1: {WANTED}, got 1 field: correct the line"),
        ({"train": "a;r;b\n"}, f"train.txt:1: {WANTED}, got 1 field: correct the line"),
        ({"train": TRAIN + "x" * 10_000_000 + "\n"}, f"train.txt:3: {WANTED}, got 1 field: correct the line"),
        ({"train": b"\x7fELF\x02\x01\x01" + bytes(9)}, f"train.txt:1: {UTF_8}, got a NUL byte: {CONVERT}"),
        ({"train": b"\x89PNG\r\n\x1a\n"}, f"train.txt:1: {UTF_8}, got byte 0x89: {CONVERT}"),
        ({"train": TRAIN.encode("utf-16")}, f"train.txt:1: {UTF_8}, got a NUL byte: {CONVERT}"),
        ({"valid": "a\tr\tb\textra\n"}, f"valid.txt:1: {WANTED}, got 4 fields: correct the line"),
        (
            {"test": f"a\t{'r' * 1_000_000}\tb\n"},
            f"test.txt:1: {TRAINED}, got '{'r' * 60}...': add a training triple",
        ),
        ({"train": "a\tr\nb\tc\ts\td\n"}, f"train.txt:1: {WANTED}, got 2 fields: correct the line"),
        ({"test": "a\t\tb\n"}, f"test.txt:1: {WANTED}, got an empty relation: correct the line"),
        ({"test": "\n\t\t\n"}, f"test.txt:2: {WANTED}, got an empty head: correct the line"),
        ({"train": ""}, f"train.txt:1: {NO_TRIPLE}"),
        ({"train": "\n \r\n"}, f"train.txt:1: {NO_TRIPLE}"),
        ({"valid": ""}, f"valid.txt:1: {NO_TRIPLE}"),
        ({"valid": "a\tr\tb\n\na\tnew\tb\n"}, f"valid.txt:3: {TRAINED}, got 'new': add a training triple"),
        ({"test": "a\t\x1b[31m\tb\n"}, f"test.txt:1: {TRAINED}, got '\\x1b[31m': add a training triple"),
        ({"train": b"a\tr\tb\nb\tr\t\xff\n"}, f"train.txt:2: {UTF_8}, got byte 0xff: {CONVERT}"),
        ({"test": b"a\tr\tb\n\na\0\tr\tb\n"}, f"test.txt:3: {UTF_8}, got a NUL byte: {CONVERT}"),
        (
            {"train": None},
            "expected one of train.txt, train.tsv, train.txt.gz, train.tsv.gz, got no train file: add it",
        ),
        (
            {"entities": "0\ta\n1\tb\n"},
            "train.txt:2: expected a tail from entities.dict, got 'c': add it there",
        ),
        (
            {"entities": ENTITIES, "valid": "\nq\tr\ta\n"},
            "valid.txt:2: expected a head from entities.dict, got 'q': add it there",
        ),
        (
            {"relations": "0\tr\n"},
            "train.txt:2: expected a relation from relations.dict, got 's': add it there",
        ),
        (
            {"relations": RELATIONS + "2\tq\n", "test": "a\tq\tb"},
            f"test.txt:1: {TRAINED}, got 'q': add a training triple",
        ),
        ({"entities": ENTITIES + "4\td\n"}, f"entities.dict:4: {ids_to(3)}, got '4': correct the id"),
        ({"entities": ENTITIES + "\n-1\td\n"}, f"entities.dict:5: {ids_to(3)}, got '-1': correct the id"),
        ({"entities": "0_1\ta\n"}, f"entities.dict:1: {ids_to(0)}, got '0_1': correct the id"),
        ({"entities": "\u0660\ta\n"}, f"entities.dict:1: {ids_to(0)}, got '\u0660': correct the id"),
        (
            {"entities": f"{'9' * 5000}\ta\n"},
            f"entities.dict:1: {ids_to(0)}, got '{'9' * 60}...': correct the id",
        ),
        ({"entities": "a\t0\n"}, f"entities.dict:1: {ids_to(0)}, got 'a': correct the id"),
        (
            {"entities": ENTITIES + "0\td\n"},
            "entities.dict:4: expected distinct ids, got 0 twice: correct the id",
        ),
        (
            {"entities": ENTITIES + "3\ta\n"},
            "entities.dict:4: expected distinct names, got 'a' twice: rename one",
        ),
        ({"entities": "0 a\n"}, "entities.dict:1: expected id<TAB>name, got 1 field: correct the line"),
        (
            {"relations": "0\t\n"},
            "relations.dict:1: expected id<TAB>name, got an empty name: correct the line",
        ),
        ({"relations": ""}, "train.txt:1: expected a relation from relations.dict, got 'r': add it there"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_messages_give_file_and_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str | bytes | None],
    expected: str,
) -> None:
    write(tmp_path / "set", **changed)
    assert message(tmp_path / "set").endswith(expected)
    monkeypatch.setattr(table, "BLOCK_BYTES", 1)  # one line per block
    assert message(tmp_path / "set").endswith(expected)


def test_folder_instead_of_a_file_is_rejected(tmp_path: Path) -> None:
    (write(tmp_path, train=None) / "train.txt").mkdir()
    assert message(tmp_path) == "train.txt: expected a file, got a folder: remove or rename it"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_unreadable_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The error is injected, because root ignores file permissions."""

    def refuse(path: Path, mode: str) -> NoReturn:
        raise OSError(number, os.strerror(number), str(path))

    write(tmp_path)
    monkeypatch.setattr("builtins.open", refuse)
    assert (
        message(tmp_path)
        == f"train.txt: expected a readable file, got {os.strerror(number)}: check path and permissions"
    )


def test_two_files_for_a_split_are_rejected(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train.tsv").write_text(TRAIN)
    assert message(tmp_path).endswith(
        "expected one train file, got train.txt and train.tsv: remove all except one"
    )


@pytest.mark.parametrize("cut", [3, 12, -1])
def test_truncated_gzip_file_is_rejected(tmp_path: Path, cut: int) -> None:
    write(tmp_path, train=None)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(TRAIN.encode())[:cut])
    assert "train.txt.gz: expected a complete gzip file" in message(tmp_path)


def test_damaged_gzip_file_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, train=None)
    data = bytearray(gzip.compress(TRAIN.encode()))
    data[-6] ^= 0xFF
    (tmp_path / "train.txt.gz").write_bytes(data)
    assert "train.txt.gz: expected a complete gzip file" in message(tmp_path)
    (tmp_path / "train.txt.gz").write_text(TRAIN)
    assert "train.txt.gz: expected a complete gzip file" in message(tmp_path)


def test_missing_folder_is_rejected(tmp_path: Path) -> None:
    assert "got no folder" in message(tmp_path / "nowhere")


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0"), min_size=1, max_size=6
)
triples = st.lists(st.tuples(names, st.sampled_from(["r", "s t", "0"]), names), min_size=1, max_size=30)


@pytest.mark.filterwarnings("ignore:.* are also in :lightcake_fast.errors.DataWarning")
@given(train=triples, held_out=triples, crlf=st.booleans(), block=st.integers(1, 200))
def test_written_triples_are_read_back(
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
    # a name may start with a byte order mark
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
def test_any_bytes_are_read_or_rejected_in_one_line(
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


def test_different_graphs_have_different_fingerprints(tmp_path: Path) -> None:
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


def test_graph_checks_its_ids() -> None:
    good = np.zeros((1, 3), dtype=np.int64)
    wide = KnowledgeGraph("one", ("a",), ("r",), good, good, good)
    ids = good.astype(np.int32)
    narrow = KnowledgeGraph("one", ("a",), ("r",), ids, ids, ids)
    assert {graph.train.dtype for graph in (wide, narrow)} == {np.dtype(np.int32)}
    assert wide.fingerprint == narrow.fingerprint
    with pytest.raises(
        ValueError, match=r"valid: expected 0 <= \(head, relation, tail\) < \[1, 1, 1\], got ids out of range"
    ):
        KnowledgeGraph("one", ("a",), ("r",), good, good + np.array([0, 1, 0]), good)
    with pytest.raises(ValueError, match=r"test: expected int32 \[T, 3\], got int64 \[3\]"):
        KnowledgeGraph("one", ("a",), ("r",), good, good, good[0])
    with pytest.raises(ValueError, match=r"train: expected int32 \[T, 3\], got float64 \[1, 3\]"):
        KnowledgeGraph("one", ("a",), ("r",), good.astype(float), good, good)


def test_load_dataset_takes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    graph = load_dataset("mine")
    assert (graph.name, graph.num_entities) == ("mine", 3)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("~/mine").fingerprint == graph.fingerprint
    with pytest.raises(InputError, match=r"dataset: expected one of family, fb15k-237, .*, got 'yours'"):
        load_dataset("yours")


@pytest.mark.parametrize(
    ("typed", "meant"), [("nel995", "nell995"), ("famly", "family"), ("WN18R", "wn18rr")]
)
def test_message_suggests_the_nearest_data_set_name(typed: str, meant: str) -> None:
    with pytest.raises(
        InputError, match=rf"dataset: expected .*, got '{typed}': .* \(did you mean {meant}\?\)$"
    ):
        load_dataset(typed)
