"""The gauge reads machine code correctly, and the kernels meet their bounds on absent GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton

from bench.gauge.disassembly import Program
from bench.gauge.kernel_cost import KernelCost, LoopCost
from bench.gauge.round_trips import round_trips
from bench.gauge.time_model import Card, Work, limits, resident
from lightcake_fast.scores import FUSED

ROOT = Path(__file__).resolve().parents[2]
# warp instructions per context triple in the loops over rows, from Triton 3.9 on; older versions emit more
BOUNDED = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
BOUNDS = {"distmult": 235, "transe": 245, "complex": 295, "simple": 270, "rotate": 340}
OTHERS = ("sm_80", "sm_89", "sm_100", "sm_120", "gfx942")  # targets of the full run
QUICK = ("distmult", "transe")  # scores of the quick run
KERNELS = {
    *("gpu_forward.relation_pass", "gpu_forward.entity_pass", "gpu_merge.merge_pass", "gpu_merge.sum_pass"),
    *("gpu_backward.row_dot_pass", "gpu_backward.relation_pass", "gpu_backward.entity_pass"),
    *("gpu_segments.softmax_pass", "gpu_segments.slope_pass", "gpu_segments.gather_pass"),
}


def program(*lines: str) -> Program:
    """Make a program from lines such as `body: LDG.E R1, [R2]`: an optional label and the code."""
    text = ["", ".text.kernel:"]
    for number, line in enumerate(lines):
        label, _, code = line.rpartition(": ")
        text += [f".L_{label}:"] if label else []
        text.append(f"        /*{16 * number:04x}*/   {code} ;")
    return Program("\n".join(text))


def codes(program: Program) -> list[list[str]]:
    return [[one.opcode for one in body] for body in program.innermost]


def test_loops_end_with_their_code() -> None:
    found = program(
        "@P0 BRA `(.L_end)",
        "outer: MOV R1, R2",
        "inner: LDG.E R3, [R4]",
        "@P1 BRA `(.L_inner)",
        "FADD R5, R5, R3",
        "@!P2 BRA `(.L_outer)",
        "end: EXIT",
        "FMUL R5, R5, R5",
    )
    assert codes(found) == [["LDG.E", "BRA"]]
    assert [len(found.body(loop)) for loop in found.loops] == [5, 2]
    assert len(found.instructions) == 7, "what nothing leads to is left out"


def test_out_of_line_code_belongs_to_its_loop() -> None:
    found = program(
        "loop: LDG.E R3, [R4]",
        "@P0 BRA `(.L_rare)",
        "back: FADD R5, R5, R3",
        "@P1 BRA `(.L_loop)",
        "EXIT",
        "rare: FMUL R3, R3, R6",
        "BRA `(.L_back)",  # jumps to an earlier line, but is not a separate loop
    )
    assert codes(found) == [["LDG.E", "BRA", "FADD", "BRA", "FMUL", "BRA"]]


def trips(*lines: str) -> int:
    (body,) = program(f"loop: {lines[0]}", *lines[1:], "@P1 BRA `(.L_loop)", "EXIT").innermost
    return round_trips(body)


NEXT = "IADD3 R2, P0, R2, 0x400, RZ"
FIRST, SECOND = "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.128 R8, desc[UR4][R2.64+0x200]"


def test_overlapping_loads_are_one_round_trip() -> None:
    assert trips(FIRST, SECOND, "FFMA R12, R4, R8, R12", "FFMA R13, R7, R11, R13", NEXT) == 1
    # only the last register of the first load causes a wait: by then the second load has arrived
    assert trips(FIRST, SECOND, "FADD R12, R7, R12", "FADD R12, R11, R12", NEXT) == 1


def test_load_next_to_its_use_is_a_separate_round_trip() -> None:
    assert trips(FIRST, "FADD R12, R7, R12", SECOND, "FADD R12, R11, R12", NEXT) == 2


def test_reloaded_register_is_waited_for() -> None:
    again = SECOND.replace("R8", "R4")
    assert trips(FIRST, "FADD R12, R4, R12", again, "FADD R12, R4, R12", NEXT) == 2


def test_ids_loaded_one_iteration_ahead_cost_nothing() -> None:
    address, rows = "IMAD.WIDE R2, R20, 0x400, R22", "FFMA R12, R4, R8, R12"
    here = ("LDG.E R20, desc[UR4][R24.64]", "IADD3 R24, R24, 0x4, RZ")
    assert trips(*here, address, FIRST, SECOND, rows) == 2
    assert trips(address, *here, FIRST, SECOND, rows) == 1


def test_arithmetic_and_stores_do_not_wait() -> None:
    assert trips("FMUL R5, R5, R6", "MUFU.EX2 R5, R5", "STG.E [R2.64], R5", NEXT) == 0


def test_loaded_values_can_be_predicates_stores_or_branches() -> None:
    load = "LDG.E R4, desc[UR4][R2.64]"
    assert trips(load, "ISETP.GT.AND P3, PT, R4, RZ, PT", "@P3 FADD R5, R5, R6", NEXT) == 1
    assert trips(load, "STG.E desc[UR4][R10.64], R4", NEXT) == 1
    wide = "LDG.E.128 R4, desc[UR4][R2.64]"
    assert trips(wide, "STG.E.128 desc[UR4][R10.64], R4", NEXT) == 1


def test_longest_limit_of_the_model_binds() -> None:
    card = Card(multiprocessors=2, clock=1e9, l2=1e9, l2_bytes=1000, memory=5e8, latency=100)
    loop = LoopCost(instructions=80, row_loads=4, row_bytes=64, round_trips=2, triples=4)
    kernel = KernelCost("gpu_forward.entity_pass", 1, registers=250, shared=0, spills=0, loops=[loop])
    assert resident(kernel, card) == 8  # warps with 256 registers
    given = Work(triples=4000, gathered_bytes=10, table_bytes=2000, longest=40, programs=100)
    found = limits(kernel, given, card)
    assert found == {
        "issue": pytest.approx(1000 * 80 / (2 * 4 * 1e9)),
        "L1": pytest.approx(1000 * 4 * 512 / (2 * 128 * 1e9)),
        "L2": pytest.approx(40_000 / 1e9),
        "memory": pytest.approx((2000 + 20_000) / 5e8),  # half of the gathered bytes are not in L2
        "waiting": pytest.approx(1000 / 16 * 200e-9),
    }
    given = Work(triples=4000, gathered_bytes=10, table_bytes=500, longest=400, programs=1)
    alone = limits(kernel, given, card)
    assert alone["memory"] == pytest.approx(500 / 5e8)
    assert alone["waiting"] == pytest.approx(1000 * 200e-9)


REQUIRED = """
import torch
from bench.gauge.launches import launch_layer
from lightcake_fast.kernels import scores
from tests.kernels.test_gpu_blocks import stripped
scores.SCORES["required"] = stripped(scores.RotatE)
print(*[launch.name for launch in launch_layer("sm_90", width=64, dtype=torch.float32, score="required")])
"""


@pytest.mark.full
def test_block_with_only_required_members_compiles() -> None:
    assert set(finish(python("-c", REQUIRED)).split()) <= KERNELS


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Start a gauge."""
    return python("-m", *arguments)


