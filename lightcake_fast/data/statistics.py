"""Statistics of a knowledge graph: sizes, skew, unseen entities and label leakage."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from lightcake_fast.data.knowledge_graph import Ids, KnowledgeGraph
from lightcake_fast.data.splitting import SPLITS


@dataclass(frozen=True)
class Statistics:
    """Statistics of a knowledge graph. Contexts are contexts in training; a triple counts for head and tail.

    Attributes:
        name: Data set name.
        fingerprint: `KnowledgeGraph.fingerprint`.
        entities: N, the number of entities.
        relations: R, the number of raw relations.
        triples: Number of distinct triples per split.
        duplicates: Number of dropped duplicate triples per split.
        mean_entity_context: Mean size of an entity's context, with inverses: 2 T / N.
        mean_relation_context: Mean size of a raw relation's context: T / R.
        median_entity_context: Median size of an entity's context.
        largest_entity_context: Maximum size of an entity's context.
        largest_relation_share: Share of the most frequent relation in the training triples.
        three_largest_relations_share: The same for the three most frequent relations together.
        unseen_entities: Number of entities without a training triple.
        valid_triples_with_unseen: Number of validation triples with an unseen entity.
        test_triples_with_unseen: Number of test triples with an unseen entity.
        test_pairs_in_train: Number of test triples with a (head, tail) pair from training.
        test_pairs_in_train_reversed: Number of test triples with a (tail, head) pair from training.
        test_triples_in_train: Number of test triples that are also training triples.
    """

    name: str
    fingerprint: str
    entities: int
    relations: int
    triples: dict[str, int]
    duplicates: dict[str, int]
    mean_entity_context: float
    mean_relation_context: float
    median_entity_context: float
    largest_entity_context: int
    largest_relation_share: float
    three_largest_relations_share: float
    unseen_entities: int
    valid_triples_with_unseen: int
    test_triples_with_unseen: int
    test_pairs_in_train: int
    test_pairs_in_train_reversed: int
    test_triples_in_train: int


def compute_statistics(graph: KnowledgeGraph) -> Statistics:
    """Compute the statistics of a knowledge graph."""
    train, test = graph.train, graph.test
    entity_context = np.bincount(train[:, [0, 2]].ravel(), minlength=graph.num_entities)
    relation_shares = np.sort(np.bincount(train[:, 1], minlength=graph.num_relations))[::-1] / len(train)
    unseen = ~graph.seen_entities
    train_pairs, test_pairs = (_pairs(rows, graph.num_entities) for rows in (train, test))
    again = np.isin(test_pairs, train_pairs)
    return Statistics(
        name=graph.name,
        fingerprint=graph.fingerprint,
        entities=graph.num_entities,
        relations=graph.num_relations,
        triples={split: len(graph.split(split)) for split in SPLITS},
        duplicates=dict(graph.duplicates),
        mean_entity_context=float(entity_context.mean()),
        mean_relation_context=len(train) / graph.num_relations,
        median_entity_context=float(np.median(entity_context)),
        largest_entity_context=int(entity_context.max()),
        largest_relation_share=float(relation_shares[0]),
        three_largest_relations_share=float(relation_shares[:3].sum()),
        unseen_entities=int(unseen.sum()),
        valid_triples_with_unseen=int(unseen[graph.valid[:, [0, 2]]].any(axis=1).sum()),
        test_triples_with_unseen=int(unseen[test[:, [0, 2]]].any(axis=1).sum()),
        test_pairs_in_train=int(again.sum()),
        test_pairs_in_train_reversed=_count_in(_pairs(test[:, ::-1], graph.num_entities), train_pairs),
        test_triples_in_train=_triples_in(test[again], test_pairs[again], train, train_pairs),
    )


def render_statistics(figures: Statistics) -> Table:
    """Make a rich table of the statistics."""
    table = Table(title=f"{figures.name} ({figures.fingerprint[:12]})", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for label, value in _rows(figures):
        table.add_row(label, value)
    return table


def _rows(figures: Statistics) -> list[tuple[str, str]]:
    """Labels and values of the table rows."""
    test = figures.triples["test"]
    skew = figures.largest_entity_context / max(figures.median_entity_context, 1)
    return [
        ("entities", f"{figures.entities:,}"),
        ("relations", f"{figures.relations:,}"),
        *((f"{split} triples", f"{figures.triples[split]:,}") for split in SPLITS),
        (
            "duplicates dropped (train / valid / test)",
            " / ".join(f"{figures.duplicates[s]:,}" for s in SPLITS),
        ),
        ("mean entity context |C_ent| (with inverses)", f"{figures.mean_entity_context:,.1f}"),
        ("mean relation context |C_rel| (raw direction)", f"{figures.mean_relation_context:,.1f}"),
        ("median entity context", f"{figures.median_entity_context:,.1f}"),
        ("largest entity context", f"{figures.largest_entity_context:,}"),
        ("largest / median entity context", f"{skew:,.1f}"),
        ("share of the largest relation", f"{figures.largest_relation_share:.1%}"),
        ("share of the three largest relations", f"{figures.three_largest_relations_share:.1%}"),
        ("entities unseen in training", f"{figures.unseen_entities:,}"),
        (
            "valid triples with an unseen entity",
            _part(figures.valid_triples_with_unseen, figures.triples["valid"]),
        ),
        ("test triples with an unseen entity", _part(figures.test_triples_with_unseen, test)),
        ("test pairs seen in training", _part(figures.test_pairs_in_train, test)),
        ("test pairs seen in training, reversed", _part(figures.test_pairs_in_train_reversed, test)),
        ("test triples seen in training", _part(figures.test_triples_in_train, test)),
    ]


def _part(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else "0"


def _pairs(triples: Ids, num_entities: int) -> NDArray[np.int64]:
    """One number per triple: equal numbers mean equal (head, tail) pairs."""
    return triples[:, 0].astype(np.int64) * num_entities + triples[:, 2]


def _triples_in(rows: Ids, pairs: NDArray[np.int64], known: Ids, known_pairs: NDArray[np.int64]) -> int:
    """Number of triples in `known`, given the pairs of both."""
    distinct = np.unique(pairs)
    near = np.isin(known_pairs, distinct)

    def keys(triples: Ids, theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        # the index of a pair, because a pair and a relation together may not fit into 64 bits
        return triples[:, 1].astype(np.int64) * len(distinct) + np.searchsorted(distinct, theirs)

    return _count_in(keys(rows, pairs), keys(known[near], known_pairs[near]))


def _count_in(keys: NDArray[np.int64], known: NDArray[np.int64]) -> int:
    return int(np.isin(keys, known).sum())
