"""Measure the layer on the card at hand: ``python -m bench.gpu_report --json report.json``.

Equality with the float64 reference is checked first; then come the card's own ceilings, one layer forward and
backward on four data sets beside its peers, the training step with and without a CUDA graph, a uniform graph
beside the skewed ones, 16-bit rows, a generated graph of Wikidata5M's size, and other shapes. What
is not installed or does not fit is left out with a line that says so. ``--device cpu`` runs the same path on
tiny sizes, for CI.
"""

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.kernel_cost import DATASETS, layer_cost, load_graph
from bench.layer_cost import CARDS
from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.data import load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import LightCAKE
from lightcake_fast.ops import context_layer, tune_context_layer
from lightcake_fast.reference import layer as reference
from lightcake_fast.segments import Segments, segment_softmax_aggregate
from lightcake_fast.training.captured import WARM_UPS, CapturedStep, record, warm_up
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.runtime import device_name
from lightcake_fast.training.step import TrainingStep

Run = Callable[[], Sequence[Tensor]]
Report = dict[str, Any]
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2}  # largest difference over the largest entry
WIKIDATA5M = (4_600_000, 822, 20_600_000)  # entities, raw relations, raw triples
BLOCKS = 32  # of FastRGCNConv's weights: with full ones its messages need E x d x d numbers


