"""One layer over a graph, forward and backward, by every implementation that does it, side by side."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.gather import gathered
from bench.memory import Computation
from lightcake_fast.data import load_dataset
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import RGCNLayer
from lightcake_fast.models.neighbours import neighbours, sum_rows
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import FUSED

BFLOAT16 = "lightcake bfloat16"
HALF_ROWS = "lightcake bfloat16 rows"  # of which triples read such a copy; all else is float32
BLOCKS = 32  # of a block-diagonal R-GCN: at width 256 its matrices are 8 by 8


@dataclass(frozen=True)
class LayerInput:
    """What a layer is timed on.

    Attributes:
        graph: the context.
        entities: (N, d), asks for gradients.
        relations: (2R, d), likewise.
        entity_gradient: (N, d), to send back.
        relation_gradient: (2R, d), likewise.
        score: LightCAKE's score function.
    """

    graph: ContextGraph
    entities: Tensor
    relations: Tensor
    entity_gradient: Tensor
    relation_gradient: Tensor
    score: str = "distmult"

    @property
    def context_triples(self) -> int:
        """E, inverses included."""
        return 2 * self.graph.num_triples

    @property
    def row_bytes(self) -> int:
        """Of one embedding."""
        return self.entities.shape[1] * self.entities.element_size()

    @classmethod
    def random(cls, graph: ContextGraph, dim: int, score: str = "distmult") -> "LayerInput":
        """Normal rows on the graph's device; scores are of about one, whatever the width."""
        _ = graph.gpu_plan if graph.device.type == "cuda" else graph.plan  # made now, not when it is timed
        generator = torch.Generator().manual_seed(0)
        scale = 0.7 / max(dim, 4) ** (1 / 6)
        sizes = (graph.num_entities, dim), (2 * graph.num_relations, dim)
        tables = [torch.randn(size, generator=generator) for _ in range(2) for size in sizes]
        x, y, g, q = (table.to(graph.device) for table in tables)
        return cls(graph, (x * scale).requires_grad_(), (y * scale).requires_grad_(), g, q, score)

    def to(self, dtype: torch.dtype) -> "LayerInput":
        """The same in another type."""
        x, y = (table.detach().to(dtype).requires_grad_() for table in (self.entities, self.relations))
        g, q = self.entity_gradient.to(dtype), self.relation_gradient.to(dtype)
        return LayerInput(self.graph, x, y, g, q, self.score)


