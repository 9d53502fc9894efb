"""A rank's share of a data set, from the whole data set or from a partition folder with only this share."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from lightcake_fast.data import SPLITS, KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.files import TEMPORARY, check_no_file, parse_json, replace_tensors, replace_text
from lightcake_fast.sharding.partition import balance
from lightcake_fast.sharding.shard import HeldTriples, Ids, Layout
from lightcake_fast.sharding.world import World

FORMAT = 1
INDEX = "partition.json"
NAMES = "names.json"
_PARTS_OWN = re.compile(rf"rank-\d{{5}}|\..+{re.escape(TEMPORARY)}")
_FIELDS = {"name": str, "fingerprint": str, "num_entities": int, "num_relations": int, "parts": int}


@dataclass(frozen=True, eq=False)
class ShardData:
    """The share of a data set that a rank knows.

    Attributes:
        name: As in `KnowledgeGraph`, like `fingerprint`, `num_entities` and `num_relations`.
        counts: Number of triples per split, over all ranks.
        layout: The rank's rows.
        splits: The rank's triples per split.
        seen: Bool (n,), own entities with a training triple.
    """

    name: str
    fingerprint: str
    num_entities: int
    num_relations: int
    counts: dict[str, int]
    layout: Layout
    splits: dict[str, HeldTriples]
    seen: NDArray[np.bool_]
    _names: KnowledgeGraph | Path

    @classmethod
    def of(cls, data: KnowledgeGraph, owner: Ids, rank: int, ranks: int) -> "ShardData":
        """Select a rank's share of a data set; `owner` is the rank of each entity, int64 (N,)."""
        splits = {split: HeldTriples.of(data.split(split), owner, rank) for split in SPLITS}
        rows = np.flatnonzero(owner == rank)
        return cls(
            name=data.name,
            fingerprint=data.fingerprint,
            num_entities=data.num_entities,
            num_relations=data.num_relations,
            counts={split: len(data.split(split)) for split in SPLITS},
            layout=Layout.of(splits["train"], rows, rank, ranks),
            splits=splits,
            seen=data.seen_entities[rows],
            _names=data,
        )

    @property
    def num_train(self) -> int:
        """T, the number of training triples over all ranks."""
        return self.counts["train"]

    @property
    def entities(self) -> tuple[str, ...]:
        """Entity names by id."""
        return self._read_names[0]

    @property
    def relations(self) -> tuple[str, ...]:
        """Relation names by id."""
        return self._read_names[1]

    @cached_property
    def _read_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if isinstance(self._names, KnowledgeGraph):
            return self._names.entities, self._names.relations
        names = parse_json(self._names.read_text(encoding="utf-8"))
        return tuple(names["entities"]), tuple(names["relations"])

    @cached_property
    def known(self) -> Ids:
        """All triples with an own head, from all splits, int64 (K, 3): the filter of ranks."""
        own = (held.triples[held.owners[:, 0] == self.layout.rank] for held in self.splits.values())
        return np.concatenate(list(own))

    def check(self, world: World) -> None:
        """Compare the sizes of all exchanges with the other ranks.

        Raises:
            InputError: The shares of the ranks do not match. Every rank raises it.
        """
        mine = torch.from_numpy(np.stack([self.layout.sent_to, self.layout.halo_from]))
        digest = int(self.fingerprint[:15], 16)
        matrix = world.gather(mine)
        fits = torch.equal(matrix[:, 0], matrix[:, 1].T)
        digests = world.gather(torch.tensor([digest, len(self.layout.rows)]))
        if not fits or len(set(digests[:, 0].tolist())) > 1 or digests[:, 1].sum() != self.num_entities:
            raise InputError(
                f"{self.name}: expected shares of one partition on all ranks, got shares that do not match: "
                "give all ranks the same partition folder"
            )


