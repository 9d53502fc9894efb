"""Peak memory of a call, or of a computation on a CPU in a separate process."""

import ctypes
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.cli import run

ROOT = Path(__file__).resolve().parents[1]
Computation = Callable[[], Iterable[Tensor] | None]


def peak_in_child(builder: str, *arguments: Any) -> int | None:
    """Measure the peak memory of a computation on the CPU in a separate process, in bytes.

    Args:
        builder: "module:function". The function gets the arguments and returns the computation. It must first
            let compilers and libraries allocate their memory.
        arguments: Plain values.

    Returns:
        The peak memory, minus the memory before the call and minus the tensors that the computation returns.
        None if the system does not report it.

    Raises:
        RuntimeError: The child failed.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-m", "bench.memory", builder, json.dumps(arguments)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise RuntimeError(f"measuring {builder} {json.dumps(arguments)}: {lines[-1]}")
    return int(child.stdout.split()[-1])


def peak_of_call(computation: Computation, device: torch.device) -> int:
    """Measure the peak memory of one call, without the memory before it and without its results, in bytes.

    Args:
        computation: The function to call. On a CPU the process must do nothing else.
        device: Device of the computation.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        given = _bytes(computation())
        return max(torch.cuda.max_memory_allocated(device) - before - given, 0)
    _reset_peak()
    before = peak_bytes()
    given = _bytes(computation())
    return max(peak_bytes() - before - given, 0)


def _bytes(tensors: Iterable[Tensor] | None) -> int:
    return sum(tensor.nbytes for tensor in tensors or ())


def _reset_peak() -> None:
    """Release freed memory and reset the process's peak to its current memory (Linux)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak memory of this process since the last reset (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def main(argv: Sequence[str]) -> None:
    """Run in the child of `peak_in_child`: build the computation, run it, print its peak."""
    builder, arguments = argv
    module, _, name = builder.partition(":")
    computation: Computation = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    print(peak_of_call(computation, torch.device("cpu")))


if __name__ == "__main__":
    sys.exit(run(main))
