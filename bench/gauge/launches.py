"""Record the kernel launches of a function and compile them for a GPU that need not be present."""

import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bench.gauge.disassembly import Instruction, Program
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import gathered

# One cache per checkout. Triton's usual cache does not distinguish equal sources of two checkouts, and the
# machine code then refers to lines of the other checkout.
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "triton"
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
    """One kernel launch: its arguments and the compiled kernel.

    Attributes:
        function: the Triton function.
        arguments: values of its parameters, by name.
        compiled: Triton's compiled kernel.
    """

    function: Any
    arguments: Mapping[str, Any]
    compiled: Any

    @property
    def name(self) -> str:
        """Name of the kernel with its module, because several passes have the same name."""
        return f"{self.function.fn.__module__.rpartition('.')[2]}.{self.function.fn.__name__}"

    @property
    def num_warps(self) -> int:
        """Warps per program."""
        return int(self.compiled.metadata.num_warps)


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel, as reported by its compiler.

    Attributes:
        registers: per thread; vector registers on AMD.
        stack: bytes per thread.
        local: bytes per thread.
        spills: spilled registers (AMD), or loads and stores of local memory in the code (NVIDIA).
        shared: bytes per program.
    """

    registers: int
    stack: int
    local: int
    spills: int
    shared: int


class _AbsentDriver:
    """Stand-in for the driver of an absent GPU. Triton's caches see each target as a separate device."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self._name]

    def get_current_device(self) -> str:
        return self._name

    def get_current_stream(self, device: str) -> int:
        return 0


@contextmanager
def _recording(target: str, launches: list[Launch]) -> Iterator[None]:
    run = JITFunction.run

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        names = [p.name for p in self.params]
        bound = self.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
        bound.apply_defaults()
        launches.append(Launch(self, dict(bound.arguments), compiled))
        return compiled

    previous = driver._active
    driver.set_active(_AbsentDriver(target))
    JITFunction.run = record
    try:
        with knobs.cache.scope():
            knobs.cache.dir = str(CACHE)
            yield
    finally:
        JITFunction.run = run
        driver.set_active(previous)


def record(target: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Launch]:
    """Call a function. Record and compile its Triton launches instead of running them.

    The launches write nothing, so the function must not read their results.

    Args:
        target: a key of ``TARGETS``.
        function: launches kernels on the CPU tensors among its arguments.
        *args: positional arguments of the function.
        **kwargs: keyword arguments of the function.
    """
    launches: list[Launch] = []
    with _recording(target, launches):
        function(*args, **kwargs)
    return launches


def launch_layer(
    target: str,
    *,
    width: int = 256,
    dtype: torch.dtype = torch.float32,
    score: str = "distmult",
    context: str = "both",
    masked: bool = True,
    rows: str = "float32",
) -> list[Launch]:
    """Return the launches of one layer, forward and backward, compiled for a target.

    Args:
        target: a key of ``TARGETS``.
        width: d.
        dtype: dtype of the embeddings.
        score: a score with Triton kernels.
        context: "both", "entity" or "relation".
        masked: with a mask, as in training.
        rows: dtype of the entity rows that context triples read.
    """
    from lightcake_fast.kernels import gpu_backward, gpu_forward

    random = torch.Generator().manual_seed(0)
    triples = torch.stack([torch.randint(n, (4096,), generator=random) for n in (64, 8, 64)], 1)
    graph = ContextGraph.from_triples(triples, 64, 8)
    x, y = torch.zeros(64, width, dtype=dtype), torch.zeros(16, width, dtype=dtype)
    mask = torch.zeros(len(triples), dtype=torch.bool) if masked else None
    plan, copy = graph.gpu_plan, gathered(x, rows)

    def layer() -> None:
        new_x, new_y, s, norm_x, norm_y, *sums = gpu_forward.forward(
            x, y, plan, mask, score, context, gathered=copy
        )
        made = new_x, new_y, s, norm_x, norm_y
        gpu_backward.backward(x, y, x, y, *made, plan, score, *sums, gathered=copy)

    return record(target, layer)


def resources(launch: Launch) -> Resources:
    """Return the registers, stack and shared memory of the kernel."""
    return _resources(launch.compiled)


def program(launch: Launch) -> Program:
    """Return the machine code of the kernel (NVIDIA only)."""
    return _program(launch.compiled)


def row_loads(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Return the instructions that load rows. They come from two functions of ``gpu_tiles``."""
    from lightcake_fast.kernels import gpu_tiles

    lines: dict[str, set[int]] = {}
    for function in (gpu_tiles.load_tile, gpu_tiles.load_row):
        code = function.fn.__code__
        last = code.co_firstlineno + len(function.src.splitlines()) + 1
        lines.setdefault(code.co_filename, set()).update(range(code.co_firstlineno, last + 1))
    return [
        one
        for one in instructions
        if one.opcode.startswith("LDG") and any(line in lines.get(file, ()) for file, line in one.frames)
    ]


@functools.cache
def _program(compiled: Any) -> Program:
    # -ndf skips the data-flow analysis, which only finds the targets of BSYNC and takes half of the time
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
        spills=sum(i.opcode.startswith(("LDL", "STL")) for i in _program(compiled).instructions),
        shared=int(compiled.metadata.shared),
    )


def _number(text: str, label: str) -> int:
    """Return the number after a label. The label must exist."""
    digits = text[text.index(label) + len(label) :].split()[0]
    return int(digits)


def _tool(name: str, *arguments: Any) -> str:
    """Run a tool of Triton's wheel on a binary, which is the last argument."""
    *flags, binary = arguments
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([path, *flags, file.name], check=True, capture_output=True, text=True).stdout


def load_bytes(load: Instruction) -> int:
    """Return the bytes that a load brings to one lane."""
    bits = re.search(r"\.(64|128|256)\b", load.opcode)
    return int(bits.group(1)) // 8 if bits else 4
