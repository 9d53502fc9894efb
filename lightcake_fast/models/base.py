"""What every model shares: the two tables, the options against learning by heart, scores of all relations."""

from collections.abc import Iterable

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from lightcake_fast.graph import ContextGraph


class RelationModel(nn.Module):
    """Entity and relation tables, and a score for every raw relation of a pair.

    A model says how it refines the tables (``_encode``) and how it scores a pair (``_score``); both are
    written once for training and evaluation.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        dim: d, the real numbers in an entity's row.
        relation_rows: rows of the relation table; None for R.
        relation_dim: the real numbers in a relation's row; None for d.
        relation_bias: learn a number for each raw relation, added to its score: ranks pairs of which
            nothing else is known by how frequent the relations are.
        input_dropout: share of the entries of both tables that is zeroed before they are refined, the
            others scaled up: hinders learning the training triples by heart.
        row_dropout: share of the entity rows that is zeroed before they are refined, without scaling:
            makes the model read an entity off its context.
        unseen_rate: share of the training pairs whose head or tail (half each) is replaced after the
            refinement by a learned vector, which in evaluation stands for every entity that has no
            training triple. 0 has no such vectors.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

    Shapes:
        ``entities`` (N, d); ``relations`` (relation_rows, relation_dim); ``relation_bias`` (R,);
        ``unknown_head`` and ``unknown_tail`` (d,).

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        *,
        dim: int,
        relation_rows: int | None = None,
        relation_dim: int | None = None,
        relation_bias: bool = False,
        input_dropout: float = 0.0,
        row_dropout: float = 0.0,
        unseen_rate: float = 0.0,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_at_least(1, num_entities=num_entities, num_relations=num_relations, dim=dim)
        shares = {"input_dropout": input_dropout, "row_dropout": row_dropout, "unseen_rate": unseen_rate}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name}: got {share}, wanted at least 0 and below 1")
        self.num_relations = num_relations
        self.input_dropout, self.row_dropout, self.unseen_rate = input_dropout, row_dropout, unseen_rate
        self.entities = xavier(num_entities, dim, generator=generator, dtype=dtype)
        self.relations = xavier(
            relation_rows or num_relations, relation_dim or dim, generator=generator, dtype=dtype
        )
        self.relation_bias = (
            nn.Parameter(torch.zeros(num_relations, dtype=dtype, device=self.entities.device))
            if relation_bias
            else None
        )

        def unknown() -> nn.Parameter | None:
            row = xavier(1, dim, generator=generator, dtype=dtype)[0].detach() if unseen_rate else None
            return None if row is None else nn.Parameter(row)

        self.unknown_head, self.unknown_tail = unknown(), unknown()

    def refine(
        self,
        graph: ContextGraph,
        *,
        mask: Tensor | None = None,
        generator: Generator | None = None,
        backend: str = "auto",
    ) -> tuple[Tensor, Tensor]:
        """The tables as pairs are scored with them: after dropout in training, and after the context.

        Args:
            graph: the context.
            mask: bool (T,), the graph's triples to leave out with their inverses, or None.
            generator: source of the dropout in training.
            backend: as in ``context_layer``.

        Returns:
            Entities (N, d) and relations, in the shape of their table.
        """
        entities: Tensor = self.entities
        relations: Tensor = self.relations
        if self.training and self.input_dropout:
            entities = _dropout(entities, self.input_dropout, generator)
            relations = _dropout(relations, self.input_dropout, generator)
        if self.training and self.row_dropout:
            kept = torch.empty_like(entities[:, :1]).bernoulli_(1 - self.row_dropout, generator=generator)
            entities = entities * kept
        return self._encode(entities, relations, graph, mask, backend)

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
        # one gather: its gradient is a table of N rows, which an embedding sums without atomics on a GPU too
        heads, tails = functional.embedding(pairs.T.reshape(-1), entities).chunk(2)
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
        scores = self._score(heads, relations[: self.num_relations], tails)
        return scores if self.relation_bias is None else scores + self.relation_bias

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: ContextGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """The tables after the context; a model without one leaves them as they are."""
        return entities, relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Scores (B, R) of heads and tails (B, d) with all R raw relations."""
        raise NotImplementedError


def check_at_least(least: int, **numbers: int) -> None:
    """Raise ``ValueError`` for a number below ``least``."""
    for name, value in numbers.items():
        if value < least:
            raise ValueError(f"{name}: got {value}, wanted at least {least}")


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise ``ValueError`` for a value that is not one of ``known``."""
    if value not in known:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(known)}")


def xavier(*shape: int, generator: Generator | None, dtype: torch.dtype) -> nn.Parameter:
    """A matrix, or a stack of matrices, each Xavier uniform, on the generator's device."""
    values = torch.empty(shape, dtype=dtype, device=generator.device if generator is not None else None)
    for matrix in values.view(-1, *shape[-2:]):
        nn.init.xavier_uniform_(matrix, generator=generator)
    return nn.Parameter(values)


def _dropout(table: Tensor, share: float, generator: Generator | None) -> Tensor:
    """Dropout from a generator of one's own, which ``torch.nn.functional.dropout`` does not take.

    Sixteen random bits an entry, four entries a draw: drawing a float for each took longer than a layer.
    Multiplying by a bool takes a quarter of the time of ``masked_fill`` on a CPU.
    """
    draws = torch.empty(-(-table.numel() // 4), dtype=torch.int64, device=table.device)
    bits = draws.random_(-(2**63), None, generator=generator).view(torch.int16)
    kept = (bits[: table.numel()] >= round(share * 2**16) - 2**15).view_as(table)
    return table * kept * (1 / (1 - share))
