"""Answers of a trained model: plain values for JSON and pandas, and tables of embeddings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightcake_fast.inference.tabular import Tabular, frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Candidate:
    """A relation and its probability.

    Attributes:
        relation: Name of the relation.
        probability: p(r | h, t), a softmax over all R relations. It assumes that exactly one relation holds
            for the pair. It does not say whether any relation holds.
        in_training: Whether the triple is in the training split.
    """

    relation: str
    probability: float
    in_training: bool


@dataclass(frozen=True)
class Prediction:
    """The likeliest relations of a pair.

    Attributes:
        head: Name of the head.
        tail: Name of the tail.
        relations: Candidates, the likeliest first.
        notes: Warnings about unknown and unseen entities.
    """

    head: str
    tail: str
    relations: tuple[Candidate, ...]
    notes: tuple[str, ...]


class Predictions(Tabular, list[Prediction]):
    """One `Prediction` per pair, in order."""

    columns = ("head", "tail", "rank", "relation", "probability", "in_training", "note")

    def to_pandas(self) -> "DataFrame":
        """One row per pair and relation: head, tail, rank, relation, probability, in_training, note."""
        return frame(self.columns, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `to_pandas`; `columns` names the values."""
        for p in self:
            for rank, c in enumerate(p.relations, 1):
                yield p.head, p.tail, rank, c.relation, c.probability, c.in_training, "; ".join(p.notes)


@dataclass(frozen=True)
class EntityCandidate:
    """An entity and its probability.

    Attributes:
        entity: Name of the entity.
        probability: p(t | h, r), or p(h | r, t) for a head: a softmax over all N entities. It assumes exactly
            one correct answer. Several correct answers share the probability.
        in_training: Whether the triple is in the training split.
    """

    entity: str
    probability: float
    in_training: bool


@dataclass(frozen=True)
class EntityPrediction:
    """The likeliest entities for a question.

    Attributes:
        head: Name of the head; None if the question asks for the head.
        relation: Name of the relation.
        tail: Name of the tail; None if the question asks for the tail.
        entities: Candidates, the likeliest first.
        notes: Warnings about unseen entities.
    """

    head: str | None
    relation: str
    tail: str | None
    entities: tuple[EntityCandidate, ...]
    notes: tuple[str, ...]

    @property
    def asked(self) -> str:
        """The missing part: "head" or "tail"."""
        return "head" if self.head is None else "tail"

    def triple(self, entity: str) -> tuple[str, str, str]:
        """(head, relation, tail) with `entity` as the answer."""
        return self.head or entity, self.relation, self.tail or entity


