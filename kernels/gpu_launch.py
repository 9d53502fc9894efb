"""Launch shapes of the Triton kernels, in one place: rows side by side, columns of a tile, warps.

Shipped by kernel, width, type and target, or kept by ``gpu_tune`` for the process; never by the graph's size.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from lightcake_fast.kernels.plan import GPU_SIDE_BY_SIDE

# Numbers of a row tile in each lane, a quarter of them in float64: more share loads of ids, softmax and
# loop, fewer leave registers for more warps. One warp to a program while its rows fit: no barrier is needed.
LANE_VALUES = {
    "forward.relation_pass": 32,
    "forward.entity_pass": 32,
    "backward.row_dot_pass": 32,
    "backward.relation_pass": 16,
    "backward.entity_pass": 32,
}
# Registers that NVIDIA's assembler may take for rows in two columns, of one warp. Left alone it saves them:
# it puts loads of rows next to their uses, nine round trips to memory a trip instead of one on sm_90, and
# spills on sm_120.
REGISTERS = {"backward.entity_pass": 224}
_kept: dict[tuple[str, int, torch.dtype, str], int] = {}  # the same by kernel, width, type and target
_LOAD_BYTES = 16
# Triton 3.10 turns fused multiply-adds off unless asked; loops are pipelined by hand, over ids alone
OPTIONS: dict[str, Any] = {"num_stages": 1, "enable_fp_fusion": True}


def row_shape(kernel: str, width: int, dtype: torch.dtype, columns: int = 1) -> dict[str, Any]:
    """Launch arguments of a kernel over rows of this width and type: block sizes, warps, options.

    Of rows in several columns, a tile holds entries of one.
    """
    lanes, entries = warp_size(), triton.next_power_of_2(width // columns)
    padded = columns * entries
    shipped = LANE_VALUES[kernel] // (4 if dtype == torch.float64 else 1)
    values = _kept.get((kernel, width, dtype, _target()), shipped) * lanes
    rows = min(max(values // padded, 1), GPU_SIDE_BY_SIDE)
    warps = min(max(padded // values, 1), 16)
    loaded = max(_LOAD_BYTES // dtype.itemsize * lanes * warps // rows, 1)
    told = columns > 1 and warps == 1 and kernel in REGISTERS and _target().isdigit()
    return {
        "WIDTH": width,
        "BLOCK_E": rows,
        "BLOCK_D": min(entries, loaded),
        "ACC": accumulator(dtype),
        "num_warps": warps,
        **({"maxnreg": REGISTERS[kernel]} if told else {}),
        **OPTIONS,
    }


def keep_lane_values(kernel: str, width: int, dtype: torch.dtype, values: int) -> None:
    """Launch a kernel over rows of this width and type with so many numbers a lane, on this target."""
    _kept[kernel, width, dtype, _target()] = values


def merge_shape(long_rows: bool, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Launch arguments of a merge of few rows of many parts, or of many of few.

    A program takes a block of columns: of long rows a narrow one, to have many parts on the way at once.
    """
    parts, columns = (32, 16) if long_rows else (16 // sum_type(dtype).itemsize, 256)
    return {
        "WIDTH": width,
        "BLOCK_P": parts,
        "BLOCK_C": min(triton.next_power_of_2(width), columns),
        "ACC": accumulator(dtype),
        "num_warps": 1,
        **OPTIONS,
    }


def layer_merge_shape(
    relations: int, entities: int, width: int, dtype: torch.dtype
) -> tuple[dict[str, Any], int, int]:
    """Launch arguments of a merge of relations, then of entities; how many programs, and of relations."""
    shape, relation_shape = merge_shape(False, width, dtype), merge_shape(True, width, dtype)
    relation_programs = relations * triton.cdiv(width, relation_shape["BLOCK_C"])
    programs = relation_programs + entities * triton.cdiv(width, shape["BLOCK_C"])
    shape |= {"BLOCK_P_LONG": relation_shape["BLOCK_P"], "BLOCK_C_LONG": relation_shape["BLOCK_C"]}
    return shape, programs, relation_programs


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


def _target() -> str:
    """The kind of device that kernels are launched on."""
    if triton.knobs.runtime.interpret:
        return "interpreter"
    return str(driver.active.get_current_target().arch)
