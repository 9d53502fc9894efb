from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightcake_fast.data import SPLITS, KnowledgeGraph, family, load_dataset
from lightcake_fast.data.family import RELATIONS, SURNAMES, Genealogy, draw_genealogy, find_kin, state_facts
from lightcake_fast.errors import InputError

MALE = {"father", "husband", "brother", "grandfather", "uncle", "great-grandfather", "great-uncle"}
MALE |= {"father-in-law", "brother-in-law"}


def draw(people: int, seed: int) -> tuple[Genealogy, list[tuple[int, str, int]]]:
    rng = np.random.default_rng(seed)
    tree = draw_genealogy(people, rng)
    return tree, [(h, RELATIONS[r], t) for h, r, t in state_facts(tree, rng).tolist()]


def all_triples(graph: KnowledgeGraph) -> list[tuple[int, int, int]]:
    return [(h, r, t) for split in SPLITS for h, r, t in graph.split(split).tolist()]


def test_equal_arguments_give_equal_graphs() -> None:
    first, again, other = family(), family(seed=0), family(seed=1)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert len(first.entities) == len(other.entities) == 1500


def test_default_graph_does_not_change() -> None:
    # reported figures and saved runs depend on this fingerprint: change it only on purpose
    assert family().fingerprint == "1b262b7163ee90d8c49b99ae5e3c7c520611cf1a56e4dc2fcedbb50667a689eb"


@settings(max_examples=30)
@given(people=st.integers(20, 400), seed=st.integers(0, 2**32))
def test_graphs_of_any_size_are_valid(people: int, seed: int) -> None:
    graph = family(people=people, seed=seed)
    assert graph.num_entities == people == len(set(graph.entities))
    assert graph.relations == RELATIONS
    total = len(all_triples(graph))
    assert len(graph.valid) == len(graph.test) == round(total * 0.1) > 0
    trained = set(graph.train[:, 1].tolist())
    assert {r for _, r, _ in all_triples(graph)} == trained
    assert graph.duplicates == {"train": 0, "valid": 0, "test": 0}


@settings(max_examples=30)
@given(people=st.integers(20, 400), seed=st.integers(0, 2**32))
def test_parents_and_spouses_are_plausible(people: int, seed: int) -> None:
    tree, _ = draw(people, seed)
    assert tree.generation.min() == 0
    child = np.flatnonzero(tree.father >= 0)
    assert (child == np.flatnonzero(tree.mother >= 0)).all()
    assert tree.male[tree.father[child]].all()
    assert not tree.male[tree.mother[child]].any()
    assert (tree.spouse[tree.father[child]] == tree.mother[child]).all()
    assert (tree.generation[tree.father[child]] == tree.generation[child] - 1).all()
    married = np.flatnonzero(tree.spouse >= 0)
    assert (tree.spouse[tree.spouse[married]] == married).all()
    assert (tree.male[tree.spouse[married]] != tree.male[married]).all()
    assert (tree.generation[tree.spouse[married]] == tree.generation[married]).all()
    ancestors = ancestors_within(tree, 2)
    for person in married:
        assert not ancestors[person] & ancestors[tree.spouse[person]], "siblings or first cousins married"


def ancestors_within(tree: Genealogy, generations: int) -> list[set[int]]:
    parents = [{int(f), int(m)} - {-1} for f, m in zip(tree.father, tree.mother, strict=True)]
    found = [set(own) for own in parents]
    for _ in range(generations - 1):
        found = [own.union(*(found[p] for p in own)) for own in parents]
    return found


def kin_by_definition(tree: Genealogy) -> dict[frozenset[int], set[str]]:
    """All kinships per pair of people, by a walk from each person: slow, and independent of the package."""
    people = range(len(tree.male))
    parents = [{int(f), int(m)} - {-1} for f, m in zip(tree.father, tree.mother, strict=True)]
    children = [{c for c in people if p in parents[c]} for p in people]
    spouses = [{int(s)} - {-1} for s in tree.spouse]

    def reach(start: int, *steps: list[set[int]]) -> set[int]:
        found = {start}
        for step in steps:
            found = set().union(*(step[person] for person in found))
        return found

    siblings = [reach(p, parents, children) - {p} for p in people]
    found: dict[frozenset[int], set[str]] = {}
    paths: dict[str, list[tuple[list[set[int]], ...]]] = {
        "parent": [(parents,)],
        "spouse": [(spouses,)],
        "sibling": [(siblings,)],
        "grandparent": [(parents, parents)],
        "uncle_aunt": [(parents, siblings)],
        "cousin": [(parents, siblings, children)],
        "great_grandparent": [(parents, parents, parents)],
        "great_uncle_aunt": [(parents, parents, siblings)],
        "parent_in_law": [(spouses, parents)],
        "sibling_in_law": [(spouses, siblings), (siblings, spouses)],
    }
    for kinship, ways in paths.items():
        for person in people:
            for way in ways:
                for other in reach(person, *way):
                    found.setdefault(frozenset((person, other)), set()).add(kinship)
    return found


