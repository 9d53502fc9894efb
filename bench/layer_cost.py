"""What one layer costs on a graph: instructions by class, counted over every program of every launch."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from bench.control_flow import Key, Program, Tally
from bench.disassembly import count_kinds
from bench.launches import Launch, Recording, Resources, program, record, resources
from bench.trip_counts import trip_counts
from lightcake_fast.graph import ContextGraph


@dataclass(frozen=True)
class Card:
    """What a multiprocessor holds, and what the card does in a second where this project states it.

    Attributes:
        max_warps: of a multiprocessor.
        max_programs: of a multiprocessor.
        shared: bytes of a multiprocessor's shared memory.
        issue_rate: warp instructions a second of the whole card.
        l2_bandwidth: bytes a second.
    """

    max_warps: int
    max_programs: int
    shared: int
    issue_rate: float | None = None
    l2_bandwidth: float | None = None


REGISTERS = 65536  # of a multiprocessor, on all of these cards
CARDS = {
    "sm_80": Card(64, 32, 164 << 10),
    "sm_89": Card(48, 24, 100 << 10),
    # an H100 or H200: 132 multiprocessors of 4 issues at 1.755 GHz; the bandwidth is assumed (design figure)
    "sm_90": Card(64, 32, 228 << 10, issue_rate=132 * 4 * 1.755e9, l2_bandwidth=9.7e12),
    "sm_100": Card(64, 32, 228 << 10),
    "sm_120": Card(48, 24, 100 << 10),
}


@dataclass(frozen=True)
class KernelCost:
    """One launch of a layer.

    Attributes:
        name: the kernel's.
        programs: how many it launches.
        num_warps: of a program.
        resources: registers and memory.
        warps: resident on a multiprocessor, at most.
        instructions: warp instructions of all programs by class.
        loops: those of them in innermost loops.
        assumed: conditions on data, whose bodies are counted as always run.
        uncounted: why the instructions could not be counted; empty where they were.
    """

    name: str
    programs: int
    num_warps: int
    resources: Resources
    warps: int
    instructions: Counter[str]
    loops: Counter[str]
    assumed: list[str] = field(default_factory=list)
    uncounted: str = ""

    @property
    def total(self) -> int:
        """Warp instructions of all programs."""
        return sum(self.instructions.values())


def launch_layer(
    graph: ContextGraph,
    target: str,
    *,
    width: int = 256,
    dtype: torch.dtype = torch.float32,
    score: str = "distmult",
    context: str = "both",
    masked: bool = True,
) -> Recording:
    """The launches of one layer, forward and backward, compiled for a target.

    Args:
        graph: on the CPU.
        target: a key of ``TARGETS``.
        width: d.
        dtype: of the embeddings.
        score: "distmult" or "transe".
        context: "both", "entity" or "relation".
        masked: with a mask, as in training.
    """
    from lightcake_fast.kernels import gpu_backward, gpu_forward

    plan = graph.gpu_plan
    x = torch.zeros(graph.num_entities, width, dtype=dtype)
    y = torch.zeros(2 * graph.num_relations, width, dtype=dtype)
    mask = torch.zeros(graph.num_triples, dtype=torch.bool) if masked else None

    def layer() -> None:
        new_x, new_y, s, lse_x, lse_y, *sums = gpu_forward.forward(x, y, plan, mask, score, context)
        gpu_backward.backward(x, y, x, y, new_x, new_y, s, lse_x, lse_y, plan, score, *sums)

    return record(target, layer)


def kernel_cost(launch: Launch, card: Card) -> KernelCost:
    """Count what a launch executes; says so where its source and arguments do not explain a branch.

    Triton 3.5 and 3.6 leave calls out of their line information, so two calls of one function look alike.
    """
    used = resources(launch)
    assumed: list[str] = []
    everywhere: Counter[str] = Counter()
    loops: Counter[str] = Counter()
    uncounted = ""
    try:
        everywhere, loops, assumed = _counted(launch)
    except ValueError as error:
        uncounted = str(error)
    return KernelCost(
        name=launch.name,
        programs=launch.programs,
        num_warps=launch.num_warps,
        resources=used,
        warps=resident_warps(used, launch.num_warps, card),
        instructions=everywhere,
        loops=loops,
        assumed=assumed,
        uncounted=uncounted,
    )


def _counted(launch: Launch) -> tuple[Counter[str], Counter[str], list[str]]:
    """Instructions of all programs by class, those in innermost loops, and conditions on data."""
    code = program(launch)
    tallies = trip_counts(launch.function, launch.arguments, launch.grid)
    innermost = _innermost_blocks(code)
    everywhere: Counter[str] = Counter()
    loops: Counter[str] = Counter()
    for number, runs in enumerate(code.executions(tallies)):
        times = np.broadcast_to(runs, launch.programs).sum() * launch.num_warps
        for kind, count in count_kinds(code.blocks[number].instructions).items():
            everywhere[kind] += round(count * times)
            if number in innermost:
                loops[kind] += round(count * times)
    return everywhere, loops, _assumed(tallies)


def _innermost_blocks(code: Program) -> set[int]:
    innermost = [
        loop.blocks for loop in code.loops if not any(other.blocks < loop.blocks for other in code.loops)
    ]
    return set().union(*innermost)


def _assumed(tallies: Mapping[Key, Tally]) -> list[str]:
    return sorted({f"{key[0][0]}:{key[0][1]}" for key, tally in tallies.items() if tally.assumed})


def resident_warps(used: Resources, num_warps: int, card: Card) -> int:
    """How many warps of a kernel a multiprocessor holds at once."""
    a_warp = 256 * math.ceil(used.registers * 32 / 256)  # registers are given out in steps of 256
    by_registers = REGISTERS // a_warp // 4 * 4 // num_warps  # a quarter of the file to each scheduler
    by_shared = card.shared // (used.shared + 1024) if used.shared else card.max_programs
    programs = min(by_registers, by_shared, card.max_programs, card.max_warps // num_warps)
    return programs * num_warps


def full_tiles() -> ContextGraph:
    """A graph without short rows or partial tiles: what a layer costs on it is what its loop bodies cost.

    Each of 256 entities has 64 context triples, each of 8 relations 1,024 raw triples.
    """
    head, k = torch.arange(256).repeat_interleave(32), torch.arange(32).repeat(256)
    return ContextGraph.from_triples(torch.stack([head, k % 8, (head + 7 * k + 1) % 256], 1), 256, 8)
