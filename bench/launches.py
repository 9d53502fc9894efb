"""Records what a function launches and compiles it for a card that need not be there."""

import functools
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bench.control_flow import Program

# of this checkout alone: Triton's own cache takes equal sources of two checkouts for one, and its code then
# names the lines of files that are not these
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "triton"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True)
class Launch:
    """One kernel launch: what was passed, and what was compiled for it.

    Attributes:
        function: the Triton function.
        arguments: what its parameters were bound to, by name.
        grid: programs along each axis.
        compiled: Triton's compiled kernel.
    """

    function: Any
    arguments: Mapping[str, Any]
    grid: tuple[int, ...]
    compiled: Any

    @property
    def name(self) -> str:
        """The kernel's, with its module: several passes share their names."""
        return f"{self.function.fn.__module__.rpartition('.')[2]}.{self.function.fn.__name__}"

    @property
    def programs(self) -> int:
        """How many programs it launches."""
        count = 1
        for size in self.grid:
            count *= size
        return count

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return int(self.compiled.metadata.num_warps)


@dataclass(frozen=True)
class Recording:
    """What a function launched.

    Attributes:
        launches: of Triton kernels.
        others: PyTorch's own kernels: their names, and the bytes that they read and write.
    """

    launches: list[Launch] = field(default_factory=list)
    others: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel occupies, as its compiler reports it.

    Attributes:
        registers: of a thread; vector registers on AMD.
        stack: bytes a thread.
        local: bytes a thread.
        spills: registers spilled (AMD), or loads and stores of local memory in the code (NVIDIA).
        shared: bytes a program.
    """

    registers: int
    stack: int
    local: int
    spills: int
    shared: int


class _AbsentDriver:
    """Answers for a card that is not there; every target is a device of its own to Triton's caches."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self._name]

    def get_current_device(self) -> str:
        return self._name

    def get_current_stream(self, device: str) -> int:
        return 0


class _OtherKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the PyTorch operations that launch a kernel."""

    def __init__(self, others: list[tuple[str, int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._others = others

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(("empty", "new_empty", "detach", "_to_copy")):
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
            if any(t.numel() for t in tensors):
                self._others.append((name, sum(t.nbytes for t in tensors)))
        return result


@contextmanager
def _recording(target: str, recording: Recording) -> Iterator[None]:
    run = JITFunction.run

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        names = [p.name for p in self.params]
        bound = self.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
        bound.apply_defaults()
        size = grid(bound.arguments) if callable(grid) else grid
        recording.launches.append(Launch(self, dict(bound.arguments), tuple(int(s) for s in size), compiled))
        return compiled

    previous = driver._active
    driver.set_active(_AbsentDriver(target))
    JITFunction.run = record
    try:
        with _OtherKernels(recording.others), knobs.cache.scope():
            knobs.cache.dir = str(CACHE)
            yield
    finally:
        JITFunction.run = run
        driver.set_active(previous)


def record(target: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Recording:
    """Call a function with Triton's launches recorded and compiled instead of run.

    What the launches would have written stays unwritten: the function must not look at it.

    Args:
        target: a key of ``TARGETS``.
        function: launches kernels on the CPU tensors among its arguments.
        *args: its arguments.
        **kwargs: its arguments.
    """
    recording = Recording()
    with _recording(target, recording):
        function(*args, **kwargs)
    return recording


def resources(launch: Launch) -> Resources:
    """Registers, stack and shared memory of the launch's kernel."""
    return _resources(launch.compiled)


def program(launch: Launch) -> Program:
    """The machine code of the launch's kernel (NVIDIA only)."""
    return _program(launch.compiled)


@functools.cache
def _program(compiled: Any) -> Program:
    # the analysis of data flow, left out, only names the targets of BSYNC: half of the tool's time
    return Program(_tool("nvdisasm", "-gi", "-ndf", "-c", compiled.asm["cubin"]))


@functools.cache
def _resources(compiled: Any) -> Resources:
    if compiled.metadata.target.backend == "hip":
        text = compiled.asm["amdgcn"]
        return Resources(
            registers=_number(text, ".vgpr_count:"),
            stack=_number(text, ".private_segment_fixed_size:"),
            local=0,
            spills=_number(text, ".vgpr_spill_count:") + _number(text, ".sgpr_spill_count:"),
            shared=_number(text, ".group_segment_fixed_size:"),
        )
    text = _tool("cuobjdump", "-res-usage", compiled.asm["cubin"])
    return Resources(
        registers=_number(text, "REG:"),
        stack=_number(text, "STACK:"),
        local=_number(text, "LOCAL:"),
        spills=sum(i.kind == "local" for i in _program(compiled).instructions),
        shared=int(compiled.metadata.shared),
    )


def _number(text: str, label: str) -> int:
    """The number after a label, which must be there."""
    digits = text[text.index(label) + len(label) :].split()[0]
    return int(digits)


def _tool(name: str, *arguments: Any) -> str:
    """Run one of the tools in Triton's wheel on a binary, its last argument."""
    *flags, binary = arguments
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([path, *flags, file.name], check=True, capture_output=True, text=True).stdout
