"""The gauge: does it count what runs, and are the kernels what they should be on cards that are not here?"""

import ast
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from bench import kernel_cost, layer_cost
from bench.control_flow import Program, Tally
from bench.disassembly import count_kinds
from bench.launches import Launch, Resources
from bench.row_traffic import RowTraffic
from bench.trip_counts import trip_counts
from lightcake_fast.kernels import gpu_backward, gpu_forward, gpu_launch, plan
from tests.support import gauge_kernels
from tests.support.layer_cases import layer_inputs

ROOT = Path(__file__).resolve().parents[2]
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter, not a GPU")

# warp instructions a context triple: loop bodies; whole layer on FB15k-237, and on the three others
BOUNDS = {"distmult": (240, 280, 330), "transe": (260, 280, 330)}
GATHERED_ROWS = 5.0  # a context triple, forward and backward
PAID_BARRIERS = 0.1  # warp barriers a context triple, of any kernel
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
KERNELS = {
    *("gpu_forward.relation_pass", "gpu_forward.entity_pass", "gpu_merge.merge_pass", "gpu_merge.sum_pass"),
    *("gpu_backward.product_pass", "gpu_backward.relation_pass", "gpu_backward.entity_pass"),
    *("gpu_segments.softmax_pass", "gpu_segments.merge_pass", "gpu_segments.slope_pass"),
    *("gpu_segments.gather_pass", "gpu_segments.sum_pass"),
}
DATASETS = ("fb15k-237", "wn18rr", "nell995", "ddb14")


Step = tuple[str, int, int]  # file, the line before, the line


