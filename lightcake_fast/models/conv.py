"""The context layer as a module for PyTorch Geometric's edges. It does not import torch_geometric."""

from typing import Any, overload

import torch
from torch import Generator, Tensor, nn

from lightcake_fast.backends import BACKENDS
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.scorers import with_normals
from lightcake_fast.models.weights import check_at_least, check_choice, xavier
from lightcake_fast.ops import CONTEXTS, ROWS, check_tensor, context_layer
from lightcake_fast.scores import score_named

_REMEDY = "pass a graph made by ContextGraph.from_edge_index instead of edge_index and edge_type"


class LightCAKEConv(nn.Module):
    """One LightCAKE layer over ``edge_index`` and ``edge_type``: ``context_layer`` with a relation table.

    An edge from head to tail is a triple. The layer adds inverse edges, so give each edge once. Each call
    sorts edges that are given as tensors. For edges that do not change, sort them once: make a graph with
    ``ContextGraph.from_edge_index`` and pass it. With such a graph, ``torch.compile`` compiles the module as
    one graph, and ``torch.export`` can export it.

    Args:
        channels: d, the width of nodes and relations.
        num_relations: R, larger than every edge type; inverse relations have separate rows.
        score: as in ``context_layer``.
        context: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``.
        generator: random generator for the initial relations.

    Shapes:
        ``relations`` (2R, d), Xavier uniform: row r + R is the inverse of relation r. With "transh" rows are
        [r | normal], (2R, 2 d), and each call scales the normals to length one.

    Raises:
        ValueError: if an argument is out of range, or the score does not support this number of channels.

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
            raise InputError(
                f"channels: expected a multiple of {columns} for score {score!r}, got {channels}: change it"
            )
        check_choice("context", context, CONTEXTS)
        check_choice("rows", rows, ROWS)
        check_choice("backend", backend, BACKENDS)
        self.channels, self.num_relations = channels, num_relations
        self.score, self.context, self.rows, self.backend = score, context, rows, backend
        width = 2 * channels if self._planes else channels
        self.relations = xavier(2 * num_relations, width, generator=generator, dtype=torch.float32)

    def reset_parameters(self) -> None:
        """Draw new initial relations."""
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
        """Return the new rows of the nodes.

        Args:
            x: shape (N, d), the nodes; dtypes as in ``context_layer``.
            edge_index: int64 of shape (2, E): heads, then tails; or a graph of all edges.
            edge_type: int64 of shape (E,); None for a graph, which contains the types.
            relations: shape of the module's relations, which they replace; normally the relations that the
                previous layer returned.

        Returns:
            The nodes (N, d). If relations are given, also the new relations for the next layer.

        Raises:
            TypeError: if an argument is not a tensor, or ``edge_index`` is neither a tensor nor a graph.
            ValueError: if a shape, dtype or device is wrong, or an id is out of range.
        """
        check_tensor("x", x)
        table = self.relations if relations is None else relations
        if isinstance(edge_index, ContextGraph):
            if edge_type is not None:
                raise InputError("edge_type: expected None with a graph, got a tensor: leave it out")
            nodes, new_relations = self._layer(x, table, edge_index)
        elif edge_type is None:
            raise InputError("edge_type: expected a tensor with the tensor edge_index, got None: add it")
        else:
            layer = self._untraced if torch.compiler.is_dynamo_compiling() else self._sorted_layer
            nodes, new_relations = layer(x, table, edge_index, edge_type)
        return nodes if relations is None else (nodes, new_relations)

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows between the parentheses."""
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
        """Run ``_sorted_layer`` outside compiled code, because NumPy sorts the edges."""
        layer: Any = torch.compiler.disable(self._sorted_layer)  # type: ignore[no-untyped-call]
        return layer(*arguments)  # type: ignore[no-any-return]

    # the marks of torch.compiler.disable, which would import the whole compiler
    _untraced._torchdynamo_disable = True  # type: ignore[attr-defined]
    _untraced._torchdynamo_disable_msg = _REMEDY  # type: ignore[attr-defined]


def _on_planes(table: Tensor) -> Tensor:
    """Scale the normals of rows [r | normal] to length one. ``context_layer`` rejects invalid tables."""
    if not isinstance(table, Tensor) or table.ndim != 2 or not table.is_floating_point():
        return table
    return with_normals(*table.chunk(2, 1))
