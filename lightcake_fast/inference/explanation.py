"""What a prediction rests on: the context triples of most weight, and the score without each of them."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import torch
from torch import Tensor

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.inference.answers import Context, ContextTriple, Explanation, Prediction
from lightcake_fast.models import LightCAKE, RelationModel
from lightcake_fast.ops import context_weights


def explain(
    prediction: Prediction,
    ids: tuple[int, int],
    top: int,
    model: RelationModel,
    graph: KnowledgeGraph,
    context: ContextGraph,
    scores: Callable[[Tensor | None], Tensor],
    *,
    relation: int,
    backend: str,
) -> Explanation:
    """Explain a relation of a pair to a LightCAKE model.

    Args:
        prediction: With at least the likeliest relation.
        ids: Of head and tail; N for an unknown name.
        top: Triples listed of each context, at least 1.
        model: The model, in evaluation mode.
        graph: The data set.
        context: The graph of its training triples.
        scores: Gives the pair's scores `[R]` with the masked triples (bool `[T]`, or None) left out.
        relation: Id of the relation to explain.
        backend: As in `context_layer`.

    Raises:
        InputError: The model has no context layers.
    """
    if not isinstance(model, LightCAKE) or not model.layers:
        raise InputError("the run's model has no context layers: there is no context to explain with")
    heads, relations, _ = context.context_triples
    members = {}
    if model.context != "relation":
        members["head"], members["tail"] = heads == ids[0], heads == ids[1]
    if model.context != "entity":
        members["relation"] = relations == relation
    entries = {of: rows.nonzero()[:, 0] for of, rows in members.items()}
    layers = list(_weights(model, context, entries, backend))
    all_scores = scores(None)
    whole = all_scores[relation].item()

    @cache  # a triple may lie in several contexts
    def left_out(triple: int) -> tuple[float, float]:
        mask = torch.zeros(context.num_triples, dtype=torch.bool, device=context.device)
        mask[triple] = True
        masked = scores(mask)
        return masked[relation].item(), masked.double().softmax(0)[relation].item()

    def listed(entry: int, weights: tuple[float, ...]) -> ContextTriple:
        triple = entry % context.num_triples
        h, r, t = graph.train[triple].tolist()
        score, probability = left_out(triple)
        names = graph.entities[h], graph.relations[r], graph.entities[t]
        share = (whole - score) / abs(whole) if whole else 0.0
        return ContextTriple(*names, weights, score, probability, share)

    titles = {"head": prediction.head, "tail": prediction.tail, "relation": graph.relations[relation]}
    contexts = []
    for of, rows in entries.items():
        weights = torch.stack([layer[of] for layer in layers])
        order = weights.mean(0).argsort(descending=True, stable=True)[:top]
        chosen = zip(rows[order].tolist(), weights[:, order].T.tolist(), strict=True)
        triples = tuple(listed(entry, tuple(values)) for entry, values in chosen)
        contexts.append(Context(of, titles[of], len(rows), triples))
    return Explanation(
        prediction.head,
        titles["relation"],
        prediction.tail,
        whole,
        all_scores.double().softmax(0)[relation].item(),
        int((all_scores > all_scores[relation]).sum()) + 1,
        prediction.relations[0],
        tuple(contexts),
        prediction.notes,
    )


@torch.no_grad()
def _weights(
    model: LightCAKE, context: ContextGraph, entries: Mapping[str, Tensor], backend: str
) -> Iterator[dict[str, Tensor]]:
    """The weights of the context triples numbered `entries`, of every layer on its own input."""
    entities, relations = model.inputs(context)
    for layer in range(model.layers):
        alpha, beta = context_weights(entities, relations, context, score=model.score, backend=backend)
        yield {of: (beta if of == "relation" else alpha)[rows] for of, rows in entries.items()}
        entities, relations = model.layer(layer, entities, relations, context, backend=backend)
