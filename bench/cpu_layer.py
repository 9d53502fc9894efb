"""Time one context layer, forward and backward, on the CPU: the Numba passes beside their peers.

Run from the repository root on otherwise idle cores:

    python -m bench.cpu_layer ddb14 wn18rr
    python -m bench.cpu_layer ddb14 --width 64 --peer ../shared/prototypes/cpu_relation_first.py

Peers are plain PyTorch and, where it is installed, PyTorch Geometric's RGCNConv. Results are compared before
anything is timed; all take turns and the best round of each counts. With --keep-memory the process is set up
as one that trains: freed memory is kept, which helps all. A script as --peer prints "ms total X" for its
data set, as the design's prototype does.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from bench.layers import BUILDERS, largest_difference, layer_input
from lightcake_fast.efficiency import peak_in_child
from lightcake_fast.training.runtime import prepare_process

TOLERANCE = 2e-4  # largest difference of a result, over the largest entry
FUSED, EAGER, PYG = "lightcake", "lightcake eager", "PyG RGCNConv"
COLUMNS = ("data set", "score", "difference", "numba ms", "eager ms", "ratio", "PyG ms", "ratio", "peer ms")
MEMORY_COLUMNS = ("extra B/triple", "of eager's")


def milliseconds(run: Callable[[], object]) -> float:
    """One timed call."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def row(dataset: str, width: int, score: str, rounds: int) -> tuple[list[str], list[str]]:
    """Cells of the times, and of the peak memory beyond inputs, outputs and gradients in fresh processes."""
    given = layer_input(dataset, width, score)
    steps = {name: BUILDERS[name](given).both for name in (FUSED, EAGER)}
    if importlib.util.find_spec("torch_geometric") is not None:
        steps[PYG] = BUILDERS[PYG](given).both
    difference = largest_difference(steps[FUSED](), steps[EAGER]())
    if not difference < TOLERANCE:
        raise SystemExit(f"{dataset} {score}: results differ by {difference:.1e}, not timed")
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(milliseconds(step))
    best = {name: min(rounds_of) for name, rounds_of in times.items()}
    ours = best[FUSED]
    cells = [dataset, score, f"{difference:.0e}", f"{ours:.1f}"]
    for name in (EAGER, PYG):
        cells += [f"{best[name]:.0f}", f"{best[name] / ours:.1f}"] if name in best else ["", ""]
    peak, eager = (
        peak_in_child("bench.layers:layer_run", name, dataset, width, score) for name in (FUSED, EAGER)
    )
    if peak is None or not eager:
        return cells, ["", ""]
    return cells, [f"{peak / given.context_triples:.0f}", f"{peak / eager:.3f}"]


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
    for column in (*COLUMNS, *MEMORY_COLUMNS):
        table.add_column(column, justify="right")
    for dataset in arguments.datasets:
        for score in arguments.scores:
            times, memory = row(dataset, arguments.width, score, arguments.rounds)
            script = arguments.peer if score == "distmult" else None
            peer = peer_milliseconds(script, dataset, arguments.keep_memory)
            table.add_row(*times, f"{peer:.1f}" if peer else "", *memory)
    Console().print(table)


if __name__ == "__main__":
    main()
