"""What a trained model answers: plain values, ready for JSON, and tables of embeddings."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Candidate:
    """A relation and its probability p(r | h, t), a softmax over all R relations."""

    relation: str
    probability: float


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


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The tables as pairs are scored with them, in CPU memory.

    Attributes:
        entities: Refined entities `[N, d]`.
        relations: Refined relations, R rows and, for a model with context, R more of the inverses.
        seen: Bool `[N]`, entities with a training triple; the vectors of unknown entities, where there are
            any, stand for the others.
        others: The model's other parameters by their own names: bias, vectors of unknown entities.
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
        score_without: The predicted relation's score with the triple and its inverse out of the graph.
        probability_without: Its probability then.
        share: The part of the size of the score that goes with it: (score - score_without) / |score|.
            Negative for a triple that speaks against the relation.
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
class Explanation:
    """What the likeliest relation of a pair rests on.

    Attributes:
        head: Name of the head.
        relation: Name of the likeliest relation.
        tail: Name of the tail.
        score: The relation's score, the logit of its probability.
        probability: p(r | h, t).
        contexts: Those of head, tail and relation that the model refines with.
        notes: As in `Prediction`.
    """

    head: str
    relation: str
    tail: str
    score: float
    probability: float
    contexts: tuple[Context, ...]
    notes: tuple[str, ...]