class Traced:
    """Every launch in the interpreter, and how often it stepped from one line to another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[tuple[Any, dict[str, Any], tuple[int, ...], Counter[Step]]] = []
        run = interpreter.InterpretedFunction.run

        def traced(function: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
            steps: Counter[Step] = Counter()
            last: dict[FrameType, int] = {}

            def count(frame: FrameType, event: str, argument: Any) -> Any:
                file = frame.f_code.co_filename
                if not file.startswith(str(ROOT)):
                    return None
                if event == "line":
                    steps[file, last.get(frame, 0), frame.f_lineno] += 1
                    last[frame] = frame.f_lineno
                elif event == "return":
                    last.pop(frame, None)
                return count

            before = sys.gettrace()
            sys.settrace(count)
            try:
                run(function, *args, grid=grid, warmup=warmup, **kwargs)
            finally:
                sys.settrace(before)
            arguments = {**dict(zip(function.arg_names, args, strict=False)), **kwargs}
            known = {name: arguments[name] for name in function.arg_names}
            self.launches.append((function, known, grid, steps))

        monkeypatch.setattr(interpreter.InterpretedFunction, "run", traced)

    def check(self) -> Counter[str]:
        """Compare with what the gauge derives; returns how many statements of which kind were compared."""
        compared: Counter[str] = Counter()
        for function, arguments, grid, steps in self.launches:
            runs: Counter[tuple[str, int]] = Counter()
            assumed = set()
            for key, tally in trip_counts(function, arguments, grid).items():
                runs[key[0]] += int(tally.runs.sum())
                assumed |= {key[0]} if tally.assumed else set()
            for (file, line), count in runs.items():
                is_loop, body = body_of(file, line)
                ran = sum(n for (f, a, b), n in steps.items() if f == file and b in body and a not in body)
                if (file, line) in assumed:
                    compared["assumed"] += 1
                    assert ran <= count
                else:
                    compared["loop" if is_loop else "branch"] += 1
                    assert ran == count, f"{file}:{line}"
        return compared


def body_of(file: str, line: int) -> tuple[bool, range]:
    """Whether the statement at a line is a loop, and the lines of the first statement of its body."""
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.For | ast.While | ast.If) and node.lineno == line:
            first = node.body[0]
            return not isinstance(node, ast.If), range(first.lineno, (first.end_lineno or first.lineno) + 1)
    raise AssertionError(f"{file}:{line} is no statement that branches")


@interpreted
def test_counts_of_branches_and_loops_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, random = Traced(monkeypatch), np.random.default_rng(0)
    lengths = random.integers(0, 40, 23)
    gauge_kernels.rows_of_a_program[(8,)](
        values_ptr=torch.randn(int(lengths.sum())),
        bounds_ptr=torch.from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32)),
        kind_ptr=torch.from_numpy(random.integers(0, 3, 23).astype(np.int32)),
        out_ptr=torch.empty(8, 8),
        rows=23,
        FLAG=True,
        SPAN=4,
        BLOCK=8,
    )
    assert traced.check() == {"loop": 3, "branch": 3, "assumed": 1}


@interpreted
@pytest.mark.parametrize("score", ["distmult", "transe"])
def test_counts_of_the_layer(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GPU_ENTITY_CHUNK", 7)
    monkeypatch.setattr(plan, "GPU_RELATION_CHUNK", (8, 16))
    monkeypatch.setattr(gpu_launch, "warp_size", lambda: 256)  # fewer tiles a row: the interpreter is slow
    x, y, graph, _ = layer_inputs("hub", 4, torch.float32, "cpu")
    x, y = x.detach(), y.detach()
    traced = Traced(monkeypatch)
    new_x, new_y, s, lse_x, lse_y, *_ = gpu_forward.forward(x, y, graph.gpu_plan, None, score, "both")
    gpu_backward.backward(x, y, x, y, new_x, new_y, s, lse_x, lse_y, graph.gpu_plan, score)
    compared = traced.check()
    assert compared["loop"] >= 6
    assert compared["branch"] >= 2


def listing(source: Path, *lines: str) -> Program:
    """A program from lines like `body: 12 LDG R1`: perhaps a label, the line of the source, the code."""
    text = ["", ".text.kernel:"]
    for number, line in enumerate(lines):
        label, _, rest = line.rpartition(": ")
        if label:
            text.append(f".L_{label}:")
        place, code = rest.split(" ", 1)
        text.append(f'\t//## File "{source}", line {place}')
        text.append(f"        /*{16 * number:04x}*/   {code} ;")
    return Program("\n".join(text))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "kernel.py"
    file.write_text("for k in range(n):\n    body(k)\nif found:\n    this()\nelse:\n    that()\nend()\n")
    return file


def tally(*runs: int) -> Tally:
    counts = np.array(runs)
    return Tally(np.ones(len(runs)), np.minimum(counts, 1), counts)


def test_a_loop_runs_as_often_as_stated(source: Path) -> None:
    program = listing(
        source,
        "1 @P0 BRA `(.L_end)",
        "2 MOV R1, R2",
        "loop: 2 LDG.E R3, [R4]",
        "1 @P1 BRA `(.L_loop)",
        "end: 7 EXIT",
    )
    runs = program.executions({((str(source), 1),): tally(0, 1, 5)})
    assert [np.broadcast_to(r, 3).tolist() for r in runs] == [[1, 1, 1], [0, 1, 1], [0, 1, 5], [1, 1, 1]]


def test_pieces_of_an_unrolled_loop_share_its_trips(source: Path) -> None:
    program = listing(
        source,
        "1 @P0 BRA `(.L_end)",
        "1 @P1 BRA `(.L_two)",
        *["four: 2 LDG.E R3, [R4]", *["2 LDG.E R3, [R4]"] * 3, "1 @P2 BRA `(.L_four)"],
        "two: 1 @P3 BRA `(.L_one)",
        *["2 LDG.E R3, [R4]"] * 2,
        "one: 1 @P4 BRA `(.L_end)",
        "2 LDG.E R3, [R4]",
        "end: 7 EXIT",
    )
    trips = range(12)
    runs = program.executions({((str(source), 1),): tally(*trips)})
    loads = np.zeros(12)
    for block, ran in zip(program.blocks, runs, strict=True):
        loads = loads + count_kinds(block.instructions)["load"] * ran
    assert loads.tolist() == list(trips)


@pytest.mark.parametrize("swapped", [False, True])
def test_sides_of_a_branch_are_told_by_their_lines(source: Path, swapped: bool) -> None:
    near_line, far_line = (4, 6) if swapped else (6, 4)
    program = listing(
        source,
        "3 @P0 BRA `(.L_far)",
        f"{near_line} FADD R1, R1, R2",
        "7 BRA `(.L_end)",
        f"far: {far_line} FMUL R1, R1, R2",
        "end: 7 EXIT",
    )
    runs = program.executions({((str(source), 3),): tally(1, 0)})
    near, far = ([1, 0], [0, 1]) if swapped else ([0, 1], [1, 0])
    assert [np.broadcast_to(r, 2).tolist() for r in runs] == [[1, 1], near, far, [1, 1]]


def test_a_loop_that_no_statement_explains_is_refused(source: Path) -> None:
    program = listing(source, "loop: 7 LDG.E R3, [R4]", "7 @P1 BRA `(.L_loop)", "7 EXIT")
    with pytest.raises(ValueError, match="no statement explains"):
        program.executions({})


def test_classes_of_instructions(source: Path) -> None:
    program = listing(
        source,
        *["7 LDG.E.128 R1, [R2]", "7 FFMA R1, R2, R3, R4", "7 IMAD.MOV.U32 R1, RZ, RZ, R2"],
        *["7 BAR.SYNC 0x0", "7 IMAD.WIDE R1, R2, R3, R4", "7 SHFL.BFLY PT, R1, R2, 0x1, 0x1f"],
        *["7 STL [R1], R2", "7 EXIT"],
    )
    kinds = ["load", "float", "move", "barrier", "integer", "shuffle", "local", "branch"]
    assert [i.kind for i in program.instructions] == kinds


def test_a_kernel_that_cannot_be_counted_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(launch: Launch) -> None:
        raise ValueError("two calls look alike")

    monkeypatch.setattr(layer_cost, "_counted", refuse)
    monkeypatch.setattr(layer_cost, "resources", lambda launch: Resources(64, 0, 0, 0, 0))
    compiled = SimpleNamespace(metadata=SimpleNamespace(num_warps=1))
    launch = Launch(gauge_kernels.add_row, {}, (2,), compiled)
    kernel = layer_cost.kernel_cost(launch, layer_cost.CARDS["sm_90"])
    table = kernel_cost._kernel_table(
        kernel_cost.LayerCost("graph", 2, [kernel], RowTraffic(0, 0, 0, 0), 4, 0, []), loops=False
    )
    assert kernel.total == 0
    assert "two calls look alike" in table
    assert "sum of those counted" in table


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Start a gauge without the interpreter: what it compiles must not be interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *arguments],
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


@functools.cache
def costs() -> dict[str, Any]:
    """Each score's layers by the name of the graph: float32, d = 256, sm_90."""
    started = {score: start("bench.kernel_cost", "--score", score, "--json") for score in BOUNDS}
    reports = {score: json.loads(finish(process)) for score, process in started.items()}
    return {score: {layer["graph"]: layer for layer in r["layers"]} for score, r in reports.items()}


