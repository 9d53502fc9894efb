import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_text
from lightcake_fast.metrics import RankMetrics
from lightcake_fast.training import checkpoint
from lightcake_fast.training.checkpoint import load_checkpoint, save_checkpoint
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.run_folder import Position, RunFolder
from tests.support.comparison import assert_bitwise_equal

FINGERPRINT = "a" * 64
TENSORS = {
    "entities": torch.arange(12, dtype=torch.float32).view(3, 4),
    "step": torch.tensor(7.0),
    "generator": torch.arange(256).to(torch.uint8),
    "half": torch.full((2, 2), 0.1, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 5, dtype=torch.float64),
}


def save(path: Path, **changes: Any) -> None:
    config = resolve({"dim": 4, **changes})
    save_checkpoint(path, TENSORS, config=config, fingerprint=FINGERPRINT, notes={"epoch": 3})


def load(path: Path, fingerprint: str = FINGERPRINT, **changes: Any) -> tuple[dict[str, torch.Tensor], Any]:
    return load_checkpoint(path, config=resolve({"dim": 4, **changes}), fingerprint=fingerprint)


def test_checkpoint_round_trip_is_bitwise(tmp_path: Path) -> None:
    save(tmp_path / "x")
    tensors, notes = load(tmp_path / "x")
    assert notes["epoch"] == 3
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in tensors.items():
        assert_bitwise_equal(tensor, TENSORS[name], name=name)


def test_checkpoint_ignores_settings_that_may_change_on_resume(tmp_path: Path) -> None:
    save(tmp_path / "x")
    places = {"dataset": "family:50", "data_dir": "/elsewhere"}
    load(tmp_path / "x", epochs=99, patience=7, backend="reference", device="cuda", **places)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_checkpoint_gives_one_line(tmp_path: Path, keep: int) -> None:
    save(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(content[:keep])
    with pytest.raises(InputError, match="truncated or damaged"):
        load(tmp_path / "x")


def test_missing_checkpoint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="truncated or damaged"):
        load(tmp_path / "x")


@pytest.mark.parametrize("place", [-1, -300])
def test_flipped_bit_is_rejected(tmp_path: Path, place: int) -> None:
    save(tmp_path / "x")
    content = bytearray((tmp_path / "x").read_bytes())
    content[place] ^= 1
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match="expected content that matches its checksum"):
        load(tmp_path / "x")


def test_damaged_header_is_an_input_error(tmp_path: Path) -> None:
    save(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    header = int.from_bytes(content[:8], "little")
    for place in range(8 + header):
        damaged = bytearray(content)
        damaged[place] ^= 0x15
        (tmp_path / "x").write_bytes(damaged)
        with pytest.raises(InputError):
            load(tmp_path / "x")


@pytest.mark.parametrize("length", [0, 1, 2**20 + 1, 2**40, 2**64 - 1])
def test_header_with_impossible_length_is_not_read(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x")
    with (tmp_path / "x").open("rb+") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(2**41)  # a sparse file: as large as the header claims, without using disk space
    monkeypatch.setattr("safetensors.safe_open", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(InputError, match=f"got a header of {length} bytes in a truncated"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"format": 1}', "[" * 100_000, '{"format": 1, "fingerprint": 5, "config": 7}'],
)
def test_invalid_notes_are_rejected(tmp_path: Path, text: str) -> None:
    """The checksum is valid. Anyone can compute it."""
    header = {checkpoint.NOTES: f"{checkpoint._checksum(text, TENSORS)} {text}"}
    save_file(TENSORS, tmp_path / "x", metadata=header)
    with pytest.raises(InputError, match=r"expected a checkpoint of lightcake_fast|not JSON"):
        load(tmp_path / "x")


def test_file_of_another_program_is_rejected(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x")
    with pytest.raises(InputError, match="expected a checkpoint of lightcake_fast"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 8}, "expected a checkpoint with dim 8, got 4"),
        ({"score": "transe", "layers": 2}, "expected a checkpoint with score 'transe', got 'distmult'"),
        ({"seed": 1}, "expected a checkpoint with seed 1, got 0"),
        (
            {"fingerprint": "b" * 64},
            "data set .fingerprint bbbbbbbbbbbb., got one of another data set .fingerprint aaaaaaaaaaaa",
        ),
    ],
)
def test_checkpoint_of_another_run_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save(tmp_path / "x")
    with pytest.raises(InputError, match=message):
        load(tmp_path / "x", **changes)


def test_old_checkpoint_has_default_of_new_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolve({"dim": 4, "model": "compgcn"}).fixed()
    del before["composition"]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingConfig, "fixed", lambda _: before)
        save(tmp_path / "x")
    load(tmp_path / "x", model="compgcn")
    with pytest.raises(InputError, match="expected a checkpoint with composition 'sub', got 'mult'"):
        load(tmp_path / "x", model="compgcn", composition="sub")