class Bench:
    """The device, the sizes that it is given, and how it measures."""

    def __init__(self, device: str, width: int, datasets: Sequence[str]) -> None:
        self.device, self.width = torch.device(device), width
        self.on_gpu = self.device.type == "cuda"
        self.datasets = datasets
        self.graphs = {name: load_graph(name).to(self.device) for name in datasets}
        self.random = torch.Generator(self.device).manual_seed(0)

    def rows(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random rows of the width that ask for a gradient."""
        values = torch.randn(count, self.width, generator=self.random, device=self.device) * 0.2
        return values.to(dtype).requires_grad_()

    def milliseconds(self, run: Callable[[], object], seconds: float = 0.4) -> float:
        """The median of as many calls as fit into the time, after warming up."""
        for _ in range(WARM_UPS + 1):  # and recording, where a step is captured
            run()
        times: list[float] = []
        end = time.monotonic() + seconds
        while not times or (time.monotonic() < end and len(times) < 100):
            times.append(self._once(run))
        return sorted(times)[len(times) // 2]

    def _once(self, run: Callable[[], object]) -> float:
        if not self.on_gpu:
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def captured(self, run: Callable[[], object]) -> Any:
        """The same work as one CUDA graph, to be replayed; None on the CPU."""
        if not self.on_gpu:
            return None
        for _ in range(WARM_UPS):
            warm_up(run)
        return record(run)

    def extra_bytes(self, run: Run) -> int | None:
        """Peak memory beyond what was there and what is returned; None on the CPU."""
        if not self.on_gpu:
            return None
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = run()
        return torch.cuda.max_memory_allocated() - before - sum(t.nbytes for t in results)


def step(function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, y: Tensor) -> Run:
    """Forward and backward: the new rows, and the gradients of the old ones from gradients of one."""
    ones = torch.ones_like(x), torch.ones_like(y)

    def both() -> list[Tensor]:
        rows = function(x, y)
        return [*(row.detach() for row in rows), *torch.autograd.grad(rows, (x, y), ones)]

    return both


def fused(
    graph: ContextGraph, score: str, **options: Any
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The layer under test."""
    return lambda x, y: context_layer(x, y, graph, score=score, **options)


def plain(graph: ContextGraph, score: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The layer in plain PyTorch."""
    return lambda x, y: reference.context_layer(x, y, graph.context_triples, None, score, "both")


def equality(bench: Bench) -> Report:
    """Largest difference from the float64 reference, over the largest entry, of rows and gradients.

    Raises:
        InputError: if one is too large: nothing is then worth timing.
    """
    data = load_dataset("family")
    triples = torch.from_numpy(data.train).to(bench.device)
    graph = ContextGraph.from_triples(triples, data.num_entities, data.num_relations)
    mask = torch.rand(len(triples), generator=bench.random, device=bench.device) < 0.2
    found: Report = {}
    for dtype, tolerance in TOLERANCES.items():
        x, y = bench.rows(graph.num_entities, dtype), bench.rows(2 * graph.num_relations, dtype)
        wide = x.detach().double().requires_grad_(), y.detach().double().requires_grad_()
        worst = 0.0
        for score, used in itertools.product(("distmult", "transe"), (None, mask)):
            actual = step(fused(graph, score, mask=used), x, y)()
            expected = step(fused(graph, score, mask=used, backend="reference"), *wide)()
            for a, e in zip(actual, expected, strict=True):
                worst = max(worst, float((a - e).abs().max() / e.abs().max()))
        found[str(dtype).removeprefix("torch.")] = worst
        if not worst < tolerance:
            raise InputError(f"{dtype}: results differ by {worst:.1e} from the reference, nothing is timed")
    return found


def ceilings(bench: Bench) -> Report:
    """Bytes a second of copies, and of gathers summed in registers: of tables in cache and in memory."""
    found: Report = {}
    for name, kib in (("cache", 16 << 10), ("memory", 2 << 20)) if bench.on_gpu else (("cache", 64),):
        source = torch.zeros(kib << 8, device=bench.device)
        target = torch.empty_like(source)
        taken = bench.milliseconds(lambda a=source, b=target: b.copy_(a))  # type: ignore[misc]
        found[f"copy_{name}"] = 2 * source.nbytes / taken * 1e3
        rows = (kib << 10) // (4 * bench.width)
        gathered = (1 << 20) if bench.on_gpu else 256
        index = torch.randint(rows, (gathered,), generator=bench.random, device=bench.device)
        bounds = torch.arange(0, gathered + 1, 64, device=bench.device)
        table = source[: rows * bench.width].view(rows, bench.width)
        segments, scores = Segments.from_csr(bounds, index, rows), torch.zeros(gathered, device=bench.device)
        rivals: list[Callable[[], object]] = [
            lambda s=scores, t=table, g=segments: segment_softmax_aggregate(s, t, g),  # type: ignore[misc]
            lambda i=index, t=table, b=bounds: functional.embedding_bag(i, t, b[:-1], mode="sum"),  # type: ignore[misc]
        ]
        with torch.no_grad():
            best = min(bench.milliseconds(rival) for rival in rivals)
        found[f"gather_{name}"] = 4 * bench.width * gathered / best * 1e3
    return found


def layers(bench: Bench, gather: float) -> Report:
    """One layer, forward and backward, on every data set and score, beside the floor of its gathered rows."""
    return {
        f"{name} {score}": _layer(bench, name, graph, score, gather)
        for name, graph in bench.graphs.items()
        for score in ("distmult", "transe")
    }


def _layer(bench: Bench, name: str, graph: ContextGraph, score: str, gather: float) -> Report:
    layer = fused(graph, score)
    x, y = bench.rows(graph.num_entities), bench.rows(2 * graph.num_relations)
    both, narrow = step(layer, x, y), [t.detach().bfloat16().requires_grad_() for t in (x, y)]
    replay = bench.captured(both)
    cost = layer_cost(name, graph.to("cpu"), _target(bench), width=bench.width, score=score)
    with torch.no_grad():
        forward = bench.milliseconds(lambda: layer(x, y))
    launched = bench.milliseconds(both)
    captured = bench.milliseconds(replay) if replay else None
    floor = cost.rows.gathered * cost.row_bytes / gather * 1e3
    return {
        "forward_ms": forward,
        "both_ms": launched,
        "captured_ms": captured,
        "bfloat16_ms": bench.milliseconds(step(layer, *narrow)),
        "gathered_floor_ms": floor,
        "all_bytes_floor_ms": cost.moved_bytes / gather * 1e3,
        "of_gathered_floor": floor / (captured or launched),
        "extra_bytes": bench.extra_bytes(both),
    }


def peers(bench: Bench) -> Report:
    """The reference, eager and compiled, and PyG's R-GCN layers on the same graphs, DistMult, float32."""
    found: Report = {}
    for name, graph in bench.graphs.items():
        x, y = bench.rows(graph.num_entities), bench.rows(2 * graph.num_relations)
        eager = step(plain(graph, "distmult"), x, y)
        compiled = torch.compile(
            plain(graph, "distmult"), fullgraph=True, backend="inductor" if bench.on_gpu else "aot_eager"
        )
        entry: Report = {}
        entry["eager_ms"] = _or_skipped(lambda e=eager: bench.milliseconds(e))  # type: ignore[misc]
        entry["eager_extra_bytes"] = _or_skipped(lambda e=eager: bench.extra_bytes(e))  # type: ignore[misc]
        both = step(compiled, x, y)
        entry["compiled_ms"] = _or_skipped(lambda b=both: bench.milliseconds(b))  # type: ignore[misc]
        for kind in ("RGCNConv", "FastRGCNConv"):
            entry[f"{kind}_ms"] = _or_skipped(lambda k=kind, g=graph, x=x: _rgcn(bench, k, g, x))  # type: ignore[misc]
        found[name] = entry
        torch.compiler.reset()
    return found


def _rgcn(bench: Bench, kind: str, graph: ContextGraph, x: Tensor) -> float | str:
    """A PyG layer of the same width and relations, forward and backward; or why it was not run."""
    try:
        from torch_geometric import nn
    except ImportError as error:
        return f"not installed: {error}"
    size = min(BLOCKS, bench.width)
    needed = 8 * graph.num_triples * bench.width**2 // size
    if (
        kind == "FastRGCNConv"
        and bench.on_gpu
        and 3 * needed > torch.cuda.get_device_properties(0).total_memory
    ):
        return f"needs {needed / 1e9:.0f} GB for one tensor of its messages"
    blocks = {"num_blocks": size} if kind == "FastRGCNConv" else {}
    layer = getattr(nn, kind)(bench.width, bench.width, 2 * graph.num_relations, **blocks).to(bench.device)
    head, relation, tail = graph.context_triples
    edges, weights = torch.stack([tail, head]), (x, *layer.parameters())
    ones = torch.ones_like(x)
    return bench.milliseconds(lambda: torch.autograd.grad(layer(x, edges, relation), weights, ones))


def training_step(bench: Bench) -> Report:
    """One training step of the paper's settings, as it is launched and as one CUDA graph."""
    name = "nell995" if "nell995" in bench.datasets else bench.datasets[0]
    data = load_dataset(name)
    config = resolve({"dataset": name, "preset": "paper", "dim": bench.width})
    generator = torch.Generator(bench.device).manual_seed(0)
    model = LightCAKE(
        data.num_entities, data.num_relations, dim=config.dim, layers=config.layers, generator=generator
    )
    one = TrainingStep(model, bench.graphs[name], config, generator)
    batch = torch.arange(min(config.batch_size, len(data.train)), device=bench.device)
    launched = bench.milliseconds(lambda: one(batch))
    captured = CapturedStep(one, len(batch), generator) if bench.on_gpu else None
    return {
        "dataset": name,
        "layers": config.layers,
        "batch_size": len(batch),
        "launched_ms": launched,
        "captured_ms": captured and bench.milliseconds(lambda: captured(batch)),
    }


def uniform(bench: Bench) -> Report:
    """The layer on a graph without skew, of each data set's size: what the skew costs is the ratio."""
    found: Report = {}
    for name, graph in bench.graphs.items():
        size = graph.num_entities, graph.num_relations, graph.num_entities
        even = [
            torch.randint(n, (graph.num_triples,), generator=bench.random, device=bench.device) for n in size
        ]
        other = ContextGraph.from_triples(torch.stack(even, 1), size[0], size[1])
        x, y = bench.rows(size[0]), bench.rows(2 * size[1])
        times = [bench.milliseconds(step(fused(g, "distmult"), x, y)) for g in (graph, other)]
        found[name] = {"skewed_ms": times[0], "uniform_ms": times[1], "ratio": times[0] / times[1]}
    return found


def large(bench: Bench) -> Report:
    """A skewed graph of Wikidata5M's size (a thousandth of it on the CPU)."""
    num_entities, num_relations, count = WIKIDATA5M if bench.on_gpu else (4600, 82, 20600)
    draws = torch.rand(3, count, generator=bench.random, device=bench.device, dtype=torch.float64)
    limits = torch.tensor([num_entities, num_relations, num_entities], device=bench.device)
    triples = (limits[:, None] * draws**3).long().T.contiguous()
    start = time.monotonic()
    graph = ContextGraph.from_triples(triples, num_entities, num_relations)
    planned = time.monotonic() - start
    both = step(fused(graph, "distmult"), bench.rows(num_entities), bench.rows(2 * num_relations))
    return {
        "entities": num_entities,
        "triples": count,
        "plan_seconds": planned,
        "both_ms": bench.milliseconds(both, seconds=3.0),
        "extra_bytes": bench.extra_bytes(both),
    }


def shapes(bench: Bench) -> Report:
    """A layer's milliseconds by kernel and by numbers of a row in each lane: what should be shipped."""
    graph = bench.graphs[bench.datasets[0]]
    return {score: tune_context_layer(graph, bench.width, score=score) for score in ("distmult", "transe")}


def _or_skipped(measure: Callable[[], Any]) -> Any:
    """A measurement, or the line that says why there is none."""
    try:
        return measure()
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return f"memory is short: {str(error).splitlines()[0]}"


def _target(bench: Bench) -> str:
    """The target whose kernels are counted: this card's, or the H100's."""
    name = "sm_{}{}".format(*torch.cuda.get_device_capability()) if bench.on_gpu else "sm_90"
    return name if name in CARDS else "sm_90"


def machine(bench: Bench) -> Report:
    """What was measured on, with what."""
    import triton

    return {
        "device": device_name(bench.device),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if bench.on_gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "width": bench.width,
    }


def lines(name: str, found: Any) -> list[str]:
    """A section as text: one line an entry."""
    if not isinstance(found, dict):
        return [f"{name}: {found}"]
    nested = {key: value for key, value in found.items() if isinstance(value, dict)}
    flat = "  ".join(f"{key} {_short(value)}" for key, value in found.items() if key not in nested)
    return [f"{name}: {flat}"] * bool(flat) + [
        line for key, value in nested.items() for line in lines(f"{name} / {key}", value)
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def main(argv: Sequence[str]) -> None:
    """Measure section by section, printing each as it is done."""
    arguments = _parse(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no GPU here")
    tiny = arguments.device == "cpu"
    bench = Bench(arguments.device, 16 if tiny else 256, ["family:60"] if tiny else DATASETS)
    report: Report = {"machine": machine(bench)}
    sections: dict[str, Callable[[], Report]] = {
        "equality": lambda: equality(bench),
        "ceilings": lambda: ceilings(bench),
        "layers": lambda: layers(bench, report["ceilings"]["gather_cache"]),
        "peers": lambda: peers(bench),
        "training_step": lambda: training_step(bench),
        "uniform": lambda: uniform(bench),
        "large": lambda: large(bench),
    }
    if bench.on_gpu:
        sections["shapes"] = lambda: shapes(bench)
    print("\n".join(lines("machine", report["machine"])), flush=True)
    for name, section in sections.items():
        start = time.monotonic()
        report[name] = _or_skipped(section)
        print("\n".join(lines(name, report[name])), f"[{time.monotonic() - start:.0f} s]", flush=True)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser("python -m bench.gpu_report", "Measure the layer on the card at hand.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny sizes, for CI")
    parser.add_argument("--json", metavar="FILE", help="write everything there, section by section")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