class LayerStep:
    """A layer's forward and backward as separate calls.

    Args:
        compute: gives the outputs.
        inputs: what the outputs are differentiated by.
        gradients: of a loss by each output.
        parameters: numbers that a model with this one layer learns; None for no model.
    """

    def __init__(
        self,
        compute: Callable[[], tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        parameters: int | None,
    ) -> None:
        self._compute, self._inputs, self._gradients = compute, inputs, gradients
        self.parameters = parameters

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs, with what a backward needs."""
        return self._compute()

    def backward(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the inputs, from a forward's outputs, which are used up."""
        return torch.autograd.grad(outputs, self._inputs, self._gradients)

    def both(self) -> tuple[Tensor, ...]:
        """Outputs and gradients."""
        outputs = self.forward()
        return *(output.detach() for output in outputs), *self.backward(*outputs)


def context_step(
    given: LayerInput, backend: str, *, compiled: bool = False, rows: str = "float32"
) -> LayerStep:
    """This package's layer; "reference" is plain PyTorch under autograd."""

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(x, y, given.graph, score=given.score, rows=rows, backend=backend)

    if compiled:
        _ = given.graph.context_triples  # made now: its lock cannot be traced
        layer = torch.compile(layer, dynamic=False, fullgraph=True)
    tables = given.entities, given.relations
    gradients = given.entity_gradient, given.relation_gradient
    count = sum(table.numel() for table in tables)
    return LayerStep(lambda: layer(*tables), tables, gradients, count)


def rgcn_layer(given: LayerInput, decomposition: str) -> RGCNLayer:
    """An R-GCN layer of this package, always the same."""
    dim, relations = given.entities.shape[1], given.graph.num_relations
    generator = torch.Generator().manual_seed(1)
    layer = RGCNLayer(relations, dim, decomposition=decomposition, bases=BLOCKS, generator=generator)
    return layer.to(given.entities.device)


def rgcn_step(given: LayerInput, decomposition: str) -> LayerStep:
    """This package's R-GCN layer."""
    layer = rgcn_layer(given, decomposition)
    return _convolution_step(given, lambda x: layer(x, given.graph), [layer.root, layer.matrices])


def pyg_step(given: LayerInput, convolution: str) -> LayerStep:
    """PyG's `RGCNConv` with full matrices or `FastRGCNConv` with blocks, the weights as in `rgcn_step`."""
    full = convolution == "RGCNConv"
    ours = rgcn_layer(given, "full" if full else "block")
    dim, relations = given.entities.shape[1], 2 * given.graph.num_relations
    layer = getattr(importlib.import_module("torch_geometric.nn"), convolution)(
        dim, dim, relations, bias=False, num_blocks=None if full else BLOCKS
    )
    weight = ours.matrices[:, 0] if full else ours.matrices
    layer.load_state_dict({"root": ours.root.detach(), "weight": weight.detach()})
    layer.to(given.entities.device)
    head, relation, tail = given.graph.context_triples
    edges = torch.stack([tail, head])
    return _convolution_step(given, lambda x: layer(x, edges, relation), [layer.root, layer.weight])


def _convolution_step(
    given: LayerInput, layer: Callable[[Tensor], Tensor], weights: list[Tensor]
) -> LayerStep:
    # with the entities, and the decoder's R relations
    count = given.entities.numel() + given.relations.numel() // 2 + sum(weight.numel() for weight in weights)
    inputs = [given.entities, *weights]
    return LayerStep(lambda: (layer(given.entities),), inputs, [given.entity_gradient], count)


class GatherStep(LayerStep):
    """The limit: reads the rows that a layer over the graph must read, and adds them up."""

    def __init__(self, given: LayerInput) -> None:
        super().__init__(lambda: gathered_sums(given, None), [], [], None)
        self._given = given

    def backward(self, *_: Tensor) -> tuple[Tensor, ...]:
        """The sums of a backward's rows."""
        return gathered_sums(self._given, self._given.entity_gradient)


def gathered_sums(given: LayerInput, gradient: Tensor | None) -> tuple[Tensor, ...]:
    """Sums of the rows that a forward reads, or with a gradient (N, d) a backward.

    On a CPU those of the layer's passes, in their order (see ``bench.gather``); on a GPU the neighbours'
    rows, in the backward those of the gradients too.
    """
    x = given.entities.detach()
    if x.device.type == "cpu":
        return gathered(given.graph.plan, x, gradient)
    return tuple(neighbour_sums(given, rows) for rows in (x, gradient) if rows is not None)


def neighbour_sums(given: LayerInput, rows: Tensor) -> Tensor:
    """The sum of the neighbours' rows of each entity, (N, d)."""
    found = neighbours(given.graph).in_head_order
    bounds, ones = neighbours(given.graph).head_bounds, torch.ones_like(found.tail, dtype=rows.dtype)
    return sum_rows(rows, found.tail, bounds, ones)


# This package's layer by the name of its row: DistMult has the plain one.
SCORE_OF = {"lightcake" if score == "distmult" else f"lightcake {score}": score for score in FUSED}


def fused_builder(score: str) -> Callable[[LayerInput], LayerStep]:
    """The layer in this package's kernels."""
    return lambda given: context_step(replace(given, score=score), "auto")


BUILDERS: dict[str, Callable[[LayerInput], LayerStep]] = {
    **{name: fused_builder(score) for name, score in SCORE_OF.items()},
    BFLOAT16: lambda given: context_step(given.to(torch.bfloat16), "auto"),
    HALF_ROWS: lambda given: context_step(given, "auto", rows="bfloat16"),
    "lightcake eager": lambda given: context_step(given, "reference"),
    "lightcake compiled": lambda given: context_step(given, "reference", compiled=True),
    "rgcn": lambda given: rgcn_step(given, "full"),
    "rgcn block": lambda given: rgcn_step(given, "block"),
    "PyG RGCNConv": lambda given: pyg_step(given, "RGCNConv"),
    "PyG FastRGCNConv": lambda given: pyg_step(given, "FastRGCNConv"),
    "gather": GatherStep,
}


def predicted_peak(given: LayerInput, name: str) -> int:
    """Peak bytes of forward and backward: so many d-wide rows a context triple, or tables of N rows.

    The factors of plain PyTorch and PyG were measured on DDB14 and WN18RR, d = 256.
    """
    rows = {"lightcake eager": 10, "lightcake compiled": 3, "PyG FastRGCNConv": 20}.get(name, 0)
    peak = rows * given.context_triples * given.row_bytes
    if name == "PyG RGCNConv":  # keeps a table for each relation
        peak += 2 * given.graph.num_relations * given.entities.nbytes
    if name == "PyG FastRGCNConv":  # a one-hot row of the relation for each context triple, twice
        peak += 2 * given.context_triples * 2 * given.graph.num_relations * given.entities.element_size()
    return peak


def layer_input(dataset: str, dim: int, score: str = "distmult") -> LayerInput:
    """The training graph of a data set, on the CPU, with random rows."""
    data = load_dataset(dataset)
    graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
    return LayerInput.random(graph, dim, score)


def layer_run(name: str, dataset: str, dim: int, score: str = "distmult") -> Computation:
    """Forward and backward of a layer on a data set on the CPU, for ``peak_in_child``."""
    step = BUILDERS[name](layer_input(dataset, dim, score))
    # compilers and libraries take their memory before it counts; a compiled graph is one of its sizes
    first = step if name == "lightcake compiled" else BUILDERS[name](layer_input("family:60", dim, score))
    first.both()
    return step.both
