"""One layer over a graph, forward and backward, in every implementation that this suite compares.

Each implementation is checked against a reference before it is timed.
"""

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.gather import gathered, gathered_by_definition
from bench.memory import Computation
from lightcake_fast.data import load_dataset
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import RGCNLayer
from lightcake_fast.models.neighbours import neighbours, sum_rows
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import FUSED

BFLOAT16 = "lightcake bfloat16"
HALF_ROWS = "lightcake bfloat16 rows"  # triples read a bfloat16 copy of the entities; all else is float32
BLOCKS = 32  # number of blocks of a block-diagonal R-GCN: at width 256 its matrices are 8 by 8
TOLERANCE = 5e-4  # largest difference of a result, divided by its largest entry
NARROW_TOLERANCE = 4e-2  # the same for 16-bit rows
NARROW = 32  # width of the comparison for slow peers; one entry per block


@dataclass(frozen=True)
class LayerInput:
    """The input of a timed layer.

    Attributes:
        graph: the context.
        entities: (N, d), requires gradients.
        relations: (2R, d), requires gradients.
        entity_gradient: (N, d), gradient of the new entities.
        relation_gradient: (2R, d), gradient of the new relations.
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
        """Number of context triples E, inverses included."""
        return 2 * self.graph.num_triples

    @property
    def row_bytes(self) -> int:
        """Bytes per embedding."""
        return self.entities.shape[1] * self.entities.element_size()

    @classmethod
    def random(cls, graph: ContextGraph, dim: int, score: str = "distmult") -> "LayerInput":
        """Return normal rows on the graph's device, scaled so that scores are about one at any width."""
        _ = graph.gpu_plan if graph.device.type == "cuda" else graph.plan  # built here, outside the timing
        generator = torch.Generator().manual_seed(0)
        scale = 0.7 / max(dim, 4) ** (1 / 6)
        sizes = (graph.num_entities, dim), (2 * graph.num_relations, dim)
        tables = [torch.randn(size, generator=generator) for _ in range(2) for size in sizes]
        x, y, g, q = (table.to(graph.device) for table in tables)
        return cls(graph, (x * scale).requires_grad_(), (y * scale).requires_grad_(), g, q, score)

    def to(self, dtype: torch.dtype) -> "LayerInput":
        """Return the same input in another dtype."""
        x, y = (table.detach().to(dtype).requires_grad_() for table in (self.entities, self.relations))
        g, q = self.entity_gradient.to(dtype), self.relation_gradient.to(dtype)
        return LayerInput(self.graph, x, y, g, q, self.score)


class LayerStep:
    """A layer's forward and backward as separate calls.

    Args:
        compute: returns the outputs.
        inputs: tensors to compute gradients for.
        gradients: gradients of a loss by each output.
        parameters: number of learned parameters of a model with this one layer; None if it is no model.
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
        """Return the outputs, with the graph for the backward."""
        return self._compute()

    def backward(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs. The graph of the outputs is freed."""
        return torch.autograd.grad(outputs, self._inputs, self._gradients)

    def both(self) -> tuple[Tensor, ...]:
        """Return the outputs and the gradients."""
        outputs = self.forward()
        return *(output.detach() for output in outputs), *self.backward(*outputs)


def context_step(
    given: LayerInput, backend: str, *, compiled: bool = False, rows: str = "float32"
) -> LayerStep:
    """Build this package's layer. The back end "reference" is plain PyTorch with autograd."""

    def layer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return context_layer(x, y, given.graph, score=given.score, rows=rows, backend=backend)

    if compiled:
        _ = given.graph.context_triples  # built here, because its lock cannot be traced
        layer = torch.compile(layer, dynamic=False, fullgraph=True)
    tables = given.entities, given.relations
    gradients = given.entity_gradient, given.relation_gradient
    count = sum(table.numel() for table in tables)
    return LayerStep(lambda: layer(*tables), tables, gradients, count)


def rgcn_layer(given: LayerInput, decomposition: str) -> RGCNLayer:
    """Build an R-GCN layer of this package with a fixed seed."""
    dim, relations = given.entities.shape[1], given.graph.num_relations
    generator = torch.Generator().manual_seed(1)
    layer = RGCNLayer(relations, dim, decomposition=decomposition, bases=BLOCKS, generator=generator)
    return layer.to(given.entities.device)


def rgcn_step(given: LayerInput, decomposition: str) -> LayerStep:
    """Build this package's R-GCN layer."""
    layer = rgcn_layer(given, decomposition)
    return _convolution_step(given, lambda x: layer(x, given.graph), [layer.root, layer.matrices])


def pyg_step(given: LayerInput, convolution: str) -> LayerStep:
    """Build PyG's `RGCNConv` (full matrices) or `FastRGCNConv` (blocks), with the weights of `rgcn_step`."""
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
    # plus the entities and the R relations of the decoder
    count = given.entities.numel() + given.relations.numel() // 2 + sum(weight.numel() for weight in weights)
    inputs = [given.entities, *weights]
    return LayerStep(lambda: (layer(given.entities),), inputs, [given.entity_gradient], count)


class GatherStep(LayerStep):
    """A lower bound: it reads the rows that a layer over the graph must read, and sums them."""

    def __init__(self, given: LayerInput) -> None:
        super().__init__(lambda: gathered_sums(given, None), [], [], None)
        self._given = given

    def backward(self, *_: Tensor) -> tuple[Tensor, ...]:
        """Return the sums of the rows of a backward."""
        return gathered_sums(self._given, self._given.entity_gradient)


