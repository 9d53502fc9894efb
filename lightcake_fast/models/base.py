"""The base class of all models: the two tables, the regularization options, and the scores of all answers."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import blocks
from lightcake_fast.models.draws import NumberedDraws, SequentialDraws
from lightcake_fast.models.entity_scores import RanksEntities
from lightcake_fast.models.scorers import PRODUCTS, with_normals
from lightcake_fast.models.terms import TERMS
from lightcake_fast.models.terms.term import SIDES, Evidence, Pairs, Term
from lightcake_fast.models.weights import check_at_least, xavier
from lightcake_fast.sharding.layer import AnyGraph, Shard


class RelationModel(RanksEntities):
    """Entity and relation tables with scores for relation prediction and entity prediction.

    A subclass defines how to refine the tables (``_encode``), how to score a pair (``_score``), and which
    score ranks entities (``entity_score``). Training and evaluation share this code.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        dim: d, the number of real values in an entity row.
        relation_rows: number of rows in the relation table; None for R.
        angles: the relation table holds angles with uniform initial values. They are read as rotations of
            complex numbers: a row is d/2 cosines, then d/2 sines. Input dropout does not change them.
        planes: relations have normals, scaled to length one where they are read, for a score that projects
            entities (see ``Score``). Input dropout does not change them.
        relation_bias: learn a bias per raw relation, which is added to its score. It ranks pairs without
            other information by the frequency of the relations.
        input_dropout: dropout rate of the entries of both tables before they are refined, with rescaling. It
            reduces overfitting.
        row_dropout: share of the entity rows that is set to zero before the refinement, without rescaling.
            The model then has to predict these entities from their context.
        unseen_rate: share of the training pairs in which a learned vector replaces the refined head or tail
            (half each). In evaluation this vector stands for every entity without a training triple. With 0
            there are no such vectors.
        has_context: whether the model refines the entity rows.
        inverses: give inverse relations separate rows, 2R in all; questions for heads use them.
        generator: random generator for the initial values.
        dtype: floating-point dtype of the parameters.
        terms: options of additional terms of the scores, by the names in ``TERMS``; the default is no term.

    Shapes:
        ``entities`` (N, d); ``relations`` (relation_rows, d), or d/2 with ``angles``; ``relation_bias`` (R,);
        ``unknown_head`` and ``unknown_tail`` (d,); ``normals`` (relation_rows, d).

    Raises:
        InputError: if a term does not fit the model.
        TypeError: if an argument is unknown.
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        *,
        dim: int,
        relation_rows: int | None = None,
        angles: bool = False,
        planes: bool = False,
        relation_bias: bool = False,
        input_dropout: float = 0.0,
        row_dropout: float = 0.0,
        unseen_rate: float = 0.0,
        has_context: bool = False,
        inverses: bool = False,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
        **terms: Any,
    ) -> None:
        super().__init__()
        for name in terms.keys() - TERMS.keys():
            raise TypeError(f"{name}: expected an option of {type(self).__name__}, got an unknown name")
        check_at_least(1, num_entities=num_entities, num_relations=num_relations, dim=dim)
        shares = {"input_dropout": input_dropout, "row_dropout": row_dropout, "unseen_rate": unseen_rate}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name}: expected 0 <= value < 1, got {share}")
        self.num_relations, self.has_context, self.angles = num_relations, has_context, angles
        self.input_dropout, self.row_dropout, self.unseen_rate = input_dropout, row_dropout, unseen_rate
        made: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.entities = xavier(num_entities, dim, **made)
        rows = 2 * num_relations if inverses else relation_rows or num_relations
        self.relations = xavier(rows, dim // 2 if angles else dim, **made)
        if angles:
            nn.init.uniform_(self.relations, -math.pi, math.pi, generator=generator)
        bias = torch.zeros(num_relations, dtype=dtype, device=self.entities.device)
        self.relation_bias = nn.Parameter(bias) if relation_bias else None
        self.unknown_head, self.unknown_tail = (
            nn.Parameter(xavier(1, dim, **made)[0].detach()) if unseen_rate else None for _ in range(2)
        )
        for name, kind in TERMS.items():
            kind.attach(self, name, terms.get(name), num_relations, dim, **made)
        self.normals = xavier(rows, dim, **made) if planes else None

    def refine(
        self,
        graph: ContextGraph,
        *,
        mask: Tensor | None = None,
        generator: Generator | None = None,
        backend: str = "auto",
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the tables for scoring: after dropout in training, additions to the inputs and the context.

        Args:
            graph: the context.
            mask: bool (T,), the graph's triples to mask together with their inverses, or None.
            generator: random generator for the dropout in training.
            backend: as in ``context_layer``.
            rows: int64 (M,), the entities to compute; repeats are allowed. Work that only other entities need
                is skipped. None computes all entities in order.

        Returns:
            Entities (N, d), or (M, d), and relations (relation_rows, d).
        """
        inputs = self.inputs(graph, mask, generator)
        if rows is None:
            return self._encode(*inputs, graph, mask, backend)
        return self._encode_rows(*inputs, graph, mask, backend, rows)

    def refine_shard(
        self, shard: Shard, mask: Tensor | None, draws: NumberedDraws | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """``refine`` for a model with only the own entity rows of a shard; all ranks must call it.

        Args:
            shard: the rank's part of the context.
            mask: bool (T,), for the triples that the shard holds, or None.
            draws: random source for the dropout in training.
            backend: as in ``context_layer``.

        Returns:
            Own rows (n, d) and relations.
        """
        return self._encode(*self.inputs(shard.graph, mask, draws), shard, mask, backend)

    def inputs(
        self,
        graph: ContextGraph,
        mask: Tensor | None = None,
        generator: Generator | NumberedDraws | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the input tables of the first layer; arguments as in ``refine``.

        For a model with the own rows of a shard, the graph is the shard's graph, over own and halo rows.
        """
        entities: Tensor = self.entities
        relations: Tensor = self.relations
        draws = generator if isinstance(generator, NumberedDraws) else SequentialDraws(generator)
        if self.training and self.input_dropout:
            entities = draws.dropout(entities, self.input_dropout, "entities")
            if not self.angles:  # scaling an angle would change the rotation
                relations = draws.dropout(relations, self.input_dropout, "relations")
        if self.angles:
            relations = torch.cat([relations.cos(), relations.sin()], 1)
        if self.training and self.row_dropout:
            entities = draws.without_rows(entities, self.row_dropout)
        for term in self.terms.values():
            added = term.for_inputs(self, graph, mask)
            entities = entities if added is None else entities + added[: len(entities)]
        return entities, relations

    def read_relations(self, relations: Tensor) -> Tensor:
        """Return the relation rows that a score reads: raw or all, or with planes [r | normal] (.., 2 d)."""
        return relations if self.normals is None else with_normals(relations, self.normals[: len(relations)])

    def evidence(
        self, graph: ContextGraph, pairs: Tensor, targets: Tensor | None = None, numbers: Tensor | None = None
    ) -> Evidence | None:
        """Return the evidence of pairs for the terms; None for a model without terms.

        Args:
            graph: the context.
            pairs: int64 or int32 (B, 2) of (head, tail); N stands for an unseen entity.
            targets: as in ``Pairs``, in training.
            numbers: as in ``Pairs``.
        """
        if not self.terms:
            return None
        # ids of a data set can be int32, and pair numbers go up to N^2
        asked = Pairs(graph, pairs.long(), self.entities.dtype, targets, numbers)
        return {side: self.evidence_of(side, asked) for side in SIDES}

    def evidence_of(self, side: str, pairs: Pairs) -> dict[str, Any]:
        """Return the evidence of one side of pairs by term; with ``pairs.held`` all ranks must call it."""
        return {name: term.find(side, pairs) for name, term in self.terms.items() if side in term.sides}

    @property
    def terms(self) -> dict[str, Term]:
        """The terms of this model by name, in the order of ``TERMS``."""
        return {name: term for name, term in self.named_children() if isinstance(term, Term)}

    def relation_scores(
        self,
        refined: tuple[Tensor, Tensor],
        pairs: Tensor,
        evidence: Evidence | None = None,
        *,
        seen: Tensor | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Score every raw relation for each pair.

        Args:
            refined: the result of ``refine``.
            pairs: int64 (B, 2) of (head, tail).
            evidence: the result of ``evidence`` for these pairs.
            seen: bool (N,), True where an entity has a training triple. In evaluation the learned vectors
                replace the other entities, if the model has these vectors.
            generator: random generator for the replacement in training.

        Returns:
            Scores (B, R), the logits of p(r | h, t).

        Raises:
            ValueError: if the model has terms and ``evidence`` is None.
        """
        entities, relations = refined
        # one gather for both sides: its gradient has N rows. The embedding sums it without atomics on a GPU
        rows = functional.embedding(pairs.T.reshape(-1), entities)
        unknown = None
        if not self.training and self.unknown_head is not None and seen is not None:
            unknown = ~seen[pairs[:, 0]], ~seen[pairs[:, 1]]
        sides = self._sides(rows, evidence, unknown, generator)
        return self.pair_scores(*sides, relations, self.joined(evidence and evidence["pair"]))

    def relation_loss(
        self,
        refined: tuple[Tensor, Tensor],
        targets: Tensor,
        evidence: Evidence | None = None,
        *,
        generator: Generator | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the mean cross-entropy over the relations of B pairs; memory as in ``pair_loss``.

        Args:
            refined: the rows of the heads, then the rows of the tails (2B, d), and the relations.
            targets: int64 (B,), the relations.
            evidence: as in ``relation_scores``.
            generator: as in ``relation_scores``.
            label_smoothing: the share of the target weight that is spread evenly over all relations.

        Raises:
            ValueError: as ``relation_scores``.
        """
        heads, tails = self._sides(refined[0], evidence, None, generator)
        joined = self.joined(evidence and evidence["pair"])
        return self.pair_loss(heads, tails, refined[1], joined, targets, label_smoothing) / len(targets)

    def _sides(
        self,
        rows: Tensor,
        evidence: Evidence | None,
        unknown: tuple[Tensor, Tensor] | None,
        generator: Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """Split refined rows (2B, d) into heads and tails for the score; `unknown` marks replaced ones."""
        heads, tails = rows.chunk(2)
        if self.unknown_head is not None and self.training:
            unknown = self.unknowns(torch.rand(len(heads), generator=generator, device=heads.device))
        no_head, no_tail = unknown or (None, None)
        heads = self.rows_of("head", heads, no_head, evidence and evidence["head"])
        return heads, self.rows_of("tail", tails, no_tail, evidence and evidence["tail"])

    def unknowns(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the heads and tails that the learned vectors replace in training: bool (B,) each.

        Args:
            draw: a random number in [0, 1) per pair (B,).
        """
        no_head = draw < self.unseen_rate / 2
        return no_head, (draw < self.unseen_rate) & ~no_head

    def rows_of(
        self, side: str, rows: Tensor, unknown: Tensor | None, evidence: Mapping[str, Any] | None
    ) -> Tensor:
        """Return rows as the score uses them.

        Args:
            side: "head" or "tail".
            rows: refined rows (B, d).
            unknown: bool (B,), True replaces the row by the learned vector of the side; or None.
            evidence: the evidence of the side by term; None for a model without terms.

        Raises:
            ValueError: if the evidence of a term is missing.
        """
        vector = self.unknown_head if side == "head" else self.unknown_tail
        if unknown is not None and vector is not None:
            rows = torch.where(unknown[:, None], vector, rows)
        return sum(self._added(side, evidence), start=rows)

    def joined(self, evidence: Mapping[str, Any] | None) -> Tensor | None:
        """Return the sum of rows (B, d) of the terms of pairs, to multiply with relation rows.

        A model without such terms returns None; arguments and errors as in ``rows_of``.
        """
        rows = list(self._added("pair", evidence))
        return sum(rows[1:], start=rows[0]) if rows else None

    def _added(self, side: str, evidence: Mapping[str, Any] | None) -> Iterator[Tensor]:
        """Yield the rows (B, d) that each term adds to a side of pairs."""
        for name, term in self.terms.items():
            if side in term.sides:
                if evidence is None or name not in evidence:
                    raise ValueError(f"evidence: expected evidence for {name}, got None: call evidence()")
                yield term.of(side, evidence[name])

    def pair_scores(self, heads: Tensor, tails: Tensor, relations: Tensor, joined: Tensor | None) -> Tensor:
        """Return scores (B, R) for heads and tails from ``rows_of``.

        Args:
            heads: (B, d).
            tails: (B, d).
            relations: refined, in the shape of their table.
            joined: the result of ``joined``, if the model has such terms.
        """
        return self._scores(heads, tails, relations[: self.num_relations], joined)

    def pair_loss(
        self,
        heads: Tensor,
        tails: Tensor,
        relations: Tensor,
        joined: Tensor | None,
        targets: Tensor,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the summed cross-entropy of targets, int64 (B,); other arguments as in ``pair_scores``.

        Scores with more than ``blocks.BLOCK`` intermediate values are computed and differentiated in blocks
        of pairs.
        """
        split = [heads, tails, targets, *([] if joined is None else [joined])]

        def loss(heads: Tensor, tails: Tensor, targets: Tensor, *others: Tensor) -> Tensor:
            *joined, relations = others
            scores = self._scores(heads, tails, relations, joined[0] if joined else None)
            return functional.cross_entropy(scores, targets, reduction="sum", label_smoothing=label_smoothing)

        relations, size = relations[: self.num_relations], blocks.block_size(self.entries)
        if len(heads) <= size:
            return loss(*split, relations)
        return blocks.sum_over_blocks(loss, size, split, [relations], list(self.parameters()))

    @property
    def entries(self) -> int:
        """The number of intermediate values in the scores of one pair."""
        return self.num_relations

    def _scores(self, heads: Tensor, tails: Tensor, relations: Tensor, joined: Tensor | None) -> Tensor:
        """Return scores (B, R), given only the raw relations."""
        product = PRODUCTS.get(self.entity_score or "")
        if joined is not None and product is not None:  # one matrix product for both terms
            scores = (product(heads, tails) + joined) @ relations.T
        else:
            scores = self._score(heads, relations, tails)
            scores = scores if joined is None else scores + joined @ relations.T
        return scores if self.relation_bias is None else scores + self.relation_bias

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """Return the tables after the context, for a shard the own rows; without context, the inputs."""
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
        """Return the rows of some entities, int64 (M,), after the context, and all relations."""
        entities, relations = self._encode(entities, relations, graph, mask, backend)
        return functional.embedding(rows, entities), relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return scores (B, R) of heads and tails (B, d) with all R raw relations."""
        raise NotImplementedError