class EntityPredictions(Tabular, list[EntityPrediction]):
    """One `EntityPrediction` per question, in order."""

    columns = ("head", "relation", "tail", "asked", "rank", "probability", "in_training", "note")

    def to_pandas(self) -> "DataFrame":
        """One row per question and answer: the completed triple, the missing part, rank and figures."""
        return frame(self.columns, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `to_pandas`; `columns` names the values."""
        for p in self:
            for rank, c in enumerate(p.entities, 1):
                note = "; ".join(p.notes)
                yield (*p.triple(c.entity), p.asked, rank, c.probability, c.in_training, note)


@dataclass(frozen=True)
class TripleScore:
    """Score of a given triple.

    Attributes:
        head: Name of the head.
        relation: Name of the relation.
        tail: Name of the tail.
        score: Score psi of the relation for the pair: the logit of the probability.
        probability: See `Candidate`.
        rank: Rank among all R relations, from 1. Equal scores get the best of their ranks.
        in_training: Whether the triple is in the training split.
        notes: See `Prediction`.
    """

    head: str
    relation: str
    tail: str
    score: float
    probability: float
    rank: int
    in_training: bool
    notes: tuple[str, ...]


class TripleScores(Tabular, list[TripleScore]):
    """One `TripleScore` per triple, in order."""

    columns = ("head", "relation", "tail", "score", "probability", "rank", "in_training", "note")

    def to_pandas(self) -> "DataFrame":
        """One row per triple: head, relation, tail, score, probability, rank, in_training, note."""
        return frame(self.columns, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `to_pandas`; `columns` names the values."""
        for s in self:
            yield (*(getattr(s, name) for name in self.columns[:-1]), "; ".join(s.notes))


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The refined tables that score pairs, in CPU memory.

    Attributes:
        entities: Refined entities `[N, d]`.
        relations: Refined relations `[R, d]`, or `[2R, d]` with inverses for a model with context.
        seen: Bool `[N]`, whether an entity has a training triple. For the other entities, a model uses its
            learned unknown-entity embeddings, if it has them.
        others: Other parameters by name, for example bias, unknown-entity embeddings and normals.
        entity_names: N names.
        relation_names: R names.
    """

    entities: Tensor
    relations: Tensor
    seen: Tensor
    others: dict[str, Tensor]
    entity_names: tuple[str, ...]
    relation_names: tuple[str, ...]


@dataclass(frozen=True)
class ContextTriple:
    """A training triple in a context.

    Attributes:
        head: Name of the head, in the direction of the data, also if the context contains the inverse.
        relation: Name of the relation.
        tail: Name of the tail.
        weights: alpha (entity context) or beta (relation context) per layer, in the order of the layers.
        score_without: Score of the answer without the triple and its inverse in the graph.
        probability_without: Probability of the answer without them.
        share: Relative loss of score without them: (score - score_without) / |score|. It is negative if the
            triple lowers the score.
    """

    head: str
    relation: str
    tail: str
    weights: tuple[float, ...]
    score_without: float
    probability_without: float
    share: float


@dataclass(frozen=True)
class Context:
    """The context of an entity or of a relation.

    Attributes:
        of: "head", "tail" or "relation".
        name: Name of the entity or relation.
        size: Number of triples in the context. Their weights sum to one in each layer.
        triples: Triples with the largest mean weights, in descending order.
    """

    of: str
    name: str
    size: int
    triples: tuple[ContextTriple, ...]


@dataclass(frozen=True)
class Term:
    """A part of a score, or one relation of such a part.

    Attributes:
        of: The part. "context": all context layers. Else a term of docs/architecture.md; " of head" and " of
            tail" follow the name of a term that belongs to one of these entities.
        relation: Name of the relation; for a path, the relation of its first triple. None for a whole part.
        inverse: The direction. True if the relation leads to the entity of the term, or from tail to head.
            For a path: from the third entity to the head.
        count: How often the graph contains it.
        score_without: See `ContextTriple`, without this part.
        probability_without: See `ContextTriple`, without this part.
        share: See `ContextTriple`. Shares need not sum to one, because parts interact.
        second: For a path, the relation of its second triple; otherwise None.
        second_inverse: For a path, whether the tail entity is the head of the second triple.
    """

    of: str
    relation: str | None
    inverse: bool
    count: int
    score_without: float
    probability_without: float
    share: float
    second: str | None = None
    second_inverse: bool = False


_FIGURES = ("score_without", "probability_without", "share")
_OF_TERMS = ("count", "inverse", "second", "second_inverse")


@dataclass(frozen=True, repr=False)
class Explanation(Tabular):
    """Explanation of an answer: the relation of a pair, or an entity.

    Attributes:
        head: Name of the head.
        relation: Name of the relation.
        tail: Name of the tail.
        score: Score of the answer: the logit of its probability.
        probability: See `Candidate` or `EntityCandidate`.
        rank: Rank among all R relations or N entities, from 1.
        likeliest: The likeliest answer.
        contexts: Contexts of head, tail and relation, if the model uses them.
        terms: Parts of the score. After each part follow its relations with the largest shares.
        notes: See `Prediction`.
        asked: The part of the triple that is the answer: "relation", "head" or "tail".
    """

    head: str
    relation: str
    tail: str
    score: float
    probability: float
    rank: int
    likeliest: Candidate | EntityCandidate
    contexts: tuple[Context, ...]
    terms: tuple[Term, ...]
    notes: tuple[str, ...]
    asked: str = "relation"

    @property
    def title(self) -> str:
        """The answer with score, probability and rank, and the notes."""
        answer = f"explanation of {self.relation!r} from {self.head!r} to {self.tail!r}"
        figures = f"score {self.score:.4f}, probability {self.probability:.4f}, rank {self.rank}"
        return "\n".join([f"{answer}: {figures}", *(f"note: {note}" for note in self.notes)])

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of `to_pandas`."""
        weights = (f"weight_{layer}" for layer in range(1, self._layers + 1))
        return ("of", "name", "head", "relation", "tail", *weights, *_FIGURES, *_OF_TERMS)

    def to_pandas(self) -> "DataFrame":
        """One row per context triple, then one row per part of the score.

        A context triple has `of`, `name` and the fields of `ContextTriple`; the weights are `weight_1` and so
        on. A term has the fields of `Term`; a whole part has no `relation` and `inverse`.
        """
        return frame(self.columns, self.rows())

    def plot(self) -> "Figure":
        """Draw the figure of `predict --figure`. A notebook shows it; `.savefig(path)` writes it.

        Raises:
            InputError: matplotlib is missing.
        """
        from lightcake_fast.inference.figure import plotted

        return plotted(self)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `to_pandas`; None means a missing value."""
        for context in self.contexts:
            for t in context.triples:
                triple = (t.head, t.relation, t.tail)
                yield (
                    context.of,
                    context.name,
                    *triple,
                    *t.weights,
                    *_values(t, _FIGURES),
                    *[None] * len(_OF_TERMS),
                )
        for term in self.terms:
            named = (term.of, None, None, term.relation, None)
            first = None if term.relation is None else term.inverse
            second = (None, None) if term.second is None else (term.second, term.second_inverse)
            yield (*named, *[None] * self._layers, *_values(term, _FIGURES), term.count, first, *second)

    @property
    def _layers(self) -> int:
        return max((len(t.weights) for c in self.contexts for t in c.triples), default=0)


def _values(part: ContextTriple | Term, names: Iterable[str]) -> Iterator[Any]:
    return (getattr(part, name) for name in names)
