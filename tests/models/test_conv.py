"""`LightCAKEConv`: equality with `context_layer`, PyTorch Geometric's edges, compilation and messages."""

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


def rows() -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(2))


def layer(**settings: Any) -> LightCAKEConv:
    return LightCAKEConv(D, R, **settings, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("context", ["both", "entity"])
@pytest.mark.parametrize("score", ["distmult", "transe", "transh"])
def test_equals_context_layer(score: str, context: str) -> None:
    edge_index, edge_type = edges()
    settings: dict[str, Any] = {
        "score": score,
        "context": context,
        "rows": "float32" if score == "distmult" else "bfloat16",
        "backend": "auto" if score == "distmult" else "reference",
    }
    conv = layer(**settings)
    x = rows().requires_grad_()
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


def test_graph_and_its_edges_give_equal_results() -> None:
    edge_index, edge_type = edges()
    conv, x = layer(), rows()
    graph = ContextGraph.from_edge_index(edge_index, edge_type, N, R)
    triples = torch.stack([edge_index[0], edge_type, edge_index[1]], 1)
    assert torch.equal(graph.triples, triples)
    assert_bitwise_equal(conv(x, graph), conv(x, edge_index, edge_type))
    given = conv(x, graph, relations=conv.relations)
    for actual, wanted in zip(given, conv(x, edge_index, edge_type, conv.relations), strict=True):
        assert_bitwise_equal(actual, wanted)
    before = conv(x, graph)
    edge_index.zero_()
    assert_bitwise_equal(conv(x, graph), before)


def written(edge_type: Tensor) -> None:
    edge_type[0] = (edge_type[0] + 1) % R


def written_unseen(edge_type: Tensor) -> None:
    edge_type.data[0] = (edge_type[0] + 1) % R


def written_by_numpy(edge_type: Tensor) -> None:
    array = edge_type.numpy()
    array[0] = (array[0] + 1) % R


@pytest.mark.parametrize("write", [written, written_unseen, written_by_numpy])
def test_edges_can_change_between_calls(write: Callable[[Tensor], None]) -> None:
    edge_index, edge_type = edges()
    conv, x = layer(), rows()
    first = conv(x, edge_index, edge_type)
    assert_bitwise_equal(conv(x, edge_index, edge_type), first)
    write(edge_type)
    other = conv(x, edge_index, edge_type)
    assert not torch.equal(other, first)
    assert_bitwise_equal(other, conv(x, edge_index.clone(), edge_type.clone()))


def test_graph_from_inference_mode_works_in_training() -> None:
    edge_index, edge_type = edges()
    conv, x = layer(), rows()
    expected = conv(x, edge_index, edge_type)
    with torch.inference_mode():
        inside = edge_index.clone(), edge_type.clone()
        graph = ContextGraph.from_edge_index(*inside, N, R)
        for given in ((edge_index, edge_type), inside, (graph,)):
            assert_bitwise_equal(conv(x, *given).clone(), expected.detach())
    for other in (inside, (graph,)):
        actual = conv(x, *other)
        assert_bitwise_equal(actual, expected)
        (gradient,) = torch.autograd.grad(actual.sum(), conv.relations)
        assert gradient.count_nonzero()


@pytest.mark.parametrize("prepared", [False, True])
def test_graph_from_torch_func_works_in_later_calls(prepared: bool) -> None:
    conv, x, given = layer(), rows(), edges()
    made: list[ContextGraph] = []

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        made.append(ContextGraph.from_edge_index(*given, N, R))
        arguments = (made[-1],) if prepared else given
        nodes: Tensor = torch.func.functional_call(conv, parameters, (x, *arguments))
        return nodes.square().sum()

    gradient = torch.func.grad(loss)(dict(conv.named_parameters()))["relations"]
    for arguments in (given, (made[-1],)):
        (expected,) = torch.autograd.grad(conv(x, *arguments).square().sum(), conv.relations)
        torch.testing.assert_close(gradient, expected)


class TwoLayers(torch.nn.Module):
    """Two layers over one graph."""

    def __init__(self, graph: ContextGraph, score: str) -> None:
        super().__init__()
        self.graph, self.first, self.second = graph, layer(score=score), layer(score=score)

    def forward(self, x: Tensor) -> Tensor:
        x, relations = self.first(x, self.graph, relations=self.first.relations)
        nodes: Tensor = self.second(x, self.graph, relations=relations)[0]
        return nodes


@pytest.mark.parametrize("score", ["distmult", "transh"])
def test_module_compiles_as_one_graph(score: str) -> None:
    torch.compiler.reset()
    model, x = TwoLayers(ContextGraph.from_edge_index(*edges(), N, R), score), rows()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    inputs = [x.requires_grad_(), model.first.relations]
    actual, expected = compiled(x), model(x)
    assert_bitwise_equal(actual, expected)
    pairs = zip(
        *(torch.autograd.grad(rows.square().sum(), inputs) for rows in (actual, expected)), strict=True
    )
    for one, other in pairs:
        assert_bitwise_equal(one, other)


def test_tensor_edges_run_outside_compiled_code() -> None:
    torch.compiler.reset()
    conv, x, given = layer(), rows(), edges()
    compiled = torch.compile(conv, backend="aot_eager")
    for left_out in range(3):
        edge_index, edge_type = given[0][:, left_out:], given[1][left_out:]
        assert_bitwise_equal(compiled(x, edge_index, edge_type), conv(x, edge_index, edge_type))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"pass a graph made by ContextGraph\.from_edge_index"):
        torch.compile(conv, fullgraph=True, backend="aot_eager")(x, *given)


