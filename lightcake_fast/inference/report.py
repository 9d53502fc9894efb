"""Answers as tables for a terminal."""

from collections.abc import Iterator

from rich.table import Table

from lightcake_fast.inference.answers import Context, ContextTriple, Explanation, Prediction


def prediction_table(prediction: Prediction) -> Table:
    """The likeliest relations of a pair."""
    table = Table()
    table.add_column("relation", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("in training", no_wrap=True)
    for candidate in prediction.relations:
        known = "yes" if candidate.in_training else ""
        table.add_row(candidate.relation, f"{candidate.probability:.4f}", known)
    return table


def explanation_tables(explanation: Explanation) -> Iterator[Table]:
    """A table for each context that is not empty.

    `share` is the part of the score that goes when the triple is left out, `p without` the probability then.
    """
    for context in explanation.contexts:
        if context.triples:
            yield _context_table(context)


def _context_table(context: Context) -> Table:
    symbol = "beta" if context.of == "relation" else "alpha"
    layers = len(context.triples[0].weights)
    held = sum(triple.weights[-1] for triple in context.triples)
    count = f"{len(context.triples)} of {context.size:,} triples"
    table = Table(
        title=f"context of {context.of} {context.name}",
        caption=f"{count}, with {held:.0%} of the last layer's weight",
    )
    table.add_column("triple", overflow="fold")
    for layer in range(layers):
        table.add_column(symbol if layers == 1 else f"{symbol} {layer + 1}", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("p without", justify="right", no_wrap=True)
    for triple in context.triples:
        table.add_row(
            _seen_from(context, triple),
            *(f"{weight:.4f}" for weight in triple.weights),
            f"{triple.share:+.1%}",
            f"{triple.probability_without:.4f}",
        )
    return table


def _seen_from(context: Context, triple: ContextTriple) -> str:
    """A context triple without what the table's title says already."""
    if context.of == "relation":
        return f"{triple.head} → {triple.tail}"
    if triple.head == context.name:
        return f"— {triple.relation} → {triple.tail}"
    return f"{triple.head} — {triple.relation} →"
