import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lightcake_fast.data import load_dataset, public
from lightcake_fast.data.public import (
    BASE_URL,
    PUBLIC_DATASETS,
    PublicDataset,
    blob_id,
    cache_folder,
    download,
    public_folder,
)
from lightcake_fast.errors import InputError
from tests.support.processes import HANG

CONTENTS = {
    "entities.dict": b"0\ta\n1\tb\n",
    "relations.dict": b"0\tr\n",
    "train.txt": b"a\tr\tb\n",
    "valid.txt": b"b\tr\ta\n",
    "test.txt": b"a\tr\ta\n" + b" \n" * 200_000,
}
TINY = PublicDataset("Tiny", {name: blob_id(content) for name, content in CONTENTS.items()})


@dataclass
class Source:
    """A web server with answers that a test can damage."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {f"/Tiny/{n}": c for n, c in CONTENTS.items()})
    cut: dict[str, int] = field(default_factory=dict)
    without_length: bool = False
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LIGHTCAKE_FAST_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(public, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(public, "TIMEOUT_SECONDS", HANG)
    return tmp_path / "cache" / "lightcake_fast"


@pytest.fixture
def source(cache: Path) -> Iterator[Source]:
    state = Source()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            if not state.without_length:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: state.cut.get(self.path, len(content))])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def put(folder: Path, *left_out: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENTS.items():
        if name not in left_out:
            (folder / name).write_bytes(content)
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_blob_ids_match_git() -> None:
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.parametrize("without_length", [False, True])
def test_downloaded_folder_is_found_again(source: Source, cache: Path, without_length: bool) -> None:
    source.without_length = without_length
    folder = public_folder(TINY, base_url=source.url)
    assert folder == cache / "Tiny"
    assert content_of(folder) == CONTENTS
    assert public_folder(TINY, base_url=source.url) == folder
    assert sorted(source.asked) == sorted(source.files)


def test_wrong_content_is_rejected(source: Source, cache: Path) -> None:
    source.files["/Tiny/train.txt"] = b"a\tr\tc\n"
    with pytest.raises(
        InputError, match=r"expected a download, got 6 bytes with git blob id .* instead of "
    ) as caught:
        public_folder(TINY, base_url=source.url)
    assert f"{source.url}/Tiny/train.txt" in str(caught.value)
    assert content_of(cache / "Tiny").keys() == {"entities.dict", "relations.dict"}


@pytest.mark.parametrize("sent", [0, 1, 70_000, 399_999])
def test_truncated_download_leaves_no_file(source: Source, cache: Path, sent: int) -> None:
    source.cut["/Tiny/test.txt"] = sent
    with pytest.raises(InputError, match=f"the connection ended after {sent} of 400006 bytes"):
        public_folder(TINY, base_url=source.url)
    assert content_of(cache / "Tiny") == {n: c for n, c in CONTENTS.items() if n != "test.txt"}


def test_broken_connection_is_retried(source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    source.cut["/Tiny/test.txt"] = 70_000

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            del source.cut["/Tiny/test.txt"]

    monkeypatch.setattr(public, "RETRY_SECONDS", (1.0, 4.0))
    monkeypatch.setattr("time.sleep", wait)
    assert content_of(public_folder(TINY, base_url=source.url)) == CONTENTS
    assert waits == [1.0, 4.0]
    assert source.asked.count("/Tiny/test.txt") == 3


def test_truncated_download_without_length_is_rejected(source: Source, cache: Path) -> None:
    source.cut["/Tiny/test.txt"] = 70_000
    source.without_length = True
    with pytest.raises(InputError, match="got 70000 bytes with git blob id"):
        public_folder(TINY, base_url=source.url)
    assert "test.txt" not in content_of(cache / "Tiny")


def test_only_missing_files_are_downloaded_again(source: Source, cache: Path) -> None:
    lost = source.files.pop("/Tiny/valid.txt")
    with pytest.raises(InputError, match="HTTP Error 404"):
        public_folder(TINY, base_url=source.url)
    source.files["/Tiny/valid.txt"] = lost
    source.asked.clear()
    assert content_of(public_folder(TINY, base_url=source.url)) == CONTENTS
    assert source.asked == ["/Tiny/valid.txt", "/Tiny/test.txt"]


def test_offline_message_says_where_to_put_files(cache: Path) -> None:
    with pytest.raises(InputError) as caught:
        public_folder(TINY, base_url="http://127.0.0.1:1")
    text = str(caught.value)
    assert text.startswith("http://127.0.0.1:1/Tiny/entities.dict: expected a download, got ")
    assert f"try again, or put the files {', '.join(CONTENTS)} into {cache}/Tiny, or into" in text
    assert text.endswith("DIR/Tiny with --data-dir DIR or $LIGHTCAKE_FAST_DATA=DIR")
    assert text.isprintable()
    assert content_of(cache / "Tiny") == {}


def test_unwritable_cache_folder_is_an_error(source: Source, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder belongs")
    with pytest.raises(NotADirectoryError, match=str(cache)):
        public_folder(TINY, base_url=source.url)


def test_failed_write_leaves_no_partial_file(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(part: Path, target: Path) -> None:
        assert part.read_bytes() == CONTENTS[target.name], "moved into place before it was written"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\); it is left"):
        public_folder(TINY, base_url=source.url)
    assert content_of(cache / "Tiny") == {}


def test_two_simultaneous_downloads_succeed(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "both"
    with ThreadPoolExecutor(2) as pool:
        for result in [pool.submit(download, TINY, target, source.url) for _ in range(2)]:
            result.result()
    assert content_of(target) == CONTENTS


def test_places_are_searched_in_order(
    source: Source, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    monkeypatch.setenv("LIGHTCAKE_FAST_DATA", str(named))
    in_cache, in_named, in_given = put(cache / "Tiny"), put(named / "TINY"), put(given / "tiny")
    assert public_folder(TINY, given, source.url) == in_given
    (in_given / "test.txt").unlink()
    assert public_folder(TINY, given, source.url) == in_named
    (in_named / "relations.dict").unlink()
    assert public_folder(TINY, given, source.url) == in_cache
    assert not source.asked


def test_exact_folder_name_has_priority(tmp_path: Path) -> None:
    put(tmp_path / "tiny")
    exact = put(tmp_path / "Tiny")
    assert public_folder(TINY, tmp_path) == exact
    (exact / "train.txt").unlink()
    assert public_folder(TINY, tmp_path) == tmp_path / "tiny"


def test_missing_data_dir_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder of data sets, got no folder"):
        public_folder(TINY, tmp_path / "nowhere")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_folder() == Path("/some/where/lightcake_fast")
    monkeypatch.setenv("HOME", "/home/somebody")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == Path("/home/somebody/.cache/lightcake_fast")


def test_base_url_pins_a_commit() -> None:
    assert BASE_URL.startswith("https://raw.githubusercontent.com/hwwang55/PathCon/55cbf5a1129850")
    assert all(len(blob) == 40 for dataset in PUBLIC_DATASETS.values() for blob in dataset.blobs.values())


@pytest.mark.parametrize("name", PUBLIC_DATASETS)
def test_blob_ids_of_local_files(name: str, public_data: Callable[[str], Path]) -> None:
    folder = public_data(name)
    for file, wanted in PUBLIC_DATASETS[name].blobs.items():
        if (name, file) != ("nell995", "train.txt"):  # same triples as the public one, in another order
            assert blob_id((folder / file).read_bytes()) == wanted


def test_data_set_names_ignore_case(public_data: Callable[[str], Path]) -> None:
    place = public_data("ddb14").parent
    graphs = [load_dataset(name, place) for name in ("ddb14", "DDB14", "Ddb14")]
    assert {graph.name for graph in graphs} == {"ddb14"}
    assert len({graph.fingerprint for graph in graphs}) == 1


def test_variable_with_a_missing_folder_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTCAKE_FAST_DATA", "/nowhere")
    with pytest.raises(
        InputError, match=r"^\$LIGHTCAKE_FAST_DATA: expected a folder of data sets, got /nowhere"
    ):
        load_dataset("wn18rr")
