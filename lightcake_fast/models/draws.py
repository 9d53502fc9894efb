"""Where training draws what it drops: from a generator, number after number, or by the numbers of rows."""

import numpy as np
import torch
from torch import Generator, Tensor


class SequentialDraws:
    """What a generator gives; None is PyTorch's own."""

    def __init__(self, generator: Generator | None) -> None:
        self._generator = generator

    def dropout(self, table: Tensor, share: float, which: str) -> Tensor:
        """A table (N, d), "entities" or "relations", a share of its entries zeroed and the others scaled up.

        Not ``torch.nn.functional.dropout``, which takes no generator.
        Sixteen random bits an entry, four entries a draw: drawing a float for each took longer than a layer.
        """
        draws = torch.empty(-(-table.numel() // 4), dtype=torch.int64, device=table.device)
        bits = draws.random_(-(2**63), None, generator=self._generator).view(torch.int16)
        return _kept(table, bits[: table.numel()].view_as(table), share)

    def without_rows(self, entities: Tensor, share: float) -> Tensor:
        """Entity rows (N, d), a share of which is zeroed."""
        return entities * torch.empty_like(entities[:, :1]).bernoulli_(1 - share, generator=self._generator)


class NumberedDraws:
    """What a hash gives of a seed and the number of a row: the same for a row wherever it lies.

    Processes that have rows of a table each then draw what one would that has them all.

    Args:
        rows: int64 (n,), the numbers of the entities whose rows are here.

    Source: SplitMix64, Steele et al., OOPSLA 2014.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._seed: tuple[int, ...] = ()

    def seed(self, *numbers: int) -> None:
        """What the following draws depend on: the run's seed, the epoch and the step."""
        self._seed = numbers

    def dropout(self, table: Tensor, share: float, which: str) -> Tensor:
        """See ``SequentialDraws``."""
        rows = self._rows if which == "entities" else torch.arange(len(table), device=table.device)
        bits = self._bits(("entities", "relations").index(which), rows, -(-table.shape[1] // 4))
        return _kept(table, bits.view(torch.int16)[:, : table.shape[1]], share)

    def without_rows(self, entities: Tensor, share: float) -> Tensor:
        """See ``SequentialDraws``."""
        return entities * (self._uniform(2, self._rows) >= share)[:, None]

    def of_triples(self, numbers: Tensor) -> Tensor:
        """A number in [0, 1) for each triple, float64 (K,), by the triples' numbers."""
        return self._uniform(3, numbers)

    def _uniform(self, stream: int, numbers: Tensor) -> Tensor:
        return (self._bits(stream, numbers, 1)[:, 0] >> 11 & (2**53 - 1)).double() * 2.0**-53

    def _bits(self, stream: int, numbers: Tensor, words: int) -> Tensor:
        """Random int64 (n, words)."""
        start = int(np.random.SeedSequence((*self._seed, stream)).generate_state(1, np.uint64)[0]) - 2**63
        row = _mixed(numbers * _GOLDEN + start)
        return _mixed(row[:, None] + torch.arange(1, words + 1, device=numbers.device) * _GOLDEN)


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # constants of SplitMix64 as int64, whose products wrap


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)):
        x = (x ^ (x >> shift & (2 ** (64 - shift) - 1))) * factor
    return x ^ (x >> 31 & (2**33 - 1))


def _kept(table: Tensor, bits: Tensor, share: float) -> Tensor:
    """A table without the entries whose 16 bits are among the lowest ``share``.

    Multiplying by a bool takes a quarter of the time of ``masked_fill`` on a CPU.
    """
    return table * (bits >= round(share * 2**16) - 2**15) * (1 / (1 - share))
