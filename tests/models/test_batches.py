"""Batches of R-GCN and CompGCN: tiles (GPU) and one batch per relation (CPU) give equal results."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import COMPOSITIONS, DECOMPOSITIONS, CompGCNLayer, RGCNLayer, batches
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import layer_inputs

D, TRIPLES, ENTITIES = 6, 3000, 50
WAITING = ("_local_scalar_dense", "nonzero", "unique", "bincount", "sort")
LAYERS = [
    *(("rgcn", decomposition) for decomposition in DECOMPOSITIONS),
    *(("compgcn", composition) for composition in COMPOSITIONS),
]
every_layer = pytest.mark.parametrize(("name", "kind"), LAYERS)
REAL_RULE = batches.tiles_at_once


def on_a_gpu(device: torch.device, numbers: int) -> int | None:
    return REAL_RULE(torch.device("cuda"), numbers)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the number of tiles per batch and the rows per tile."""

    def choose(rule: Callable[[torch.device, int], int | None], tile: int = batches.TILE) -> None:
        monkeypatch.setattr(batches, "tiles_at_once", rule)
        monkeypatch.setattr(batches, "TILE", tile)

    return choose


def made(name: str, kind: str, relations: int, dtype: torch.dtype) -> nn.Module:
    """Return a layer with the same weights in every dtype, except for rounding."""
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(3), "dtype": torch.float64}
    if name == "rgcn":
        return RGCNLayer(relations, D, decomposition=kind, bases=2, **options).to(dtype)
    return CompGCNLayer(D, composition=kind, **options).to(dtype)


def results(layer: nn.Module, x: Tensor, z: Tensor, graph: ContextGraph, mask: Tensor | None) -> list[Tensor]:
    """Return the new entities and all gradients."""
    inputs = [x.requires_grad_(), *layer.parameters()]
    if isinstance(layer, CompGCNLayer):
        inputs.insert(1, z.requires_grad_())
        out = layer(x, z, graph, mask)[0]
    else:
        out = layer(x, graph, mask)
    upstream = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return [out, *torch.autograd.grad(out, inputs, upstream.to(x.dtype), materialize_grads=True)]


def random_graph(relations: int) -> ContextGraph:
    random = torch.Generator().manual_seed(5)
    sizes = (ENTITIES, relations, ENTITIES)
    columns = [torch.randint(size, (TRIPLES,), generator=random) for size in sizes]
    return ContextGraph.from_triples(torch.stack(columns, 1), ENTITIES, relations)


@pytest.mark.parametrize("tiles", [1, 3, 1000])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("graph_name", ["degrees", "duplicates", "hubs", "sparse"])
@every_layer
def test_tiles_equal_the_loop(
    name: str, kind: str, graph_name: str, masked: bool, tiles: int, use: Callable[..., None]
) -> None:
    answers = {}
    for dtype in (torch.float64, torch.float32):
        x, z, graph, mask = layer_inputs(graph_name, D, dtype)
        layer = made(name, kind, graph.num_relations, dtype)
        for rule, count in (("loop", None), ("tiles", tiles)):
            use(lambda device, numbers, count=count: count, tile=4)
            answers[rule, dtype] = results(layer, x, z, graph, mask if masked else None)
    exact = answers["loop", torch.float64]
    for dtype in (torch.float64, torch.float32):
        for tiled, wanted in zip(answers["tiles", dtype], exact, strict=True):
            assert_close(tiled, wanted, slack=10.0)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operations that launch a kernel, and the size of their largest result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            name = func.overloadpacket.__name__
            self.names.append(name)
            if name == "index_add_" and out.is_floating_point():
                assert len(args[2].unique()) == len(args[2]), "duplicate rows, added in any order on a GPU"
            self.largest = max([self.largest, *(t.numel() for t in torch.utils._pytree.tree_leaves(out))])
        return out


def launches(name: str, kind: str, relations: int) -> Launches:
    """Return the kernel launches of a layer's second forward and backward pass on a graph."""
    graph, random = random_graph(relations), torch.Generator().manual_seed(6)
    x, z = (torch.randn(n, D, generator=random) for n in (ENTITIES, 2 * relations))
    layer = made(name, kind, relations, torch.float32)
    results(layer, x, z, graph, None)
    found = Launches()
    with found:
        results(layer, x, z, graph, None)
    return found


@every_layer
def test_launches_do_not_depend_on_the_number_of_relations(
    name: str, kind: str, use: Callable[..., None]
) -> None:
    loop = len(launches(name, kind, 100).names)
    use(on_a_gpu)
    few, many = (launches(name, kind, relations).names for relations in (2, 100))
    assert few == many
    assert 4 * len(many) < loop
    assert not [operation for operation in many if operation.startswith(WAITING)]


@every_layer
def test_batch_size_bounds_memory(name: str, kind: str, use: Callable[..., None]) -> None:
    use(lambda device, numbers: 4, tile=16)
    largest = launches(name, kind, 20).largest
    assert largest <= 2 * TRIPLES  # enough for one weight per entry, not for D numbers per group


@every_layer
def test_tiles_are_bitwise_repeatable(name: str, kind: str, use: Callable[..., None]) -> None:
    use(on_a_gpu)
    x, z, graph, mask = layer_inputs("hubs", D, torch.float32)
    layer = made(name, kind, graph.num_relations, torch.float32)
    first, second = (results(layer, x, z, graph, mask) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert_bitwise_equal(a, b)


def test_cpu_has_one_batch_per_relation_and_gpu_has_bounded_tiles() -> None:
    assert batches.tiles_at_once(torch.device("cpu"), 1) is None
    for numbers in (1, 1000, 2 * batches.NUMBERS):
        tiles = on_a_gpu(torch.device("cuda"), numbers)
        assert tiles is not None
        assert tiles == 1 or tiles * numbers <= batches.NUMBERS < (tiles + 1) * numbers
