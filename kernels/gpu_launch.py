"""Launch shapes of the Triton kernels: rows per tile, columns per tile, warps and registers.

``SHIPPED`` holds the default per kernel. ``gpu_tune`` can replace it for the process, per kernel, width,
dtype and target. The shape never depends on the size of the graph.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from lightcake_fast.kernels.plan import GPU_SIDE_BY_SIDE


class Shape(NamedTuple):
    """Settings of a kernel launch.

    Attributes:
        values: numbers of a row tile per lane, a quarter of them in float64. With more numbers, more rows
            share the loads of ids, the softmax and the loop. With fewer, more warps fit into the registers. A
            program is one warp while its rows fit, so it needs no barrier.
        registers: maximum number of registers per lane for NVIDIA's assembler. Without this setting the
            assembler saves registers: it moves each load of a row next to its use. Then each iteration of the
            loop waits for memory once per tile.
    """

    values: int
    registers: int


SHIPPED = {
    "forward.relation_pass": Shape(32, 255),
    "forward.entity_pass": Shape(32, 128),
    "backward.row_dot_pass": Shape(32, 128),
    "backward.relation_pass": Shape(16, 255),
    "backward.entity_pass": Shape(16, 168),
}
_kept: dict[tuple[str, int, torch.dtype, str], Shape] = {}  # replacements, by kernel, width, dtype and target
_LOAD_BYTES = 16
_REGISTERS = 65536  # per multiprocessor; the lanes of a program share them
# Triton 3.10 fuses multiply-adds only if asked. The kernels pipeline their loops by hand, for the ids only.
OPTIONS: dict[str, Any] = {"num_stages": 1, "enable_fp_fusion": True}


def row_shape(kernel: str, width: int, dtype: torch.dtype, columns: int = 1) -> dict[str, Any]:
    """Return the launch arguments of a kernel for rows of this width and dtype: block sizes, warps, options.

    With several columns, a tile holds entries of one column.
    """
    lanes, entries = warp_size(), triton.next_power_of_2(width // columns)
    padded = columns * entries
    shape = _kept.get((kernel, width, dtype, _target()))
    if shape is None:
        shape = SHIPPED[kernel]
        shape = shape._replace(values=shape.values // (4 if dtype == torch.float64 else 1))
    values = shape.values * lanes
    rows = min(max(values // padded, 1), GPU_SIDE_BY_SIDE)
    warps = min(max(padded // values, 1), 16)
    loaded = max(_LOAD_BYTES // dtype.itemsize * lanes * warps // rows, 1)
    return {
        "WIDTH": width,
        "BLOCK_E": rows,
        "BLOCK_D": min(entries, loaded),
        "ACC": accumulator(dtype),
        **_options(warps, shape.registers),
    }


def keep_shape(kernel: str, width: int, dtype: torch.dtype, shape: Shape) -> None:
    """Use this shape for launches of a kernel over rows of this width and dtype, on this target."""
    _kept[kernel, width, dtype, _target()] = shape


def merge_shape(
    relations: int, entities: int, width: int, dtype: torch.dtype
) -> tuple[dict[str, Any], int, int]:
    """Return the launch arguments of a merge of relations and entities, and the numbers of programs.

    A program takes a block of columns. It loads enough parts at once to hide the memory latency. Relations
    are few rows with many parts, so their block is narrow.

    Returns:
        The launch arguments, the number of programs, and the number of programs for relations.
    """
    scale = sum_type(dtype).itemsize // 4
    padded = triton.next_power_of_2(width)
    columns, columns_long = min(padded, 64), min(padded, 16)
    relation_programs = relations * triton.cdiv(width, columns_long)
    shape = {
        "WIDTH": width,
        "BLOCK_P": 16 // scale,
        "BLOCK_C": columns,
        "BLOCK_P_LONG": 64 // scale,
        "BLOCK_C_LONG": columns_long,
        "ACC": accumulator(dtype),
        **_options(1, 128),
    }
    return shape, relation_programs + entities * triton.cdiv(width, columns), relation_programs


def _options(warps: int, registers: int) -> dict[str, Any]:
    """Return the compiler options."""
    options = {"num_warps": warps, **OPTIONS}
    if _is_nvidia():
        options["maxnreg"] = min(registers, _REGISTERS // (32 * warps))
    return options


def accumulator(dtype: torch.dtype) -> Any:
    """Return Triton's type of the sums over rows of this dtype."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """Return PyTorch's dtype of the sums over rows of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_narrow(dtype: torch.dtype) -> bool:
    """Return whether rows of this dtype are rounded when stored, so that their sums must be kept too."""
    return dtype.itemsize < 4


def warp_size() -> int:
    """Return the number of lanes per warp of the current device."""
    if triton.knobs.runtime.interpret:
        return 32
    return int(driver.active.get_current_target().warp_size)


def _is_nvidia() -> bool:
    """Return whether the current device is an NVIDIA GPU."""
    return not triton.knobs.runtime.interpret and driver.active.get_current_target().backend == "cuda"


def _target() -> str:
    """Return the architecture of the current device."""
    if triton.knobs.runtime.interpret:
        return "interpreter"
    return str(driver.active.get_current_target().arch)
