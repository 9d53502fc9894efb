"""Launch shapes of the Triton kernels, in one place: rows side by side, columns of a tile, warps, registers.

Shipped by kernel, width, type and target, or kept by ``gpu_tune`` for the process; never by the graph's size.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from lightcake_fast.kernels.plan import GPU_SIDE_BY_SIDE


class Shape(NamedTuple):
    """What a kernel's launch is made from.

    Attributes:
        values: numbers of a row tile in each lane, a quarter of them in float64: more share loads of ids,
            softmax and loop, fewer leave registers for more warps. One warp to a program while its rows fit:
            no barrier is needed.
        registers: that NVIDIA's assembler may take for a lane. Left alone it saves them by moving each load
            of a row next to its use, and a trip of the loop waits for memory once a tile.
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
_kept: dict[tuple[str, int, torch.dtype, str], Shape] = {}  # the same by kernel, width, type and target
_LOAD_BYTES = 16
_REGISTERS = 65536  # of a multiprocessor, which a program's lanes must share
# Triton 3.10 turns fused multiply-adds off unless asked; loops are pipelined by hand, over ids alone
OPTIONS: dict[str, Any] = {"num_stages": 1, "enable_fp_fusion": True}


def row_shape(kernel: str, width: int, dtype: torch.dtype, columns: int = 1) -> dict[str, Any]:
    """Launch arguments of a kernel over rows of this width and type: block sizes, warps, options.

    Of rows in several columns, a tile holds entries of one.
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
    """Launch a kernel over rows of this width and type in this shape, on this target."""
    _kept[kernel, width, dtype, _target()] = shape


def merge_shape(
    relations: int, entities: int, width: int, dtype: torch.dtype
) -> tuple[dict[str, Any], int, int]:
    """Launch arguments of a merge of relations, then of entities; how many programs, and of relations.

    A program takes a block of columns, and so many parts at once that their loads hide one another's wait: of
    relations, few rows of many parts, a narrow block.
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
    """What is said to the compiler."""
    options = {"num_warps": warps, **OPTIONS}
    if _is_nvidia():
        options["maxnreg"] = min(registers, _REGISTERS // (32 * warps))
    return options


def accumulator(dtype: torch.dtype) -> Any:
    """Triton's type of the sums over rows of this type."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """PyTorch's type of the sums over rows of this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether rows of this type are rounded when stored, so that their sums are kept as well."""
    return dtype.itemsize < 4


def warp_size() -> int:
    """Lanes of a warp on the device that kernels are launched on."""
    if triton.knobs.runtime.interpret:
        return 32
    return int(driver.active.get_current_target().warp_size)


def _is_nvidia() -> bool:
    """Whether kernels are launched on NVIDIA's cards."""
    return not triton.knobs.runtime.interpret and driver.active.get_current_target().backend == "cuda"


def _target() -> str:
    """The kind of device that kernels are launched on."""
    if triton.knobs.runtime.interpret:
        return "interpreter"
    return str(driver.active.get_current_target().arch)