@pytest.fixture
def measured(public_data: Callable[[str], Path]) -> dict[str, Any]:
    for name in DATASETS:
        public_data(name)
    return costs()


@pytest.mark.parametrize("score", BOUNDS)
def test_instructions_stay_in_bounds(score: str, measured: dict[str, Any]) -> None:
    bodies, largest, others = BOUNDS[score]
    assert measured[score]["full tiles"]["loop_instructions_a_triple"] <= bodies
    for name in DATASETS:
        assert [
            kernel["uncounted"] for kernel in measured[score][name]["kernels"] if kernel["uncounted"]
        ] == []
        bound = largest if name == "fb15k-237" else others
        assert measured[score][name]["instructions_a_triple"] <= bound, name


@pytest.mark.parametrize("score", BOUNDS)
def test_gathered_rows_stay_in_bounds(score: str, measured: dict[str, Any]) -> None:
    for name in DATASETS:
        layer = measured[score][name]
        assert layer["rows"]["gathered"] / layer["triples"] <= GATHERED_ROWS, name


@pytest.mark.parametrize("score", BOUNDS)
def test_barriers_are_few(score: str, measured: dict[str, Any]) -> None:
    for name in DATASETS:
        layer = measured[score][name]
        for kernel in layer["kernels"]:
            assert kernel["instructions"].get("barrier", 0) / layer["triples"] <= PAID_BARRIERS, name


def test_the_report_says_what_it_is() -> None:
    out = finish(start("bench.kernel_cost", "--dataset", "family:60", "--target", "sm_120", "--width", "16"))
    assert "family:60" in out
    assert "gpu_backward.entity_pass" in out
    assert "no roofs are stated for this target" in out


@functools.cache
def checks(*arguments: str) -> list[dict[str, Any]]:
    """Every kernel that was compiled, with its problems; the command fails where there are any."""
    process = start("bench.compile_check", "--json", *arguments)
    out, errors = process.communicate()
    assert process.returncode in (0, 1), errors
    found: list[dict[str, Any]] = json.loads(out)
    assert process.returncode == any(check["problems"] for check in found)
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_code_on_absent_cards(target: str) -> None:
    mine = [check for check in checks() if check["target"] == target]
    assert {check["kernel"] for check in mine} >= KERNELS
    assert [say(check) for check in mine if check["problems"]] == []


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_code_on_absent_cards_in_more_widths_and_types(target: str) -> None:
    assert [say(c) for c in checks("--target", target, "--everything") if c["problems"]] == []


def say(check: dict[str, Any]) -> str:
    where = ", ".join(str(check[name]) for name in ("target", "width", "dtype", "score", "context"))
    return f"{check['kernel']} ({where}): {'; '.join(check['problems'])}"
