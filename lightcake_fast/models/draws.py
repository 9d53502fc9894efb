"""Random numbers for dropout in training: from a generator in sequence, or from a hash of row numbers."""

import numpy as np
import torch
from torch import Generator, Tensor


class SequentialDraws:
    """Random numbers from a generator; None is PyTorch's default generator."""

    def __init__(self, generator: Generator | None) -> None:
        self._generator = generator

    def dropout(self, table: Tensor, share: float, which: str) -> Tensor:
        """Apply dropout with rescaling to a table (N, d), "entities" or "relations".

        ``torch.nn.functional.dropout`` does not accept a generator. This one uses 16 random bits per entry,
        four entries per draw: a float per entry took longer than a layer.
        """
        draws = torch.empty(-(-table.numel() // 4), dtype=torch.int64, device=table.device)
        bits = draws.random_(-(2**63), None, generator=self._generator).view(torch.int16)
        return _kept(table, bits[: table.numel()].view_as(table), share)

    def without_rows(self, entities: Tensor, share: float) -> Tensor:
        """Set a share of the entity rows (N, d) to zero."""
        return entities * torch.empty_like(entities[:, :1]).bernoulli_(1 - share, generator=self._generator)


class NumberedDraws:
    """Random numbers from a hash of a seed and a row number: a row gets the same numbers on every rank.

    So processes that each hold some rows of a table together draw the same numbers as a single process.

    Args:
        rows: int64 (n,), the entity numbers of the rows here.

    Source: SplitMix64, Steele et al., OOPSLA 2014.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._seed: tuple[int, ...] = ()

    def seed(self, *numbers: int) -> None:
        """Set the seed of the next draws: the run's seed, the epoch and the step."""
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
        """Return a number in [0, 1) per triple, float64 (K,), from the triple numbers."""
        return self._uniform(3, numbers)

    def _uniform(self, stream: int, numbers: Tensor) -> Tensor:
        return (self._bits(stream, numbers, 1)[:, 0] >> 11 & (2**53 - 1)).double() * 2.0**-53

    def _bits(self, stream: int, numbers: Tensor, words: int) -> Tensor:
        """Return random int64 (n, words)."""
        start = int(np.random.SeedSequence((*self._seed, stream)).generate_state(1, np.uint64)[0]) - 2**63
        row = _mixed(numbers * _GOLDEN + start)
        return _mixed(row[:, None] + torch.arange(1, words + 1, device=numbers.device) * _GOLDEN)


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # constants of SplitMix64 as int64; products wrap around


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)):
        x = (x ^ (x >> shift & (2 ** (64 - shift) - 1))) * factor
    return x ^ (x >> 31 & (2**33 - 1))


def _kept(table: Tensor, bits: Tensor, share: float) -> Tensor:
    """Zero the entries with random bits below ``share``; a product is faster than ``masked_fill`` on CPUs."""
    return table * (bits >= round(share * 2**16) - 2**15) * (1 / (1 - share))