def test_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    save(tmp_path / "x")
    with pytest.raises(InputError, match="expected a checkpoint with model 'complex', got 'lightcake'"):
        load(tmp_path / "x", model="complex")


def test_checkpoint_of_another_version_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 0)
    save(tmp_path / "x")
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"expected format 1 \(lightcake_fast .*\), got format 0"):
        load(tmp_path / "x")


def test_files_have_default_permissions(tmp_path: Path) -> None:
    save(tmp_path / "x")
    (tmp_path / "y").write_text("")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "xy"}
    assert len(modes) == 1


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (Path, "replace")])
def test_failed_write_keeps_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    replace_text(tmp_path / "x", "old")
    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(OSError, match="disk full"):
        replace_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "old"


def test_run_folder_is_locked(tmp_path: Path) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}), "family")
    with run, pytest.raises(InputError, match="got one that works on it"), RunFolder.open(run.path):
        pytest.fail("opened twice")
    with RunFolder.open(run.path):
        pass


def test_folders_made_in_the_same_second_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    paths = [RunFolder.create(resolve({}), "family:50").path for _ in range(3)]
    stem = Path("runs/family-50-lightcake-distmult-20260101-000000")
    assert paths == [stem, Path(f"{stem}-2"), Path(f"{stem}-3")]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: RunFolder.create(resolve({"out": str(path)}), "x"), "got a run: .*--resume"),
        (lambda path: path.write_text("mine"), "expected a new folder, got a file"),
    ],
)
def test_existing_run_or_file_is_rejected_as_new_folder(
    tmp_path: Path, prepare: Callable[[Path], object], message: str
) -> None:
    prepare(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        RunFolder.create(resolve({"out": str(tmp_path / "run")}), "x")


def test_run_can_start_in_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    RunFolder.create(resolve({"out": str(tmp_path)}), "x")
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", "config.json"}


@pytest.mark.parametrize(
    ("text", "message"), [(None, "expected a run folder"), ("{", "not JSON"), ("\x00", "not JSON")]
)
def test_folder_without_run_is_rejected(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        RunFolder.open(tmp_path)


FIRST, SECOND = ({"epoch": epoch, "valid": {"all": {"mrr": 0.5}}} for epoch in (1, 2))


@pytest.mark.parametrize(
    "lines",
    [
        "",
        f"{json.dumps(FIRST)}\n",
        f"{json.dumps(SECOND)}\n{json.dumps(FIRST)}\n",
        f'{json.dumps(FIRST)}\n{{"ep',
        f'{json.dumps(FIRST)}\n{{"epoch": 2}}\n',
        f'{json.dumps(FIRST)}\n{{"epoch": 2, "valid": 3}}\n',
    ],
)
def test_damaged_metrics_are_rejected(tmp_path: Path, lines: str) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}), "x")
    (run.path / "metrics.jsonl").write_text(lines)
    with pytest.raises(InputError, match="expected one line per epoch from 1 to 2"):
        run.read_metrics(2)


def test_metrics_newer_than_checkpoint_are_dropped(tmp_path: Path) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}), "x")
    run.write_metrics([FIRST, SECOND])
    assert run.read_metrics(1) == [FIRST]
    assert (run.path / "metrics.jsonl").read_text() == f"{json.dumps(FIRST)}\n"


@pytest.mark.parametrize(
    "change", [{"step": -5}, {"epoch": "2"}, {"epoch": True}, {"best_mrr": -2.0}, {"loss_sum": 1}, {"x": 1}]
)
def test_invalid_position_is_rejected(tmp_path: Path, change: dict[str, Any]) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}), "x")
    notes = {"position": dataclasses.asdict(Position()) | change}
    save_checkpoint(run.path / "last.safetensors", {}, config=run.config, fingerprint="f", notes=notes)
    with pytest.raises(InputError, match="expected the position of the run"):
        run.load_last("f")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": None}, "expected all results, got none for seconds"),
        ({"test": None}, "expected test metrics"),
        ({"test": {"all": {"mrr": 1.0}, "seen": {}}}, "expected test metrics"),
        ({"test": 3}, "expected test metrics"),
    ],
)
def test_incomplete_results_are_rejected(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}), "x")
    metrics = dataclasses.asdict(RankMetrics.from_ranks(torch.ones(2, dtype=torch.float64)))
    names = ("dataset", "model", "task", "ties", "parameters", "epochs", "best_epoch", "valid")
    whole = dict.fromkeys(names, 1)
    results = {**whole, "seconds": 1.0, "test": {"all": metrics, "seen": metrics}}
    run.write_results(results)
    assert run.read_results() == results
    changed = {name: value for name, value in (results | change).items() if value is not None}
    run.write_results(changed)
    with pytest.raises(InputError, match=message):
        run.read_results()


def test_folder_below_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("text")
    with pytest.raises(InputError, match="mine: expected a new folder, got a file"):
        RunFolder.create(resolve({"out": str(tmp_path / "mine" / "a" / "run")}), "x")
    assert (tmp_path / "mine").read_text() == "text"
