"""The context layer as a module that takes PyTorch Geometric's edges; needs no torch_geometric."""

from typing import Any, overload

import torch
from torch import Generator, Tensor, nn

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.scorers import with_normals
from lightcake_fast.models.weights import check_at_least, check_choice, xavier
from lightcake_fast.ops import BACKENDS, CONTEXTS, ROWS, context_layer
from lightcake_fast.scores import score_named

_REMEDY = "pass a graph made by ContextGraph.from_edge_index instead of edge_index and edge_type"


class LightCAKEConv(nn.Module):
    """One LightCAKE layer over ``edge_index`` and ``edge_type``: `context_layer`, with a table of relations.

    An edge is a triple, from its head to its tail; inverses are added here, so give each edge once. Edges as
    tensors are sorted at every call. Edges that stay are sorted once, as a graph
    (``ContextGraph.from_edge_index``): with it the module compiles as one graph and exports.

    Args:
        channels: d, the width of nodes and relations.
        num_relations: R, above every edge type; inverses have rows of their own.
        score: as in ``context_layer``.
        context: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``.
        generator: source of the initial relations.

    Shapes:
        ``relations`` (2R, d), Xavier uniform: row r + R is the inverse of relation r. With "transh" rows are
        [r | normal], (2R, 2 d), and normals are brought to length one before they are read.

    Raises:
        ValueError: if an argument is out of range.

    Source: LightCAKE, arXiv 2102.10826, equations 1-6.
    """

    def __init__(
        self,
        channels: int,
        num_relations: int,
        *,
        score: str = "distmult",
        context: str = "both",
        rows: str = "float32",
        backend: str = "auto",
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, channels=channels, num_relations=num_relations)
        named = score_named(score)
        columns, self._planes = named.columns, named.planes
        if channels % columns:
            raise InputError(f"channels: got {channels}, wanted a multiple of {columns} for score {score!r}")
        check_choice("context", context, CONTEXTS)
        check_choice("rows", rows, ROWS)
        check_choice("backend", backend, BACKENDS)
        self.channels, self.num_relations = channels, num_relations
        self.score, self.context, self.rows, self.backend = score, context, rows, backend
        width = 2 * channels if self._planes else channels
        self.relations = xavier(2 * num_relations, width, generator=generator, dtype=torch.float32)

    def reset_parameters(self) -> None:
        """Draw the relations anew."""
        nn.init.xavier_uniform_(self.relations)

    @overload
    def forward(self, x: Tensor, edge_index: ContextGraph) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, edge_index: ContextGraph, *, relations: Tensor) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, edge_index: Tensor, edge_type: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | ContextGraph,
        edge_type: Tensor | None = None,
        relations: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """New rows of the nodes.

        Args:
            x: shape (N, d), the nodes; types as in ``context_layer``.
            edge_index: int64 of shape (2, E): heads, then tails; or the graph of all edges.
            edge_type: int64 of shape (E,); None beside a graph, which holds the types.
            relations: taken instead of the module's own, in their shape: those that a layer before gave.

        Returns:
            The nodes (N, d); where relations are given, also new relations, for the next layer.

        Raises:
            TypeError: if an argument is no tensor, or no graph.
            ValueError: if a shape, type or device is wrong, or an id is out of range.
        """
        table = self.relations if relations is None else relations
        if isinstance(edge_index, ContextGraph):
            if edge_type is not None:
                raise InputError("edge_type: expected None beside a graph, got a tensor: leave it out")
            nodes, new_relations = self._layer(x, table, edge_index)
        elif edge_type is None:
            raise InputError("edge_type: expected a tensor beside the tensor edge_index, got None")
        else:
            layer = self._untraced if torch.compiler.is_dynamo_compiling() else self._sorted_layer
            nodes, new_relations = layer(x, table, edge_index, edge_type)
        return nodes if relations is None else (nodes, new_relations)

    def extra_repr(self) -> str:
        """What `repr` shows between the brackets."""
        return f"{self.channels}, num_relations={self.num_relations}, score={self.score!r}"

    def _layer(self, x: Tensor, table: Tensor, graph: ContextGraph) -> tuple[Tensor, Tensor]:
        return context_layer(
            x,
            _on_planes(table) if self._planes else table,
            graph,
            score=self.score,
            context=self.context,
            rows=self.rows,
            backend=self.backend,
        )

    def _sorted_layer(
        self, x: Tensor, table: Tensor, edge_index: Tensor, edge_type: Tensor
    ) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            raise InputError(f"edge_index: expected a graph under torch.export, got a tensor: {_REMEDY}")
        graph = ContextGraph.from_edge_index(edge_index, edge_type, len(x), self.num_relations)
        return self._layer(x, table, graph)

    def _untraced(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        """The same, run by torch.compile as it is: NumPy sorts the edges."""
        layer: Any = torch.compiler.disable(self._sorted_layer)  # type: ignore[no-untyped-call]
        return layer(*arguments)  # type: ignore[no-any-return]

    # As torch.compiler.disable marks it, which at import would import the whole compiler
    _untraced._torchdynamo_disable = True  # type: ignore[attr-defined]
    _untraced._torchdynamo_disable_msg = _REMEDY  # type: ignore[attr-defined]


def _on_planes(table: Tensor) -> Tensor:
    """Rows [r | normal] with normals of length one; no such rows are left for ``context_layer`` to refuse."""
    if not isinstance(table, Tensor) or table.ndim != 2 or not table.is_floating_point():
        return table
    return with_normals(*table.chunk(2, 1))
