"""Time one context layer, forward and backward, on the CPU: the Numba passes against plain PyTorch.

Run from the repository root on otherwise idle cores:

    python -m bench.cpu_layer ddb14 wn18rr
    python -m bench.cpu_layer ddb14 --width 64 --peer ../shared/prototypes/cpu_relation_first.py

Results are compared before anything is timed; the two take turns and the best round of each counts. With
--keep-memory the process is set up as one that trains: freed memory is kept, which helps both.
A peer is a script that prints "ms total X" for the data sets it is given, as the design's prototype does.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lightcake_fast.data import load_dataset
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer
from lightcake_fast.training.runtime import prepare_process

TOLERANCE = 2e-4  # largest difference of a gradient, over the largest entry


def layer_inputs(dataset: str, width: int) -> tuple[ContextGraph, list[Tensor], list[Tensor]]:
    """A data set's training graph, random embeddings that ask for gradients, and gradients to send back."""
    data = load_dataset(dataset)
    graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
    generator = torch.Generator().manual_seed(0)
    shapes = (data.num_entities, width), (2 * data.num_relations, width)
    inputs = [(torch.randn(s, generator=generator) * 0.2).requires_grad_() for s in shapes]
    return graph, inputs, [torch.randn(s, generator=generator) for s in shapes]


def step(
    graph: ContextGraph, inputs: list[Tensor], gradients: list[Tensor], score: str, backend: str
) -> Callable[[], list[Tensor]]:
    """Forward and backward of one layer: returns the new rows and the gradients of the old."""

    def run() -> list[Tensor]:
        rows = context_layer(inputs[0], inputs[1], graph, score=score, backend=backend)
        return [*(r.detach() for r in rows), *torch.autograd.grad(rows, inputs, gradients)]

    return run


def largest_difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Over the four results, the largest difference relative to the largest entry."""
    return max(float((a - e).abs().max() / e.abs().max()) for a, e in zip(actual, expected, strict=True))


def milliseconds(run: Callable[[], object]) -> float:
    """One timed call."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def extra_bytes(dataset: str, width: int, score: str) -> float:
    """Peak memory of one forward and backward beyond inputs, outputs and gradients, in a fresh process."""
    code = (
        "from bench import cpu_layer as b\n"
        f"b.step(*b.layer_inputs('family', {width}), {score!r}, 'numba')()\n"  # compiles
        f"run = b.step(*b.layer_inputs({dataset!r}, {width}), {score!r}, 'numba')\n"
        "b.reset_peak(); before = b.peak(); out = run()\n"
        "print(b.peak() - before - sum(t.nbytes for t in out))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(out.stdout)


def peer_milliseconds(script: str | None, dataset: str, keep_memory: bool) -> float | None:
    """What the peer prints for the data set, or None without a peer."""
    if script is None:
        return None
    kept = {
        "THP_MEM_ALLOC_ENABLE": "1",
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**31),
    }
    out = subprocess.run(
        [sys.executable, script, dataset],
        env=os.environ | (kept if keep_memory else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(out.stdout.split("ms total ")[1].split()[0])


def reset_peak() -> None:
    """Make the process's peak memory its present memory, without what was freed before (Linux, glibc)."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Peak memory of the process in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) * 1024  # type: ignore[union-attr]


def main() -> None:
    """Compare, time and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+", help="as in lightcake_fast.train; a peer gets them as written")
    parser.add_argument("--width", type=int, default=256, help="embedding width d (default 256)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, best counts (default 7)")
    parser.add_argument("--scores", nargs="+", default=["distmult", "transe"])
    parser.add_argument("--peer", help="script to time beside, DistMult at d = 256 only")
    parser.add_argument("--keep-memory", action="store_true", help="as lightcake_fast.train does")
    arguments = parser.parse_args()
    if arguments.keep_memory:
        prepare_process()

    table = Table(
        title=f"one layer, forward + backward, d = {arguments.width}, {torch.get_num_threads()} threads"
        + ", freed memory kept" * arguments.keep_memory
    )
    for column in (
        "data set",
        "score",
        "difference",
        "numba ms",
        "reference ms",
        "ratio",
        "peer ms",
        "extra B/triple",
    ):
        table.add_column(column, justify="right")
    for dataset in arguments.datasets:
        graph, inputs, gradients = layer_inputs(dataset, arguments.width)
        for score in arguments.scores:
            fused = step(graph, inputs, gradients, score, "numba")
            eager = step(graph, inputs, gradients, score, "reference")
            difference = largest_difference(fused(), eager())
            if not difference < TOLERANCE:
                raise SystemExit(f"{dataset} {score}: results differ by {difference:.1e}, not timed")
            times = [(milliseconds(fused), milliseconds(eager)) for _ in range(arguments.rounds)]
            ours, theirs = (min(column) for column in zip(*times, strict=True))
            peer = (
                peer_milliseconds(arguments.peer, dataset, arguments.keep_memory)
                if score == "distmult"
                else None
            )
            extra = extra_bytes(dataset, arguments.width, score) / (2 * graph.num_triples)
            table.add_row(
                dataset, score, f"{difference:.0e}", f"{ours:.1f}", f"{theirs:.0f}", f"{theirs / ours:.1f}",
                f"{peer:.1f}" if peer else "", f"{extra:.0f}",
            )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