def write_partition(
    folder: Path, data: KnowledgeGraph, owner: Ids, parts: int, **notes: Any
) -> dict[str, Any]:
    """Write the share of each rank.

    Args:
        folder: A new folder, or an earlier partition of the same data set, complete or not, to replace.
        data: The data set.
        owner: The rank of each entity, int64 (N,).
        parts: P.
        notes: More plain values for `partition.json`.

    Returns:
        The content of `partition.json`.

    Raises:
        InputError: The folder holds something else.
    """
    _check_replaceable(folder, data)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)  # the index comes last: without it the partition is incomplete
    layouts, held = [], []
    for rank in range(parts):
        share = ShardData.of(data, owner, rank, parts)
        place = folder / f"rank-{rank:05d}"
        place.mkdir(exist_ok=True)
        tensors = {f"layout.{name}": getattr(share.layout, name) for name in _LAYOUT}
        for split, triples in share.splits.items():
            tensors |= {f"{split}.{name}": getattr(triples, name) for name in _TRIPLES}
        tensors["seen"] = share.seen.astype(np.int64)
        narrow = {name: torch.from_numpy(ids.astype(np.int32)).contiguous() for name, ids in tensors.items()}
        replace_tensors(place / "shard.safetensors", narrow, {})
        layouts.append(share.layout)
        held.append(len(share.splits["train"]))
    halo, most = balance(layouts, held, len(data.train))
    index = {
        "format": FORMAT,
        **{field: getattr(data, field) for field in _FIELDS if field != "parts"},
        "parts": parts,
        "counts": {split: len(data.split(split)) for split in SPLITS},
        "halo": halo,
        "balance": most,
        "rows": [len(layout.rows) for layout in layouts],
        "halo_rows": [len(layout.halo) for layout in layouts],
        "triples": held,
        **notes,
    }
    replace_text(folder / NAMES, json.dumps({"entities": data.entities, "relations": data.relations}))
    replace_text(folder / INDEX, json.dumps(index, indent=2) + "\n")
    return index


def _check_replaceable(folder: Path, data: KnowledgeGraph) -> None:
    check_no_file(folder, "a folder")
    if (folder / INDEX).is_file() and read_index(folder)["fingerprint"] != data.fingerprint:
        raise InputError(
            f"{folder}: expected a partition of the same data, got a partition of other data: give another "
            "folder with --out"
        )
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name not in (INDEX, NAMES) and not _PARTS_OWN.fullmatch(entry.name):
            raise InputError(
                f"{folder}: expected only files of a partition, got {entry.name}: give another folder with "
                "--out"
            )


_LAYOUT = ("rows", "halo", "halo_from", "sent", "sent_to")
_TRIPLES = ("number", "triples", "owners")


def read_index(folder: Path) -> dict[str, Any]:
    """Read `partition.json` from a folder.

    Raises:
        InputError: The file is missing or damaged.
    """
    file = folder / INDEX
    if not file.is_file():
        raise InputError(f"{folder}: expected a partition, got a folder without {INDEX}")
    try:
        index = parse_json(file.read_text(encoding="utf-8"))
        good = index["format"] == FORMAT and set(index["counts"]) == set(SPLITS)
        good = good and all(type(index[name]) is kind for name, kind in _FIELDS.items())
    except (TypeError, KeyError, UnicodeDecodeError):
        good = False
    if not good:
        raise InputError(
            f"{file}: expected a partition of format {FORMAT}, got a damaged file or another version: write "
            "the partition again"
        )
    return dict(index)


def read_share(folder: Path, rank: int, ranks: int) -> ShardData:
    """Read a rank's share from a folder that `write_partition` wrote.

    Raises:
        InputError: The partition is for another number of ranks, or a file is missing or damaged.
    """
    index = read_index(folder)
    if index["parts"] != ranks:
        raise InputError(
            f"{folder}: expected a partition for {ranks} processes, got one for {index['parts']}: start "
            f"{index['parts']} processes, or write a partition for {ranks}"
        )
    file = folder / f"rank-{rank:05d}" / "shard.safetensors"
    try:
        tensors = safetensors.torch.load_file(file)
        arrays = {name: tensor.numpy().astype(np.int64) for name, tensor in tensors.items()}
        layout = Layout(rank, *(arrays[f"layout.{name}"] for name in _LAYOUT))
        splits = {split: HeldTriples(*(arrays[f"{split}.{name}"] for name in _TRIPLES)) for split in SPLITS}
        seen = arrays["seen"].astype(bool)
    except (OSError, safetensors.SafetensorError, KeyError) as error:
        raise InputError(
            f"{file}: expected a rank's share, got a missing, truncated or damaged file: {error}: write the "
            "partition again"
        ) from error
    fields = {name: index[name] for name in _FIELDS if name != "parts"}
    return ShardData(
        **fields, counts=index["counts"], layout=layout, splits=splits, seen=seen, _names=folder / NAMES
    )
