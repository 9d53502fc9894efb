"""Device and random numbers of a run."""

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
DEVICE = "LIGHTCAKE_FAST_DEVICE"  # environment variable: the device for "auto"


@contextmanager
def own_numerics() -> Iterator[None]:
    """Compute inside a `with` block as the commands do, independent of the caller's settings.

    Autocast is off. Tensors without device or type are float32 on the CPU. Denormals are flushed to zero in
    this thread and in the threads that it starts. Decayed weights become denormal, and denormals are several
    times slower.
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
    """Return the order of the `count` training triples in an epoch, int64 `(T,)`, equal on every device."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(count, generator=generator)


def question_order(seed: int, epoch: int, heads: Tensor, relations: Tensor) -> Tensor:
    """Return the order of the context triples in an epoch, grouped by their questions (h, r, ?).

    Up to `ANSWERS_TOGETHER` answers of a question follow one another, and the question is scored once for
    them. Everything else is random. Larger groups would mask a large part of an entity's context at once.

    Args:
        seed: Seed of the run.
        epoch: Number of the epoch.
        heads: int64 `(E,)` in CPU memory, heads of the context triples.
        relations: int64 `(E,)` in CPU memory, relations of the context triples.

    Returns:
        int64 `(E,)`, the same on every device.
    """
    order = epoch_order(seed, epoch, len(heads)).int()
    keys = (heads * (relations.max() + 1)).add_(relations)[order]
    keys, place = keys.sort(stable=True)
    order = order[place]
    del place  # for a large graph, each of these tensors needs a part of the available memory
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
    """Hash several numbers into one seed. Neighboring numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def resolve_device(name: str) -> torch.device:
    """Return the device for `--device`. `LIGHTCAKE_FAST_DEVICE` in the environment can replace "auto".

    Raises:
        InputError: The device is unknown or missing.
    """
    if name == "auto":
        name = os.environ.get(DEVICE) or name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device: expected one of {torch.cuda.device_count()} GPUs, got {name!r}")
    return device


def device_name(device: torch.device) -> str:
    """Name the device for reports: the name of the GPU, or the model of the CPU and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")  # Linux gives the model only here, and not on every architecture
    model = re.search("model name\\s*: (.+)", info.read_text()) if info.is_file() else None
    name = model[1] if model else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"
