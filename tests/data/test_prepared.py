"""The cache of large data sets is used only for files with the same content."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from lightcake_fast.data import KnowledgeGraph, assembly, prepared, read_folder
from lightcake_fast.errors import InputError
from tests.data.test_reader import ENTITIES, TRAIN, write


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, for data sets of any size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared, "SMALLEST_BYTES", 0)
    return tmp_path / "cache/lightcake_fast/prepared"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the data sets that were read from their files, not from the cache."""
    found: list[str] = []

    def counted(name: str, *arguments: object, **options: object) -> assembly.Assembled:
        found.append(name)
        return assembly.assemble(name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("lightcake_fast.data.reader.assemble", counted)
    return found


def assert_equal(actual: KnowledgeGraph, expected: KnowledgeGraph) -> None:
    assert actual.fingerprint == expected.fingerprint
    assert (actual.name, actual.duplicates) == (expected.name, expected.duplicates)


def test_second_start_reads_the_cached_copy(tmp_path: Path, cache: Path, reads: list[str]) -> None:
    odd = "名\tr\ta b\n \tr\t\u2028\n" + TRAIN * 2
    first = read_folder(write(tmp_path / "set", train=odd))
    assert_equal(read_folder(tmp_path / "set"), first)
    other = read_folder(write(tmp_path / "copy", train=odd))  # the same content elsewhere
    assert (other.fingerprint, other.name) == (first.fingerprint, "copy")
    assert reads == ["set"]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "changed", [{"train": TRAIN + "a\tr\ta\n"}, {"entities": ENTITIES}, {"valid": TRAIN}]
)
def test_changed_content_is_read_again(
    tmp_path: Path, cache: Path, reads: list[str], changed: dict[str, str]
) -> None:
    before = read_folder(write(tmp_path / "set"))
    after = read_folder(write(tmp_path / "set", **changed))
    assert after.fingerprint != before.fingerprint
    assert reads == ["set", "set"]


def test_files_that_change_during_reading_are_not_cached(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "set")
    key = prepared.content_key

    def changing(files: Sequence[Path], options: str = "") -> str:
        found = key(files, options)
        files[0].write_text(files[0].read_text() + "a\tr\ta\n")
        return found

    monkeypatch.setattr(prepared, "content_key", changing)
    read_folder(folder)
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"", b"damaged", None])
def test_damaged_copy_is_replaced(
    tmp_path: Path, cache: Path, reads: list[str], content: bytes | None
) -> None:
    expected = read_folder(write(tmp_path / "set"))
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] if content is None else content)
    for _ in range(2):
        assert_equal(read_folder(tmp_path / "set"), expected)
    assert reads == ["set", "set"]
    assert kept.read_bytes() == whole


def test_full_cache_is_not_an_error(
    tmp_path: Path, cache: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prepared, "replace_file", full)
    write(tmp_path / "set")
    for _ in range(2):
        read_folder(tmp_path / "set")
    assert reads == ["set", "set"]


def test_input_errors_are_raised_with_the_cache(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InputError, match=r"train\.txt:1: expected .*, got 2 fields"):
        read_folder(write(tmp_path / "set", train="a\tb\n"))
    assert not cache.exists()


def test_small_data_sets_are_not_cached(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "SMALLEST_BYTES", 1000)
    read_folder(write(tmp_path / "set"))
    assert not cache.exists()