def python(*arguments: str) -> "subprocess.Popen[str]":
    """Start Python without Triton's interpreter, because interpreted kernels are not compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, out + errors
    return out


def checks(*arguments: str) -> list[dict[str, Any]]:
    """List every compiled kernel with its problems. With problems, the command fails."""
    process = start("bench.gauge.compile_check", "--json", *arguments)
    out, errors = process.communicate()
    assert process.returncode in (0, 1), errors
    found: list[dict[str, Any]] = json.loads(out)
    assert process.returncode == any(check["problems"] for check in found)
    return found


def _in_bounds(score: str, kernels: list[dict[str, Any]]) -> None:
    """Check the instruction bounds of a score's layer: float32, d = 256, sm_90."""
    passes = {kernel["name"]: kernel for kernel in kernels}
    counted = {name: kernel["instructions"] for name, kernel in passes.items() if kernel["instructions"]}
    assert set(counted) == {
        *("gpu_forward.relation_pass", "gpu_forward.entity_pass"),
        *("gpu_backward.relation_pass", "gpu_backward.entity_pass"),
    }
    assert sum(counted.values()) <= BOUNDS[score] or not BOUNDED, counted
    # a lane loads 16 bytes of each row, so the loads of an iteration give its number of triples
    rows = {"gpu_forward.relation_pass": 1, "gpu_forward.entity_pass": 2}
    rows |= {"gpu_backward.relation_pass": 2, "gpu_backward.entity_pass": 6}
    for name in counted:
        (loop,) = [loop for loop in passes[name]["loops"] if loop["triples"]]
        assert loop["row_bytes"] == 16 * loop["row_loads"]
        assert loop["row_bytes"] * 32 == loop["triples"] * rows[name] * 1024, name


