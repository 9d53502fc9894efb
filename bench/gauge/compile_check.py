"""Compile every kernel for GPUs that need not be present, and check the machine code.

Run ``python -m bench.gauge.compile_check``. A kernel passes if:

- it has no spills and uses no local memory;
- it loads rows 16 bytes at a time (8 bytes for a 16-bit copy, which is the same count of numbers);
- loops that one warp runs alone have no barrier, except the accepted ones below;
- each loop waits for memory at most twice per iteration.

Failures name the kernel and the target.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import torch

from bench.gauge.launches import (
    TARGETS,
    Launch,
    launch_layer,
    load_bytes,
    program,
    record,
    resources,
    row_loads,
)
from bench.gauge.round_trips import round_trips
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.kernels.scores import SCORES
from lightcake_fast.segments import Segments

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROW_BYTES = 16  # bytes of a row that a lane loads at once
ROUND_TRIPS = 2  # accepted waits for memory per iteration of a loop
# Accepted barriers in loops. The merge of a cut row has one barrier per 32 parts, which was under 0.1
# barriers per context triple on all four data sets.
PAID_BARRIERS = {"gpu_merge.merge_pass": 1}


@dataclass(frozen=True)
class Check:
    """One kernel, compiled for one configuration and one target.

    Attributes:
        problems: problems of the machine code; empty if there are none.
    """

    target: str
    kernel: str
    width: int
    dtype: str
    score: str
    context: str
    masked: bool
    rows: str
    registers: int
    problems: list[str]


@dataclass(frozen=True)
class Case:
    """A layer to compile. The score "segments" stands for the general op."""

    target: str
    width: int = 256
    dtype: str = "float32"
    score: str = "distmult"
    context: str = "both"
    masked: bool = True
    rows: str = "float32"


def cases(
    targets: Sequence[str], scores: Sequence[str] = tuple(SCORES), *, everything: bool = False
) -> Iterator[Case]:
    """List the layers to compile: each target at d = 256.

    With ``everything``, the list also has contexts, masks, dtypes and widths.
    """
    for target, dtype, score in itertools.product(targets, ("float32", "bfloat16"), (*scores, "segments")):
        if score != "segments" or dtype == "float32":
            yield Case(target, dtype=dtype, score=score)
    if everything:
        for target, score in itertools.product(targets, scores):
            yield Case(target, score=score, masked=False)
            yield Case(target, score=score, context="entity")
            yield Case(target, score=score, context="relation")
            for width in (64, 128, 256, 512):
                yield Case(target, width, score=score, rows="bfloat16")
        widths = (64, 100, 128, 512, 1024, 2048)
        for target, dtype, score, width in itertools.product(targets, DTYPES, (*scores, "segments"), widths):
            yield Case(target, width, dtype, score)


def check(case: Case) -> list[Check]:
    """Compile the kernels of a case and check each."""
    return [
        Check(
            **asdict(case),
            kernel=launch.name,
            registers=resources(launch).registers,
            problems=problems(launch),
        )
        for launch in _launches(case)
    ]


def problems(launch: Launch) -> list[str]:
    """List the problems of a kernel's machine code."""
    used = resources(launch)
    found = [
        f"{amount} {what}"
        for amount, what in (
            (used.spills, "spills"),
            (used.local, "bytes of local memory"),
            (used.stack, "bytes of stack"),
        )
        if amount
    ]
    aligned = launch.arguments["WIDTH"] * _row_itemsize(launch) % ROW_BYTES == 0
    if launch.compiled.metadata.target.backend != "cuda":
        if aligned and "dwordx4" not in launch.compiled.asm["amdgcn"]:
            found.append("no load of 16 bytes")
        return found
    code = program(launch)
    least = ROW_BYTES // 2 if _reads_a_copy(launch) else ROW_BYTES
    narrow = [i.opcode for i in row_loads(code.instructions) if load_bytes(i) < least]
    if aligned and narrow:
        found.append(f"{len(narrow)} narrow loads of rows: {narrow[0]}")
    waits = max((round_trips(body) for body in code.innermost), default=0)
    if waits > ROUND_TRIPS:
        found.append(f"a loop that waits for memory {waits} times per iteration")
    if launch.num_warps == 1:
        barriers = sum(i.opcode.startswith("BAR") for loop in code.loops for i in code.body(loop))
        if barriers > PAID_BARRIERS.get(launch.name, 0):
            found.append(f"{barriers} barriers in loops of one warp")
    return found