def gathered_sums(given: LayerInput, gradient: Tensor | None) -> tuple[Tensor, ...]:
    """Sum the rows that a forward reads, or with a gradient (N, d) the rows that a backward reads.

    On a CPU the rows are read in the order of the layer's passes (see ``bench.gather``). On a GPU they are
    the rows of the neighbors, and in the backward also the gradients of these rows.
    """
    x = given.entities.detach()
    if x.device.type == "cpu":
        return gathered(given.graph.plan, x, gradient)
    return tuple(neighbour_sums(given, rows) for rows in (x, gradient) if rows is not None)


def neighbour_sums(given: LayerInput, rows: Tensor) -> Tensor:
    """Return the sum of each entity's neighbor rows, (N, d)."""
    found = neighbours(given.graph).in_head_order
    bounds, ones = neighbours(given.graph).head_bounds, torch.ones_like(found.tail, dtype=rows.dtype)
    return sum_rows(rows, found.tail, bounds, ones)


# Scores by model name in the report. DistMult is the plain "lightcake".
SCORE_OF = {"lightcake" if score == "distmult" else f"lightcake {score}": score for score in FUSED}


def fused_builder(score: str) -> Callable[[LayerInput], LayerStep]:
    """Return a builder of the layer in this package's kernels."""
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
    """Predict the peak bytes of forward and backward: d-wide rows per context triple, or tables of N rows.

    The factors of plain PyTorch and PyG were measured on DDB14 and WN18RR, d = 256.
    """
    rows = {"lightcake eager": 10, "lightcake compiled": 3, "PyG FastRGCNConv": 20}.get(name, 0)
    peak = rows * given.context_triples * given.row_bytes
    if name == "PyG RGCNConv":  # it keeps one table per relation
        peak += 2 * given.graph.num_relations * given.entities.nbytes
    if name == "PyG FastRGCNConv":  # it keeps two one-hot relation rows per context triple
        peak += 2 * given.context_triples * 2 * given.graph.num_relations * given.entities.element_size()
    return peak


def layer_input(dataset: str, dim: int, score: str = "distmult") -> LayerInput:
    """Return the training graph of a data set on the CPU, with random rows."""
    data = load_dataset(dataset)
    graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
    return LayerInput.random(graph, dim, score)


def layer_run(name: str, dataset: str, dim: int, score: str = "distmult") -> Computation:
    """Return the forward and backward of a layer on a data set on the CPU, for ``peak_in_child``."""
    step = BUILDERS[name](layer_input(dataset, dim, score))
    # Compilers and libraries allocate their memory first, outside the measurement. A compiled graph depends
    # on its sizes, so it runs on the real graph.
    first = step if name == "lightcake compiled" else BUILDERS[name](layer_input("family:60", dim, score))
    first.both()
    return step.both


def largest_difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference over all results, relative to the largest entry."""
    pairs = zip(actual, expected, strict=True)
    return max(float((a - e.view_as(a)).detach().abs().max() / e.detach().abs().max()) for a, e in pairs)


def compared(
    name: str, given: LayerInput, results: Sequence[Tensor], eager: Callable[[], Sequence[Tensor]] | None
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return two sets of results that must be equal. Expensive peers are compared at a small width."""
    narrow = LayerInput.random(given.graph, NARROW)
    if name.startswith("PyG"):
        return results, BUILDERS["rgcn" if name == "PyG RGCNConv" else "rgcn block"](given).both()
    if name.startswith("rgcn"):
        layer = rgcn_layer(narrow, "full" if name == "rgcn" else "block")
        return (layer(narrow.entities, narrow.graph),), (rgcn_by_definition(layer, narrow),)
    if name == "gather":
        return BUILDERS[name](narrow).both(), gathered_rows(narrow)
    if eager is not None and name in ("lightcake", "lightcake compiled"):
        return results, eager()
    narrow = replace(narrow, score=SCORE_OF.get(name, "distmult"))
    rounded = narrow.to(torch.bfloat16).to(torch.float32) if name == BFLOAT16 else narrow
    read = "bfloat16" if name == HALF_ROWS else "float32"
    return BUILDERS[name](narrow).both(), context_step(rounded, "reference", rows=read).both()


def gathered_rows(given: LayerInput) -> tuple[Tensor, ...]:
    """Return the expected results of a bare gather."""
    x, g = given.entities.detach(), given.entity_gradient
    if given.graph.device.type == "cpu":
        plan = given.graph.plan
        return *gathered_by_definition(plan, x, None), *gathered_by_definition(plan, x, g)
    head, _, tail = given.graph.context_triples
    return tuple(torch.zeros_like(x).index_add(0, head, t.index_select(0, tail)) for t in (x, x, g))


def rgcn_by_definition(layer: RGCNLayer, given: LayerInput) -> Tensor:
    """Compute R-GCN's sum by its definition, relation by relation, with one row per triple."""
    found, x = neighbours(given.graph), given.entities
    weights, head = found.mean_weights(None, x.dtype), found.group_head.index_select(0, found.group)
    out = x @ layer.root
    for r, (start, stop) in enumerate(itertools.pairwise(found.relation_bounds.tolist())):
        entries = slice(start, stop)
        rows = weights[entries, None] * x.index_select(0, found.tail[entries])
        out = out.index_add(0, head[entries], rows @ torch.block_diag(*layer.matrices[r]))  # type: ignore[no-untyped-call]
    return out
