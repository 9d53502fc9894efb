"""The context layer as a module that takes PyTorch Geometric's edges; needs no torch_geometric."""

from typing import overload

import torch
from torch import Generator, Tensor, nn

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.scorers import with_normals
from lightcake_fast.models.weights import check_at_least, check_choice, xavier
from lightcake_fast.ops import BACKENDS, CONTEXTS, ROWS, context_layer
from lightcake_fast.scores import score_named


class LightCAKEConv(nn.Module):
    """One LightCAKE layer over ``edge_index`` and ``edge_type``: `context_layer`, with a table of relations.

    An edge is a triple, from its head to its tail; inverses are added here, so give each edge once. The order
    of work is made when other edges come than the last time: keep the two tensors from step to step.

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
        self._edges: tuple[tuple[Tensor, int, Tensor, int, int], ContextGraph] | None = None

    def reset_parameters(self) -> None:
        """Draw the relations anew."""
        nn.init.xavier_uniform_(self.relations)

    @overload
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, edge_index: Tensor, edge_type: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_type: Tensor, relations: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """New rows of the nodes.

        Args:
            x: shape (N, d), the nodes; types as in ``context_layer``.
            edge_index: int64 of shape (2, E): heads, then tails.
            edge_type: int64 of shape (E,).
            relations: taken instead of the module's own, in their shape: those that a layer before gave.

        Returns:
            The nodes (N, d); where relations are given, also new relations, for the next layer.

        Raises:
            ValueError: if a shape, type or device is wrong, or an id is out of range.
        """
        table = self.relations if relations is None else relations
        nodes, new_relations = context_layer(
            x,
            _on_planes(table) if self._planes else table,
            self._graph(edge_index, edge_type, len(x)),
            score=self.score,
            context=self.context,
            rows=self.rows,
            backend=self.backend,
        )
        return nodes if relations is None else (nodes, new_relations)

    def extra_repr(self) -> str:
        """What `repr` shows between the brackets."""
        return f"{self.channels}, num_relations={self.num_relations}, score={self.score!r}"

    def _graph(self, edge_index: Tensor, edge_type: Tensor, num_nodes: int) -> ContextGraph:
        """The edges as context: that of the last call, if they are the same tensors, unchanged since."""
        if self._edges is not None:
            (index, index_version, types, types_version, nodes), graph = self._edges
            if (
                index is edge_index
                and types is edge_type
                and (index._version, types._version, num_nodes) == (index_version, types_version, nodes)
            ):
                return graph
        _check_edges(edge_index, edge_type)
        triples = torch.stack([edge_index[0], edge_type, edge_index[1]], 1)
        graph = ContextGraph.from_triples(triples, num_nodes, self.num_relations)
        key = (edge_index, edge_index._version, edge_type, edge_type._version, num_nodes)
        self._edges = key, graph
        return graph


def _on_planes(table: Tensor) -> Tensor:
    """Rows [r | normal] with normals of length one; no such rows are left for ``context_layer`` to refuse."""
    if not isinstance(table, Tensor) or table.ndim != 2 or not table.is_floating_point():
        return table
    return with_normals(*table.chunk(2, 1))


def _check_edges(edge_index: Tensor, edge_type: Tensor) -> None:
    for name, tensor, right, wanted in (
        ("edge_index", edge_index, edge_index.ndim == 2 and len(edge_index) == 2, "(2, E)"),
        ("edge_type", edge_type, edge_type.shape == edge_index.shape[1:], "(E,), as edge_index"),
    ):
        if tensor.dtype != torch.int64 or not right:
            got = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise InputError(f"{name}: got {got}, wanted torch.int64 {wanted}")
