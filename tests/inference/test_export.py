"""The export command: exported files are read without the package and give the scores of the model."""

import dataclasses
import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from lightcake_fast import cli, export, load
from lightcake_fast.errors import InputError
from lightcake_fast.inference.answers import Embeddings
from lightcake_fast.inference.writing import write_embeddings
from tests.support.trained_runs import PAIR, train_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("trained") / "runs", "--relation-bias")


def read_file(path: Path) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    lines = {
        kind: tensors.pop(f"{key}_names") for kind, key in (("entities", "entity"), ("relations", "relation"))
    }
    return tensors, {kind: text.tobytes().decode().split("\n") for kind, text in lines.items()}


def read_folder(path: Path) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    names = {}
    for file in path.glob("*.tsv"):
        lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        assert [int(number) for number, _ in lines] == list(range(len(lines)))
        names[file.stem] = [name for _, name in lines]
    return {file.stem: np.load(file) for file in path.glob("*.npy")}, names


@pytest.mark.parametrize(
    ("name", "read"), [("deep/out.safetensors", read_file), ("out", read_folder)], ids=["file", "folder"]
)
def test_exported_embeddings_give_the_scores_of_the_model(
    run: Path, tmp_path: Path, name: str, read: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(read)
    target = tmp_path / name
    assert cli.run(export.main, [str(run), "--to", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    tensors, names = read(target)
    trained = load(run)
    assert names == {"entities": list(trained.data.entities), "relations": list(trained.data.relations)}
    h, t = (names["entities"].index(entity) for entity in PAIR)
    assert tensors["seen"][h]
    assert tensors["seen"][t]
    raw = tensors["relations"][: len(names["relations"])]
    scores = (tensors["entities"][h] * raw * tensors["entities"][t]).sum(1) + tensors["relation_bias"]
    exponents = np.exp(scores - scores.max())
    (prediction,) = trained.predict([PAIR], top=3)
    for candidate in prediction.relations:
        expected = (exponents / exponents.sum())[names["relations"].index(candidate.relation)]
        assert candidate.probability == pytest.approx(expected, rel=1e-4)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    again, _ = read(trained.export(tmp_path / "python" / target.name))
    assert again.keys() == tensors.keys()
    for key, value in tensors.items():
        assert np.array_equal(again[key], value)
    with pytest.raises(InputError, match="expected a new file or folder, got an existing one"):
        trained.export(target)


@pytest.mark.parametrize("task", ["relation", "entity"])
def test_embeddings_without_layers_are_copies(task: str, tmp_path: Path) -> None:
    flags = ("--layers", "0", "--task", task, "--unseen-rate", "0", "--no-relation-bias")
    trained = load(train_run(tmp_path / "runs", *flags))
    tensors, _ = read_folder(trained.export(tmp_path / "out"))
    given = trained.embeddings()
    before = trained.ranks("test")
    for name in ("entities", "relations"):
        table = getattr(given, name)
        assert np.array_equal(table.numpy(), tensors[name])
        table.mul_(-3)
    given.seen.logical_not_()
    assert trained.ranks("test").equal(before)
    again = trained.embeddings()
    assert np.array_equal(again.entities.numpy(), tensors["entities"])
    assert np.array_equal(again.seen.numpy(), tensors["seen"])


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_existing_files_are_not_overwritten(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / name
    target.write_text("precious")
    assert cli.run(export.main, [str(run), "--to", str(target)]) == 2
    assert capsys.readouterr().err == (
        f"error: {target}: expected a new file or folder, got an existing one: choose another path\n"
    )
    assert target.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "writer"), [("out.safetensors", "safetensors.torch.save_file"), ("out", "numpy.save")]
)
def test_full_disk_during_writing_leaves_no_file(
    run: Path,
    tmp_path: Path,
    name: str,
    writer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, full)
    assert cli.run(export.main, [str(run), "--to", str(tmp_path / name)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert list(tmp_path.iterdir()) == []


def test_missing_target_and_missing_run_are_rejected(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(export.main, [str(run)]) == 2
    assert cli.run(export.main, [str(tmp_path), "--to", str(tmp_path / "out")]) == 2
    missing, no_run = capsys.readouterr().err.splitlines()
    assert "--to" in missing
    assert "expected a run folder" in no_run
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_full_disk_after_writing_leaves_no_file(
    run: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)  # the last step of writing a file
    monkeypatch.setattr(Path, "write_text", full)  # called after the arrays of a folder are written
    assert cli.run(export.main, [str(run), "--to", str(tmp_path / name)]) == 1
    printed = capsys.readouterr().err
    assert "No space left on device" in printed
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_more_than_100_mb_of_names_are_read_back(tmp_path: Path) -> None:
    """Safetensors rejects a header of more than 100 MB."""
    names = tuple(f"{n:0999d}é" for n in range(110_000))
    table, seen = torch.zeros(len(names), 1), torch.ones(len(names), dtype=torch.bool)
    embeddings = Embeddings(table, torch.zeros(2, 1), seen, {}, names, ("r",))
    write_embeddings(embeddings, tmp_path / "x.safetensors")
    tensors, found = read_file(tmp_path / "x.safetensors")
    assert found == {"entities": list(names), "relations": ["r"]}
    assert tensors["entities"].shape == table.shape


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_names_with_line_breaks_are_rejected(run: Path, tmp_path: Path, name: str) -> None:
    embeddings = load(run).embeddings()
    names = ("c\nd", *embeddings.entity_names[1:])
    with pytest.raises(
        InputError, match=r"entities: expected names without .*, got the name 'c\\nd': replace"
    ):
        write_embeddings(dataclasses.replace(embeddings, entity_names=names), tmp_path / "new" / name)
    assert not list(tmp_path.iterdir())
