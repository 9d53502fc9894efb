"""Explain a prediction: the score without each context triple, count, link or path."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.inference.answers import (
    Candidate,
    Context,
    ContextTriple,
    EntityCandidate,
    Explanation,
    Term,
)
from lightcake_fast.models import LightCAKE, RelationModel
from lightcake_fast.models.terms import TERMS
from lightcake_fast.models.terms.term import Evidence
from lightcake_fast.ops import context_weights
from lightcake_fast.training.experiment import Experiment

ASKED = ("head", "relation", "tail")


class _Change(NamedTuple):
    """The score of the answer without one part. See the fields of `ContextTriple` with these names."""

    score_without: float
    probability_without: float
    share: float


class Case(NamedTuple):
    """A triple that contains the answer to explain.

    Attributes:
        ids: Ids of head, relation and tail; N for an unknown head or tail.
        names: Names of head, relation and tail.
        asked: The part that is the answer: "relation", "head" or "tail".
        likeliest: The likeliest answer.
        notes: See `Prediction`.
    """

    ids: tuple[int, int, int]
    names: tuple[str, str, str]
    asked: str
    likeliest: Candidate | EntityCandidate
    notes: tuple[str, ...]


class Explainer:
    """Explain one answer of a model.

    Args:
        experiment: The model and its graph.
        refine: Function of a mask (bool `[T]`, or None). It returns the tables, refined without the masked
            triples.
        case: The answer and its question.

    Raises:
        InputError: The model has neither LightCAKE layers nor terms.
    """

    def __init__(
        self,
        experiment: Experiment,
        refine: Callable[[Tensor | None], tuple[Tensor, Tensor]],
        case: Case,
    ) -> None:
        self._experiment, self._refine, self._case = experiment, refine, case
        head, relation, tail = case.ids
        self._answer = dict(zip(ASKED, case.ids, strict=True))[case.asked]
        # a question for the head uses the inverse relation
        self._relation = relation + experiment.data.num_relations * (case.asked == "head")
        self._pair = torch.tensor([[head, tail]], device=experiment.device)
        self._evidence = experiment.model.evidence(experiment.graph, self._pair)
        if self._evidence is None and not _is_layered(experiment.model):
            raise InputError(
                f"explain: expected a model with LightCAKE layers or a term ({', '.join(TERMS)}), "
                "got one without them: train a model with at least one"
            )
        self._whole = self._scores()

    def explain(self, top: int) -> Explanation:
        """Explain with the `top` triples per context and the `top` relations per term."""
        model, whole, answer = self._experiment.model, self._whole, self._answer
        contexts = self._contexts(model, top) if _is_layered(model) else ()
        return Explanation(
            *self._case.names,
            whole[answer].item(),
            whole.double().softmax(0)[answer].item(),
            int((whole > whole[answer]).sum()) + 1,
            self._case.likeliest,
            tuple(contexts),
            tuple(self._terms(top)),
            self._case.notes,
            self._case.asked,
        )

    def _scores(self, mask: Tensor | None = None, evidence: Evidence | None = None) -> Tensor:
        """Scores of all answers: without the triples of `mask` in the context, or with other evidence."""
        if self._case.asked == "relation":
            return self._experiment.scores(self._refine(mask), self._pair, evidence)[0]
        known = self._pair[:, 1 if self._case.asked == "head" else 0]
        questions = torch.stack([known, torch.full_like(known, self._relation)], 1)
        return self._experiment.entity_scores(self._refine(mask), questions)[0]

    def _change(self, scores: Tensor) -> _Change:
        whole, left = self._whole[self._answer].item(), scores[self._answer].item()
        probability = scores.double().softmax(0)[self._answer].item()
        return _Change(left, probability, (whole - left) / abs(whole) if whole else 0.0)

    def _contexts(self, model: LightCAKE, top: int) -> Iterator[Context]:
        data, graph = self._experiment.data, self._experiment.graph
        heads, relations, _ = graph.context_triples
        head, tail = self._pair[0].tolist()
        members = {}
        if model.context != "relation":
            members["head"], members["tail"] = heads == head, heads == tail
        if model.context != "entity":
            members["relation"] = relations == self._relation
        entries = {of: rows.nonzero()[:, 0] for of, rows in members.items()}
        layers = list(self._weights(model, entries))

        @cache  # a triple may be in several contexts
        def left_out(triple: int) -> _Change:
            mask = torch.zeros(graph.num_triples, dtype=torch.bool, device=graph.device)
            mask[triple] = True
            return self._change(self._scores(mask))

        def listed(entry: int, weights: tuple[float, ...]) -> ContextTriple:
            triple = entry % graph.num_triples
            h, r, t = data.train[triple].tolist()
            names = data.entities[h], data.relations[r], data.entities[t]
            return ContextTriple(*names, weights, *left_out(triple))

        titles = dict(zip(ASKED, self._case.names, strict=True))
        for of, rows in entries.items():
            weights = torch.stack([layer[of] for layer in layers])
            order = weights.mean(0).argsort(descending=True, stable=True)[:top]
            chosen = zip(rows[order].tolist(), weights[:, order].T.tolist(), strict=True)
            triples = tuple(listed(entry, tuple(values)) for entry, values in chosen)
            yield Context(of, titles[of], len(rows), triples)

    @torch.no_grad()
    def _weights(self, model: LightCAKE, entries: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Yield the weights of the context triples `entries` per layer, each layer on its real input."""
        graph, backend = self._experiment.graph, self._experiment.config.backend
        entities, relations = model.inputs(graph)
        for layer in range(model.layers):
            read = model.read_relations(relations)
            alpha, beta = context_weights(
                entities, read, graph, score=model.score, rows=model.rows, backend=backend
            )
            yield {of: (beta if of == "relation" else alpha)[rows] for of, rows in entries.items()}
            entities, relations = model.layer(layer, entities, relations, graph, backend=backend)

    def _terms(self, top: int) -> Iterator[Term]:
        model, graph = self._experiment.model, self._experiment.graph
        if model.has_context:
            nothing = torch.ones(graph.num_triples, dtype=torch.bool, device=graph.device)
            left = self._change(self._scores(nothing))
            yield Term("context", None, False, graph.num_triples, *left)
        if self._evidence is None:
            return
        for side, found in self._evidence.items():
            for name in found:
                yield from self._term(side, name, top)

    def _term(self, side: str, name: str, top: int) -> Iterator[Term]:
        """A term as a whole, and its `top` relations with the largest shares."""
        evidence: Any = self._evidence
        found = evidence[side][name]
        of = name if side == "pair" else f"{name} of {side}"

        def without(entries: int | slice) -> _Change:
            weight = found.weight.clone()
            weight[entries] = 0
            lighter = {**evidence[side], name: found._replace(weight=weight)}
            return self._change(self._scores(None, {**evidence, side: lighter}))

        counts = self._experiment.model.terms[name].counts(found).round().long().tolist()
        second = getattr(found, "second", None)
        seconds = [None] * len(counts) if second is None else second.tolist()
        entries = [
            Term(of, *self._named(relation), count, *without(place), *self._named(then))
            for place, (relation, count, then) in enumerate(
                zip(found.relation.tolist(), counts, seconds, strict=True)
            )
            if count  # a count of 0 means padding
        ]
        yield Term(of, None, False, sum(counts), *without(slice(None)))
        yield from sorted(entries, key=lambda entry: -abs(entry.share))[:top]

    def _named(self, relation: int | None) -> tuple[str | None, bool]:
        """Name of one of the 2R relations, and whether it is an inverse."""
        if relation is None:
            return None, False
        inverse, raw = divmod(relation, self._experiment.data.num_relations)
        return self._experiment.data.relations[raw], bool(inverse)


def _is_layered(model: RelationModel) -> TypeGuard[LightCAKE]:
    """Whether the model has context layers with readable weights."""
    return isinstance(model, LightCAKE) and model.layers > 0
