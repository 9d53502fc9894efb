"""The gauge reads machine code correctly, and the compiled kernels are efficient on absent GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton

from bench.gauge.disassembly import Program, round_trips
from lightcake_fast.scores import FUSED

ROOT = Path(__file__).resolve().parents[2]
# warp instructions per context triple in loops that gather rows, from Triton 3.9 on: older versions need more
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
    """Parse lines like `body: LDG.E R1, [R2]`: an optional label, then the code."""
    text = ["", ".text.kernel:"]
    for number, line in enumerate(lines):
        label, _, code = line.rpartition(": ")
        text += [f".L_{label}:"] if label else []
        text.append(f"        /*{16 * number:04x}*/   {code} ;")
    return Program("\n".join(text))


def codes(program: Program) -> list[list[str]]:
    return [[one.opcode for one in body] for body in program.innermost]


def test_nested_loops() -> None:
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
    assert [len(body) for body in found.loops] == [5, 2]
    assert len(found.instructions) == 7, "unreachable code is left out"


def test_out_of_line_code_belongs_to_its_loop() -> None:
    found = program(
        "loop: LDG.E R3, [R4]",
        "@P0 BRA `(.L_rare)",
        "back: FADD R5, R5, R3",
        "@P1 BRA `(.L_loop)",
        "EXIT",
        "rare: FMUL R3, R3, R6",
        "BRA `(.L_back)",  # goes to an earlier line, but makes no second loop
    )
    assert codes(found) == [["LDG.E", "BRA", "FADD", "BRA", "FMUL", "BRA"]]


def trips(*lines: str) -> int:
    (body,) = program(f"loop: {lines[0]}", *lines[1:], "@P1 BRA `(.L_loop)", "EXIT").innermost
    return round_trips(body)


NEXT = "IADD3 R2, P0, R2, 0x400, RZ"
FIRST, SECOND = "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.128 R8, desc[UR4][R2.64+0x200]"


def test_overlapping_loads_are_one_round_trip() -> None:
    assert trips(FIRST, SECOND, "FFMA R12, R4, R8, R12", "FFMA R13, R7, R11, R13", NEXT) == 1
    # only the wait for the first load counts: the second has arrived by then
    assert trips(FIRST, SECOND, "FADD R12, R7, R12", "FADD R12, R11, R12", NEXT) == 1


def test_a_load_next_to_its_use_is_a_separate_round_trip() -> None:
    assert trips(FIRST, "FADD R12, R7, R12", SECOND, "FADD R12, R11, R12", NEXT) == 2


def test_a_second_load_into_a_register_is_a_separate_round_trip() -> None:
    again = SECOND.replace("R8", "R4")
    assert trips(FIRST, "FADD R12, R4, R12", again, "FADD R12, R4, R12", NEXT) == 2


def test_ids_loaded_one_iteration_ahead_cost_nothing() -> None:
    address, rows = "IMAD.WIDE R2, R20, 0x400, R22", "FFMA R12, R4, R8, R12"
    here = ("LDG.E R20, desc[UR4][R24.64]", "IADD3 R24, R24, 0x4, RZ")
    assert trips(*here, address, FIRST, SECOND, rows) == 2
    assert trips(address, *here, FIRST, SECOND, rows) == 1


def test_arithmetic_and_stores_do_not_wait_for_memory() -> None:
    assert trips("FMUL R5, R5, R6", "MUFU.EX2 R5, R5", "STG.E [R2.64], R5", NEXT) == 0


def test_predicates_and_stores_wait_for_loads() -> None:
    load = "LDG.E R4, desc[UR4][R2.64]"
    assert trips(load, "ISETP.GT.AND P3, PT, R4, RZ, PT", "@P3 FADD R5, R5, R6", NEXT) == 1
    assert trips(load, "STG.E desc[UR4][R10.64], R4", NEXT) == 1
    wide = "LDG.E.128 R4, desc[UR4][R2.64]"
    assert trips(wide, "STG.E.128 desc[UR4][R10.64], R4", NEXT) == 1


REQUIRED = """
from bench.gauge.launches import Case, launches
from lightcake_fast.kernels import scores
from tests.kernels.test_gpu_blocks import stripped
scores.SCORES["required"] = stripped(scores.RotatE)
print(*[launch.name for launch in launches(Case("sm_90", 64, score="required"))])
"""


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python without Triton's interpreter, because kernels must be compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", *arguments]
    environment |= {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def gauge(*arguments: str) -> list[dict[str, Any]]:
    """Return every compiled kernel. None may have a problem."""
    done = python("-m", "bench.gauge", "--json", *arguments)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["name"], one["case"], one["problems"]) for one in found if one["problems"]] == []
    assert done.returncode == 0, done.stderr
    assert found
    return found


def passes(kernels: list[dict[str, Any]], **case: str) -> dict[str, dict[str, Any]]:
    """Return the loops that gather rows in the kernels of a case, by kernel."""
    return {
        one["name"]: loop
        for one in kernels
        if case.items() <= one["case"].items()
        for loop in one["loops"]
        if loop["triples"]
    }


def instructions(loops: dict[str, dict[str, Any]]) -> float:
    """Return the warp instructions per context triple."""
    return float(sum(loop["instructions"] / loop["triples"] for loop in loops.values()))


@pytest.mark.full
def test_a_score_without_optional_functions_compiles() -> None:
    done = python("-c", REQUIRED)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= KERNELS


@pytest.mark.parametrize(
    "scores", [QUICK, pytest.param(tuple(s for s in FUSED if s not in QUICK), marks=pytest.mark.full)]
)
def test_code_for_an_absent_card(scores: tuple[str, ...]) -> None:
    found = gauge("--target", "sm_90", "--score", *scores, "segments")
    assert {one["name"] for one in found} == KERNELS
    assert max(one["registers"] for one in found) <= 255
    rows_per_triple = {"gpu_forward.relation_pass": 1, "gpu_forward.entity_pass": 2}
    rows_per_triple |= {"gpu_backward.relation_pass": 2, "gpu_backward.entity_pass": 6}
    for score in scores:
        loops = passes(found, score=score, dtype="float32")
        assert loops.keys() == rows_per_triple.keys()
        assert instructions(loops) <= BOUNDS[score] or not BOUNDED
        for name, loop in loops.items():
            # a lane loads 16 bytes of a row at a time, and the loads confirm the number of triples
            assert loop["row_bytes"] == 16 * loop["row_loads"]
            assert loop["row_bytes"] * 32 == loop["triples"] * rows_per_triple[name] * 1024, name


def test_the_report_of_a_case() -> None:
    done = python("-m", "bench.gauge", "--target", "sm_90", "--score", "distmult", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    first, head, *_, last = done.stdout.splitlines()
    assert first.startswith("sm_90, distmult, d = 256, float32")
    assert "registers" in head
    assert last == "7 kernels compiled, 0 with problems"


@pytest.mark.full
@pytest.mark.parametrize("score", FUSED)
def test_a_bfloat16_copy_halves_the_bytes_that_triples_read(score: str) -> None:
    """It costs one instruction per number: a lane widens its 8 numbers of each of 4 rows per triple."""
    found = gauge(
        "--target", "sm_90", "--score", score, "--dtype", "float32", "--rows", "float32", "bfloat16"
    )
    whole, half = (passes(found, rows=rows) for rows in ("float32", "bfloat16"))
    assert instructions(half) <= instructions(whole) + 4 * 8 + 4 or not BOUNDED
    for name, before in whole.items():
        saved = (before["row_bytes"] - half[name]["row_bytes"]) * 32
        assert saved == before["triples"] * 512, name  # one entity row per triple


@pytest.mark.full
@pytest.mark.parametrize("target", OTHERS)
def test_code_on_other_cards(target: str) -> None:
    assert {one["name"] for one in gauge("--target", target)} == KERNELS


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_90", *OTHERS])
def test_code_on_absent_cards_in_more_contexts_widths_and_types(target: str) -> None:
    gauge("--target", target, "--everything")
