"""Batches of the groups of ``Neighbours``. The baselines sum and multiply one batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.models.neighbours import Neighbours

TILE = 128  # rows: enough for an efficient matrix product, few enough to keep the padding small
NUMBERS = 2**25  # largest size of a batch of several tiles, in numbers


@dataclass(frozen=True, eq=False)
class Batch:
    """Groups with one row each: all groups of a relation, or tiles of ``TILE`` rows per relation.

    Attributes:
        relations: the relation; with tiles, the relation of each tile, int64 (tiles,).
        inverses: the inverses of ``relations``, in the same form.
        inverse: whether the relations are inverses of raw relations. A batch does not mix both kinds.
        entries: the entries of the groups.
        bounds: int64 (rows + 1,), start and end of each row in ``entries``. Padding is empty.
        groups: the group of each row, a slice or int64 (rows,); G for padding.
        heads: int64 (rows,), the head of each row; for padding a head of the same relation.
        by_head: the rows of tiles, grouped by head. None without tiles: then each head has one row.
        by_relation: the tiles, grouped by relation. None without tiles.
    """

    relations: int | Tensor
    inverses: int | Tensor
    inverse: bool
    entries: slice
    bounds: Tensor
    groups: slice | Tensor
    heads: Tensor
    by_head: "Summands | None" = None
    by_relation: "Summands | None" = None

    def in_tiles(self, rows: Tensor) -> Tensor:
        """Return rows (rows, ...); with tiles, in the shape (tiles, TILE, ...)."""
        return rows if self.by_relation is None else rows.view(-1, TILE, *rows.shape[1:])

    def for_rows(self, table: Tensor, of: int | Tensor) -> Tensor:
        """Return rows of a table (2R, ...) that broadcast with ``in_tiles``: (...) or (tiles, 1, ...)."""
        return table[of] if self.by_relation is None else table[of].unsqueeze(1)

    def add_to_heads(self, out: Tensor, rows: Tensor) -> None:
        """Add rows (rows, w), with or without tiles, to the rows of their heads in ``out`` (N, w)."""
        if self.by_head is None:
            out.index_add_(0, self.heads, rows)
        else:
            self.by_head.add_to(out, rows.flatten(0, -2))

    def add_to_relations(self, out: Tensor, tiles: Tensor) -> None:
        """Add a sum (...) or tiles (tiles, ...) to the relations in ``out`` (2R, ...), zero before."""
        if self.by_relation is None:
            out[self.relations] = tiles
        else:
            self.by_relation.add_to(out.view(len(out), -1), tiles.flatten(1))


@dataclass(frozen=True, eq=False)
class Summands:
    """Sums of rows in a fixed order, without atomic operations.

    Attributes:
        target: int64 (M,), the output row of each sum, without duplicates.
        order: int64 (K,), the rows to add, sorted by sum.
        bounds: int64 (M + 1,), start and end of each sum in ``order``.
    """

    target: Tensor
    order: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, targets: Tensor, rows: Tensor) -> "Summands":
        """Group rows (K,) by their targets (K,), both int64."""
        targets, order = targets.sort(stable=True)
        target, count = torch.unique_consecutive(targets, return_counts=True)
        return cls(target, rows.index_select(0, order), functional.pad(count.cumsum(0), (1, 0)))

    def add_to(self, out: Tensor, rows: Tensor) -> None:
        """Add the sums of rows to ``out`` in place."""
        sums = functional.embedding_bag(self.order, rows, self.bounds, mode="sum", include_last_offset=True)
        out.index_add_(0, self.target, sums)


def tiles_at_once(device: torch.device, numbers: int) -> int | None:
    """The number of tiles per batch on a device, or None for a batch per relation.

    ``numbers`` is the size of a tile with its temporary results. A GPU pays for each launch. A CPU does not:
    there a relation's rows and its one matrix are faster, because no matrix is copied for each tile.
    """
    return None if device.type == "cpu" else max(1, NUMBERS // numbers)


_MADE: "WeakKeyDictionary[Neighbours, dict[int | None, list[Batch]]]" = WeakKeyDictionary()


@torch.inference_mode(False)
def batches(found: Neighbours, width: int, matrix: int = 0) -> list[Batch]:
    """Return all groups of a graph in batches, which are cached.

    Args:
        found: the groups.
        width: numbers per row.
        matrix: numbers per tile in addition to its rows.
    """
    tiles, made = tiles_at_once(found.tail.device, TILE * width + matrix), _MADE.setdefault(found, {})
    if tiles not in made:
        made[tiles] = list(_by_relation(found) if tiles is None else _tiled(found, tiles))
    return made[tiles]


def _by_relation(found: Neighbours) -> Iterator[Batch]:
    groups, entries = found.relation_groups.tolist(), found.relation_bounds.tolist()
    relations = len(groups) - 1
    for r in range(relations):
        if groups[r] == groups[r + 1]:
            continue
        own, other = slice(groups[r], groups[r + 1]), (r + relations // 2) % relations
        yield Batch(
            relations=r,
            inverses=other,
            inverse=2 * r >= relations,
            entries=slice(entries[r], entries[r + 1]),
            bounds=found.group_bounds[own.start : own.stop + 1] - entries[r],
            groups=own,
            heads=found.group_head[own],
        )


def _tiled(found: Neighbours, tiles: int) -> Iterator[Batch]:
    start, device = found.relation_groups, found.tail.device
    relations = len(start) - 1
    count = (start.diff() + TILE - 1) // TILE  # tiles per relation
    relation = torch.arange(relations, device=device).repeat_interleave(count)
    place = torch.arange(len(relation), device=device) - (count.cumsum(0) - count)[relation]
    group = (start[relation] + TILE * place)[:, None] + torch.arange(TILE, device=device)
    end = start[relation + 1][:, None]
    live = group < end
    first = found.group_bounds[torch.minimum(group, end)].flatten()  # first entry of each row
    first = torch.cat([first, found.group_bounds[-1:]])
    head = found.group_head[torch.minimum(group, end - 1)]
    group = torch.where(live, group, len(found.group_head))
    kinds = [0, int(count[: relations // 2].sum()), len(relation)]
    for inverse in (False, True):
        for a in range(kinds[inverse], kinds[inverse + 1], tiles):
            own = slice(a, min(a + tiles, kinds[inverse + 1]))
            bounds = first[own.start * TILE : own.stop * TILE + 1]
            entries = slice(*bounds[[0, -1]].tolist())
            heads, rows = head[own].flatten(), live[own].flatten().nonzero()[:, 0]
            yield Batch(
                relations=relation[own],
                inverses=(relation[own] + relations // 2) % relations,
                inverse=inverse,
                entries=entries,
                bounds=bounds - entries.start,
                groups=group[own].flatten(),
                heads=heads,
                by_head=Summands.of(heads[rows], rows),
                by_relation=Summands.of(relation[own], torch.arange(own.stop - own.start, device=device)),
            )
