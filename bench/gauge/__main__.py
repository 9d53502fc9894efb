"""Compile every kernel for GPUs that need not be present, and check the machine code.

``python -m bench.gauge`` shows registers and spills of each kernel. For each innermost loop it shows the
instructions per warp, the loads of rows, and the exposed round trips to memory. The last column is the number
of instructions per context triple, with every data-dependent branch taken. A kernel passes if:

- it has no spills and uses no local memory;
- it loads rows 16 bytes at a time (8 bytes for a 16-bit copy, which is the same count of numbers);
- each loop waits for memory at most twice per iteration;
- loops that one warp runs alone have no barrier, except the accepted ones below.
"""

import argparse
import functools
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from bench.gauge.disassembly import Instruction, Program, round_trips
from bench.gauge.launches import DTYPES, SEGMENTS, TARGETS, Case, Launch, launches
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.kernels import gpu_tiles
from lightcake_fast.kernels.scores import SCORES
from lightcake_fast.ops import ROWS

ROW_BYTES = 16  # bytes of a row that a lane loads at once
ROUND_TRIPS = 2  # accepted waits for memory per iteration of a loop
# Accepted barriers in loops. The merge of a cut row has one barrier per 32 parts, which was under 0.1
# barriers per context triple on all four data sets.
BARRIERS = {"gpu_merge.merge_pass": 1}


@dataclass(frozen=True)
class Loop:
    """An innermost loop.

    Attributes:
        instructions: instructions of the body, per warp.
        row_loads: number of instructions that load rows.
        row_bytes: bytes of rows that these load, per lane.
        round_trips: memory round trips that one iteration waits for.
        triples: context triples per iteration of a warp; None if the loop does not gather rows of triples.
    """

    instructions: int
    row_loads: int
    row_bytes: int
    round_trips: int
    triples: float | None


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel of a case.

    Attributes:
        case: the layer.
        name: name of the kernel with its module.
        num_warps: warps per program.
        registers: registers per thread; vector registers on AMD.
        shared: bytes of shared memory per program.
        spills: spilled registers, plus bytes of stack and local memory per thread.
        loops: the innermost loops (NVIDIA only).
        problems: problems of the machine code; empty if there are none.
    """

    case: Case
    name: str
    num_warps: int
    registers: int
    shared: int
    spills: int
    loops: list[Loop]
    problems: list[str]


def measure(case: Case) -> list[Kernel]:
    """Compile the kernels of a case and check each."""
    return [_measure(case, launch) for launch in launches(case)]


def _measure(case: Case, launch: Launch) -> Kernel:
    compiled = launch.compiled
    aligned = launch.arguments["WIDTH"] * _row_itemsize(launch) % ROW_BYTES == 0
    loops: list[Loop] = []
    if compiled.metadata.target.backend == "hip":
        text = compiled.asm["amdgcn"]
        registers, shared = (
            _number(text, f".{name}:") for name in ("vgpr_count", "group_segment_fixed_size")
        )
        spilled = (".vgpr_spill_count:", ".sgpr_spill_count:", ".private_segment_fixed_size:")
        spills = sum(_number(text, label) for label in spilled)
        problems = ["no load of 16 bytes"] if aligned and "dwordx4" not in text else []
    else:
        code, usage = _program(compiled), _usage(compiled)
        registers, shared = _number(usage, "REG:"), int(compiled.metadata.shared)
        spills = sum(one.opcode.startswith(("LDL", "STL")) for one in code.instructions)
        spills += _number(usage, "STACK:") + _number(usage, "LOCAL:")
        loops = [_loop(body, launch) for body in code.innermost]
        problems = list(_problems(launch, code, loops, aligned))
    problems += [f"{spills} spills or bytes of local memory"] if spills else []
    return Kernel(
        case, launch.name, launch.compiled.metadata.num_warps, registers, shared, spills, loops, problems
    )


def _loop(body: Sequence[Instruction], launch: Launch) -> Loop:
    loads = row_loads(body)
    triples = 0.0
    if loads and launch.name.endswith((".relation_pass", ".entity_pass")):
        inverses = 2 if "raw_ptr" in launch.arguments else 1  # a raw triple is processed with its inverse
        triples = (
            inverses * launch.arguments["BLOCK_E"] / launch.compiled.metadata.num_warps
        )  # several warps share a wide row
    return Loop(len(body), len(loads), sum(one.bytes for one in loads), round_trips(body), triples or None)


def _problems(launch: Launch, code: Program, loops: Sequence[Loop], aligned: bool) -> Iterator[str]:
    x, y = launch.arguments.get("x_ptr"), launch.arguments.get("y_ptr")
    copied = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype != y.dtype
    least = ROW_BYTES // 2 if copied else ROW_BYTES  # a copy has 16-bit entities and 32-bit relations
    narrow = [one for one in row_loads(code.instructions) if one.bytes < least]
    if aligned and narrow:
        yield f"{len(narrow)} narrow loads of rows: {narrow[0].text}"
    waits = max((loop.round_trips for loop in loops), default=0)
    if waits > ROUND_TRIPS:
        yield f"a loop that waits for memory {waits} times per iteration"
    barriers = sum(one.opcode.startswith("BAR") for body in code.loops for one in body)
    if launch.compiled.metadata.num_warps == 1 and barriers > BARRIERS.get(launch.name, 0):
        yield f"{barriers} barriers in loops of one warp"


def _row_itemsize(launch: Launch) -> int:
    rows = [t for t in launch.arguments.values() if isinstance(t, torch.Tensor) and t.ndim >= 2]
    return min((t.dtype.itemsize for t in rows if t.is_floating_point()), default=4)


def row_loads(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Return the instructions that load rows. They come from two functions of ``gpu_tiles``."""
    lines = _row_lines()
    return [one for one in instructions if one.opcode.startswith("LDG") and lines.intersection(one.frames)]