@pytest.mark.parametrize(
    "scores", [QUICK, pytest.param(tuple(s for s in FUSED if s not in QUICK), marks=pytest.mark.full)]
)
def test_code_for_an_absent_gpu(scores: tuple[str, ...]) -> None:
    """One test, because the gauges reuse the kernels that the check has compiled."""
    found = checks("--target", "sm_90", "--score", *scores)
    assert {check["kernel"] for check in found} >= KERNELS
    assert [say(check) for check in found if check["problems"]] == []
    started = {score: start("bench.gauge.kernel_cost", "--score", score, "--json") for score in scores}
    for score, process in started.items():
        _in_bounds(score, json.loads(finish(process)))
    report = finish(start("bench.gauge.kernel_cost", "--score", scores[0]))
    assert f"sm_90, {scores[0]}, d = 256" in report
    assert "6,280 bytes per context triple" in report  # 6 rows of 1,024 bytes, and 136 bytes
    assert "gpu_backward.entity_pass" in report


@pytest.mark.full
@pytest.mark.parametrize("score", FUSED)
def test_half_width_rows_cost_one_instruction_per_number_and_halve_reads(score: str) -> None:
    """A lane converts 8 numbers of each gathered entity row, and a context triple gathers 4 rows."""
    kinds = ("float32", "bfloat16")
    started = [start("bench.gauge.kernel_cost", "--score", score, "--rows", rows, "--json") for rows in kinds]
    whole, half = (json.loads(finish(process)) for process in started)
    counted = [sum(kernel["instructions"] for kernel in kernels) for kernels in (whole, half)]
    assert counted[1] <= counted[0] + 4 * 8 + 4 or not BOUNDED, counted
    for wide, narrow in zip(whole, half, strict=True):
        for before, after in zip(wide["loops"], narrow["loops"], strict=True):
            assert after["round_trips"] <= 2
            entities = {"relation_pass": 1, "entity_pass": 1}.get(wide["name"].partition(".")[2], 0)
            saved = (before["row_bytes"] - after["row_bytes"]) * 32
            assert saved == (before["triples"] or 0) * entities * 512, wide["name"]


@pytest.mark.full
@pytest.mark.parametrize("target", OTHERS)
def test_code_for_other_gpus(target: str) -> None:
    assert [say(check) for check in checks("--target", target) if check["problems"]] == []


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_90", *OTHERS])
def test_code_for_absent_gpus_in_more_contexts_widths_and_types(target: str) -> None:
    assert [say(c) for c in checks("--target", target, "--everything") if c["problems"]] == []


def say(check: dict[str, Any]) -> str:
    where = ", ".join(str(check[name]) for name in ("target", "width", "dtype", "score", "context", "rows"))
    return f"{check['kernel']} ({where}): {'; '.join(check['problems'])}"
