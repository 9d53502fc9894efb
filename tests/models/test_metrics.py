from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightcake_fast import metrics
from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.metrics import (
    TIES,
    KnownEntities,
    KnownRelations,
    NonFiniteScoresError,
    both_sides,
    entity_ranks,
    relation_ranks,
    summarise_ranks,
    triple_ranks,
)
from tests.support.comparison import assert_bitwise_equal


def brute_force_rank(scores: list[float], true: int, known: set[int], ties: str) -> float:
    """The rank from its definition: sort the candidates and list the possible positions of the true one."""
    candidates = [r for r in range(len(scores)) if r == true or r not in known]
    ordered = sorted(candidates, key=lambda r: (-scores[r], r))
    places = [place for place, r in enumerate(ordered, start=1) if scores[r] == scores[true]]
    return {
        "realistic": sum(places) / len(places),
        "optimistic": places[0],
        "pessimistic": places[-1],
        "index": ordered.index(true) + 1,
    }[ties]


def small_graph(seed: int, entities: int = 6, relations: int = 5, triples: int = 40) -> KnowledgeGraph:
    """Few entities and relations, so that pairs have several relations and unseen entities occur."""
    random = np.random.default_rng(seed)
    splits = []
    for count in (triples // 4, triples // 2, triples // 2):
        heads, tails = random.integers(0, entities, (2, count))
        splits.append(np.stack([heads, random.integers(0, relations, count), tails], axis=1))
    names = tuple(map(str, range(entities))), tuple(map(str, range(relations)))
    train, valid, test = (np.unique(split, axis=0) for split in splits)
    return KnowledgeGraph("small", *names, train, valid, test)


@pytest.mark.parametrize("ties", TIES)
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), levels=st.sampled_from([1, 2, 4, 1000]))
def test_ranks_match_brute_force(ties: str, seed: int, levels: int) -> None:
    graph = small_graph(seed)
    known: dict[tuple[int, int], set[int]] = {}
    for split in (graph.train, graph.valid, graph.test):
        for h, r, t in split.tolist():
            known.setdefault((h, t), set()).add(r)
    # few score levels make many ties
    table = np.random.default_rng(seed).integers(0, levels, (6, 6, graph.num_relations)).astype(np.float32)

    def score(pairs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(table)[pairs[:, 0], pairs[:, 1]]

    expected = [
        brute_force_rank(table[h, t].tolist(), r, known[h, t], ties) for h, r, t in graph.test.tolist()
    ]
    seen = [graph.seen_entities[h] and graph.seen_entities[t] for h, _, t in graph.test.tolist()]
    ranks = triple_ranks(score, graph.test, KnownRelations.of(graph), ties=ties)
    found = summarise_ranks(ranks, graph.test, graph.seen_entities)
    assert found.to_dict() == {
        "all": expected_metrics(expected),
        "seen": expected_metrics([rank for rank, both in zip(expected, seen, strict=True) if both]),
    }


def expected_metrics(ranks: list[float]) -> dict[str, Any]:
    names = ("mrr", "mr", "hits_at_1", "hits_at_3", "hits_at_10")
    if not ranks:
        return {"count": 0} | dict.fromkeys(names)
    values = np.array(ranks)
    means = [(1 / values).mean(), values.mean(), *((values <= k).mean() for k in (1, 3, 10))]
    return {"count": len(ranks)} | {
        name: pytest.approx(mean) for name, mean in zip(names, means, strict=True)
    }


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("realistic", [2.5, 1.0]),
        ("optimistic", [2.0, 1.0]),
        ("pessimistic", [3.0, 1.0]),
        ("index", [3.0, 1.0]),
    ],
)
def test_ties_and_filter_match_hand_computed_ranks(ties: str, expected: list[float]) -> None:
    # row 0: relation 0 ties with the true relation 3; relation 1 is better; relation 2 is better but known
    scores = torch.tensor([[1.0, 2.0, 3.0, 1.0], [0.0, 0.0, 0.0, 7.0]])
    known = torch.tensor([0, 0, 1]), torch.tensor([2, 3, 3])
    assert relation_ranks(scores, torch.tensor([3, 3]), known, ties=ties).tolist() == expected