@functools.cache
def _row_lines() -> set[tuple[str, int]]:
    found = set()
    for function in (gpu_tiles.load_tile, gpu_tiles.load_row):
        code = function.fn.__code__
        last = code.co_firstlineno + len(function.src.splitlines()) + 1
        found |= {(code.co_filename, line) for line in range(code.co_firstlineno, last + 1)}
    return found


@functools.cache
def _program(compiled: Any) -> Program:
    # -ndf skips the data-flow analysis, which only finds the targets of BSYNC and takes half of the time
    return Program(_tool("nvdisasm", "-gi", "-ndf", "-c", binary=compiled.asm["cubin"]))


@functools.cache
def _usage(compiled: Any) -> str:
    return _tool("cuobjdump", "-res-usage", binary=compiled.asm["cubin"])


def _tool(name: str, *flags: str, binary: bytes) -> str:
    """Run a tool of Triton's wheel on a binary."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([path, *flags, file.name], check=True, capture_output=True, text=True).stdout


def _number(text: str, label: str) -> int:
    """Return the number after a label. The label must exist."""
    return int(text[text.index(label) + len(label) :].split()[0])


def cases(arguments: argparse.Namespace) -> list[Case]:
    """List the layers to compile. ``--everything`` adds contexts, masks, widths and dtypes."""
    targets, scores = arguments.target, arguments.score
    listed = [
        Case(target, width, dtype, score, rows=rows)
        for target, width, dtype, score, rows in itertools.product(
            targets, arguments.width, arguments.dtype, scores, arguments.rows
        )
        if rows == "float32" or (dtype == "float32" and score != SEGMENTS)
    ]
    if arguments.everything:
        for target, score in itertools.product(targets, set(scores) - {SEGMENTS}):
            listed += [Case(target, score=score, masked=False)]
            listed += [Case(target, score=score, context=context) for context in ("entity", "relation")]
            listed += [Case(target, width, score=score, rows="bfloat16") for width in (64, 128, 256, 512)]
        widths = (64, 100, 128, 512, 1024, 2048)
        listed += [Case(*values) for values in itertools.product(targets, widths, DTYPES, scores)]
    return listed


def main(argv: Sequence[str]) -> int:
    """Print the report. Return 1 if there are problems."""
    parser = ArgumentParser(
        "python -m bench.gauge", "Compile every kernel for absent GPUs and check the code."
    )
    scores = (*SCORES, SEGMENTS)
    parser.add_argument("--target", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--score", nargs="+", choices=scores, default=list(scores))
    parser.add_argument("--width", nargs="+", type=int, default=[256], metavar="D")
    parser.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), default=["float32", "bfloat16"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["float32"], help="as in context_layer")
    parser.add_argument(
        "--everything", action="store_true", help="also contexts, masks, widths and dtypes (slow)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON per kernel")
    arguments = parser.parse_args(argv)
    compiled = bad = 0
    for case in cases(arguments):
        kernels = measure(case)
        compiled, bad = compiled + len(kernels), bad + sum(bool(one.problems) for one in kernels)
        lines = (json.dumps(asdict(one)) for one in kernels) if arguments.json else table(case, kernels)
        print(*lines, sep="\n", flush=True)
    if not arguments.json:
        print(f"{compiled} kernels compiled, {bad} with problems")
    return 1 if bad else 0


def table(case: Case, kernels: Sequence[Kernel]) -> Iterator[str]:
    """Give one line per kernel, followed by one line per loop and per problem."""
    options = f"{case.dtype}, rows {case.rows}, context {case.context}{', masked' if case.masked else ''}"
    yield f"{case.target}, {case.score}, d = {case.width}, {options}"
    yield f"{'kernel':28} warps registers shared spills instructions row loads round trips  / triple"
    total = 0.0
    for one in kernels:
        yield f"{one.name:28} {one.num_warps:5} {one.registers:9} {one.shared:6} {one.spills:6}"
        for loop in one.loops:
            share = loop.instructions / loop.triples if loop.triples else 0.0
            total += share
            cells = f"{loop.instructions:12} {loop.row_loads:9} {loop.round_trips:11}"
            yield f"{'':58} {cells} {share:9.1f}" if share else f"{'':58} {cells}"
        yield from (f"  problem: {problem}" for problem in one.problems)
    yield f"{'sum':92}{total:9.1f}\n"


if __name__ == "__main__":
    sys.exit(run(main))
