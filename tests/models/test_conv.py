"""`LightCAKEConv`: equal to the layer it wraps, with edges as PyTorch Geometric has them, and in its loop."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast import ContextGraph, LightCAKEConv, context_layer
from lightcake_fast.errors import InputError
from tests.support.comparison import assert_bitwise_equal

ROOT = Path(__file__).resolve().parents[2]
N, R, D = 9, 3, 8


def edges() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randint(N, (2, 30), generator=random), torch.randint(R, (30,), generator=random)


@pytest.mark.parametrize("context", ["both", "entity"])
@pytest.mark.parametrize("score", ["distmult", "transe", "transh"])
def test_it_is_the_layer(score: str, context: str) -> None:
    edge_index, edge_type = edges()
    settings: dict[str, Any] = {
        "score": score,
        "context": context,
        "rows": "float32" if score == "distmult" else "bfloat16",
        "backend": "auto" if score == "distmult" else "reference",
    }
    conv = LightCAKEConv(D, R, **settings, generator=torch.Generator().manual_seed(1))
    x = torch.randn(N, D, requires_grad=True)
    triples = torch.stack([edge_index[0], edge_type, edge_index[1]], 1)
    table: Tensor = conv.relations
    if score == "transh":
        table = torch.cat([table[:, :D], functional.normalize(table[:, D:], dim=1)], 1)
    expected = context_layer(x, table, ContextGraph.from_triples(triples, N, R), **settings)
    nodes = conv(x, edge_index, edge_type)
    both = conv(x, edge_index, edge_type, conv.relations)
    assert_bitwise_equal(nodes, expected[0])
    for actual, wanted in zip(both, expected, strict=True):
        assert_bitwise_equal(actual, wanted)
    inputs = x, conv.relations
    gradients = torch.autograd.grad(nodes.square().sum(), inputs)
    for actual, wanted in zip(
        gradients, torch.autograd.grad(expected[0].square().sum(), inputs), strict=True
    ):
        assert_bitwise_equal(actual, wanted)


def test_the_order_of_work_is_made_once_for_the_same_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ContextGraph] = []
    make = ContextGraph.from_triples

    def counted(*given: Any) -> ContextGraph:
        made.append(make(*given))
        return made[-1]

    monkeypatch.setattr(ContextGraph, "from_triples", counted)
    edge_index, edge_type = edges()
    conv, x = LightCAKEConv(D, R), torch.randn(N, D)
    first = conv(x, edge_index, edge_type)
    assert_bitwise_equal(conv(x, edge_index, edge_type), first)
    assert len(made) == 1
    edge_type[0] = (edge_type[0] + 1) % R  # written to in place
    other = conv(x, edge_index, edge_type)
    assert len(made) == 2
    assert not torch.equal(other, first)
    conv(torch.randn(N + 1, D), edge_index, edge_type)
    assert len(made) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, t: (i.int(), t), r"edge_index: got torch\.int32 \(2, 30\), wanted torch\.int64 \(2, E\)"),
        (lambda i, t: (i.T, t), r"edge_index: got torch\.int64 \(30, 2\)"),
        (lambda i, t: (i, t[1:]), r"edge_type: got torch\.int64 \(29,\), wanted torch\.int64 \(E,\)"),
        (lambda i, t: (i + 1, t), "head ids: got"),
        (lambda i, t: (i, t + R), "relation ids: got"),
    ],
)
def test_wrong_edges_are_refused(change: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LightCAKEConv(D, R)(torch.randn(N, D), *change(*edges()))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match="channels: got 7, wanted a multiple of 2 for score 'complex'"):
        LightCAKEConv(7, R, score="complex")
    with pytest.raises(ValueError, match="num_relations: got 0, wanted at least 1"):
        LightCAKEConv(D, 0)


@pytest.mark.parametrize("score", ["distmult", "transh"])
@pytest.mark.parametrize(
    ("relations", "kind", "message"),
    [
        (torch.ones(2 * R), ValueError, r"^relations: got shape \(6,\), wanted"),
        (torch.ones(2 * R, 2 * D, dtype=torch.int64), ValueError, "^relations: got torch.int64"),
        (torch.ones(2 * R, 2 * D - 1), ValueError, "^relations: got width 15"),
        ([1.0], TypeError, "^relations: got list"),
    ],
)
def test_wrong_relations_are_refused(score: str, relations: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        LightCAKEConv(D, R, score=score)(torch.randn(N, D), *edges(), relations)


def test_it_needs_no_torch_geometric() -> None:
    code = (
        "import sys; sys.modules['torch_geometric'] = None\n"
        "import torch; from lightcake_fast import LightCAKEConv\n"
        "conv = LightCAKEConv(4, 2, backend='reference')\n"
        "edges = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])\n"
        "print(tuple(conv(torch.ones(3, 4), *edges).shape), conv)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "(3, 4) LightCAKEConv(4, num_relations=2, score='distmult')\n"


@pytest.mark.full
def test_the_example_learns(peer: Callable[[str], Any]) -> None:
    peer("torch_geometric")
    share = runpy.run_path(str(ROOT / "examples" / "pyg_loop.py"))["main"]()
    assert share > 0.5
