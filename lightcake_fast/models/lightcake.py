"""LightCAKE: embeddings refined by their context, without a weight of its own."""

import torch
from torch import Generator, Tensor, nn

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.scorers import SCORERS
from lightcake_fast.ops import CONTEXTS, context_layer


class LightCAKE(nn.Module):
    """Entity and relation tables, L context layers and a score for every relation of a pair.

    With ``layers=0`` it is the plain scorer. The options after ``context`` go beyond the paper; what each
    is worth is measured in docs/results.md.

    Args:
        num_entities: N.
        num_relations: R, raw relations; from one layer on, inverses have rows of their own.
        dim: d, the embedding width.
        layers: L, at least 0.
        score: "distmult" or "transe".
        context: "both", "entity" or "relation".
        relation_bias: learn a number for each raw relation, added to its score: ranks pairs of which
            nothing else is known by how frequent the relations are.
        input_dropout: share of the entries of both tables that is zeroed before the first layer, the
            others scaled up: hinders learning the training triples by heart.
        row_dropout: share of the entity rows that is zeroed before the first layer, without scaling:
            makes the model read an entity off its context.
        unseen_rate: share of the training pairs whose head or tail (half each) is replaced after the last
            layer by a learned vector, which in evaluation stands for every entity that has no training
            triple. 0 has no such vectors.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

    Shapes:
        ``entities`` (N, d); ``relations`` (2R, d), or (R, d) without layers; ``relation_bias`` (R,);
        ``unknown_head`` and ``unknown_tail`` (d,).

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
        relation_bias: bool = False,
        input_dropout: float = 0.0,
        row_dropout: float = 0.0,
        unseen_rate: float = 0.0,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("num_entities", num_entities, 1),
            ("num_relations", num_relations, 1),
            ("dim", dim, 1),
            ("layers", layers, 0),
        ):
            if value < least:
                raise ValueError(f"{name}: got {value}, wanted at least {least}")
        for name, share in (
            ("input_dropout", input_dropout),
            ("row_dropout", row_dropout),
            ("unseen_rate", unseen_rate),
        ):
            if not 0 <= share < 1:
                raise ValueError(f"{name}: got {share}, wanted at least 0 and below 1")
        for name, choice, known in (("score", score, tuple(SCORERS)), ("context", context, CONTEXTS)):
            if choice not in known:
                raise ValueError(f"{name}: got {choice!r}, wanted one of {', '.join(known)}")
        self.num_relations = num_relations
        self.layers, self.score, self.context = layers, score, context
        self.input_dropout, self.row_dropout, self.unseen_rate = input_dropout, row_dropout, unseen_rate

        device = generator.device if generator is not None else None

        def table(rows: int) -> nn.Parameter:
            values = torch.empty(rows, dim, dtype=dtype, device=device)
            return nn.Parameter(nn.init.xavier_uniform_(values, generator=generator))

        self.entities = table(num_entities)
        self.relations = table(2 * num_relations if layers else num_relations)
        self.relation_bias = (
            nn.Parameter(torch.zeros(num_relations, dtype=dtype, device=device)) if relation_bias else None
        )
        self.unknown_head = nn.Parameter(table(1)[0].detach()) if unseen_rate else None
        self.unknown_tail = nn.Parameter(table(1)[0].detach()) if unseen_rate else None

    def refine(
        self,
        graph: ContextGraph,
        *,
        mask: Tensor | None = None,
        generator: Generator | None = None,
        backend: str = "auto",
    ) -> tuple[Tensor, Tensor]:
        """The embeddings after L layers over the graph.

        Args:
            graph: the context.
            mask: bool (T,), the graph's triples to leave out with their inverses, or None.
            generator: source of the dropout in training.
            backend: as in ``context_layer``.

        Returns:
            Entities (N, d) and relations ((2R, d), or (R, d) without layers).
        """
        entities: Tensor = self.entities
        relations: Tensor = self.relations
        if self.training:
            entities, relations = self._dropped(entities, relations, generator)
        for _ in range(self.layers):
            entities, relations = context_layer(
                entities,
                relations,
                graph,
                score=self.score,
                context=self.context,
                mask=mask,
                backend=backend,
            )
        return entities, relations

    def relation_scores(
        self,
        refined: tuple[Tensor, Tensor],
        pairs: Tensor,
        *,
        seen: Tensor | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Score every raw relation for each pair.

        Args:
            refined: what ``refine`` returned.
            pairs: int64 (B, 2) of (head, tail).
            seen: bool (N,), True where an entity has a training triple; in evaluation the others are
                replaced by the learned vectors, where the model has them.
            generator: source of the random replacement in training.

        Returns:
            Scores (B, R), the logits of p(r | h, t).
        """
        entities, relations = refined
        # one gather: its gradient is a table of N rows
        heads, tails = entities.index_select(0, pairs.T.reshape(-1)).chunk(2)
        if self.unknown_head is not None and self.unknown_tail is not None:
            if self.training:
                draw = torch.rand(len(pairs), generator=generator, device=pairs.device)
                no_head = draw < self.unseen_rate / 2
                no_tail = (draw < self.unseen_rate) & ~no_head
                heads = torch.where(no_head[:, None], self.unknown_head, heads)
                tails = torch.where(no_tail[:, None], self.unknown_tail, tails)
            elif seen is not None:
                heads = torch.where(seen[pairs[:, 0], None], heads, self.unknown_head)
                tails = torch.where(seen[pairs[:, 1], None], tails, self.unknown_tail)
        scores = SCORERS[self.score](heads, relations[: self.num_relations], tails)
        return scores if self.relation_bias is None else scores + self.relation_bias

    def _dropped(
        self, entities: Tensor, relations: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        if self.input_dropout:
            entities = _dropout(entities, self.input_dropout, generator)
            relations = _dropout(relations, self.input_dropout, generator)
        if self.row_dropout:
            kept = torch.empty_like(entities[:, :1]).bernoulli_(1 - self.row_dropout, generator=generator)
            entities = entities * kept
        return entities, relations


def _dropout(table: Tensor, share: float, generator: Generator | None) -> Tensor:
    """Dropout from a generator of one's own, which ``torch.nn.functional.dropout`` does not take.

    Sixteen random bits an entry, four entries a draw: drawing a float for each took longer than a layer.
    Multiplying by a bool takes a quarter of the time of ``masked_fill`` on a CPU.
    """
    draws = torch.empty(-(-table.numel() // 4), dtype=torch.int64, device=table.device)
    bits = draws.random_(-(2**63), None, generator=generator).view(torch.int16)
    kept = (bits[: table.numel()] >= round(share * 2**16) - 2**15).view_as(table)
    return table * kept * (1 / (1 - share))
