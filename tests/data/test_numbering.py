import errno
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.caching import FunctionCache

from lightcake_fast.compiled import run_compiled
from lightcake_fast.data import SPLITS, KnowledgeGraph, numbering, read_file, read_folder, table
from lightcake_fast.data.names import Source
from lightcake_fast.data.numbering import Numbering, big_tables
from lightcake_fast.data.sources import Rows, find
from lightcake_fast.data.table import Table
from lightcake_fast.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::lightcake_fast.errors.DataWarning")

FORMS = ["a", "b", "ab", "ba", "abc", "é", "e\u0301", "名", "\U0001d50a", " a", "a ", " ", "\ufeffb"]
FORMS += ["x" * 300, "x" * 299 + "y", "head", "tail"]
RELATIONS = ["r", "s", "r ", "relation", "a"]
DEFECTS = ["\t", "a\tr", "a\tr\tb\tc", "a\t\tb", "a\tr\t", "a\rb\tr\tc", "a\tr\tb\r", "\0\tr\ta"]
DEFECTS += ["\udcc3\tr\ta"]  # written as the byte 0xc3
HASHES = [numbering.MULTIPLIER, 1 << 33, 0]  # the last two depend only on the last byte, and on no byte

forms, relations = st.sampled_from(FORMS), st.sampled_from(RELATIONS)
rows = st.tuples(forms, relations, forms).map("\t".join)
lines = st.lists(st.one_of(rows, rows, rows, st.sampled_from(["", "  "])), min_size=1, max_size=12)
files = st.tuples(lines, st.sampled_from(["\n", "\n", "\r\n"]), st.booleans(), st.booleans())


def both_ways(read: Callable[[], KnowledgeGraph], **changed: int) -> tuple[Any, Any]:
    """Results (or messages) of both readers: with a hash table, and with a Python string per name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "SMALLEST_BYTES", 1 << 60)
        expected = outcome(read)
        patch.setattr(numbering, "SMALLEST_BYTES", 0)
        for constant, value in changed.items():
            patch.setattr(numbering, constant, value)
        return outcome(read), expected


def outcome(read: Callable[[], KnowledgeGraph]) -> Any:
    try:
        graph = read()
    except InputError as error:
        return str(error)
    triples = [(graph.split(split).dtype, graph.split(split).tolist()) for split in SPLITS]
    return graph.entities, graph.relations, triples, graph.duplicates, graph.notes, graph.fingerprint


@settings(max_examples=150)
@given(
    contents=st.tuples(files, files, files),
    trained=st.sampled_from([RELATIONS, RELATIONS, RELATIONS[:2]]),
    defect=st.sampled_from([""] * 20 + DEFECTS),
    packed=st.booleans(),
    strip=st.sampled_from([False, False, False, True]),
    ids=st.sampled_from([None, None, None, "entities", "relations"]),
    block=st.sampled_from([1, 10, 40, 1 << 20]),
    multiplier=st.sampled_from(HASHES),
    slots=st.sampled_from([1, 2, 64]),
)
def test_both_readers_give_the_same_graph(
    tmp_path_factory: pytest.TempPathFactory,
    contents: tuple[tuple[list[str], str, bool, bool], ...],
    trained: list[str],
    defect: str,
    packed: bool,
    strip: bool,
    ids: str | None,
    block: int,
    multiplier: int,
    slots: int,
) -> None:
    folder = tmp_path_factory.mktemp("set")
    contents[0][0].extend(f"a\t{relation}\tb" for relation in trained)
    contents[len(defect) % 3][0].insert(1, defect)
    for split, (lines, end, mark, whole) in zip(SPLITS, contents, strict=True):
        data = ("\ufeff" * mark + end.join(lines) + end * whole).encode(errors="surrogateescape")
        (folder / f"{split}.txt{'.gz' * packed}").write_bytes(gzip.compress(data, 1) if packed else data)
    if ids:
        names = FORMS if ids == "entities" else RELATIONS
        (folder / f"{ids}.dict").write_text(
            "".join(f"{n}\t{name}\n" for n, name in enumerate(names)), "utf-8"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BLOCK_BYTES", block)
        weak = {"MULTIPLIER": multiplier, "_FEWEST_SLOTS": slots}
        found, expected = both_ways(lambda: read_folder(folder, strip=strip), **weak)
    assert found == expected


@pytest.mark.parametrize(("multiplier", "count"), list(zip(HASHES, (20_000, 5_000, 500), strict=True)))
def test_both_readers_agree_on_many_names_and_blocks(
    tmp_path: Path, multiplier: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(count)
    monkeypatch.setattr(table, "BLOCK_BYTES", count)
    drawn = (rng.random((count, 3)) ** 2 * [count, 50, count]).astype(int)
    lines = [f"{'n' * (h % 7)}{h}\tp{r}\t{'n' * (t % 7)}{t}" for h, r, t in drawn.tolist()]
    for split, part in zip(SPLITS, (lines, lines[::3], lines[::-5]), strict=True):
        (tmp_path / f"{split}.tsv").write_text("\n".join(part), "utf-8")
    found, expected = both_ways(lambda: read_folder(tmp_path), MULTIPLIER=multiplier)
    assert found == expected
    assert len(found[0]) > count / 2


def test_both_readers_agree_on_a_file_that_is_split(tmp_path: Path) -> None:
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"e{n % 17}\tr{n % 3}\te{n * n % 13}\n" for n in range(200)), "utf-8")
    found, expected = both_ways(lambda: read_file(path))
    assert found == expected
    assert found[3]["train"] > 0


def test_blocks_end_at_line_ends(tmp_path: Path) -> None:
    (path := tmp_path / "x.tsv").write_bytes(b"\xef\xbb\xbfa\tr\tb\r\n\r\n \na\tr\tname")
    file = Table(path, ("head", "relation", "tail"))
    ((data, ends),) = file.read_bytes()
    assert data.tobytes().split(b"\n")[0].split(b"\t") == [b"a", b"r", b"b", b"a", b"r", b"name"]
    assert data[ends].tobytes() == b"\t\t\t\t\t\n"
    assert file.blank_lines == [2, 3]


def test_numbers_follow_first_appearance() -> None:
    names = Numbering()
    data = np.frombuffer(b"b|a|b|aa|", np.uint8)
    ends = np.flatnonzero(data == ord("|"))
    starts = np.append(0, ends[:-1] + 1)
    assert names.number(data, starts, ends).tolist() == [0, 1, 0, 2]
    assert names.number(data, starts[1:], ends[1:]).tolist() == [1, 0, 2]
    assert names.names() == ("b", "a", "aa")


def test_big_tables_are_large_tab_separated_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small := tmp_path / "small.tsv").write_text("a\tr\tb\n")
    (big := tmp_path / "big.tsv").write_text("a\tr\tb\n" * 100)
    (other := tmp_path / "big.csv").write_text("a,r,b\n" * 100)
    monkeypatch.setattr(numbering, "SMALLEST_BYTES", 600)

    def chosen(*paths: Path) -> list[Path]:
        return [table.path for table in big_tables([find(path, "").source for path in paths])]

    assert chosen(big, small) == [big, small]  # their total size is large
    assert chosen(small) == chosen(other) == chosen(big, other) == chosen(tmp_path / "none.tsv") == []
    held: list[Source] = [Rows([("a", "r", "b")] * 100, "rows")]
    assert big_tables(held) == []


def test_compiled_code_runs_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    assert run_compiled(lambda x: x + 1, 1) == 2
    monkeypatch.undo()
    # without a source file there is no folder for the cache
    assert run_compiled(eval("lambda x: x + 2"), 1) == 3
