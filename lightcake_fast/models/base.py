"""What every model shares: the two tables, the options against learning by heart, scores of all answers."""

import math
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import blocks
from lightcake_fast.models.draws import NumberedDraws, SequentialDraws
from lightcake_fast.models.entity_scores import (
    Questions,
    Spread,
    all_scores,
    ask,
    cross_entropy,
    measures_distance,
)
from lightcake_fast.models.evidence import Evidence, Weighed, evidence_of, paths_of_triples
from lightcake_fast.models.paths import PathKinds
from lightcake_fast.models.scorers import PRODUCTS, with_normals
from lightcake_fast.models.terms import PROFILES, Links, Paths, RelationProfile
from lightcake_fast.models.weights import check_at_least, check_choice, xavier
from lightcake_fast.sharding.layer import AnyGraph, Shard


class RelationModel(nn.Module):
    """Entity and relation tables, a score for every raw relation of a pair and every entity of (h, r, ?).

    A model says how it refines the tables (``_encode``), how it scores a pair (``_score``) and with which
    score it ranks entities (``entity_score``); each is written once for training and evaluation.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        dim: d, the real numbers in an entity's row.
        relation_rows: rows of the relation table; None for R.
        angles: the relation table holds angles, at first uniform, which are read as rotations of complex
            numbers: a row is their d/2 cosines, then their sines. Input dropout leaves them as they are.
        planes: relations have normals, of length one where they are read, for a score that projects entities
            (see ``Score``). Input dropout leaves them as they are.
        relation_bias: learn a number for each raw relation, added to its score: ranks pairs of which
            nothing else is known by how frequent the relations are.
        input_dropout: share of the entries of both tables that is zeroed before they are refined, the
            others scaled up: hinders learning the training triples by heart.
        row_dropout: share of the entity rows that is zeroed before they are refined, without scaling:
            makes the model read an entity off its context.
        unseen_rate: share of the training pairs whose head or tail (half each) is replaced after the
            refinement by a learned vector, which in evaluation stands for every entity that has no
            training triple. 0 has no such vectors.
        profile: "score" adds to the rows of head and tail what their relations say, counted over the graph
            (see ``RelationProfile``); "both" adds such a term to all entity rows before they are refined as
            well, so that context carries the profiles of neighbours; "none" does neither.
        links: add to a pair's scores what the relations that are known to join it say (see ``Links``).
        paths: likewise the paths of two triples that join it (see ``Paths``).
        has_context: whether the model refines the entity rows, without which profile "both" is refused.
        inverses: give inverse relations rows of their own, 2R in all: questions for heads ask with them.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

    Shapes:
        ``entities`` (N, d); ``relations`` (relation_rows, d), or d/2 with ``angles``; ``relation_bias`` (R,);
        ``unknown_head`` and ``unknown_tail`` (d,); ``input_profile`` (2R, d); ``normals`` (relation_rows, d).

    Raises:
        InputError: if the profile is "both" and the model has no context.
        ValueError: if an argument is out of range.
    """

    entity_score: str | None = None  # as in ``ask``; None for a model that does not rank entities

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
        profile: str = "none",
        links: bool = False,
        paths: bool = False,
        has_context: bool = False,
        inverses: bool = False,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_at_least(1, num_entities=num_entities, num_relations=num_relations, dim=dim)
        shares = {"input_dropout": input_dropout, "row_dropout": row_dropout, "unseen_rate": unseen_rate}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name}: got {share}, wanted at least 0 and below 1")
        check_choice("profile", profile, PROFILES)
        if profile == "both" and not has_context:
            raise InputError("profile: got 'both' without context layers, wanted 'none' or 'score'")
        self.num_relations, self.has_context, self.angles = num_relations, has_context, angles
        self.input_dropout, self.row_dropout, self.unseen_rate = input_dropout, row_dropout, unseen_rate
        self.entities = xavier(num_entities, dim, generator=generator, dtype=dtype)
        rows = 2 * num_relations if inverses else relation_rows or num_relations
        self.relations = xavier(rows, dim // 2 if angles else dim, generator=generator, dtype=dtype)
        if angles:
            nn.init.uniform_(self.relations, -math.pi, math.pi, generator=generator)
        self.relation_bias = (
            nn.Parameter(torch.zeros(num_relations, dtype=dtype, device=self.entities.device))
            if relation_bias
            else None
        )

        def unknown() -> nn.Parameter | None:
            row = xavier(1, dim, generator=generator, dtype=dtype)[0].detach() if unseen_rate else None
            return None if row is None else nn.Parameter(row)

        self.unknown_head, self.unknown_tail = unknown(), unknown()
        made: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.profile = None if profile == "none" else RelationProfile(num_relations, dim, **made)
        self.input_profile = xavier(2 * num_relations, dim, **made) if profile == "both" else None
        self.links = Links(num_relations, dim, **made) if links else None
        self.paths = Paths(num_relations, dim, **made) if paths else None
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
        """The tables as pairs are scored with them: after dropout in training, the profile and the context.

        Args:
            graph: the context.
            mask: bool (T,), the graph's triples to leave out with their inverses, or None.
            generator: source of the dropout in training.
            backend: as in ``context_layer``.
            rows: int64 (M,), the entities whose rows are wanted, some of them more than once perhaps: what
                only the others need is left out. None stands for all in order.

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
        """``refine`` of a model that has a shard's own entity rows, with all ranks.

        Args:
            shard: the rank's part of the context.
            mask: bool (T,), of the triples that the shard holds, or None.
            draws: source of the dropout in training.
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
        """The tables that the first layer is given; arguments as in ``refine``.

        Of a model that has a shard's own rows, the graph is the shard's, which goes on with the halo.
        """
        entities: Tensor = self.entities
        relations: Tensor = self.relations
        draws = generator if isinstance(generator, NumberedDraws) else SequentialDraws(generator)
        if self.training and self.input_dropout:
            entities = draws.dropout(entities, self.input_dropout, "entities")
            if not self.angles:  # an angle scaled up is another one
                relations = draws.dropout(relations, self.input_dropout, "relations")
        if self.angles:
            relations = torch.cat([relations.cos(), relations.sin()], 1)
        if self.training and self.row_dropout:
            entities = draws.without_rows(entities, self.row_dropout)
        if self.input_profile is not None:
            profiles = evidence_of(graph).profiles_times(self.input_profile, mask)
            entities = entities + profiles[: len(entities)]
        return entities, relations

    def read_relations(self, relations: Tensor) -> Tensor:
        """What a score reads of relations: their rows, raw or all, or with planes [r | normal] (.., 2 d)."""
        return relations if self.normals is None else with_normals(relations, self.normals[: len(relations)])

    def evidence(
        self,
        graph: ContextGraph,
        pairs: Tensor,
        targets: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> Evidence | None:
        """What the profile, links and paths of pairs are made of; None for a model without these terms.

        Args:
            graph: the context.
            pairs: int64 or int32 (B, 2) of (head, tail); N stands for an entity of which nothing is known.
            targets: int64 (B,), in training: the pairs are the graph's triples with these relations, and
                each is left out of its own evidence, which else holds the answer.
            numbers: int64 (B,), of these triples, where they are known: their paths are counted once for all.
        """
        if not self.has_terms:
            return None
        found, dtype = evidence_of(graph), self.entities.dtype
        pairs = pairs.long()  # a data set's ids are narrower, and pairs are numbered by N^2
        evidence = found.of_pairs(pairs, dtype, targets)
        if self.paths is None:
            return evidence
        if numbers is not None:
            return evidence._replace(paths=paths_of_triples(graph, numbers, dtype))
        return evidence._replace(paths=found.paths.of_pairs(pairs, dtype))

    @property
    def has_terms(self) -> bool:
        """Whether scores have terms that are made of evidence."""
        return any(term is not None for term in (self.profile, self.links, self.paths))

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
            refined: what ``refine`` returned.
            pairs: int64 (B, 2) of (head, tail).
            evidence: what ``evidence`` returned for these pairs.
            seen: bool (N,), True where an entity has a training triple; in evaluation the others are
                replaced by the learned vectors, where the model has them.
            generator: source of the random replacement in training.

        Returns:
            Scores (B, R), the logits of p(r | h, t).

        Raises:
            ValueError: if the model has a profile, links or paths and no evidence is given.
        """
        entities, relations = refined
        # one gather: its gradient is a table of N rows, which an embedding sums without atomics on a GPU too
        rows = functional.embedding(pairs.T.reshape(-1), entities)
        unknown = None
        if not self.training and self.unknown_head is not None and seen is not None:
            unknown = ~seen[pairs[:, 0]], ~seen[pairs[:, 1]]
        heads, tails = self._sides(rows, evidence, unknown, generator)
        return self.pair_scores(
            heads, tails, relations, evidence and self.joined(evidence.links, evidence.paths)
        )

    def relation_loss(
        self,
        refined: tuple[Tensor, Tensor],
        targets: Tensor,
        evidence: Evidence | None = None,
        *,
        generator: Generator | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The mean cross-entropy of the relations of B pairs; memory as in ``pair_loss``.

        Args:
            refined: the rows of the heads, then those of the tails (2B, d), and the relations.
            targets: int64 (B,), the relations.
            evidence: as in ``relation_scores``.
            generator: as in ``relation_scores``.
            label_smoothing: the share of a target's weight that goes to all relations alike.

        Raises:
            ValueError: as ``relation_scores``.
        """
        heads, tails = self._sides(refined[0], evidence, None, generator)
        joined = evidence and self.joined(evidence.links, evidence.paths)
        return self.pair_loss(heads, tails, refined[1], joined, targets, label_smoothing) / len(targets)

    def _sides(
        self,
        rows: Tensor,
        evidence: Evidence | None,
        unknown: tuple[Tensor, Tensor] | None,
        generator: Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """Heads and tails as they take part in scores, of their refined rows (2B, d).

        ``unknown`` says which heads and which tails are, bool (B,) each; in training they are drawn.
        """
        if evidence is None and self.has_terms:
            raise ValueError("evidence: got None, wanted the pairs' evidence for profile, links and paths")
        heads, tails = rows.chunk(2)
        if self.unknown_head is not None and self.training:
            unknown = self.unknowns(torch.rand(len(heads), generator=generator, device=heads.device))
        no_head, no_tail = unknown or (None, None)
        heads = self.rows_of("head", heads, no_head, evidence and evidence.head)
        return heads, self.rows_of("tail", tails, no_tail, evidence and evidence.tail)

    def unknowns(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Which heads and tails the learned vectors replace in training: bool (B,) each.

        Args:
            draw: a random number in [0, 1) for each pair (B,).
        """
        no_head = draw < self.unseen_rate / 2
        return no_head, (draw < self.unseen_rate) & ~no_head

    def rows_of(self, side: str, rows: Tensor, unknown: Tensor | None, evidence: Weighed | None) -> Tensor:
        """Rows as they take part in scores.

        Args:
            side: "head" or "tail".
            rows: refined rows (B, d).
            unknown: bool (B,), which are replaced by the side's learned vector; or None.
            evidence: that of the side, where the model has a profile.
        """
        vector = self.unknown_head if side == "head" else self.unknown_tail
        if unknown is not None and vector is not None:
            rows = torch.where(unknown[:, None], vector, rows)
        if self.profile is not None and evidence is not None:
            rows = rows + self.profile.of(side, evidence)
        return rows

    def joined(self, links: Weighed, paths: PathKinds | None = None) -> Tensor | None:
        """The rows (B, d) of what joins pairs, whose products with the relations' add to the scores.

        None for a model with neither links nor paths; arguments as in ``Evidence``.

        Raises:
            ValueError: if the model has paths and none are given.
        """
        rows = None if self.links is None else self.links.of(links)
        if self.paths is None:
            return rows
        if paths is None:
            raise ValueError("paths: got None, wanted those of the pairs for a model that counts them")
        return self.paths.of(paths) if rows is None else rows + self.paths.of(paths)

    def pair_scores(self, heads: Tensor, tails: Tensor, relations: Tensor, joined: Tensor | None) -> Tensor:
        """Scores (B, R) of what ``rows_of`` made of heads and tails.

        Args:
            heads: (B, d).
            tails: (B, d).
            relations: refined, in the shape of their table.
            joined: what ``joined`` returned, where the model has such terms.
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
        """The sum of the cross-entropies of targets, int64 (B,); other arguments as in ``pair_scores``.

        Scores of more than ``blocks.BLOCK`` numbers are made and differentiated in blocks of pairs.
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
        """The numbers of which the scores of one pair are made."""
        return self.num_relations

    def _scores(self, heads: Tensor, tails: Tensor, relations: Tensor, joined: Tensor | None) -> Tensor:
        """Scores (B, R), given the raw relations alone."""
        product = PRODUCTS.get(self.entity_score or "")
        if joined is not None and product is not None:  # one matrix product for both
            scores = (product(heads, tails) + joined) @ relations.T
        else:
            scores = self._score(heads, relations, tails)
            scores = scores if joined is None else scores + joined @ relations.T
        return scores if self.relation_bias is None else scores + self.relation_bias

    def entity_scores(self, refined: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
        """Score every entity as the answer of each question.

        Args:
            refined: what ``refine`` returned.
            questions: int64 (B, 2) of (entity, relation): (h, r) asks for tails, (t, r + R) for heads.

        Returns:
            Scores (B, N), the logits of p(t | h, r).

        Raises:
            InputError: if the model does not rank entities.
        """
        return all_scores(self._asked(refined, questions), refined[0])

    def entity_loss(
        self,
        refined: tuple[Tensor, Tensor],
        questions: Tensor,
        answers: Tensor,
        question: Tensor,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The mean cross-entropy of answers, int64 (M,), to the questions numbered ``question``, int64 (M,).

        Never holds more scores than ``blocks.KEPT``; other arguments as in ``entity_scores``.
        """
        return cross_entropy(self._asked(refined, questions), refined[0], answers, question, label_smoothing)

    def _asked(self, refined: tuple[Tensor, Tensor], questions: Tensor) -> Questions:
        entities, relations = refined
        heads = functional.embedding(questions[:, 0], entities)
        spread = Spread.of(entities) if measures_distance(self.entity_score) else None
        return self.ask(heads, questions[:, 1], relations, spread)

    def ask(self, heads: Tensor, asked: Tensor, relations: Tensor, spread: Spread | None) -> Questions:
        """Questions for entities.

        Args:
            heads: refined rows (B, d).
            asked: int64 (B,), the relations: r for tails, r + R for heads.
            relations: refined, (2R, d).
            spread: of the entities among which answers are sought, where their score measures distances.

        Raises:
            InputError: if the model does not rank entities.
        """
        if self.entity_score is None:
            raise InputError(f"model: {type(self).__name__} does not rank entities")
        if len(relations) < 2 * self.num_relations:
            raise InputError("model: got one without rows of inverse relations, wanted inverses=True")
        return ask(self.entity_score, heads, functional.embedding(asked, relations), spread)

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """The tables after the context, of a shard own rows; a model without one leaves them as they are."""
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
        """The rows of some entities after the context, int64 (M,), and all relations."""
        entities, relations = self._encode(entities, relations, graph, mask, backend)
        return functional.embedding(rows, entities), relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Scores (B, R) of heads and tails (B, d) with all R raw relations."""
        raise NotImplementedError
