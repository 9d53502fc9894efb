"""A layer and a gather on graphs of 10^4 to 10^7 context triples; on a GPU also of Wikidata5M's size."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from bench.layers import BUILDERS, TOLERANCE, LayerInput, largest_difference
from bench.measuring import timed
from bench.memory import peak_of_call
from lightcake_fast.graph import ContextGraph

DIM = 64
SIZES = (10**4, 10**5, 10**6, 10**7)
RELATIONS = 50
DEGREE = 20  # mean number of context triples per entity
WIKIDATA5M = (4_600_000, 822, 256)  # entities, raw relations and d of a skewed graph of that size
GRAPHS = [(kind, size) for kind in ("uniform", "skewed") for size in SIZES]
GRAPHS += [("wikidata5m", 41_200_000)] if torch.cuda.is_available() else []
LARGEST_COMPARED = 10**5  # beyond this size plain PyTorch needs minutes and gigabytes


@functools.lru_cache(maxsize=1)
def generated(kind: str, size: int, device: torch.device) -> LayerInput:
    """Generate a graph of `size` context triples.

    In a skewed graph few entities and relations have most triples.
    """
    rng = np.random.default_rng(0)
    wide = kind == "wikidata5m"
    entities, relations, dim = WIKIDATA5M if wide else (size // DEGREE, RELATIONS, DIM)
    draws = rng.random((size // 2, 3))
    if kind != "uniform":
        draws **= 3  # the first tenth of the ids gets nearly half of the draws
    triples = (draws * [entities, relations, entities]).astype(np.int64)
    # spread popular entities over the memory
    triples[:, [0, 2]] = rng.permutation(entities)[triples[:, [0, 2]]]
    graph = ContextGraph.from_triples(triples, entities, relations).to(device)
    return LayerInput.random(graph, dim)


@pytest.mark.parametrize("name", ["lightcake", "gather"])
@pytest.mark.parametrize(
    ("kind", "size"), GRAPHS, ids=lambda part: part if isinstance(part, str) else f"{part:.0e}"
)
def test_scaling(kind: str, size: int, name: str, device: torch.device, measure: Any) -> None:
    """Time forward and backward. The peak comes from an untimed call in this process."""
    if kind == "wikidata5m" and device.type == "cpu":
        pytest.skip("a graph for GPUs")
    given = generated(kind, size, device)
    if name == "lightcake" and size <= LARGEST_COMPARED:
        results = [BUILDERS[which](given).both() for which in (name, "lightcake eager")]
        difference = largest_difference(*results)
        assert difference < TOLERANCE, f"not timed: the results differ by {difference:.1e}"
    step = BUILDERS[name](given)
    peak = peak_of_call(step.both, device)
    # the largest graphs take seconds; a second call would only confirm that
    _, warm = (None, 1.0) if size >= SIZES[-1] else timed(step.both, device)
    measure(
        step.both,
        warm=warm,
        device=device,
        kind="scaling",
        mode="both",
        model=name,
        data=kind,
        items=size,
        entities=given.graph.num_entities,
        relations=given.graph.num_relations,
        dim=given.entities.shape[1],
        parameters=step.parameters,
        peak_bytes=peak,
    )
