"""The knowledge graph class: names, and triples of ids in three splits."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.sources import read_sources
from lightcake_fast.data.splitting import SHARES, SPLITS
from lightcake_fast.errors import DataWarning, InputError, counted

Ids = NDArray[np.integer[Any]]
_DIGESTED = 1 << 20  # triples per block of the fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class KnowledgeGraph:
    """A knowledge graph in three splits.

    Attributes:
        name: Data set name, for reports and folder names.
        entities: N entity names, by id.
        relations: R relation names, by id. They are raw relations, without inverses.
        train: int32 `[T, 3]`, distinct rows of (head, relation, tail) ids. An int64 array is converted. An
            int32 array is not copied, so do not change it. Widen ids (`.long()`) before you multiply them or
            pass them to a PyTorch loss.
        valid: int32 `[T_valid, 3]`, as `train`.
        test: int32 `[T_test, 3]`, as `train`.
        duplicates: Number of dropped duplicate rows per split.
        notes: Texts of the warnings that reading the source gave.

    Raises:
        TypeError: A split is not an array.
        ValueError: A split is not int32 or int64 `[T, 3]`, or contains an id out of range.
    """

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: Ids
    valid: Ids
    test: Ids
    duplicates: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    notes: tuple[str, ...] = ()

    @classmethod
    def from_triples(
        cls,
        triples: Any,
        valid: Any = None,
        test: Any = None,
        *,
        split: Sequence[float] | str = SHARES,
        seed: int = 0,
        name: str | None = None,
        strip: bool = False,
        header: bool | None = None,
    ) -> "KnowledgeGraph":
        """Make a knowledge graph from triples of names.

        Args:
            triples: (head, relation, tail) rows in one of these forms:
                a list, an array or a pandas DataFrame (its columns with these names, or its only three);
                the path of a `.tsv`, `.txt`, `.csv` or N-Triples (`.nt`) file, plain or `.gz`;
                the path of a Parquet file;
                a networkx `MultiDiGraph` (the relation is the edge attribute `relation` or the edge key);
                a PyKEEN `TriplesFactory`;
                a PyTorch Geometric `Data` with `edge_type`, or a `HeteroData`.
                N-Triples with a literal are skipped. `TriplesFactory`, `Data` and `HeteroData` keep their
                ids. Without names, the ids become the names.
            valid: Validation triples, in any of these forms; `triples` then holds only the training triples.
            test: Test triples, in any of these forms.
            split: Shares of train, valid and test, if `valid` and `test` are None. A triple is held out only
                if its head, tail and relation keep a training triple. If there are too few such triples,
                some entities lose their last training triple, with a warning.
            seed: Seed of the split; equal arguments give equal splits.
            name: Name of the data set; None means the name of the file, or "triples".
            strip: Trim names: remove leading and trailing white space of any kind and byte order marks.
            header: Whether to skip the first row of a `.tsv`, `.txt` or `.csv` file as a header. None skips a
                first row such as `head,relation,tail`, with a warning.

        Raises:
            TypeError: A name is not a string, or `triples` has an unknown type.
            InputError: A triple is incomplete or a file is wrong. A name contains a tab, a line break or a
                NUL character. A relation has no training triple.

        Warns:
            DataWarning: The first triple looks like a header. Two names differ only in white space around
                them. Some triples were skipped. Some entities lost their last training triple to the split.
        """
        made = read_sources(
            triples, valid, test, split=split, seed=seed, name=name, strip=strip, header=header
        )
        return cls(*made).warned()

    def warned(self) -> "KnowledgeGraph":
        """Emit a `DataWarning` for each note, and return the graph."""
        for note in self.notes:
            warnings.warn(note, DataWarning, stacklevel=3)
        return self

    def __repr__(self) -> str:
        """Name and sizes in one line."""
        sizes = [counted(self.num_entities, "entity"), counted(self.num_relations, "relation")]
        sizes += [f"{len(self.split(split)):,} {split}" for split in SPLITS]
        return f"KnowledgeGraph({self.name!r}, {', '.join(sizes)} triples)"

    def __post_init__(self) -> None:
        limit = np.array([self.num_entities, self.num_relations, self.num_entities])
        for split in SPLITS:
            triples: Any = self.split(split)
            if not isinstance(triples, np.ndarray):
                got = f"got {type(triples).__name__}: use KnowledgeGraph.from_triples for names"
                raise TypeError(f"{split}: expected an int32 array [T, 3], {got}")
            if triples.dtype not in (np.int32, np.int64) or triples.ndim != 2 or triples.shape[1] != 3:
                raise ValueError(
                    f"{split}: expected int32 [T, 3], got {triples.dtype} {list(triples.shape)}: convert it"
                )
            if ((triples < 0) | (triples >= limit)).any():
                raise ValueError(
                    f"{split}: expected 0 <= (head, relation, tail) < {limit.tolist()}, "
                    "got ids out of range: correct the ids"
                )
            object.__setattr__(self, split, np.ascontiguousarray(triples, np.int32))

    @property
    def num_entities(self) -> int:
        """N: number of entities in all splits and in the id file."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """R: number of raw relations, without inverses."""
        return len(self.relations)

    @property
    def num_train(self) -> int:
        """T: number of training triples."""
        return len(self.train)

    def split(self, name: str) -> Ids:
        """The triples of a split, int32 `[T, 3]`.

        Raises:
            InputError: `name` is not "train", "valid" or "test".
        """
        if name not in SPLITS:
            raise InputError(f"split: expected one of {', '.join(SPLITS)}, got {name!r}: use one of these")
        triples: Ids = getattr(self, name)
        return triples

    @cached_property
    def seen_entities(self) -> NDArray[np.bool_]:
        """Bool `[N]`: whether an entity has a training triple."""
        seen = np.zeros(self.num_entities, dtype=bool)
        seen[self.train[:, [0, 2]]] = True
        return seen

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of names and triples in id order. It does not depend on the file format."""
        digest = hashlib.sha256()
        for names in (self.entities, self.relations):
            kind, text = "names", "\n".join(names)
            # names contain line ends: escape them, so that other names cannot give the same text
            if text.count("\n") >= len(names):
                kind = "names escaped"
                text = "\n".join(name.replace("\\", "\\\\").replace("\n", "\\n") for name in names)
            digest.update(f"{len(names)} {kind}\n".encode())
            digest.update(text.encode())
        for split in SPLITS:
            triples = self.split(split)
            digest.update(f"\n{split} {len(triples)}\n".encode())
            for start in range(0, len(triples), _DIGESTED):
                digest.update(triples[start : start + _DIGESTED].astype("<i8").tobytes())
        return digest.hexdigest()

    def to_pykeen(self, split: str = "train") -> Any:
        """Convert a split to a PyKEEN `TriplesFactory` with the same names and ids; needs pykeen.

        Raises:
            InputError: The split is unknown.
        """
        import torch
        from pykeen.triples import TriplesFactory

        return TriplesFactory(
            torch.from_numpy(self.split(split)).long(),
            entity_to_id={name: number for number, name in enumerate(self.entities)},
            relation_to_id={name: number for number, name in enumerate(self.relations)},
        )

    def to_pyg(self, split: str = "train") -> Any:
        """Convert a split to a PyTorch Geometric `Data`; needs torch_geometric.

        It has `edge_index` `[2, T]`, `edge_type` `[T]` and `num_nodes`. Its `entity_names` and
        `relation_names` are lists by id, and `from_triples` reads them.

        Raises:
            InputError: The split is unknown.
        """
        import torch
        from torch_geometric.data import Data

        triples = torch.from_numpy(self.split(split)).long()
        return Data(
            edge_index=triples[:, ::2].T.contiguous(),
            edge_type=triples[:, 1].contiguous(),
            num_nodes=self.num_entities,
            entity_names=list(self.entities),
            relation_names=list(self.relations),
        )