KIND = {
    "father": "parent", "mother": "parent", "husband": "spouse", "wife": "spouse", "brother": "sibling",
    "sister": "sibling", "grandfather": "grandparent", "grandmother": "grandparent", "uncle": "uncle_aunt",
    "aunt": "uncle_aunt", "cousin": "cousin", "great-grandfather": "great_grandparent",
    "great-grandmother": "great_grandparent", "great-uncle": "great_uncle_aunt",
    "great-aunt": "great_uncle_aunt",
    "father-in-law": "parent_in_law", "mother-in-law": "parent_in_law", "brother-in-law": "sibling_in_law",
    "sister-in-law": "sibling_in_law",
}  # fmt: skip
CLOSENESS = list(dict.fromkeys(KIND.values()))


@pytest.mark.parametrize(("people", "seed"), [(25, 3), (120, 0), (160, 1), (200, 2)])
def test_facts_match_kinships_by_definition(people: int, seed: int) -> None:
    tree, facts = draw(people, seed)
    expected = kin_by_definition(tree)
    stated = {frozenset((h, t)): KIND[relation] for h, relation, t in facts}
    assert len(stated) == len(facts), "a pair is stated twice"
    assert stated == {pair: min(kinds, key=CLOSENESS.index) for pair, kinds in expected.items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_heads_have_the_gender_and_the_age_of_their_relation(seed: int) -> None:
    tree, facts = draw(400, seed)
    step = {"father": 1, "mother": 1, "uncle": 1, "aunt": 1, "grandfather": 2, "grandmother": 2}
    step |= {"great-grandfather": 3, "great-grandmother": 3, "great-uncle": 2, "great-aunt": 2}
    step |= {"father-in-law": 1, "mother-in-law": 1}
    for head, relation, tail in facts:
        if relation != "cousin":
            assert tree.male[head] == (relation in MALE)
        assert tree.generation[tail] - tree.generation[head] == step.get(relation, 0)


def test_within_a_generation_either_comes_first() -> None:
    _, facts = draw(1500, 0)
    first_is_lower = Counter(h < t for h, relation, t in facts if relation == "cousin")
    assert 0.45 < first_is_lower[True] / first_is_lower.total() < 0.55
    husbands = Counter(relation for _, relation, _ in facts if relation in ("husband", "wife"))
    assert 0.4 < husbands["husband"] / husbands.total() < 0.6


def test_find_kin_keeps_both_directions_within_a_generation() -> None:
    kin = find_kin(draw_genealogy(200, np.random.default_rng(0)))
    for name in ("spouse", "sibling", "cousin", "sibling_in_law"):
        pairs = set(map(tuple, kin[name].tolist()))
        assert pairs == {(b, a) for a, b in pairs}


def test_each_pair_has_one_fact_over_all_splits() -> None:
    triples = all_triples(family())
    assert len({frozenset((h, t)) for h, _, t in triples}) == len(triples)


def test_default_graph_has_balanced_relations() -> None:
    for seed in range(3):
        graph = family(seed=seed)
        shares = np.bincount(graph.train[:, 1], minlength=graph.num_relations) / len(graph.train)
        assert 10_000 < len(graph.train) < 13_000
        assert shares.max() < 0.2, "guessing the most frequent relation must not go far"
        assert shares.min() > 0.005
        assert 0 < (~graph.seen_entities).sum() < 60


def test_near_kin_are_recorded_more_often_than_far_kin() -> None:
    people, seed = 1500, 2
    _, facts = draw(people, seed)
    true = Counter(relation for _, relation, _ in facts)
    recorded = Counter(RELATIONS[r] for _, r, _ in all_triples(family(people, seed)))
    for relation, kinship in KIND.items():
        share = 0.95 if kinship in ("parent", "spouse", "sibling") else 0.6
        assert abs(recorded[relation] / true[relation] - share) < 0.06


def test_children_have_the_surname_of_their_father() -> None:
    graph = family(300, seed=5)
    father = graph.relations.index("father")
    pairs = [(h, t) for h, r, t in all_triples(graph) if r == father]
    surname = [name.split()[1] for name in graph.entities]
    assert len(pairs) > 20
    assert all(surname[h] == surname[t] for h, t in pairs)
    assert len(set(surname)) > len(SURNAMES) / 2


def test_siblings_have_the_same_surname() -> None:
    graph = family(300, seed=5)
    surname = [name.split()[1] for name in graph.entities]
    siblings = {graph.relations.index(name) for name in ("brother", "sister")}
    assert all(surname[h] == surname[t] for h, r, t in all_triples(graph) if r in siblings)


@pytest.mark.parametrize(
    ("name", "people", "seed"), [("family", 1500, 0), ("Family:60", 60, 0), ("family:60:7", 60, 7)]
)
def test_family_is_loaded_by_name(name: str, people: int, seed: int) -> None:
    assert load_dataset(name).fingerprint == family(people, seed).fingerprint


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("family:19", "expected at least 20 people, got 19"),
        ("family:", "expected family, family:PEOPLE or family:PEOPLE:SEED"),
        ("family:ten", "expected family, family:PEOPLE or family:PEOPLE:SEED"),
        ("family:50:-1", "expected family, family:PEOPLE or family:PEOPLE:SEED"),
        ("family:50:1:2", "expected family, family:PEOPLE or family:PEOPLE:SEED"),
    ],
)
def test_wrong_family_names_are_rejected(name: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load_dataset(name)


def test_wrong_family_arguments_are_rejected() -> None:
    with pytest.raises(InputError, match="expected a seed of at least 0, got -1"):
        family(seed=-1)
    with pytest.raises(InputError, match="expected at least 20 people, got 0"):
        family(people=0)