def test_known_pairs_are_directed() -> None:
    known = KnownRelations(np.array([[0, 2, 1], [1, 0, 0], [0, 1, 1], [0, 2, 1]]), num_entities=2)
    rows, relations = known(np.array([[0, 1], [1, 1], [1, 0]]))
    assert list(zip(rows.tolist(), relations.tolist(), strict=True)) == [(0, 2), (0, 1), (0, 2), (2, 0)]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_lookup_keys_do_not_overflow_at_wikidata_size(kind: type[np.integer[Any]]) -> None:
    entities = 4_600_000
    # the key of (933, 3,167,296) is 2^32; truncated to 32 bits it would equal the key of (0, 0)
    first = [[entities - 1, 0, entities - 1], [0, 1, entities - 1]]
    triples = np.array([*first, [933, 2, 3_167_296], [0, 0, 0]], kind)
    rows, relations = KnownRelations(triples, entities)(triples[:, [0, 2]])
    assert rows.dtype == relations.dtype == np.dtype(np.int64)
    assert rows.tolist() == [0, 1, 2, 3]
    assert relations.tolist() == [0, 1, 2, 0]
    asked, answers = both_sides(triples, 3)
    rows, found = KnownEntities(triples, 3)(asked)
    assert rows.tolist() == list(range(8))
    assert found.tolist() == answers.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_scores_raise(value: float) -> None:
    scores = torch.zeros(4, 5)
    scores[1, 2] = scores[3, 3] = value
    with pytest.raises(NonFiniteScoresError, match=r"^2 of 20 scores are NaN or infinite$"):
        relation_ranks(scores, torch.zeros(4, dtype=torch.int64))


def test_non_finite_scores_of_filtered_relations_raise() -> None:
    known = torch.tensor([0]), torch.tensor([1])
    with pytest.raises(NonFiniteScoresError):
        relation_ranks(torch.tensor([[1.0, float("nan")]]), torch.tensor([0]), known)


def test_unknown_tie_policy_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"expected one of realistic, .*, got 'mean'"):
        relation_ranks(torch.zeros(1, 2), torch.tensor([0]), ties="mean")


def test_ranking_does_not_change_the_scores() -> None:
    scores = torch.arange(6.0).view(2, 3)
    relation_ranks(scores, torch.tensor([0, 1]), (torch.tensor([0]), torch.tensor([2])))
    assert scores.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_block_size_does_not_change_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph(3, entities=30, triples=200)
    table = torch.randn(30, 30, graph.num_relations, generator=torch.Generator().manual_seed(0))

    def ranks() -> torch.Tensor:
        return triple_ranks(
            lambda pairs: table[pairs[:, 0], pairs[:, 1]], graph.test, KnownRelations.of(graph)
        )

    whole = ranks()
    monkeypatch.setattr(metrics, "PAIRS_PER_BLOCK", 7)
    assert_bitwise_equal(ranks(), whole)


def test_metrics_of_an_empty_split_are_none() -> None:
    graph = small_graph(0)
    empty = np.empty((0, 3), dtype=np.int64)
    ranks = triple_ranks(lambda pairs: torch.zeros(len(pairs), 5), empty, KnownRelations.of(graph))
    found = summarise_ranks(ranks, empty, graph.seen_entities)
    assert found.to_dict()["all"] == {
        "count": 0,
        "mrr": None,
        "mr": None,
        "hits_at_1": None,
        "hits_at_3": None,
        "hits_at_10": None,
    }


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("budget", [1, 13, 2**22])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_entity_ranks_match_brute_force(
    ties: str, budget: int, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SCORES_PER_BLOCK", budget)
    graph = small_graph(seed=levels)
    tails: dict[tuple[int, int], set[int]] = {}
    heads: dict[tuple[int, int], set[int]] = {}
    for split in (graph.train, graph.valid, graph.test):
        for h, r, t in split.tolist():
            tails.setdefault((h, r), set()).add(t)
            heads.setdefault((r, t), set()).add(h)
    shape = graph.num_entities, 2 * graph.num_relations, graph.num_entities
    table = np.random.default_rng(levels).integers(0, levels, shape).astype(np.float32)
    sizes = []

    def score(questions: torch.Tensor) -> torch.Tensor:
        sizes.append(len(questions) * graph.num_entities)
        return torch.from_numpy(table)[questions[:, 0], questions[:, 1]]

    found = entity_ranks(
        score, graph.test, graph.num_entities, graph.num_relations, known=KnownEntities.of(graph), ties=ties
    )
    expected = [
        (
            brute_force_rank(table[h, r].tolist(), t, tails[h, r], ties),
            brute_force_rank(table[t, r + graph.num_relations].tolist(), h, heads[r, t], ties),
        )
        for h, r, t in graph.test.tolist()
    ]
    assert found.tolist() == [list(pair) for pair in expected]
    assert max(sizes) <= max(budget, graph.num_entities)
    both = summarise_ranks(found, graph.test, graph.seen_entities)
    assert both.to_dict()["all"] == expected_metrics([rank for pair in expected for rank in pair])
    assert both.seen.count == 2 * int(graph.seen_entities[graph.test[:, [0, 2]]].all(axis=1).sum())
