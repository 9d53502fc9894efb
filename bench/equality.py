"""Check the results of a layer against a reference before it is timed."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bench.gather import gathered_by_definition
from bench.layers import BFLOAT16, BUILDERS, HALF_ROWS, SCORE_OF, LayerInput, context_step, rgcn_layer
from lightcake_fast.models import RGCNLayer
from lightcake_fast.models.neighbours import neighbours

TOLERANCE = 5e-4  # largest difference of a result, divided by its largest entry
NARROW_TOLERANCE = 4e-2  # the same for 16-bit rows
NARROW = 32  # width of the comparison for slow peers; one entry per block


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
