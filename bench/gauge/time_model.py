"""Predict the time of a layer's passes on a GPU with a model: ``python -m bench.gauge.time_model``.

Each of five limits gives a time: issuing instructions, reading rows from L1, from L2 and from memory, and
waiting for memory with too few warps. The longest time is the prediction. The model uses counts from compiled
code and a GPU's published rates. Nothing is timed. It assumes that caches hold all data that fits and that
the rates are reached. It leaves out the merges, which move under a tenth of the bytes.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench.gauge.kernel_cost import KernelCost, LoopCost, layer_cost
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.data import load_dataset
from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels.plan import GPU_NO_CHUNK
from lightcake_fast.kernels.scores import SCORES
from lightcake_fast.ops import ROWS

LANES = 32
# Entity rows and gradient rows that a pass gathers per context triple. Relation rows come from L1.
TABLES = {
    "gpu_forward.relation_pass": (1, 0),
    "gpu_forward.entity_pass": (1, 0),
    "gpu_backward.relation_pass": (1, 1),
    "gpu_backward.entity_pass": (1, 1),
}


@dataclass(frozen=True)
class Card:
    """Published rates of a GPU, and cache rates from microbenchmarks in the literature.

    Source: data sheet of the H100 SXM5 (HBM3 3.35 TB/s, L2 50 MB, 132 multiprocessors), its clock under load.
    """

    target: str = "sm_90"
    multiprocessors: int = 132
    clock: float = 1.755e9  # Hz
    issued: int = 4  # warp instructions per clock and multiprocessor
    registers: int = 65536  # per multiprocessor
    warps: int = 64  # maximum per multiprocessor
    l1: float = 128.0  # bytes per clock and multiprocessor
    l2: float = 5.5e12  # bytes per second
    l2_bytes: int = 50 << 20
    memory: float = 3.35e12  # bytes per second
    latency: float = 500.0  # clocks that a load waits if L2 serves it


@dataclass(frozen=True)
class Work:
    """The work of a pass on a graph.

    Attributes:
        triples: E, context triples.
        gathered_bytes: Bytes of the entity rows that a context triple reads.
        table_bytes: Bytes of the tables that hold these rows.
        longest: Context triples of the longest chunk.
        programs: Number of launched programs.
    """

    triples: int
    gathered_bytes: int
    table_bytes: int
    longest: int
    programs: int


def limits(kernel: KernelCost, work: Work, card: Card) -> dict[str, float]:
    """Return the seconds of a pass under each limit alone, by the name of the limit."""
    loop, triples = row_loop(kernel)
    trips = work.triples / triples  # of single warps
    gathered = work.triples * work.gathered_bytes
    missed = max(0.0, 1 - card.l2_bytes / work.table_bytes) * gathered
    chip = card.multiprocessors * card.clock
    wait = loop.round_trips * card.latency / card.clock
    together = min(resident(kernel, card) * card.multiprocessors, work.programs * kernel.num_warps)
    return {
        "issue": trips * loop.instructions / (chip * card.issued),
        "L1": trips * loop.row_bytes * LANES / (chip * card.l1),
        "L2": gathered / card.l2,
        "memory": (work.table_bytes + missed) / card.memory,
        "waiting": max(trips / together, work.longest / (triples * kernel.num_warps)) * wait,
    }


def row_loop(kernel: KernelCost) -> tuple[LoopCost, float]:
    """Return the loop of a pass that gathers rows, and its context triples per iteration of a warp."""
    ((loop, triples),) = [(loop, loop.triples) for loop in kernel.loops if loop.triples]
    return loop, triples


def resident(kernel: KernelCost, card: Card) -> int:
    """Return the warps of a kernel that a multiprocessor holds at once."""
    registers = -(-kernel.registers // 8) * 8 * LANES  # registers are allocated in units of eight
    programs = min(card.registers // (registers * kernel.num_warps), card.warps // kernel.num_warps)
    return programs * kernel.num_warps


def work_of(kernel: KernelCost, graph: ContextGraph, width: int, rows: str) -> Work:
    """Return the work of a pass on a graph."""
    plan, triples = graph.gpu_plan, 2 * graph.num_triples
    read, gradients = TABLES[kernel.name]
    gathered = width * (read * (2 if rows == "bfloat16" else 4) + gradients * 4)
    table = graph.num_entities * gathered
    if kernel.name.endswith("relation_pass"):
        chunk = plan.relation_chunk
        longest = 2 * int((chunk[:, 1] - chunk[:, 0]).max())
        return Work(triples, gathered, table, longest, len(chunk))
    # a program takes several chunks at once, one triple of each at a time
    side_by_side = max(round(row_loop(kernel)[1] * kernel.num_warps), 1)
    chunk = plan.entity_chunk[plan.entity_chunk[:, 3] != GPU_NO_CHUNK]
    longest = side_by_side * int((chunk[:, 1] - chunk[:, 0]).max())
    return Work(triples, gathered, table, longest, -(-len(chunk) // side_by_side))


def main(argv: Sequence[str]) -> None:
    """Print one table per data set."""
    arguments = _parse(argv)
    card = Card()
    costs = layer_cost(card.target, arguments.width, "float32", arguments.score, arguments.rows)
    kernels = [kernel for kernel in costs if kernel.name in TABLES]
    print(
        f"A model, not a measurement: {card.target}, {arguments.score}, d = {arguments.width}, float32, "
        f"triples read {arguments.rows}; microseconds of a pass under each limit alone\n"
    )
    names = ("issue", "L1", "L2", "memory", "waiting")
    for dataset in arguments.datasets:
        data = load_dataset(dataset, data_dir=arguments.data_dir)
        graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
        print(f"| {dataset} | " + " | ".join(names) + " | binds | waves |")
        print("|---|" + "---|" * (len(names) + 2))
        total = 0.0
        for kernel in kernels:
            work = work_of(kernel, graph, arguments.width, arguments.rows)
            found = limits(kernel, work, card)
            binding = max(found, key=lambda name: found[name])
            total += found[binding]
            waves = work.programs * kernel.num_warps / (resident(kernel, card) * card.multiprocessors)
            cells = " | ".join(f"{found[name] * 1e6:.1f}" for name in names)
            print(f"| {kernel.name.removeprefix('gpu_')} | {cells} | {binding} | {waves:.2f} |")
        print(f"\nthe passes together: {total * 1e6:.0f} us\n")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(
        "python -m bench.gauge.time_model", "Predict the time of a layer's passes with a model."
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--score", choices=tuple(SCORES), default="distmult")
    parser.add_argument("--rows", choices=ROWS, default="float32", help="as in context_layer")
    parser.add_argument("--datasets", nargs="+", default=list(PUBLIC_DATASETS), metavar="NAME")
    parser.add_argument("--data-dir", metavar="DIR", help="as in lightcake_fast.train")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
