"""What the Triton layer costs, counted on any machine: ``python -m bench.kernel_cost``.

For a target, width, type and score: the registers and resident warps of each kernel, its warp instructions
a context triple by class (whole programs over the real chunks of each data set; the loop bodies alone
beside), the rows and bytes that it moves, and the time that two roofs allow. That time is a model.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.layer_cost import CARDS, Card, KernelCost, full_tiles, kernel_cost, launch_layer
from bench.row_traffic import RowTraffic, row_traffic
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.data import load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.scorers import SCORERS

DATASETS = ("fb15k-237", "wn18rr", "nell995", "ddb14")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KINDS = ("load", "store", "shared", "local", "float", "integer", "shuffle", "move", "barrier", "branch")


@dataclass(frozen=True)
class LayerCost:
    """One layer, forward and backward, on one graph.

    Attributes:
        graph: its name.
        triples: E, context triples.
        kernels: the launches, in order.
        rows: d-wide rows moved, forward and backward.
        row_bytes: bytes of one row.
        other_bytes: ids, scores and links: what is moved once a triple, not d-wide.
        others: PyTorch's own launches: names and bytes.
    """

    graph: str
    triples: int
    kernels: list[KernelCost]
    rows: RowTraffic
    row_bytes: int
    other_bytes: int
    others: list[tuple[str, int]]

    @property
    def instructions(self) -> float:
        """Warp instructions a context triple, over whole programs."""
        return sum(kernel.total for kernel in self.kernels) / self.triples

    @property
    def loop_instructions(self) -> float:
        """Those of them in innermost loops."""
        return sum(kernel.loops.total() for kernel in self.kernels) / self.triples

    @property
    def moved_bytes(self) -> int:
        """Bytes moved through the second-level cache."""
        return self.rows.total * self.row_bytes + self.other_bytes + sum(size for _, size in self.others)

    def model(self, card: Card) -> dict[str, float] | None:
        """Milliseconds that each roof allows at best, and the larger; None where no roofs are stated."""
        if card.issue_rate is None or card.l2_bandwidth is None:
            return None
        issue = 1e3 * self.instructions * self.triples / card.issue_rate
        rows = 1e3 * self.moved_bytes / card.l2_bandwidth
        return {"issue_ms": issue, "bytes_ms": rows, "layer_ms": max(issue, rows)}


def layer_cost(name: str, graph: ContextGraph, target: str, **options: Any) -> LayerCost:
    """Count one layer on a graph; ``options`` are those of ``launch_layer``."""
    recording = launch_layer(graph, target, **options)
    width, dtype = options.get("width", 256), options.get("dtype", torch.float32)
    rows, other_bytes = row_traffic(graph, recording.launches, width)
    return LayerCost(
        graph=name,
        triples=2 * graph.num_triples,
        kernels=[kernel_cost(launch, CARDS[target]) for launch in recording.launches],
        rows=rows,
        row_bytes=width * dtype.itemsize,
        other_bytes=other_bytes,
        others=recording.others,
    )


def load_graph(dataset: str) -> ContextGraph:
    """The training graph of a data set."""
    data = load_dataset(dataset)
    return ContextGraph.from_triples(torch.from_numpy(data.train), data.num_entities, data.num_relations)


def main(argv: Sequence[str]) -> None:
    """Print the report."""
    arguments = _parse(argv)
    options = {"width": arguments.width, "dtype": DTYPES[arguments.dtype], "score": arguments.score}
    bodies = layer_cost("full tiles", full_tiles(), arguments.target, **options)
    layers = [layer_cost(name, load_graph(name), arguments.target, **options) for name in arguments.dataset]
    if arguments.json:
        print(json.dumps(_as_json(arguments, [bodies, *layers]), indent=1))
        return
    print(
        f"{arguments.target}, {arguments.score}, d = {arguments.width}, {arguments.dtype}; "
        "one layer, forward and backward, with a mask\n"
        "warp instructions a context triple; conditions on data count as always true\n"
    )
    print("Loop bodies alone, on a graph of full tiles")
    print(_kernel_table(bodies, loops=True))
    for layer in layers:
        print(f"\n{layer.graph}: {layer.triples:,} context triples, {len(layer.kernels)} launches")
        print(_others_line(layer))
        print(_kernel_table(layer, loops=False))
        print(_rows_line(layer))
        print(_model_line(layer, CARDS[arguments.target]))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser("python -m bench.kernel_cost", "Count what the Triton layer costs; needs no GPU.")
    parser.add_argument("--target", choices=tuple(CARDS), default="sm_90")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--score", choices=tuple(SCORERS), default="distmult")
    parser.add_argument("--dataset", nargs="*", default=list(DATASETS), help="data sets to count on")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.width < 1:
        raise InputError(f"--width: got {arguments.width}, wanted at least 1")
    return arguments


def _kernel_table(layer: LayerCost, *, loops: bool) -> str:
    """A row a kernel: resources, then instructions a context triple by class."""
    lines = [
        f"{'kernel':32} {'programs':>9} {'warps':>5} {'regs':>4} {'/SM':>3} {'shared':>6} {'spill':>5} "
        f"{'all':>6} " + " ".join(f"{kind:>7}" for kind in KINDS)
    ]
    sums: Counter[str] = Counter()
    for kernel in layer.kernels:
        counts = kernel.loops if loops else kernel.instructions
        sums.update(counts)
        used = kernel.resources
        head = (
            f"{kernel.name:32} {kernel.programs:9,} {kernel.num_warps:5} {used.registers:4} {kernel.warps:3} "
            f"{used.shared:6} {used.spills + used.stack + used.local:5} "
        )
        lines.append(head + (kernel.uncounted or _counts(counts, layer.triples)))
    label = "sum of those counted" if any(kernel.uncounted for kernel in layer.kernels) else "sum"
    lines.append(f"{label:71}" + _counts(sums, layer.triples))
    return "\n".join(lines)


def _counts(counts: Counter[str], triples: int) -> str:
    numbers = (counts[kind] / triples for kind in KINDS)
    return f"{counts.total() / triples:6.1f} " + " ".join(f"{n:7.1f}" if n else f"{'-':>7}" for n in numbers)


def _others_line(layer: LayerCost) -> str:
    names = Counter(name for name, _ in layer.others)
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
    moved = sum(size for _, size in layer.others) / layer.triples
    return f"{len(layer.others)} of PyTorch's ({kinds}), {moved:.0f} bytes a context triple; not in the table"


def _rows_line(layer: LayerCost) -> str:
    rows = ", ".join(f"{name} {count / layer.triples:.2f}" for name, count in asdict(layer.rows).items())
    return (
        f"rows a context triple: {rows}; in all {layer.rows.total / layer.triples:.2f} "
        f"of {layer.row_bytes:,} bytes, and {layer.other_bytes / layer.triples:.0f} bytes besides"
    )


def _model_line(layer: LayerCost, card: Card) -> str:
    model = layer.model(card)
    if model is None:
        return "model: no roofs are stated for this target"
    bandwidth = (card.l2_bandwidth or 0) / 1e12
    return (
        f"model, not a measurement: {model['issue_ms']:.3f} ms to issue the instructions, "
        f"{model['bytes_ms']:.3f} ms to move the bytes at {bandwidth:.1f} TB/s (assumed): "
        f"{model['layer_ms']:.3f} ms a layer"
    )


def _as_json(arguments: argparse.Namespace, layers: Iterable[LayerCost]) -> dict[str, Any]:
    card = CARDS[arguments.target]
    return {
        "target": arguments.target,
        "width": arguments.width,
        "dtype": arguments.dtype,
        "score": arguments.score,
        "layers": [
            {
                **vars(layer),
                "kernels": [
                    {**vars(kernel), "resources": asdict(kernel.resources)} for kernel in layer.kernels
                ],
                "rows": asdict(layer.rows),
                "instructions_a_triple": layer.instructions,
                "loop_instructions_a_triple": layer.loop_instructions,
                "rows_a_triple": layer.rows.total / layer.triples,
                "model": layer.model(card),
            }
            for layer in layers
        ],
    }


if __name__ == "__main__":
    sys.exit(run(main))
