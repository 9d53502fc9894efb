"""Where a run computes, and where its random numbers come from."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.errors import InputError

ANSWERS_TOGETHER = 16
DEVICE = "LIGHTCAKE_FAST_DEVICE"  # environment variable: the device that "auto" stands for


@contextmanager
def own_numerics() -> Iterator[None]:
    """Compute as the commands do inside a `with` block, whatever the caller has set.

    Without autocast, in float32 and on the CPU where nothing else is said, with denormals flushed in this
    thread and those that it starts: decayed weights sink to them, and they are several times slower.
    """
    flushed = (torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1).item() == 0
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    plain = [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda")]
    with ExitStack() as stack:
        for each in plain:
            stack.enter_context(each)
        if device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_flush_denormal(True)
        stack.callback(torch.set_flush_denormal, flushed)
        yield


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The order of the `count` training triples in an epoch, int64 `[T]`: the same on every device."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(count, generator=generator)


def question_order(seed: int, epoch: int, heads: Tensor, relations: Tensor) -> Tensor:
    """The order of the context triples in an epoch, by the questions (h, r, ?) that they answer.

    `ANSWERS_TOGETHER` answers of a question follow one another, and are scored once; which of them do, and
    all else, is left to chance. More of them would hide a large part of an entity's context at once.

    Args:
        seed: The run's.
        epoch: The epoch.
        heads: int64 `(E,)` in CPU memory, of the context triples.
        relations: int64 `(E,)`, likewise.

    Returns:
        int64 `(E,)`, the same on every device.
    """
    order = epoch_order(seed, epoch, len(heads)).int()
    keys = (heads * (relations.max() + 1)).add_(relations)[order]
    keys, place = keys.sort(stable=True)
    order = order[place]
    del place  # of a large graph each of these takes a part of the memory that there is
    first = torch.ones(len(keys), dtype=torch.bool)
    torch.ne(keys[1:], keys[:-1], out=first[1:])
    del keys
    within = torch.arange(len(order), dtype=torch.int32)
    within -= torch.where(first, within, 0).cummax(0).values
    group = (within.remainder_(ANSWERS_TOGETHER) == 0).cumsum(0, dtype=torch.int32).sub_(1)
    del within, first
    chance = epoch_order(seed, epoch, int(group[-1]) + 1).int()[group]
    del group
    return order[chance.argsort(stable=True)].long()


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, far from those of neighbouring numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def resolve_device(name: str) -> torch.device:
    """The device that `--device` names; what "auto" stands for, the environment may say.

    Raises:
        InputError: It is unknown or not there.
    """
    if name == "auto":
        name = os.environ.get(DEVICE) or name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device: got {name!r}, wanted auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device: got {name!r}, wanted auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device: got {name!r}, but there are {torch.cuda.device_count()} GPUs here")
    return device


def device_name(device: torch.device) -> str:
    """The device as reports name it: a GPU by its name, a CPU by its model and the threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")  # Linux tells the model nowhere else, and not on every architecture
    model = re.search("model name\\s*: (.+)", info.read_text()) if info.is_file() else None
    name = model[1] if model else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"
