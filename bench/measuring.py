"""Tools of every benchmark: the available data sets, the timer, and the description of the machine."""

import dataclasses
import importlib.util
import platform
import re
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from lightcake_fast.data import KnowledgeGraph, load_dataset
from lightcake_fast.data.public import DATA_VARIABLE, PUBLIC_DATASETS, find_folder
from lightcake_fast.training.runtime import device_name

DATA = ("family:300", "family", "family:6000", *PUBLIC_DATASETS)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def found(name: str) -> KnowledgeGraph:
    """Load a data set, or skip if a public one is not on this machine."""
    public = PUBLIC_DATASETS.get(name)
    if public is not None and find_folder(public) is None:
        pytest.skip(f"{name} is missing: put its folder {public.folder} into the folder ${DATA_VARIABLE}")
    return dataclasses.replace(load_dataset(name), name=name)  # the size is part of a generated set's name


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """Return the result of a call and its duration in seconds, including the work of the device."""
    synchronise(device)
    start = time.perf_counter()
    result = call()
    synchronise(device)
    return result, time.perf_counter() - start


def available_bytes(device: torch.device) -> float:
    """Return the free memory in bytes; infinity if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    file = Path("/proc/meminfo")
    found = re.search(r"MemAvailable: +(\d+) kB", file.read_text()) if file.exists() else None
    return float("inf") if found is None else int(found.group(1)) * 1024


def machine(device: torch.device) -> dict[str, Any]:
    """Return the device and the versions that affect its speed."""
    peers = ["torch", "numpy", "numba", "triton", "torch_geometric"]
    versions = {peer: metadata.version(peer) for peer in peers if importlib.util.find_spec(peer)}
    return {
        "device": device.type,
        "device_name": device_name(device),
        "versions": {"python": platform.python_version(), **versions},
    }
