"""The processes that train together, and what they send each other: under torchrun, or one alone."""

import functools
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightcake_fast.errors import InputError, LostRankError, memory_wanted

TIMEOUT = "LIGHTCAKE_FAST_TIMEOUT"  # environment variable: seconds that a process waits for the others
TIMEOUT_SECONDS = 1800
REPORT_SECONDS = 10  # to ask torchrun which process has failed first


_rendezvous: Any = getattr(dist, "rendezvous", None)  # a build of PyTorch may be without
# PyTorch has given it another name, and warns of the one before
_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)


class World:
    """All processes of a training, as one of them sees them: here it is alone.

    Every method with a tensor or value of its own must be called by all processes, in the same order.

    Attributes:
        rank: this process's number, from 0.
        ranks: P, how many there are.
        sent: bytes sent to other processes so far, by collective; of sums, what a ring sends.
    """

    rank = 0
    ranks = 1

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Rows (sum of received, d) of all ranks in their order, for own rows (sum of sent, d) likewise."""
        others = sum(sent) - sent[self.rank]
        self.sent["exchange"] += others * rows.element_size() * rows.shape[1:].numel()
        return self._exchange(rows.contiguous(), sent, received)

    def gather(self, values: Tensor) -> Tensor:
        """Equally shaped values of all ranks, stacked in their order."""
        self.sent["gather"] += (self.ranks - 1) * values.nbytes
        return self._gather(values.contiguous())

    def add(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place: the same bits on each."""
        self.sent["add"] += 2 * (self.ranks - 1) * values.nbytes // self.ranks
        self._add(values)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The largest of each value over all ranks, in place."""
        self.sent["largest"] += 2 * (self.ranks - 1) * values.nbytes // self.ranks
        return self._largest(values)

    def agree(self, *numbers: int) -> tuple[int, ...]:
        """The largest of each number over all ranks."""
        return tuple(self._largest(torch.tensor(numbers)).tolist()) if self.ranks > 1 else numbers

    def from_first(self, value: Any) -> Any:
        """The first rank's value, which JSON can hold."""
        text = json.dumps(value).encode() if self.first else b""
        (size,) = self.agree(len(text))
        content = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8)
        return json.loads(bytes(self._largest(content if self.first else content * 0).tolist()))

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return rows.clone()

    def _gather(self, values: Tensor) -> Tensor:
        return values[None].clone()

    def _add(self, values: Tensor) -> None:
        """Of one rank nothing is to be added."""

    def _largest(self, values: Tensor) -> Tensor:
        return values


class Joined(World):
    """One of several processes that torchrun started."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        found = rows.new_empty(sum(received), *rows.shape[1:])
        with self._lost():
            dist.all_to_all_single(found, rows, received, sent)
        return found

    def _gather(self, values: Tensor) -> Tensor:
        found = values.new_empty(self.ranks * len(values), *values.shape[1:])
        with self._lost():
            _gather(found, values)
        return found.view(self.ranks, *values.shape)

    def _add(self, values: Tensor) -> None:
        with self._lost():
            dist.all_reduce(values)

    def _largest(self, values: Tensor) -> Tensor:
        with self._lost():
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Errors of gloo and NCCL as `LostRankError`, without their own text (see `--debug`)."""
        try:
            yield
        except RuntimeError as error:
            if memory_wanted(error) is not None:
                raise
            raise LostRankError(
                f"rank {self.rank} of {self.ranks}: expected an answer from all other processes, but one has "
                f"ended or hangs: start them again with --resume ({TIMEOUT} sets the seconds to wait)"
            ) from error


@contextmanager
def joined() -> Iterator[World | None]:
    """The processes that torchrun started; None where it did not.

    CPU tensors travel by gloo, GPU tensors by NCCL, each process on the GPU of its local rank.

    Raises:
        InputError: The time limit in the environment is none.
        LostRankError: The others did not come.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield None
        return
    try:
        seconds = float(os.environ.get(TIMEOUT, TIMEOUT_SECONDS))
        limit = timedelta(seconds=seconds)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{TIMEOUT}: got {os.environ[TIMEOUT]!r}, wanted seconds") from error
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, timeout=limit)
    except RuntimeError as error:
        raise LostRankError(
            f"expected {os.environ.get('WORLD_SIZE')} processes, but not all have come within "
            f"{seconds:g} s: start all of them with the same torchrun arguments"
        ) from error
    try:
        yield Joined()
    except Exception:
        first_to_fail()  # before the others lose this process, and would report that
        raise
    finally:
        dist.destroy_process_group()


@functools.cache
def first_to_fail() -> bool:
    """Whether this is the first of the processes that torchrun started to ask: it reports the error of all.

    Asks the store through which they met, once per process. Without the store each process reports its own
    error.
    """
    try:
        store, _, _ = next(_rendezvous("env://", timeout=timedelta(seconds=REPORT_SECONDS)))
        return bool(store.add("lightcake_fast/failed", 1) == 1)
    except (RuntimeError, ValueError):
        return True
