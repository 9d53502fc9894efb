"""LightCAKE: embeddings refined by their context, without a weight of its own, or with a matrix a layer."""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.scorers import SCORERS, of_modulus_one
from lightcake_fast.models.weights import check_at_least, check_choice
from lightcake_fast.ops import CONTEXTS, ROWS, context_layer
from lightcake_fast.rows import Part, context_rows, part_of
from lightcake_fast.scores import BUILT_IN, score_named
from lightcake_fast.sharding.layer import AnyGraph, Shard, sharded_layer


class LightCAKE(RelationModel):
    """Entity and relation tables, L context layers and a score for every relation of a pair.

    With ``layers=0`` it is the plain scorer. The options after ``context`` go beyond the paper; what each
    is worth is measured in docs/results.md.

    Args:
        num_entities: N.
        num_relations: R, raw relations; from one layer on, inverses have rows of their own.
        dim: d, the embedding width.
        layers: L, at least 0.
        score: "distmult", "transe", "complex", "simple", "rotate" (d even in these three), "transh" (on
            a GPU in plain PyTorch: docs/op.md), or a score of your own (docs/architecture.md).
        context: "both", "entity" or "relation".
        rows: as in ``context_layer``, of every layer: "bfloat16" halves the bytes that its triples read.
        relation_bias: learn a number for each raw relation, added to its score: ranks pairs of which
            nothing else is known by how frequent the relations are.
        input_dropout: share of the entries of both tables that is zeroed before the first layer, the
            others scaled up: hinders learning the training triples by heart.
        row_dropout: share of the entity rows that is zeroed before the first layer, without scaling:
            makes the model read an entity off its context.
        unseen_rate: share of the training pairs whose head or tail (half each) is replaced after the last
            layer by a learned vector, which in evaluation stands for every entity that has no training
            triple. 0 has no such vectors.
        profile: as in ``RelationModel``; "both" needs a layer.
        links: as in ``RelationModel``.
        paths: as in ``RelationModel``.
        mixing: a layer adds its context sums times a matrix that it learns, for entities and for
            relations, each at first the identity; needs a layer.
        inverses: as in ``RelationModel``, without layers; with layers inverses always have rows.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

    Shapes:
        ``entities`` (N, d); ``relations`` (2R, d), or (R, d) without layers, with "rotate" d/2 angles a row,
        which each layer is given as numbers of modulus one; ``normals`` (2R, d) or (R, d) with "transh";
        ``relation_bias`` (R,);
        ``unknown_head`` and ``unknown_tail`` (d,); ``entity_mixing`` and ``relation_mixing`` (L, d, d), of
        the tables that ``context`` refines. Rows are multiplied from the left.

    Raises:
        ValueError: if an argument is out of range.

    Source: LightCAKE, arXiv 2102.10826, sections 3 and 4.
    """

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
        relation_bias: bool = False,
        input_dropout: float = 0.0,
        row_dropout: float = 0.0,
        unseen_rate: float = 0.0,
        profile: str = "none",
        links: bool = False,
        paths: bool = False,
        mixing: bool = False,
        inverses: bool = False,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_at_least(0, layers=layers)
        named = score_named(score)
        columns, planes = named.columns, named.planes
        if dim % columns:
            raise InputError(f"dim: got {dim}, wanted a multiple of {columns} for score {score!r}")
        check_choice("context", context, CONTEXTS)
        check_choice("rows", rows, ROWS)
        if mixing and not layers:
            raise InputError("mixing: got True with layers=0, wanted at least one layer, whose sums it mixes")
        super().__init__(
            num_entities,
            num_relations,
            dim=dim,
            relation_rows=2 * num_relations if layers else num_relations,
            angles=score == "rotate",
            planes=planes,
            relation_bias=relation_bias,
            input_dropout=input_dropout,
            row_dropout=row_dropout,
            unseen_rate=unseen_rate,
            profile=profile,
            links=links,
            paths=paths,
            has_context=layers > 0,
            inverses=inverses,
            generator=generator,
            dtype=dtype,
        )
        self.layers, self.score, self.context, self.rows = layers, score, context, rows
        self.entity_score = None if planes else score
        identity = torch.zeros(dim, dim, dtype=dtype, device=self.entities.device)
        identity.diagonal().fill_(1)  # of what runs on a meta device, torch.eye would import TorchDynamo

        def matrices(other: str) -> nn.Parameter | None:
            return nn.Parameter(identity.repeat(layers, 1, 1)) if mixing and context != other else None

        self.entity_mixing, self.relation_mixing = matrices("relation"), matrices("entity")

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
        """The rows that the first layers make of those they are given."""
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
        if not parts:  # fewer rows are mixed
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
        """What the last layers read for some rows of d numbers, in their order; none where it is much."""
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
        """The rows that layer 0, 1, ... makes of those it is given; arguments as in ``context_layer``.

        Of a shard, own rows and all relations are given, and all ranks must call.
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
        """New rows, or, if they are to be mixed, the context sums alone."""
        options = {"context": self.context, **self._options(mask, backend)}
        read = self.read_relations(relations)
        if isinstance(graph, Shard):
            x, y = sharded_layer(entities, read, graph, **options)
        else:
            x, y = context_layer(entities, read, graph, **options)
        return x, y if self.normals is None else y[:, : relations.shape[1]]

    def _options(self, mask: Tensor | None, backend: str) -> dict[str, Any]:
        """What a layer of this model is, but for its context; sums alone where they are to be mixed."""
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
        """New rows of a layer, from its rows and what ``_context`` made of them."""
        if self.mixes:
            x = _plus_mixed(entities, x, self.entity_mixing, number)
            y = _plus_mixed(relations, y, self.relation_mixing, number)
        return x, of_modulus_one(y) if self.angles else y

    @property
    def entries(self) -> int:
        """See ``RelationModel``."""
        return self.num_relations * (1 if self.score in BUILT_IN else self.entities.shape[1])

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        rows = self.read_relations(relations)
        if self.score in BUILT_IN:
            return SCORERS[self.score](heads, rows, tails)
        # a score of the user's own, known triple by triple: holds a tensor of B x R x d
        score = score_named(self.score)
        return score.psi(*score.read(heads[:, None], rows, tails[:, None]))


def _plus_mixed(rows: Tensor, sums: Tensor, matrices: Tensor | None, number: int) -> Tensor:
    """Rows plus their context sums times a layer's matrix; those that have none get no context."""
    return rows if matrices is None else torch.addmm(rows, sums, matrices[number])
