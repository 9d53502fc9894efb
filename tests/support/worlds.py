"""Several ranks as threads of one process. They exchange data through lists between barriers."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightcake_fast.sharding.world import World
from tests.support.processes import HANG

Result = TypeVar("Result")


class _Room:
    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=HANG)
        self.values: list[Any] = [None] * ranks


class ThreadWorld(World):
    """One of several ranks. Each rank is a thread."""

    def __init__(self, rank: int, ranks: int, room: _Room) -> None:
        super().__init__()
        self.rank, self.ranks, self._room = rank, ranks, room

    def _all(self, value: Any) -> list[Any]:
        self._room.values[self.rank] = value
        self._room.barrier.wait()
        found = list(self._room.values)
        self._room.barrier.wait()
        return found

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        parts = [torch.split(there, counts)[self.rank] for there, counts in self._all((rows, sent))]
        assert [len(part) for part in parts] == received
        return torch.cat(parts)

    def _gather(self, values: Tensor) -> Tensor:
        return torch.stack(self._all(values.clone()))

    def _add(self, values: Tensor) -> None:
        values.copy_(sum(self._all(values.clone()), torch.zeros_like(values)))

    def _largest(self, values: Tensor) -> Tensor:
        return values.copy_(torch.stack(self._all(values.clone())).amax(0))


def in_threads(ranks: int, work: Callable[[World], Result]) -> list[Result]:
    """Return the results of ``work`` on each rank."""
    room = _Room(ranks)
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadWorld(rank, ranks, room))
        except BaseException as error:
            errors.append(error)
            room.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors
    return results
