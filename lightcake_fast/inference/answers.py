"""What a trained model answers: plain values, ready for JSON and pandas, and tables of embeddings."""

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
        probability: p(r | h, t), a softmax over all R relations: that it is this one, given that exactly one
            relation holds between the two. It does not say whether any does.
        in_training: Whether the training split has the triple already.
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
        relations: The likeliest first.
        notes: What to know about the answer: an entity of which nothing was learned.
    """

    head: str
    tail: str
    relations: tuple[Candidate, ...]
    notes: tuple[str, ...]


class Predictions(Tabular, list[Prediction]):
    """A `Prediction` for each pair, in order."""

    columns = ("head", "tail", "rank", "relation", "probability", "in_training", "note")

    def to_pandas(self) -> "DataFrame":
        """A row for each pair and relation: head, tail, rank, relation, probability, in_training, note."""
        return frame(self.columns, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """These rows, as `columns` names their values."""
        for p in self:
            for rank, c in enumerate(p.relations, 1):
                yield p.head, p.tail, rank, c.relation, c.probability, c.in_training, "; ".join(p.notes)


@dataclass(frozen=True)
class EntityCandidate:
    """An entity and its probability.

    Attributes:
        entity: Name of the entity.
        probability: p(t | h, r), a softmax over all N entities: that it is this one, given that exactly one
            is asked for. Where a question has several answers they share it.
        in_training: Whether the training split has the triple already.
    """

    entity: str
    probability: float
    in_training: bool


@dataclass(frozen=True)
class EntityPrediction:
    """The likeliest entities for a question.

    Attributes:
        head: Name of the head; None if it is asked for.
        relation: Name of the relation.
        tail: Name of the tail; None if it is asked for.
        entities: The likeliest first.
        notes: What to know about the answer: an entity of which nothing was learned.
    """

    head: str | None
    relation: str
    tail: str | None
    entities: tuple[EntityCandidate, ...]
    notes: tuple[str, ...]

    @property
    def asked(self) -> str:
        """What is asked for: "head" or "tail"."""
        return "head" if self.head is None else "tail"

    def triple(self, entity: str) -> tuple[str, str, str]:
        """(head, relation, tail) with an entity as the answer."""
        return self.head or entity, self.relation, self.tail or entity


class EntityPredictions(Tabular, list[EntityPrediction]):
    """An `EntityPrediction` for each question, in order."""

    columns = ("head", "relation", "tail", "asked", "rank", "probability", "in_training", "note")

    def to_pandas(self) -> "DataFrame":
        """A row for each question and answer: the triple with it, what was asked, rank and the figures."""
        return frame(self.columns, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """These rows, as `columns` names their values."""
        for p in self:
            for rank, c in enumerate(p.entities, 1):
                note = "; ".join(p.notes)
                yield (*p.triple(c.entity), p.asked, rank, c.probability, c.in_training, note)


@dataclass(frozen=True)
class TripleScore:
    """How a model scores a given triple.

    Attributes:
        head: Name of the head.
        relation: Name of the relation.
        tail: Name of the tail.
        score: The relation's score psi of the pair, the logit of its probability.
        probability: As in `Candidate`.
        rank: Its place among all R relations, 1 for the likeliest; of equal scores the first place.
        in_training: Whether the training split has the triple.
        notes: As in `Prediction`.
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
    """A `TripleScore` for each triple, in order."""

    columns = ("head", "relation", "tail", "score", "probability", "rank", "in_training", "note")

    def to_pandas(self) -> "DataFrame":
        """A row for each triple: head, relation, tail, score, probability, rank, in_training, note."""
        return frame(self.columns, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """These rows, as `columns` names their values."""
        for s in self:
            yield (*(getattr(s, name) for name in self.columns[:-1]), "; ".join(s.notes))


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The tables as pairs are scored with them, in CPU memory.

    Attributes:
        entities: Refined entities `[N, d]`.
        relations: Refined relations, R rows and, for a model with context, R more of the inverses.
        seen: Bool `[N]`, entities with a training triple; the vectors of unknown entities, where there are
            any, stand for the others.
        others: The model's other parameters by their own names: bias, vectors of unknown entities, normals.
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
        head: Name of the head; the triple stands as in the data, also where its inverse is the context.
        relation: Name of the relation.
        tail: Name of the tail.
        weights: Its alpha (entity context) or beta (relation context) in each layer, the first first.
        score_without: The answer's score with the triple and its inverse out of the graph.
        probability_without: Its probability then.
        share: The part of the size of the score that goes with it: (score - score_without) / |score|.
            Negative for a triple that speaks against the answer.
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
        name: Its name.
        size: Its triples in all. Their weights sum to one in each layer.
        triples: Those of the largest mean weight, the largest first.
    """

    of: str
    name: str
    size: int
    triples: tuple[ContextTriple, ...]


@dataclass(frozen=True)
class Term:
    """A part of a score, or a relation in it.

    Attributes:
        of: "context", the layers with all that they gather; "profile of head" or "profile of tail", the
            entity's training triples counted by relation; "links", the relations known of the pair; or
            "paths", the two triples by two that lead from head to tail through a third entity.
        relation: Name of the relation, of a path's first triple; None for the part as a whole.
        inverse: Whether the entity is the relation's tail, a link leads from tail to head, or the path's
            first triple to the head.
        count: Its triples, or its paths.
        score_without: As in `ContextTriple`, without this.
        probability_without: As in `ContextTriple`, without this.
        share: As in `ContextTriple`. Shares need not add up to one: parts work together.
        second: Name of the relation of a path's second triple; None for what is no path.
        second_inverse: Whether the tail is that triple's head.
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
    """What an answer rests on, the likeliest or one that was named: a relation of a pair, or an entity.

    Attributes:
        head: Name of the head.
        relation: Name of the relation.
        tail: Name of the tail.
        score: The answer's score, the logit of its probability.
        probability: As in `Candidate` or `EntityCandidate`.
        rank: Its place among all R relations or N entities, 1 for the likeliest.
        likeliest: The likeliest answer.
        contexts: Those of head, tail and relation that the model refines with.
        terms: The parts that the model has, each before its relations of the largest share.
        notes: As in `Prediction`.
        asked: Which of the three is the answer: "relation", "head" or "tail".
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
        """The answer with its figures, and the notes."""
        answer = f"explanation of {self.relation!r} from {self.head!r} to {self.tail!r}"
        figures = f"score {self.score:.4f}, probability {self.probability:.4f}, rank {self.rank}"
        return "\n".join([f"{answer}: {figures}", *(f"note: {note}" for note in self.notes)])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `to_pandas`."""
        weights = (f"weight_{layer}" for layer in range(1, self._layers + 1))
        return ("of", "name", "head", "relation", "tail", *weights, *_FIGURES, *_OF_TERMS)

    def to_pandas(self) -> "DataFrame":
        """A row for each context triple, then a row for each term: context, profiles, links and paths.

        A context triple has of, name and the fields of `ContextTriple`, the weights as weight_1 and so on. A
        term has the fields of `Term`; relation and inverse are missing for the term as a whole.
        """
        return frame(self.columns, self.rows())

    def plot(self) -> "Figure":
        """The figure of `predict --figure`, which a notebook shows; `.savefig("why.png")` writes it.

        Raises:
            InputError: matplotlib is missing.
        """
        from lightcake_fast.inference.figure import plotted

        return plotted(self)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """These rows, as `columns` names their values; None for what a row lacks."""
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
