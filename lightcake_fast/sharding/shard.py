"""The part of a graph on one rank: own rows, halo rows from other ranks, and their triples."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeldTriples:
    """The triples of a split with at least one own end, in the order of the split.

    Attributes:
        number: int64 (K,), their positions in the split, ascending.
        triples: int64 (K, 3), (head, relation, tail) with the ids of the data set.
        owners: int64 (K, 2), the ranks that own head and tail.
    """

    number: Ids
    triples: Ids
    owners: Ids

    @classmethod
    def of(cls, triples: NDArray[np.integer[Any]], owner: Ids, rank: int) -> "HeldTriples":
        """Select a rank's triples from a split (T, 3), int32 or int64; `owner`, int64 (N,), holds ranks."""
        owners = owner[triples[:, ::2]]
        number = np.flatnonzero((owners == rank).any(1))
        return cls(number, triples[number].astype(np.int64), owners[number])

    def __len__(self) -> int:
        return len(self.number)

    def places(self, numbers: Ids) -> Ids:
        """Return the positions here of those split numbers that the rank holds, in the order of `numbers`."""
        if not len(self):
            return np.zeros(0, np.int64)
        place = np.minimum(np.searchsorted(self.number, numbers), len(self) - 1)
        found: Ids = place[self.number[place] == numbers]
        return found


@dataclass(frozen=True, eq=False)
class Layout:
    """The rows that a rank owns and borrows; its local rows are [own; halo].

    Attributes:
        rank: The number of this rank.
        rows: int64 (n,), its entities, ascending.
        halo: int64 (H,), entities of other ranks in its training triples, sorted by owner, then by id.
        halo_from: int64 (P,), number of halo rows per owner.
        sent: int64 (S,), own local rows that are halo rows of other ranks, sorted by receiver, then by id.
        sent_to: int64 (P,), number of sent rows per receiver.
    """

    rank: int
    rows: Ids
    halo: Ids
    halo_from: Ids
    sent: Ids
    sent_to: Ids

    @classmethod
    def of(cls, train: HeldTriples, rows: Ids, rank: int, ranks: int) -> "Layout":
        """Compute the layout from the held triples, without communication.

        Both owners hold a triple that crosses ranks. So the rows to send follow from the own ends of these
        triples.
        """
        halo_owner, halo = _pairs(train.owners != rank, train, ranks)
        mine = train.owners == rank
        # of a triple that crosses ranks, the own end goes to the owner of the other end
        receiver, sent = _pairs(mine & ~mine[:, ::-1], train, ranks, other=True)
        return cls(
            rank=rank,
            rows=rows,
            halo=halo,
            halo_from=np.bincount(halo_owner, minlength=ranks),
            sent=np.searchsorted(rows, sent),
            sent_to=np.bincount(receiver, minlength=ranks),
        )

    @property
    def ranks(self) -> int:
        """P, the number of ranks."""
        return len(self.sent_to)

    def local(self, entities: Ids) -> Ids:
        """Return the local rows of entities; n + H for an entity without a local row."""
        names, order = self._names
        place = np.minimum(np.searchsorted(names, entities), max(len(names) - 1, 0))
        if not len(names):
            return np.zeros_like(entities)
        return np.where(names[place] == entities, order[place], len(names))

    @cached_property
    def _names(self) -> tuple[Ids, Ids]:
        names = np.concatenate([self.rows, self.halo])
        order = np.argsort(names)
        return names[order], order


def _pairs(chosen: NDArray[np.bool_], held: HeldTriples, ranks: int, other: bool = False) -> tuple[Ids, Ids]:
    """Return distinct (owner, entity) of the chosen ends (K, 2); with `other`, the owner of the other end."""
    entity, owner = held.triples[:, ::2][chosen], (held.owners[:, ::-1] if other else held.owners)[chosen]
    limit = int(entity.max(initial=0)) + 1
    return np.divmod(np.unique(owner * limit + entity), limit)


@dataclass(frozen=True)
class Meeting:
    """Exchange plan that brings the tails of triples to the ranks of their heads.

    Attributes:
        heads: int64 (A,), positions of the held triples with an own head.
        tails: int64 (B,), positions of the held triples with an own tail, sorted by the owner of the head.
        sent: Number of rows that each rank receives from this one.
        received: Number of tails that each rank sends to this one.
        order: int64 (A,), the position of each head's tail in the received rows.
    """

    heads: Ids
    tails: Ids
    sent: list[int]
    received: list[int]
    order: Ids

    @classmethod
    def of(cls, held: HeldTriples, places: Ids, layout: Layout) -> "Meeting":
        """Plan the exchange for held triples at `places`; both ranks of a triple use the same order."""
        owners = held.owners[places]
        heads, tails = places[owners[:, 0] == layout.rank], places[owners[:, 1] == layout.rank]
        to, origin = held.owners[tails, 0], held.owners[heads, 1]
        order = np.empty(len(heads), np.int64)
        order[np.argsort(origin, kind="stable")] = np.arange(len(heads))
        return cls(
            heads=heads,
            tails=tails[np.argsort(to, kind="stable")],
            sent=np.bincount(to, minlength=layout.ranks).tolist(),
            received=np.bincount(origin, minlength=layout.ranks).tolist(),
            order=order,
        )
