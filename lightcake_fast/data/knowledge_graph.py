"""The knowledge graph that every other part of the package takes: names and three splits of id triples."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.splitting import SHARES
from lightcake_fast.errors import DataWarning, InputError, counted

Ids = NDArray[np.integer[Any]]
SPLITS = ("train", "valid", "test")
_DIGESTED = 1 << 20  # triples whose ids are widened at a time for the fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class KnowledgeGraph:
    """A knowledge graph in three splits.

    Attributes:
        name: Data set name, for reports and folder names.
        entities: Entity names by id, N of them.
        relations: Relation names by id, R of them (raw relations: no inverses).
        train: int32 `[T, 3]`, rows of (head, relation, tail) ids, no row twice; likewise `valid` and `test`.
            May be given as int64; int32 is kept as it is given and must not change. Widen ids (`.long()`)
            before you multiply them, or ask PyTorch for a loss.
        valid: See `train`.
        test: See `train`.
        duplicates: Rows dropped per split because an equal row came before.
        notes: What looked odd in the source or was left out, in words: what reading it warned of.

    Raises:
        TypeError: A split is no array.
        ValueError: A split is neither int32 nor int64 `[T, 3]`, or holds an id out of range.
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
        """Make a knowledge graph from triples of names, wherever they are.

        Args:
            triples: (head, relation, tail) as a list, an array or a pandas DataFrame (its columns of these
                names, or its only three); the path of a `.tsv`, `.txt` or `.csv` file, of N-Triples (`.nt`,
                without the triples that have a literal), each plain or `.gz`, or of a Parquet file; a
                networkx `MultiDiGraph`, with relations in `relation` of its edges or in their keys; a PyKEEN
                `TriplesFactory`; a PyTorch Geometric `Data` with `edge_type` or `HeteroData`. The last three
                keep their ids, where they have no names these are numbers.
            valid: The validation triples, in any of these forms; `triples` is training then.
            test: The test triples, likewise.
            split: Shares of train, valid and test of triples that come without these two. A triple is held
                out if its head, tail and relation have others left in training; where too few are such,
                entities lose their last one, and a warning says how many.
            seed: Seed of the split; equal arguments give equal splits.
            name: Name of the data set; None takes the file's, or "triples".
            strip: Trim names: spaces of any kind and byte order marks around them are left out.
            header: Whether the first row of a `.tsv`, `.txt` or `.csv` file is a header, which is left out.
                None leaves out a first row such as `head,relation,tail`, with a warning.

        Raises:
            TypeError: A name is no string, or nothing of this kind is known.
            InputError: A triple is incomplete, a file is wrong, a name holds a tab, a line break or a NUL
                character, or a relation has no training triple.

        Warns:
            DataWarning: A first triple looks like a header, names differ in the blanks around them alone,
                something was left out, or the split could not keep all entities in training.
        """
        from lightcake_fast.data.sources import graph_of  # builds on this class

        made = graph_of(triples, valid, test, split=split, seed=seed, name=name, strip=strip, header=header)
        return made.warned()

    def warned(self) -> "KnowledgeGraph":
        """The graph itself, after a `DataWarning` for each of its notes."""
        for note in self.notes:
            warnings.warn(note, DataWarning, stacklevel=3)
        return self

    def __repr__(self) -> str:
        """One line."""
        sizes = [counted(self.num_entities, "entity"), counted(self.num_relations, "relation")]
        sizes += [f"{len(self.split(split)):,} {split}" for split in SPLITS]
        return f"KnowledgeGraph({self.name!r}, {', '.join(sizes)} triples)"

    def __post_init__(self) -> None:
        limit = np.array([self.num_entities, self.num_relations, self.num_entities])
        for split in SPLITS:
            triples: Any = self.split(split)
            if not isinstance(triples, np.ndarray):
                got = f"{split}: got {type(triples).__name__}"
                raise TypeError(f"{got}, wanted an int32 array [T, 3] (from_triples takes names)")
            if triples.dtype not in (np.int32, np.int64) or triples.ndim != 2 or triples.shape[1] != 3:
                raise ValueError(f"{split}: got {triples.dtype} {list(triples.shape)}, wanted int32 [T, 3]")
            if ((triples < 0) | (triples >= limit)).any():
                raise ValueError(f"{split}: got ids out of range, wanted 0 to below {limit.tolist()}")
            object.__setattr__(self, split, np.ascontiguousarray(triples, np.int32))

    @property
    def num_entities(self) -> int:
        """N, the entities of all splits and of the id file."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """R, the raw relations: inverses are not counted."""
        return len(self.relations)

    @property
    def num_train(self) -> int:
        """T, the training triples."""
        return len(self.train)

    def split(self, name: str) -> Ids:
        """The triples of the split called `name`.

        Raises:
            InputError: It is none of "train", "valid" and "test".
        """
        if name not in SPLITS:
            raise InputError(f"split: got {name!r}, wanted one of {', '.join(SPLITS)}")
        triples: Ids = getattr(self, name)
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
            kind, text = "names", "\n".join(names)
            if text.count("\n") >= len(names):  # of names that hold some: no other names may read the same
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
        """A split as PyKEEN `TriplesFactory` with this graph's names and ids; needs pykeen.

        Raises:
            InputError: There is no such split.
        """
        import torch
        from pykeen.triples import TriplesFactory

        return TriplesFactory(
            torch.from_numpy(self.split(split)).long(),
            entity_to_id={name: number for number, name in enumerate(self.entities)},
            relation_to_id={name: number for number, name in enumerate(self.relations)},
        )

    def to_pyg(self, split: str = "train") -> Any:
        """A split as PyTorch Geometric `Data`: `edge_index`, `edge_type` and names; needs torch_geometric.

        Its `entity_names` and `relation_names` are lists by id, which `from_triples` takes up.

        Raises:
            InputError: There is no such split.
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
