"""LightCAKE: embeddings refined by context layers, without layer weights or with one matrix per layer."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.scorers import SCORERS, of_modulus_one
from lightcake_fast.models.terms.mixing import Mixing
from lightcake_fast.models.weights import check_at_least, check_choice
from lightcake_fast.ops import CONTEXTS, ROWS, context_layer
from lightcake_fast.rows import Part, context_rows, part_of
from lightcake_fast.scores import BUILT_IN, score_named
from lightcake_fast.sharding.layer import AnyGraph, Shard, sharded_layer


class LightCAKE(RelationModel):
    """Entity and relation tables, L context layers, and scores for relation and entity prediction.

    With ``layers=0`` it is only the score function. The options after ``context`` are additions to the paper;
    docs/results.md has their effects.

    Args:
        num_entities: N.
        num_relations: R, raw relations; with at least one layer, inverses have separate rows.
        dim: d, the embedding width.
        layers: L, at least 0.
        score: "distmult", "transe", "complex", "simple", "rotate" (d even in these three), "transh" (on
            a GPU in plain PyTorch: docs/op.md), or a registered score (docs/architecture.md).
        context: "both", "entity" or "relation".
        rows: as in ``context_layer``, for every layer; "bfloat16" halves the bytes that triples read.
        mixing: each layer multiplies its context sums by a learned matrix (see ``Mixing``). It needs a layer.
        options: the options of ``RelationModel``; with layers, inverses always have separate rows.

    Shapes:
        ``entities`` (N, d); ``relations`` (2R, d), or (R, d) without layers; with "rotate" d/2 angles per
        row, which each layer reads as complex numbers of modulus one; ``normals`` (2R, d) or (R, d) with
        "transh"; ``relation_bias`` (R,); ``unknown_head`` and ``unknown_tail`` (d,).

    Raises:
        ValueError: if an argument is out of range.

    Source: LightCAKE, arXiv 2102.10826, sections 3 and 4.
    """

    entity_mixing: Tensor | None
    relation_mixing: Tensor | None

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        *,
        dim: int,
        layers: int,
        score: str = "distmult",
        context: str = "both",
        rows: str = "float32",
        mixing: bool = False,
        **options: Any,
    ) -> None:
        check_at_least(0, layers=layers)
        named = score_named(score)
        columns, planes = named.columns, named.planes
        if dim % columns:
            raise InputError(f"dim: expected a multiple of {columns} for score {score!r}, got {dim}")
        check_choice("context", context, CONTEXTS)
        check_choice("rows", rows, ROWS)
        super().__init__(
            num_entities,
            num_relations,
            dim=dim,
            relation_rows=2 * num_relations if layers else num_relations,
            angles=score == "rotate",
            planes=planes,
            has_context=layers > 0,
            **options,
        )
        self.layers, self.score, self.context, self.rows = layers, score, context, rows
        self.entity_score = None if planes else score
        Mixing.attach(self, mixing, self.entities, layers, context)

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        return self._through(self.layers, entities, relations, graph, mask, backend)

    def _through(
        self,
        layers: int,
        entities: Tensor,
        relations: Tensor,
        graph: AnyGraph,
        mask: Tensor | None,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """Apply the first layers to the rows."""
        for layer in range(layers):
            entities, relations = self.layer(layer, entities, relations, graph, mask, backend)
        return entities, relations

    def _encode_rows(
        self,
        entities: Tensor,
        relations: Tensor,
        graph: ContextGraph,
        mask: Tensor | None,
        backend: str,
        rows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        parts = self._parts(graph, rows, entities.shape[1], backend)
        if not parts and (not self.layers or len(rows) >= len(entities)):
            x, y = self._through(self.layers, entities, relations, graph, mask, backend)
            return functional.embedding(rows, x), y
        whole = self.layers - max(1, len(parts))
        entities, relations = self._through(whole, entities, relations, graph, mask, backend)
        if not parts:  # mix only the requested rows
            x, y = self._context(entities, relations, graph, mask, backend)
            x = functional.embedding(rows, x)
            if self.mixes:
                entities = functional.embedding(rows, entities)
            return self._mixed(whole, entities, relations, x, y)
        entities = functional.embedding(parts[0].entities, entities)
        for layer, part in enumerate(parts, start=whole):
            x = context_rows(entities, self.read_relations(relations), part, **self._options(mask, backend))
            if self.mixes:
                entities = functional.embedding(part.rows, entities)
            entities, relations = self._mixed(layer, entities, relations, x, relations)
        return entities, relations

    def _parts(self, graph: ContextGraph, rows: Tensor, dim: int, backend: str) -> list[Part]:
        """Return the subgraphs of the last layers for some rows, in layer order; none if this is slower."""
        parts: list[Part] = []
        while self.context == "entity" and len(parts) < self.layers:
            part = part_of(graph, parts[0].entities if parts else rows, dim, backend)
            if part is None:
                break
            parts.insert(0, part)
        return parts

    def layer(
        self,
        number: int,
        entities: Tensor,
        relations: Tensor,
        graph: AnyGraph,
        mask: Tensor | None = None,
        backend: str = "auto",
    ) -> tuple[Tensor, Tensor]:
        """Apply layer 0, 1, ... to the rows; arguments as in ``context_layer``.

        For a shard, the rows are own rows and all relations, and all ranks must call it.
        """
        x, y = self._context(entities, relations, graph, mask, backend)
        return self._mixed(number, entities, relations, x, y)

    @property
    def mixes(self) -> bool:
        """Whether layers have matrices."""
        return self.entity_mixing is not None or self.relation_mixing is not None

    def _context(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """Return new rows, or only the context sums if they are to be mixed."""
        options = {"context": self.context, **self._options(mask, backend)}
        read = self.read_relations(relations)
        if isinstance(graph, Shard):
            x, y = sharded_layer(entities, read, graph, **options)
        else:
            x, y = context_layer(entities, read, graph, **options)
        return x, y if self.normals is None else y[:, : relations.shape[1]]

    def _options(self, mask: Tensor | None, backend: str) -> dict[str, Any]:
        """Return the layer options of this model except the context; no residual if it mixes the sums."""
        return {
            "score": self.score,
            "mask": mask,
            "residual": not self.mixes,
            "rows": self.rows,
            "backend": backend,
        }

    def _mixed(
        self, number: int, entities: Tensor, relations: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the new rows of a layer from its rows and the results of ``_context``."""
        if self.mixes:
            x = Mixing.added(entities, x, self.entity_mixing, number)
            y = Mixing.added(relations, y, self.relation_mixing, number)
        return x, of_modulus_one(y) if self.angles else y

    @property
    def entries(self) -> int:
        """See ``RelationModel``."""
        return self.num_relations * (1 if self.score in BUILT_IN else self.entities.shape[1])

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        rows = self.read_relations(relations)
        if self.score in BUILT_IN:
            return SCORERS[self.score](heads, rows, tails)
        # a registered score has no matrix product: it needs a tensor of B x R x d
        score = score_named(self.score)
        return score.psi(*score.read(heads[:, None], rows, tails[:, None]))