def test_module_exports_with_its_graph() -> None:
    model, x = TwoLayers(ContextGraph.from_edge_index(*edges(), N, R), "distmult").eval(), rows()
    assert_bitwise_equal(torch.export.export(model, (x,)).module()(x), model(x))
    with pytest.raises(InputError, match=r"edge_index: expected a graph under torch\.export, got a tensor"):
        torch.export.export(model.first, (x, *edges()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda i, t: (i.int(), t),
            r"edge_index: expected torch\.int64 of shape \(2, E\), got torch\.int32 of shape \(2, 30\): give",
        ),
        (lambda i, t: (i.T, t), r"edge_index: expected .*, got torch\.int64 of shape \(30, 2\)"),
        (
            lambda i, t: (i, t[1:]),
            r"edge_type: expected .* of shape \(30,\), got torch\.int64 of shape \(29,\)",
        ),
        (lambda i, t: (i + 1, t), "head ids: expected"),
        (lambda i, t: (i, t + R), "relation ids: expected"),
        (lambda i, t: (i, t.to("meta")), "edge_type: expected device cpu, got meta"),
        (lambda i, t: (i, None), "edge_type: expected a tensor with the tensor edge_index, got None: add it"),
        (
            lambda i, t: (ContextGraph.from_edge_index(i, t, N, R), t),
            "edge_type: expected None with a graph, got a tensor: leave it out",
        ),
        (lambda i, t: (ContextGraph.from_edge_index(i, t, N + 1, R),), "entities: expected shape"),
        (lambda i, t: (ContextGraph.from_edge_index(i, t, N, R + 1),), "relations: expected shape"),
    ],
)
def test_rejects_wrong_edges(change: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer()(rows(), *change(*edges()))


def test_rejects_edges_as_lists() -> None:
    edge_index, edge_type = edges()
    lists: Any = edge_index.tolist()
    with pytest.raises(TypeError, match=r"edge_index: expected a .*, got list"):
        layer()(rows(), lists, edge_type)
    with pytest.raises(TypeError, match=r"edge_type: expected a .*, got list"):
        ContextGraph.from_edge_index(edge_index, lists[0], N, R)


@pytest.mark.parametrize("x", [None, (rows(), rows())], ids=["none", "pair"])
def test_rejects_nodes_that_are_not_a_tensor(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x: expected a .*, got (NoneType|tuple)"):
        layer()(x, *edges())


def test_rejects_wrong_settings() -> None:
    with pytest.raises(InputError, match="channels: expected a multiple of 2 for score 'complex', got 7: "):
        LightCAKEConv(7, R, score="complex")
    with pytest.raises(ValueError, match="num_relations: expected at least 1, got 0"):
        LightCAKEConv(D, 0)


@pytest.mark.parametrize("score", ["distmult", "transh"])
@pytest.mark.parametrize(
    ("relations", "kind", "message"),
    [
        (torch.ones(2 * R), ValueError, r"^relations: expected shape .*, got \(6,\)"),
        (
            torch.ones(2 * R, 2 * D, dtype=torch.int64),
            ValueError,
            "^relations: .* got torch.int64",
        ),
        (torch.ones(2 * R, 2 * D - 1), ValueError, "^relations: expected .*, got 15"),
        ([1.0], TypeError, "^relations: expected a .*, got list"),
    ],
)
def test_rejects_wrong_relations(score: str, relations: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        layer(score=score)(rows(), *edges(), relations)


def test_works_without_torch_geometric() -> None:
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
def test_example_learns(peer: Callable[[str], Any]) -> None:
    peer("torch_geometric")
    share = runpy.run_path(str(ROOT / "examples" / "pyg_loop.py"))["main"]()
    assert share > 0.5
