"""The fuzzer of the back ends: some hundred layers, and a check that it finds a fault."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import ROWS
from lightcake_fast.scores import BUILT_IN, FUSED
from tests.support import fuzz
from tests.support.graphs import QUICK_SCORES, layer_results


@pytest.mark.parametrize(
    ("backend", "graphs", "scores", "rows"),
    [
        ("numba", 100, QUICK_SCORES, ROWS[:1]),  # half-width rows would compile more passes
        ("triton", 4, QUICK_SCORES, ROWS),
        pytest.param("numba", 10_000, BUILT_IN, ROWS, marks=pytest.mark.full),
        pytest.param("triton", 100, FUSED, ROWS, marks=pytest.mark.full),
    ],
)
def test_random_layers(backend: str, graphs: int, scores: tuple[str, ...], rows: tuple[str, ...]) -> None:
    fuzz.fuzz(backend, graphs, scores=scores, rows=rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_gradients_that_cancel_are_within_the_bound_in_16_bits(seed: int, dtype: torch.dtype) -> None:
    """The expectation takes the same rounded upstream gradients: their rounding alone exceeds the bound."""
    for whole in (False, True):
        loop = fuzz.Case(
            entities=3,
            relations=1,
            triples=((0, 0, 0),),
            masked=None,
            width=1,
            dtype=dtype,
            score="distmult",
            context="both",
            rows="float32",
            scale=2.0,
            whole=whole,
            chunk=1,
            seed=seed,
        )
        fuzz.check(loop, "numba")


def test_a_planted_fault_is_found_and_minimized(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planted fault: loops of relation 1 shift the first entity slightly."""

    def faulty(x: Tensor, y: Tensor, graph: ContextGraph, backend: str, **options: Any) -> dict[str, Tensor]:
        results = layer_results(x, y, graph, backend="reference", **options)
        heads, relations, tails = graph.triples.unbind(1)
        if backend == "numba" and ((heads == tails) & (relations == 1)).any():
            results["entities"][0] += 0.1
        return results

    wrong: list[fuzz.Case] = []

    def check(case: fuzz.Case, backend: str) -> None:
        try:
            original(case, backend)
        except AssertionError:
            wrong.append(case)
            raise

    original = fuzz.check
    monkeypatch.setattr(fuzz, "layer_results", faulty)
    monkeypatch.setattr(fuzz, "check", check)
    with pytest.raises(AssertionError, match="entities: expected"):
        fuzz.fuzz("numba", 500, scores=QUICK_SCORES)
    smallest = wrong[-1]
    assert smallest.triples == ((0, 1, 0),)
    assert (smallest.entities, smallest.relations, smallest.width) == (1, 2, 1)
    assert (smallest.dtype, smallest.masked) == (torch.float32, None)
