"""The layer for some entities only: the bits of the whole layer, and its gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast import rows as rows_module
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import context_layer
from lightcake_fast.rows import context_rows, part_of
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import CPU_GRAPHS, SCORES, layer_inputs

D = 6


@pytest.fixture(autouse=True)
def of_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CUTTING", 0)


def some_rows(x: Tensor, y: Tensor, graph: ContextGraph, ids: Tensor, **options: Any) -> Tensor:
    part = part_of(graph, ids, D)
    assert part is not None
    return context_rows(x[part.entities], y, part, **options)


def results(
    x: Tensor, y: Tensor, graph: ContextGraph, ids: Tensor, whole: bool, **options: Any
) -> list[Tensor]:
    """Return new rows and the gradients of both tables."""
    tables = x.clone().requires_grad_(), y.clone().requires_grad_()
    if whole:
        new = context_layer(*tables, graph, context="entity", **options)[0].index_select(0, ids)
    else:
        new = some_rows(*tables, graph, ids, **options)
    g = torch.arange(new.numel(), dtype=new.dtype).sin().view_as(new)
    return [new, *torch.autograd.grad((g * new).sum(), tables)]


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_some_rows_have_the_bits_of_the_whole_layer(name: str, score: str, backend: str) -> None:
    for dtype in (torch.float64, torch.float32):
        x, y, graph, masked = layer_inputs(name, D, dtype)
        # a hub, one entity twice, the last entity, and some others
        rows = torch.cat([torch.tensor([0, 3, 3, graph.num_entities - 1]), torch.arange(2, 8, 3)])
        for mask in (None, masked):
            for residual, half in ((True, "float32"), (False, "float32"), (True, "bfloat16")):
                if (
                    half == "bfloat16"
                    and backend == "numba"
                    and dtype == torch.float32
                    and score != "distmult"
                ):
                    continue  # these passes would take seconds to compile
                options: dict[str, Any] = {
                    "score": score,
                    "mask": mask,
                    "residual": residual,
                    "rows": half,
                    "backend": backend,
                }
                actual = results(x, y, graph, rows, False, **options)
                expected = results(x, y, graph, rows, True, **options)
                assert_bitwise_equal(actual[0], expected[0])
                for which, got, wanted in zip(
                    ("entities", "relations"), actual[1:], expected[1:], strict=True
                ):
                    assert_close(got, wanted, name=which)


def test_rows_without_triples() -> None:
    x, y, graph, _ = layer_inputs("degrees", D, torch.float64)
    lonely = torch.tensor([0, 0])  # relation and entity 0 have no triple
    for rows in (lonely, lonely[:0]):
        assert_bitwise_equal(some_rows(x, y, graph, rows), x[rows])


def test_rows_with_many_triples_use_the_whole_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, graph, _ = layer_inputs("hubs", D, torch.float64)
    monkeypatch.setattr(rows_module, "CUTTING", 80)
    hub = torch.tensor([0])  # has a fourth of the context triples, and is an end of half of the raw triples
    assert part_of(graph, hub, 128) is not None
    assert part_of(graph, hub, 64) is None, "rows are too short for what cutting costs"
    assert part_of(graph, torch.tensor([0, 1]), 128) is None, "they read half, which all raw triples have"


def test_16_bit_tables_are_refused() -> None:
    x, y, graph, _ = layer_inputs("degrees", D, torch.float64)
    with pytest.raises(ValueError, match=r"expected both torch\.float32"):
        some_rows(x.bfloat16(), y.bfloat16(), graph, torch.tensor([1]))
