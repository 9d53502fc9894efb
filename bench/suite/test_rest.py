"""Evaluation, reading of data, building of a graph's plan, and imports."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bench.measuring import DATA, found, timed
from lightcake_fast.data import KnowledgeGraph, load_dataset
from lightcake_fast.graph import ContextGraph
from lightcake_fast.metrics import Evaluation
from lightcake_fast.training.experiment import Experiment

IMPORTS = {
    "torch": "import torch",
    "lightcake_fast": "import torch, lightcake_fast.ops",
    "training": "import torch, lightcake_fast.train",
}


@pytest.mark.parametrize("dataset", ["family", "ddb14", "wn18rr", "nell995", "fb15k-237"])
def test_evaluation(dataset: str, device: torch.device, measure: Any) -> None:
    """Refine the embeddings and rank the relations of the test split."""
    found(dataset)
    flags = {"dataset": dataset, "dim": 64, "layers": 2, "device": device.type}
    experiment, twin = Experiment.of(**flags), Experiment.of(**flags)

    def evaluate() -> Evaluation:
        return experiment.evaluate("test")

    assert evaluate() == twin.evaluate("test"), "not timed: two evaluations differ"
    _, warm = timed(evaluate, device)
    measure(
        evaluate,
        warm=warm,
        device=device,
        kind="evaluation",
        mode="test split",
        model="lightcake 2",
        data=dataset,
        items=len(experiment.data.test),
        dim=64,
        layers=2,
        parameters=experiment.parameters,
    )


@pytest.mark.parametrize("dataset", DATA)
def test_loading(dataset: str, measure: Any) -> None:
    """Read the files, or generate the graph."""
    graph = found(dataset)
    again, warm = timed(lambda: load_dataset(dataset), torch.device("cpu"))
    assert again.fingerprint == graph.fingerprint
    measure(lambda: load_dataset(dataset), warm=warm, mode="read", **_about(graph, dataset))


@pytest.mark.parametrize("dataset", DATA)
def test_plan(dataset: str, measure: Any) -> None:
    """Sort and cut a graph for the kernels."""
    graph = found(dataset)

    def make() -> ContextGraph:
        made = ContextGraph.from_triples(graph.train, graph.num_entities, graph.num_relations)
        _ = made.plan
        return made

    made, warm = timed(make, torch.device("cpu"))
    assert np.array_equal(made.triples.numpy(), graph.train)
    measure(make, warm=warm, mode="plan", **_about(graph, dataset))


def _about(graph: KnowledgeGraph, dataset: str) -> dict[str, Any]:
    return {
        "kind": "loading",
        "model": "",
        "data": dataset,
        "device": torch.device("cpu"),
        "items": len(graph.train),
        "entities": graph.num_entities,
        "relations": graph.num_relations,
    }


@pytest.mark.parametrize("what", IMPORTS)
def test_import(what: str, measure: Callable[..., None]) -> None:
    """Start Python and import, in a separate process."""

    def start() -> None:
        subprocess.run([sys.executable, "-c", IMPORTS[what]], check=True)

    _, warm = timed(start, torch.device("cpu"))
    measure(
        start,
        warm=warm,
        device=torch.device("cpu"),
        kind="import",
        mode=what,
        model="",
        data="",
        items=1,
    )
