"""Memory bandwidth of a copy and of a gather of random rows that are summed, in cache and in memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench.measuring import timed

DIM = 256
KIB = {"cpu": {"cache": 512, "memory": 256 << 10}, "cuda": {"cache": 16 << 10, "memory": 2 << 20}}
GATHERED = {"cpu": 1 << 17, "cuda": 1 << 21}  # number of rows; each sum has 64 rows


def copy(source: Tensor, device: torch.device) -> tuple[Callable[[], Tensor], int]:
    """Return a copy of a table, and the bytes that it reads and writes."""
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * source.nbytes


def gather(source: Tensor, device: torch.device) -> tuple[Callable[[], Tensor], int]:
    """Return sums of random rows, and the bytes of these rows."""
    count = GATHERED[device.type]
    index = torch.randint(len(source), (count,), device=device)
    bounds = torch.arange(0, count, 64, device=device)
    return lambda: functional.embedding_bag(index, source, bounds, mode="sum"), count * DIM * 4


@pytest.mark.parametrize("what", ["copy", "gather"])
@pytest.mark.parametrize("where", ["cache", "memory"])
def test_memory(where: str, what: str, device: torch.device, measure: Any) -> None:
    """Time rows of 1 KB. The items in the report are bytes."""
    torch.manual_seed(0)
    source = torch.zeros(KIB[device.type][where], DIM, device=device)
    call, moved = {"copy": copy, "gather": gather}[what](source, device)
    call()
    _, warm = timed(call, device)
    measure(call, warm=warm, device=device, kind="memory", mode=what, model="", data=where, items=moved)
