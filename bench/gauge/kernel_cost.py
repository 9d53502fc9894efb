"""Show the cost of the Triton layer, on any machine: ``python -m bench.gauge.kernel_cost``.

The report is for one target, width, dtype, score and kind of rows. It shows the registers and spills of each
kernel. For each innermost loop it shows the warp instructions, the loads of rows, and the exposed round trips
to memory. Instructions per context triple count the loops that gather rows, with every data-dependent branch
taken. The report also shows the bytes that a layer moves.
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

ENTITY_ROWS = 4  # per context triple: e_t in both passes of the forward and of the backward
GRADIENT_ROWS = 2  # per context triple: g_t in both passes of the backward
OWN_ROWS = 7  # per entity or relation: old and new in the forward; gradients; three for the row products
OTHER_BYTES = 136  # per context triple: ids, scores, and the record between the backward's passes
NVIDIA = tuple(name for name, target in TARGETS.items() if target.backend == "cuda")


@dataclass(frozen=True)
class LoopCost:
    """An innermost loop.

    Attributes:
        instructions: instructions of the body, per warp.
        row_loads: number of instructions that load rows.
        row_bytes: bytes of rows that these load, per lane.
        round_trips: memory round trips that one iteration waits for.
        triples: context triples per iteration of a warp; None if the loop does not process triples.
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
        """Warp instructions per context triple in the loop that gathers rows; 0 for merges."""
        return sum(loop.instructions / loop.triples for loop in self.loops if loop.triples)


def layer_cost(target: str, width: int, dtype: str, score: str, rows: str = "float32") -> list[KernelCost]:
    """Return the cost of the kernels of one layer with a mask, forward and backward."""
    launches = launch_layer(target, width=width, dtype=DTYPES[dtype], score=score, rows=rows)
    return [kernel_cost(launch) for launch in launches]


def kernel_cost(launch: Launch) -> KernelCost:
    """Analyze the compiled code of a launch (NVIDIA only)."""
    used = resources(launch)
    loops = []
    for body in program(launch).innermost:
        loads = row_loads(body)
        # several warps share a wide row
        triples = _triples(launch) / launch.num_warps if loads else 0
        loaded = sum(map(load_bytes, loads))
        loops.append(LoopCost(len(body), len(loads), loaded, round_trips(body), triples or None))
    spills = used.spills + used.stack + used.local
    return KernelCost(launch.name, launch.num_warps, used.registers, used.shared, spills, loops)


def _triples(launch: Launch) -> int:
    """Return the context triples per iteration of a program."""
    _, _, kernel = launch.name.partition(".")
    if kernel not in ("relation_pass", "entity_pass"):
        return 0
    inverses = 2 if "raw_ptr" in launch.arguments else 1  # a raw triple is processed with its inverse
    return inverses * int(launch.arguments["BLOCK_E"])


def layer_bytes(triples: int, rows: int, row_bytes: int, read_bytes: int | None = None) -> int:
    """Return the bytes that a layer moves, forward and backward, if no cache serves a gathered row twice.

    The result leaves out the relation rows that triples gather, because they stay in the caches. It also
    leaves out parts of cut rows.

    Args:
        triples: E, context triples.
        rows: N + 2R, entities and relations.
        row_bytes: bytes per row.
        read_bytes: bytes per entity row if triples read a narrower copy. The cost of the copy is left out.
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
        f"{layer_bytes(1, 0, row_bytes, 2 * arguments.width if half else None):,} bytes per context triple, "
        f"{layer_bytes(0, 1, row_bytes):,} per entity or relation\n"
    )
    print(_table(kernels))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser("python -m bench.gauge.kernel_cost", "Show the cost of the Triton layer.")
    parser.add_argument("--target", choices=NVIDIA, default="sm_90")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--score", choices=tuple(SCORES), default="distmult")
    parser.add_argument(
        "--rows", choices=ROWS, default="float32", help="as in context_layer; only with --dtype float32"
    )
    parser.add_argument("--json", action="store_true", help="print JSON with one entry per kernel")
    arguments = parser.parse_args(argv)
    if arguments.width < 1:
        raise InputError(f"--width: expected at least 1, got {arguments.width}")
    if arguments.rows == "bfloat16" and arguments.dtype != "float32":
        raise InputError(f"--rows bfloat16: expected --dtype float32, got {arguments.dtype}")
    return arguments


def _table(kernels: Sequence[KernelCost]) -> str:
    """Format one line per kernel, followed by one line per loop."""
    lines = [
        f"{'kernel and its loops':32} warps registers shared spills instructions row loads round trips  "
        "/ context triple"
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
