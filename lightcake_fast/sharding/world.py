"""The processes of a training and their communication: started by torchrun, or a single process."""

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

TIMEOUT = "LIGHTCAKE_FAST_TIMEOUT"  # environment variable: seconds to wait for other processes
TIMEOUT_SECONDS = 1800
REPORT_SECONDS = 10  # timeout of the question which process failed first


_rendezvous: Any = getattr(dist, "rendezvous", None)  # some builds of PyTorch do not have it
# new versions of PyTorch renamed it, and warn about the old name
_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)


class World:
    """All processes of a training, as seen by one process. This base class is a single process.

    All processes must call every method with a tensor or value argument, in the same order.

    Attributes:
        rank: the number of this process, from 0.
        ranks: P, the number of processes.
        sent: bytes sent to other processes so far, by collective; a sum counts as a ring all-reduce.
    """

    rank = 0
    ranks = 1

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send rows (sum of sent, d) by receiver; return rows (sum of received, d) by sender."""
        others = sum(sent) - sent[self.rank]
        self.sent["exchange"] += others * rows.element_size() * rows.shape[1:].numel()
        return self._exchange(rows.contiguous(), sent, received)

    def gather(self, values: Tensor) -> Tensor:
        """Gather tensors of equal shape from all ranks, stacked in rank order."""
        self.sent["gather"] += (self.ranks - 1) * values.nbytes
        return self._gather(values.contiguous())

    def add(self, values: Tensor) -> Tensor:
        """Sum over all ranks in place, with bitwise equal results on all ranks."""
        self.sent["add"] += 2 * (self.ranks - 1) * values.nbytes // self.ranks
        self._add(values)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """Take the elementwise maximum over all ranks, in place."""
        self.sent["largest"] += 2 * (self.ranks - 1) * values.nbytes // self.ranks
        return self._largest(values)

    def agree(self, *numbers: int) -> tuple[int, ...]:
        """Return the maximum of each number over all ranks."""
        return tuple(self._largest(torch.tensor(numbers)).tolist()) if self.ranks > 1 else numbers

    def from_first(self, value: Any) -> Any:
        """Return the first rank's value; it must be representable in JSON."""
        text = json.dumps(value).encode() if self.first else b""
        (size,) = self.agree(len(text))
        content = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8)
        return json.loads(bytes(self._largest(content if self.first else content * 0).tolist()))

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return rows.clone()

    def _gather(self, values: Tensor) -> Tensor:
        return values[None].clone()

    def _add(self, values: Tensor) -> None:
        """Do nothing: with a single rank the sum is the value."""

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
        """Turn errors of gloo and NCCL into `LostRankError`; `--debug` shows their text."""
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
    """Join the processes that torchrun started; yield None without torchrun.

    CPU tensors use gloo, GPU tensors use NCCL. Each process uses the GPU of its local rank.

    Raises:
        InputError: The time limit in the environment is not a number of seconds.
        LostRankError: Not all processes started in time.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield None
        return
    try:
        seconds = float(os.environ.get(TIMEOUT, TIMEOUT_SECONDS))
        limit = timedelta(seconds=seconds)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{TIMEOUT}: expected seconds, got {os.environ[TIMEOUT]!r}") from error
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
        first_to_fail()  # before the others lose this process and report that
        raise
    finally:
        dist.destroy_process_group()


@functools.cache
def first_to_fail() -> bool:
    """Return whether this process is the first to ask. Only the first process reports an error.

    The answer comes from the store of the rendezvous, once per process. Without the store each process
    reports its error.
    """
    try:
        store, _, _ = next(_rendezvous("env://", timeout=timedelta(seconds=REPORT_SECONDS)))
        return bool(store.add("lightcake_fast/failed", 1) == 1)
    except (RuntimeError, ValueError):
        return True
