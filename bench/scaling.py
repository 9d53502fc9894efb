"""Measure time and peak memory of big graphs with one thread: `python -m bench.scaling [TRIPLES ...]`.

Every stage runs in a separate process on a generated skewed graph with T triples, T / 4 entities and 800
relations. These are the proportions of Wikidata5M. The times are CPU seconds, so other processes on the
machine affect them little.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.memory import ROOT, peak_bytes
from lightcake_fast.data import read_folder
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer
from lightcake_fast.process import prepare_process
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.run_folder import Position, RunFolder
from lightcake_fast.training.state import restore_state, training_state

RELATIONS = 800
HELD_OUT = 10_000  # triples in valid and in test
LAYER_DIM = 32
FLAGS = {"dataset": "family", "preset": "paper", "batch_size": 65_536, "layers": 2, "dim": 64}


def write_graph(folder: Path, triples: int) -> None:
    """Write train, valid and test of a graph. A tenth of the ids gets nearly half of the draws."""
    rng = np.random.default_rng(0)
    entities = triples // 4
    places = rng.permutation(entities)  # spread popular entities over the tables
    folder.mkdir(parents=True)
    for split, count in (("train", triples), ("valid", HELD_OUT), ("test", HELD_OUT)):
        ids = (rng.random((count, 3)) ** 3 * [entities, RELATIONS, entities]).astype(np.int64)
        if split == "train":
            ids[:RELATIONS, 1] = np.arange(RELATIONS)
        ids[:, [0, 2]] = places[ids[:, [0, 2]]]
        with (folder / f"{split}.tsv").open("w", encoding="utf-8") as file:
            for block in np.array_split(ids, max(count // 100_000, 1)):
                file.writelines(f"Q{h + 1000}\tP{r}\tQ{t + 1000}\n" for h, r, t in block.tolist())


def _graph(folder: Path) -> ContextGraph:
    data = read_folder(folder)
    return ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)


def _experiment(folder: Path) -> Experiment:
    return Experiment(resolve(FLAGS), read_folder(folder))


def _read(folder: Path) -> Callable[[], object]:
    return lambda: read_folder(folder)


def _plan(folder: Path) -> Callable[[], object]:
    graph = _graph(folder)
    return lambda: graph.plan


def _layer(folder: Path) -> Callable[[], object]:
    graph = _graph(folder)
    entities, relations = (
        (torch.rand(rows, LAYER_DIM) - 0.5).requires_grad_()
        for rows in (graph.num_entities, 2 * graph.num_relations)
    )

    def both() -> None:
        new_entities, new_relations = context_layer(entities, relations, graph)
        (new_entities.sum() + new_relations.sum()).backward()  # type: ignore[no-untyped-call]

    both()  # compile first
    return both


def _step(folder: Path) -> Callable[[], object]:
    experiment = _experiment(folder)
    batch, *_ = experiment.epoch(0)
    for _ in range(2):  # creates the plan, the optimizer state and the compiled passes; then the kept memory
        experiment.advance(batch)
    return lambda: experiment.advance(batch)


def _save(folder: Path) -> Callable[[], object]:
    experiment, place = _experiment(folder), folder / "run"
    batch, *_ = experiment.epoch(0)
    experiment.advance(batch)  # creates Adam's averages, which are saved too
    config = dataclasses.replace(experiment.config, out=str(place))
    run = RunFolder.open(place) if RunFolder.is_at(place) else RunFolder.create(config, folder.name)

    def save() -> None:
        state = training_state(experiment.model, experiment.step, experiment.generator)
        run.save_last(state, Position(step=1), experiment.data.fingerprint, device=experiment.randomness)

    return save


def _load(folder: Path) -> Callable[[], object]:
    experiment, run = _experiment(folder), RunFolder.open(folder / "run")

    def load() -> None:
        found = run.load_last(experiment.data.fingerprint)
        assert found is not None, "expected the state of the stage before, got none"
        restore_state(found[0], experiment.model, experiment.step)

    return load


def _evaluation(folder: Path) -> Callable[[], object]:
    experiment = _experiment(folder)
    experiment.evaluate("valid")
    return lambda: experiment.evaluate("test")


STAGES: dict[str, tuple[str, Callable[[Path], Callable[[], object]]]] = {
    "read": ("reading the files", _read),
    "again": ("reading them a second time", _read),
    "plan": ("plan of the passes", _plan),
    "layer": (f"a layer, forward and backward, d {LAYER_DIM}", _layer),
    "step": ("a training step, B 65,536, L 2, d 64", _step),
    "save": ("saving the state after a step", _save),
    "load": ("loading this state", _load),
    "evaluation": (f"ranking {HELD_OUT:,} triples, L 2, d 64", _evaluation),
}


def run_stage(stage: str, folder: Path) -> dict[str, float]:
    """Run a stage in this process, set up like a command. Its preparation counts only for the memory."""
    prepare_process()
    torch.set_num_threads(1)
    before = peak_bytes()
    run = STAGES[stage][1](folder)
    start = time.process_time()
    run()
    return {"seconds": time.process_time() - start, "imports_bytes": before, "peak_bytes": peak_bytes()}


def measure(stage: str, folder: Path, cache: Path) -> dict[str, float]:
    """Run a stage in a separate process, with `cache` as the cache folder."""
    command = [sys.executable, "-m", "bench.scaling", "--stage", stage, str(folder)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def table(sizes: Sequence[int], results: dict[tuple[str, int], dict[str, float]]) -> str:
    """Format the results as a Markdown table, with the growth from the smallest to the largest graph."""
    lines = [
        "| | " + " | ".join(f"{size / 1e6:g} M: s | GiB" for size in sizes) + " | growth: time | memory |",
        "|---|" + "---|" * (2 * len(sizes) + 2),
    ]
    for stage, (label, _) in STAGES.items():
        found = [results[stage, size] for size in sizes]
        cells = [f"{r['seconds']:.1f} | {r['peak_bytes'] / 2**30:.2f}" for r in found]
        ratio = math.log(sizes[-1] / sizes[0]) or math.nan
        time_growth = math.log(found[-1]["seconds"] / found[0]["seconds"]) / ratio
        bytes_first, bytes_last = (r["peak_bytes"] - r["imports_bytes"] for r in (found[0], found[-1]))
        memory_growth = math.log(bytes_last / bytes_first) / ratio
        lines.append(f"| {label} | {' | '.join(cells)} | {time_growth:.2f} | {memory_growth:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every stage at every size. In the child process, run one stage on one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("triples", nargs="*", type=float, default=[1e6, 5e6], metavar="TRIPLES")
    parser.add_argument("--stage", nargs=2, metavar=("STAGE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(run_stage(options.stage[0], Path(options.stage[1]))))
        return
    sizes = sorted(int(count) for count in options.triples)
    results: dict[tuple[str, int], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        for size in sizes:
            write_graph(Path(place, str(size)), size)
        for size, stage in itertools.product(sizes, STAGES):
            results[stage, size] = measure(stage, Path(place, str(size)), Path(place, "cache"))
            print(f"{size:>12,} {stage:12} {results[stage, size]}", file=sys.stderr, flush=True)
    print(table(sizes, results))


if __name__ == "__main__":
    main()
