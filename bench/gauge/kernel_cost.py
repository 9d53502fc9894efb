"""What the Triton layer is made of, on any machine: ``python -m bench.gauge.kernel_cost``.

For a target, width, type, score and kind of rows: registers and spills of each kernel, and of each innermost
loop its warp instructions, its loads of rows and its exposed round trips to memory. Instructions a context
triple are those of the loops that gather rows, in which branches on data count as always taken. Beside them
stand the bytes that a layer moves.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.gauge.compile_check import DTYPES
from bench.gauge.launches import (
    TARGETS,
    Launch,
    launch_layer,
    load_bytes,
    program,
    resources,
    row_loads,
)
from bench.gauge.round_trips import round_trips
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.errors import InputError
from lightcake_fast.kernels.scores import SCORES
from lightcake_fast.ops import ROWS

ENTITY_ROWS = 4  # a context triple: e_t in both passes of the forward and of the backward
GRADIENT_ROWS = 2  # a context triple: g_t in both passes of the backward
OWN_ROWS = 7  # an entity or relation: old and new in the forward; gradients; three for the row products
OTHER_BYTES = 136  # a context triple: ids, scores, and the record that the backward's passes hand on
NVIDIA = tuple(name for name, target in TARGETS.items() if target.backend == "cuda")


@dataclass(frozen=True)
class LoopCost:
    """An innermost loop.

    Attributes:
        instructions: of its body, for a warp.
        row_loads: how many of them load rows.
        row_bytes: that these load for a lane.
        round_trips: those to memory that a trip through the loop waits for.
        triples: context triples that a trip of a warp settles; None for a loop over something else.
    """

    instructions: int
    row_loads: int
    row_bytes: int
    round_trips: int
    triples: float | None


@dataclass(frozen=True)
class KernelCost:
    """One launch of a layer."""

    name: str
    num_warps: int
    registers: int
    shared: int
    spills: int
    loops: list[LoopCost]

    @property
    def instructions(self) -> float:
        """Warp instructions a context triple in the loop that gathers rows; 0 for merges."""
        return sum(loop.instructions / loop.triples for loop in self.loops if loop.triples)


def layer_cost(target: str, width: int, dtype: str, score: str, rows: str = "float32") -> list[KernelCost]:
    """The kernels of one layer with a mask, forward and backward."""
    launches = launch_layer(target, width=width, dtype=DTYPES[dtype], score=score, rows=rows)
    return [kernel_cost(launch) for launch in launches]


def kernel_cost(launch: Launch) -> KernelCost:
    """Look at what was compiled for a launch (NVIDIA only)."""
    used = resources(launch)
    loops = []
    for body in program(launch).innermost:
        loads = row_loads(body)
        # a wide row is shared by several warps
        triples = _triples(launch) / launch.num_warps if loads else 0
        loaded = sum(map(load_bytes, loads))
        loops.append(LoopCost(len(body), len(loads), loaded, round_trips(body), triples or None))
    spills = used.spills + used.stack + used.local
    return KernelCost(launch.name, launch.num_warps, used.registers, used.shared, spills, loops)


def _triples(launch: Launch) -> int:
    """Context triples that a trip of a program settles."""
    _, _, kernel = launch.name.partition(".")
    if kernel not in ("relation_pass", "entity_pass"):
        return 0
    inverses = 2 if "raw_ptr" in launch.arguments else 1  # a raw triple is settled with its inverse
    return inverses * int(launch.arguments["BLOCK_E"])


def layer_bytes(triples: int, rows: int, row_bytes: int, read_bytes: int | None = None) -> int:
    """Bytes that a layer moves, forward and backward, if no cache serves a gathered row twice.

    Relation rows that triples gather are left out, since the caches hold them, and so are parts of cut rows.

    Args:
        triples: E, context triples.
        rows: N + 2R, entities and relations.
        row_bytes: of one row.
        read_bytes: of one entity's row where triples read a narrower copy, whose making is left out.
    """
    read = row_bytes if read_bytes is None else read_bytes
    gathered = ENTITY_ROWS * read + GRADIENT_ROWS * row_bytes
    return triples * (gathered + OTHER_BYTES) + rows * OWN_ROWS * row_bytes


def main(argv: Sequence[str]) -> None:
    """Print the report."""
    arguments = _parse(argv)
    chosen = arguments.target, arguments.width, arguments.dtype, arguments.score, arguments.rows
    kernels = layer_cost(*chosen)
    if arguments.json:
        print(json.dumps([{**asdict(one), "instructions": one.instructions} for one in kernels], indent=1))
        return
    row_bytes = arguments.width * DTYPES[arguments.dtype].itemsize
    half = arguments.rows == "bfloat16"
    print(
        f"{arguments.target}, {arguments.score}, d = {arguments.width}, {arguments.dtype}"
        f"{', triples read bfloat16' * half}; one layer, forward and backward, with a mask\n"
        f"{layer_bytes(1, 0, row_bytes, 2 * arguments.width if half else None):,} bytes a context triple, "
        f"{layer_bytes(0, 1, row_bytes):,} an entity or relation\n"
    )
    print(_table(kernels))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser("python -m bench.gauge.kernel_cost", "Show what the Triton layer is made of.")
    parser.add_argument("--target", choices=NVIDIA, default="sm_90")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--score", choices=tuple(SCORES), default="distmult")
    parser.add_argument("--rows", choices=ROWS, default="float32", help="as in context_layer, of float32")
    parser.add_argument("--json", action="store_true", help="print JSON, a kernel an entry")
    arguments = parser.parse_args(argv)
    if arguments.width < 1:
        raise InputError(f"--width: got {arguments.width}, wanted at least 1")
    if arguments.rows == "bfloat16" and arguments.dtype != "float32":
        raise InputError(f"--rows: got 'bfloat16' with --dtype {arguments.dtype}, wanted float32")
    return arguments


def _table(kernels: Sequence[KernelCost]) -> str:
    """A row a kernel, and below it one for each of its loops."""
    lines = [
        f"{'kernel, and its loops':32} warps registers shared spills instructions row loads round trips  "
        "a context triple"
    ]
    for kernel in kernels:
        lines.append(
            f"{kernel.name:32} {kernel.num_warps:5} {kernel.registers:9} {kernel.shared:6} {kernel.spills:6}"
        )
        for loop in kernel.loops:
            share = f"{loop.instructions / loop.triples:17.1f}" if loop.triples else ""
            lines.append(f"{'':62} {loop.instructions:12} {loop.row_loads:9} {loop.round_trips:11} {share}")
    total = sum(kernel.instructions for kernel in kernels)
    return "\n".join([*lines, f"{'sum':98}{total:17.1f}"])


if __name__ == "__main__":
    sys.exit(run(main))
