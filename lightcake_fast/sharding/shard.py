"""What one process of several holds of a graph: own rows, a halo of others' rows, and their triples."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeldTriples:
    """Those triples of a split of which a rank owns an end, in the order of the split.

    Attributes:
        number: int64 (K,), their places in the split, ascending.
        triples: int64 (K, 3), (head, relation, tail) by the ids of the data set.
        owners: int64 (K, 2), the ranks that own head and tail.
    """

    number: Ids
    triples: Ids
    owners: Ids

    @classmethod
    def of(cls, triples: NDArray[np.integer[Any]], owner: Ids, rank: int) -> "HeldTriples":
        """What a rank holds of a split (T, 3), int32 or int64, and each entity's owner, int64 (N,)."""
        owners = owner[triples[:, ::2]]
        number = np.flatnonzero((owners == rank).any(1))
        return cls(number, triples[number].astype(np.int64), owners[number])

    def __len__(self) -> int:
        return len(self.number)

    def places(self, numbers: Ids) -> Ids:
        """Where the held ones of these triples of the split lie here, in the order of the numbers."""
        if not len(self):
            return np.zeros(0, np.int64)
        place = np.minimum(np.searchsorted(self.number, numbers), len(self) - 1)
        found: Ids = place[self.number[place] == numbers]
        return found


@dataclass(frozen=True, eq=False)
class Layout:
    """Which rows a rank owns and which it borrows; its local rows are [own; halo].

    Attributes:
        rank: This one's number.
        rows: int64 (n,), the entities it owns, ascending.
        halo: int64 (H,), entities of others that its training triples name, by owner, then ascending.
        halo_from: int64 (P,), how many of them each rank owns.
        sent: int64 (S,), own local rows that are halo of others, by receiver, then ascending.
        sent_to: int64 (P,), how many each rank receives.
    """

    rank: int
    rows: Ids
    halo: Ids
    halo_from: Ids
    sent: Ids
    sent_to: Ids

    @classmethod
    def of(cls, train: HeldTriples, rows: Ids, rank: int, ranks: int) -> "Layout":
        """The layout that the triples held ask for; nothing is asked of others.

        A cut triple is held by both sides: own ends of those cut with a rank are the rows of its halo.
        """
        halo_owner, halo = _pairs(train.owners != rank, train, ranks)
        mine = train.owners == rank
        # of a triple that is cut, the own end goes to the owner of the other one
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
        """P."""
        return len(self.sent_to)

    def local(self, entities: Ids) -> Ids:
        """Local rows of entities; n + H for one that has none."""
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
    """Distinct (rank, entity) of the chosen ends (K, 2): the end's owner, or that of the other end."""
    entity, owner = held.triples[:, ::2][chosen], (held.owners[:, ::-1] if other else held.owners)[chosen]
    limit = int(entity.max(initial=0)) + 1
    return np.divmod(np.unique(owner * limit + entity), limit)


@dataclass(frozen=True)
class Meeting:
    """How the tails of some triples come to where their heads live.

    Attributes:
        heads: int64 (A,), places of the triples held whose head is own.
        tails: int64 (B,), places of those whose tail is own, by the owner of their head.
        sent: How many of these rows each rank receives.
        received: How many of the heads' tails each rank sends.
        order: int64 (A,), where among the rows received the tail of each head lies.
    """

    heads: Ids
    tails: Ids
    sent: list[int]
    received: list[int]
    order: Ids

    @classmethod
    def of(cls, held: HeldTriples, places: Ids, layout: Layout) -> "Meeting":
        """Of the triples held at some places; both sides of a cut triple have it in the same order."""
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
