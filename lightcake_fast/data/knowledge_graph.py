"""The knowledge graph that every other part of the package takes: names and three splits of id triples."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.errors import InputError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """A knowledge graph in three splits.

    Attributes:
        name: Data set name, for reports and folder names.
        entities: Entity names by id, N of them.
        relations: Relation names by id, R of them (raw relations: no inverses).
        train: int64 `[T, 3]`, rows of (head, relation, tail) ids, no row twice; likewise `valid` and `test`.
        valid: See `train`.
        test: See `train`.
        duplicates: Rows dropped per split because an equal row came before.

    Raises:
        ValueError: A split is not int64 `[T, 3]`, or holds an id out of range.
    """

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: NDArray[np.int64] = field(repr=False)
    valid: NDArray[np.int64] = field(repr=False)
    test: NDArray[np.int64] = field(repr=False)
    duplicates: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))

    def __post_init__(self) -> None:
        limit = np.array([self.num_entities, self.num_relations, self.num_entities])
        for split in SPLITS:
            triples = self.split(split)
            if triples.dtype != np.int64 or triples.ndim != 2 or triples.shape[1] != 3:
                raise ValueError(f"{split}: got {triples.dtype} {list(triples.shape)}, wanted int64 [T, 3]")
            if ((triples < 0) | (triples >= limit)).any():
                raise ValueError(f"{split}: got ids out of range, wanted 0 to below {limit.tolist()}")

    @property
    def num_entities(self) -> int:
        """N, the entities of all splits and of the id file."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """R, the raw relations: inverses are not counted."""
        return len(self.relations)

    def split(self, name: str) -> NDArray[np.int64]:
        """The triples of the split called `name`.

        Raises:
            InputError: It is none of "train", "valid" and "test".
        """
        if name not in SPLITS:
            raise InputError(f"split: got {name!r}, wanted one of {', '.join(SPLITS)}")
        triples: NDArray[np.int64] = getattr(self, name)
        return triples

    @cached_property
    def seen_entities(self) -> NDArray[np.bool_]:
        """Bool `[N]`: entities that occur in a training triple."""
        seen = np.zeros(self.num_entities, dtype=bool)
        seen[self.train[:, [0, 2]]] = True
        return seen

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of names and triples, in id order: equal for equal data, whatever its file format."""
        digest = hashlib.sha256()
        for names in (self.entities, self.relations):
            digest.update(f"{len(names)} names\n".encode())
            digest.update("\n".join(names).encode())
        for split in SPLITS:
            triples = self.split(split)
            digest.update(f"\n{split} {len(triples)}\n".encode())
            digest.update(np.ascontiguousarray(triples, dtype="<i8").tobytes())
        return digest.hexdigest()
