"""Partitions: balanced, few cut triples, equal everywhere; and each rank's share on disk."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lightcake_fast import cli
from lightcake_fast.data import SPLITS, load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.partition import main
from lightcake_fast.sharding import partition
from lightcake_fast.sharding.data import ShardData, read_share
from lightcake_fast.sharding.shard import HeldTriples, Ids, Layout
from lightcake_fast.sharding.world import World
from lightcake_fast.training.sharded import with_partition
from tests.support.worlds import in_threads

DATA = load_dataset("family:300")


def figures(owner: Ids, ranks: int) -> tuple[float, float]:
    """Halo rows per row, and the maximum triples of a rank relative to the mean."""
    held = [HeldTriples.of(DATA.train, owner, rank) for rank in range(ranks)]
    layouts = [
        Layout.of(triples, np.flatnonzero(owner == rank), rank, ranks) for rank, triples in enumerate(held)
    ]
    return partition.balance(layouts, [len(triples) for triples in held], len(DATA.train))


@pytest.mark.parametrize("method", partition.METHODS)
@pytest.mark.parametrize("ranks", [2, 7])
def test_partitions_are_balanced_with_small_halos(method: str, ranks: int) -> None:
    if method == "metis":
        pytest.importorskip("pymetis", reason="the extra `scale` is not installed")
    owner = partition.owners(DATA.train, DATA.num_entities, ranks, method)
    assert set(owner) == set(range(ranks))
    assert np.array_equal(owner, partition.owners(DATA.train, DATA.num_entities, ranks, method))
    halo, most = figures(owner, ranks)
    by_chance, _ = figures(np.random.default_rng(0).integers(0, ranks, DATA.num_entities), ranks)
    assert halo < {"greedy": 0.7, "metis": 0.6}[method] * by_chance
    degree = np.bincount(DATA.train[:, ::2].ravel(), minlength=DATA.num_entities) + 1
    load = np.bincount(owner, weights=degree, minlength=ranks)
    assert load.max() * ranks / load.sum() < 1.2
    assert 1 <= most < 1.5


def test_share_on_disk_equals_the_share_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "parts"
    assert cli.run(main, ["family:300", "--parts", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    index = json.loads((out / "partition.json").read_text())
    assert f"halo: {index['halo']:.2f} of all rows" in printed
    assert sum(index["rows"]) == DATA.num_entities
    owner = partition.owners(DATA.train, DATA.num_entities, 3)
    for rank in range(3):
        found, wanted = read_share(out, rank, 3), ShardData.of(DATA, owner, rank, 3)
        for name in ("name", "fingerprint", "num_train", "entities", "relations", "counts"):
            assert getattr(found, name) == getattr(wanted, name), name
        for name in ("rows", "halo", "halo_from", "sent", "sent_to"):
            assert np.array_equal(getattr(found.layout, name), getattr(wanted.layout, name)), name
        for split in SPLITS:
            assert np.array_equal(found.splits[split].triples, wanted.splits[split].triples), split
        assert np.array_equal(found.seen, wanted.seen)


def test_partition_of_an_older_version_keeps_its_header_as_a_triple(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("head,relation,tail\n" + "".join(f"a{n},r,b{n}\n" for n in range(40)))
    for flags, expected in ((["--no-header"], False), (["--header"], True), ([], None)):
        assert cli.run(main, [str(data), "--parts", "2", "--out", str(tmp_path / str(expected)), *flags]) == 0
        settings = with_partition({"partition": str(tmp_path / str(expected))})
        assert settings.get("header") is expected
    out = tmp_path / "None"
    index = json.loads((out / "partition.json").read_text())
    del index["source"]["header"]  # older versions did not have it
    (out / "partition.json").write_text(json.dumps(index))
    assert with_partition({"partition": str(out)})["header"] is False


def test_all_ranks_reject_shares_of_different_partitions() -> None:
    owner = partition.owners(DATA.train, DATA.num_entities, 3)

    def work(world: World) -> str:
        own = owner if world.rank else np.roll(owner, 1)
        with pytest.raises(InputError, match="got shares that do not match") as caught:
            ShardData.of(DATA, own, world.rank, 3).check(world)
        return str(caught.value)

    assert len(set(in_threads(3, work))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["family:60", "--parts", "0"], "parts: expected an integer from 1 to 4096, got 0"),
        (["family:60", "--parts", "2", "--method", "chance"], "invalid choice: 'chance'"),
    ],
)
def test_wrong_arguments_give_one_line_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(main, arguments) == 2
    assert message in capsys.readouterr().err


def test_only_partitions_of_the_same_data_are_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "parts"
    argv = ["--parts", "2", "--out", str(parts)]
    assert cli.run(main, ["family:60", *argv]) == 0
    whole = {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()}
    assert cli.run(main, ["family:30", *argv]) == 2
    assert (
        f"{parts}: expected a partition of the same data, got a partition of other data"
        in capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()} == whole
    (parts / "partition.json").unlink()  # as after a kill
    assert cli.run(main, ["family:60", *argv]) == 0
    assert {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()} == whole
    (parts / "config.json").touch()
    assert cli.run(main, ["family:60", *argv]) == 2
    assert f"{parts}: expected only files of a partition, got config.json" in capsys.readouterr().err


def test_truncated_share_is_reported(tmp_path: Path) -> None:
    assert cli.run(main, ["family:60", "--parts", "2", "--out", str(tmp_path)]) == 0
    file = tmp_path / "rank-00001" / "shard.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="got a missing, truncated or damaged file"):
        read_share(tmp_path, 1, 2)
    with pytest.raises(InputError, match="expected a partition for 3 processes, got one for 2"):
        read_share(tmp_path, 0, 3)
    with pytest.raises(InputError, match="expected a partition, got a folder without"):
        read_share(tmp_path / "rank-00000", 0, 2)


def test_world_gathers_and_sends_json() -> None:
    def work(world: World) -> tuple[object, tuple[int, ...]]:
        assert torch.equal(world.gather(torch.tensor([world.rank])), torch.tensor([[0], [1]]))
        told = world.from_first({"a": [1, None, "ä"]} if world.first else "another's")
        return told, world.agree(world.rank, -world.rank)

    assert in_threads(2, work) == [({"a": [1, None, "ä"]}, (1, 0))] * 2


def test_damaged_index_is_reported(tmp_path: Path) -> None:
    assert cli.run(main, ["family:60", "--parts", "2", "--out", str(tmp_path)]) == 0
    (tmp_path / "partition.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match="got a damaged file or another version"):
        read_share(tmp_path, 0, 2)
