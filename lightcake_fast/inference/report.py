"""Terminal tables of predictions and explanations."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len

from lightcake_fast.terminal import Table

if TYPE_CHECKING:
    from lightcake_fast.inference.answers import (
        Context,
        ContextTriple,
        EntityPrediction,
        Explanation,
        Prediction,
        Term,
    )

READABLE = 36  # minimum width for the names of a triple


def prediction_table(prediction: "Prediction") -> Table:
    """Table of the likeliest relations of a pair."""
    return _candidates_table(
        "relation", ((c.relation, c.probability, c.in_training) for c in prediction.relations)
    )


def entity_table(prediction: "EntityPrediction") -> Table:
    """Table of the likeliest entities for a question."""
    return _candidates_table(
        prediction.asked, ((c.entity, c.probability, c.in_training) for c in prediction.entities)
    )


def _candidates_table(title: str, candidates: Iterable[tuple[str, float, bool]]) -> Table:
    table = Table()
    table.add_names(title)
    table.add_figures("probability", 11)
    table.add_figures("in training", 11)
    for name, probability, known in candidates:
        table.add_row(name, f"{probability:.4f}", "yes" if known else "")
    return table


def explanation_tables(explanation: "Explanation", width: int) -> Iterator[tuple[str, Table]]:
    """Yield titles and tables: first the parts of the score, then each non-empty context.

    `share` is the relative loss of score without the triple, and `p without` is the probability without it.
    `width` is the width of the terminal.
    """
    if explanation.terms:
        yield "parts of the score", _terms_table(explanation)
    for context in explanation.contexts:
        if context.triples:
            held = sum(triple.weights[-1] for triple in context.triples)
            count = f"{len(context.triples)} of {context.size:,} triples"
            title = (
                f"context of {context.of} {context.name}: {count}, with {held:.0%} of the last layer's weight"
            )
            yield title, _context_table(context, width)


def _context_table(context: "Context", width: int) -> Table:
    symbol = "beta" if context.of == "relation" else "alpha"
    layers = list(range(len(context.triples[0].weights)))
    others = 25  # width of the frame, `share` and `p without`
    if len(layers) > 2 and len(layers) * (len(symbol) + 5) + others + READABLE > width:
        layers = [layers[0], layers[-1]]
    texts = [_seen_from(context, triple) for triple in context.triples]
    room = width - len(layers) * (len(symbol) + 5) - others
    table = Table(show_lines=any(cell_len(text) > room for text in texts))
    table.add_names("triple", 24)
    for layer in layers:
        table.add_figures(f"{symbol} {layer + 1}" if layers[-1] else symbol, len(symbol) + 2)
    table.add_figures("share", 7)
    table.add_figures("p without", 9)
    for text, triple in zip(texts, context.triples, strict=True):
        table.add_row(
            text,
            *(f"{triple.weights[layer]:.4f}" for layer in layers),
            f"{triple.share:+.1%}",
            f"{triple.probability_without:.4f}",
        )
    return table


def _terms_table(explanation: "Explanation") -> Table:
    table = Table()
    table.add_names("part", 24)
    table.add_figures("count", 7)
    table.add_figures("share", 7)
    table.add_figures("p without", 9)
    for term in explanation.terms:
        table.add_row(
            term_text(explanation, term),
            f"{term.count:,}",
            f"{term.share:+.1%}",
            f"{term.probability_without:.4f}",
        )
    return table


def term_text(explanation: "Explanation", term: "Term", shown: Callable[[str], str] = str) -> str:
    """Label of a term: its name, or its relation with arrows for the direction."""
    if term.relation is None:
        return term.of
    relation = shown(term.relation)
    if not term.of.endswith((" of head", " of tail")):
        start, end = (shown(name) for name in (explanation.head, explanation.tail))
        if term.second is not None:
            steps = _step(relation, term.inverse), _step(shown(term.second), term.second_inverse)
            return f"  {start} {steps[0]} · {steps[1]} {end}"
        return f"  {end} — {relation} → {start}" if term.inverse else f"  {start} — {relation} → {end}"
    return f"  → {relation}" if term.inverse else f"  {relation} →"


def _step(relation: str, inverse: bool) -> str:
    return f"← {relation} —" if inverse else f"— {relation} →"


def _seen_from(context: "Context", triple: "ContextTriple") -> str:
    """A context triple without the name that the title of its table contains."""
    if context.of == "relation":
        return f"{triple.head} → {triple.tail}"
    if triple.head == context.name:
        return f"— {triple.relation} → {triple.tail}"
    return f"{triple.head} — {triple.relation} →"