def _row_itemsize(launch: Launch) -> int:
    rows = [t for t in launch.arguments.values() if isinstance(t, torch.Tensor) and t.ndim >= 2]
    return min((t.dtype.itemsize for t in rows if t.is_floating_point()), default=4)


def _reads_a_copy(launch: Launch) -> bool:
    """Return whether the kernel reads 16-bit entities together with 32-bit relations."""
    x, y = launch.arguments.get("x_ptr"), launch.arguments.get("y_ptr")
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype != y.dtype


def _launches(case: Case) -> list[Launch]:
    dtype = DTYPES[case.dtype]
    if case.score != "segments":
        options: dict[str, Any] = {
            "score": case.score,
            "context": case.context,
            "masked": case.masked,
            "rows": case.rows,
        }
        return launch_layer(case.target, width=case.width, dtype=dtype, **options)
    from lightcake_fast.kernels import gpu_segments

    index = torch.randint(4, (1000,))  # four rows that are gathered often, so they are cut
    bounds = torch.tensor([0, 200, *range(202, 1002, 2)])
    segments = Segments.from_csr(bounds, index, 4)
    values, s = torch.zeros(4, 1, case.width, dtype=dtype), torch.zeros(1000, 1)  # one head
    count = segments.num_segments

    def op() -> None:
        out, norm = gpu_segments.forward(s, values, segments.plan, count)
        gpu_segments.backward(out.to(dtype), s, values, out, norm, segments.plan)

    return record(case.target, op)


def check_all(chosen: Sequence[Case], processes: int) -> list[Check]:
    """Compile cases in several processes.

    One process compiles all cases of a target, because they share kernels.
    """
    targets = sorted({case.target for case in chosen}, key=lambda t: -sum(c.target == t for c in chosen))
    groups = [[case for case in chosen if case.target == target] for target in targets]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return [one for found in pool.map(_check_group, groups) for one in found]


def _check_group(group: Sequence[Case]) -> list[Check]:
    return [one for case in group for one in check(case)]


def main(argv: Sequence[str]) -> int:
    """Print the number of compiled kernels and the problems. Return 1 if there are problems."""
    parser = ArgumentParser("python -m bench.gauge.compile_check", "Compile every kernel for absent GPUs.")
    parser.add_argument("--target", nargs="*", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--score", nargs="*", choices=tuple(SCORES), default=list(SCORES))
    parser.add_argument(
        "--everything", action="store_true", help="also contexts, widths and dtypes (takes many minutes)"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--json", action="store_true", help="print JSON with one entry per kernel")
    arguments: argparse.Namespace = parser.parse_args(argv)
    chosen = cases(arguments.target, arguments.score, everything=arguments.everything)
    checks = check_all(list(chosen), arguments.processes)
    bad = [one for one in checks if one.problems]
    if arguments.json:
        print(json.dumps([asdict(one) for one in checks], indent=1))
    else:
        for one in bad:
            print(
                f"{one.kernel} on {one.target}, d = {one.width}, {one.dtype}, {one.score}, {one.context}"
                f"{', masked' if one.masked else ''}{f', rows {one.rows}' if one.rows != 'float32' else ''}: "
                f"{'; '.join(one.problems)}"
            )
        print(f"{len(checks)} kernels compiled, {len(bad)} with problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(run(main))
