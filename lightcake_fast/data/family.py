"""A random genealogy: a knowledge graph of any size, without files or a licence.

The population has about five generations. Couples stay together for life, some people marry into the family,
and some stay single. Parents and spouses determine all other kinship. A fact says how the head is related to
the tail (`father`: h is the father of t). Each fact is stated once. The head is the elder person; within a
generation the order is random. With both directions (`father` and `son`), almost every held-out fact would
have its inverse in training. FB15k and WN18 were replaced because of this label leakage. Some facts are not
recorded, and they are in no split. Facts about near kin are missing less often.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.knowledge_graph import KnowledgeGraph
from lightcake_fast.errors import InputError

DEFAULT_PEOPLE = 1500
MIN_PEOPLE = 20

# The relation for a male and for a female head. If two kinships hold, the earlier line is used.
KINSHIP = {
    "parent": ("father", "mother"),
    "spouse": ("husband", "wife"),
    "sibling": ("brother", "sister"),
    "grandparent": ("grandfather", "grandmother"),
    "uncle_aunt": ("uncle", "aunt"),
    "cousin": ("cousin", "cousin"),
    "great_grandparent": ("great-grandfather", "great-grandmother"),
    "great_uncle_aunt": ("great-uncle", "great-aunt"),
    "parent_in_law": ("father-in-law", "mother-in-law"),
    "sibling_in_law": ("brother-in-law", "sister-in-law"),
}
NEAR = ("parent", "spouse", "sibling")
SAME_GENERATION = ("spouse", "sibling", "cousin", "sibling_in_law")
RELATIONS = tuple(dict.fromkeys(name for names in KINSHIP.values() for name in names))

GENERATIONS = 5  # sets the number of founders; the final number of generations is random
CHILDREN_SHARES = (0.10, 0.18, 0.27, 0.22, 0.13, 0.06, 0.03, 0.01)  # couples with 0, 1, 2, ... children
SINGLE_SHARE = 0.15
NEWCOMER_SHARE = 0.3  # minimum among people who marry: people without a partner marry newcomers too
NEAR_RECORDED_SHARE = 0.95  # for parents, spouses and siblings
FAR_RECORDED_SHARE = 0.6  # for other kin, which follow from near kin in two to four steps
HELD_OUT_SHARE = 0.1  # of the recorded facts, both for valid and for test

MEN = ("Adam", "Carlos", "Dmitri", "Émile", "Farid", "Hiro", "Ivan", "João", "Kwame", "Nils", "Pavel")
WOMEN = ("Aisha", "Chloé", "Daria", "Elena", "Hana", "Inês", "Jana", "Keiko", "Marta", "Olga", "Priya")
SURNAMES = ("Bauer", "Costa", "Dubois", "Eriksson", "García", "Ito", "Müller", "Novák", "Okafor", "Yilmaz")

_NOBODY = -1
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Genealogy:
    """Parents and spouses. Ids follow the order of creation; -1 means unknown.

    Attributes:
        male: Bool `[people]`.
        father: int64 `[people]`.
        mother: int64 `[people]`.
        spouse: int64 `[people]`.
        generation: int64 `[people]`, from 0. Newcomers have the generation of their spouse.
    """

    male: NDArray[np.bool_]
    father: Ids
    mother: Ids
    spouse: Ids
    generation: Ids


def family(people: int = DEFAULT_PEOPLE, seed: int = 0) -> KnowledgeGraph:
    """Generate a genealogy as a knowledge graph. Equal arguments give equal graphs.

    Args:
        people: Number of people. Each is an entity; some have no recorded fact.
        seed: Seed of all random numbers.

    Raises:
        InputError: `people` is below 20, or `seed` is negative.
    """
    if people < MIN_PEOPLE:
        raise InputError(f"family: expected at least {MIN_PEOPLE} people, got {people}: use more people")
    if seed < 0:
        raise InputError(f"family: expected a seed of at least 0, got {seed}: use a non-negative seed")
    rng = np.random.default_rng(seed)
    tree = draw_genealogy(people, rng)
    triples = state_facts(tree, rng)
    near = np.isin(triples[:, 1], [RELATIONS.index(name) for kin in NEAR for name in KINSHIP[kin]])
    share = np.where(near, NEAR_RECORDED_SHARE, FAR_RECORDED_SHARE)
    triples = triples[rng.random(len(triples)) < share]
    triples = triples[_shuffled(len(triples), rng)]
    # the first fact of each relation goes to training, because every relation needs a training triple
    first = np.unique(triples[:, 1], return_index=True)[1]
    triples = np.concatenate([np.delete(triples, first, axis=0), triples[first]])
    held_out = round(len(triples) * HELD_OUT_SHARE)
    valid, test, train = np.split(triples, [held_out, 2 * held_out])
    return KnowledgeGraph("family", _names(tree, rng), RELATIONS, train, valid, test)


def draw_genealogy(people: int, rng: np.random.Generator) -> Genealogy:
    """Draw a population of exactly `people` people, one generation after another."""
    unknown = (np.full(people, _NOBODY, dtype=np.int64) for _ in range(4))
    tree = Genealogy(rng.random(people) < 0.5, *unknown)
    per_couple = float(np.dot(CHILDREN_SHARES, range(len(CHILDREN_SHARES))))
    growth = per_couple * (1 - SINGLE_SHARE) * (1 + NEWCOMER_SHARE) / 2
    founders = round(people / sum(growth**generation for generation in range(GENERATIONS)))
    native = np.arange(max(founders, 2))
    generation, count = 0, len(native)
    while True:
        tree.generation[native] = generation
        count = _marry(tree, native, count, rng)
        if count == people:
            return tree
        native = _bear_children(tree, generation, count, rng)
        generation, count = generation + 1, count + len(native)


def state_facts(tree: Genealogy, rng: np.random.Generator) -> Ids:
    """All facts as int64 `[T, 3]`: one fact per pair of relatives."""
    pairs = find_kin(tree)
    kinship = np.repeat(np.arange(len(pairs)), [len(rows) for rows in pairs.values()])
    head, tail = np.concatenate(list(pairs.values())).T
    low, high = np.minimum(head, tail), np.maximum(head, tail)
    closest = np.sort(np.unique(low * len(tree.male) + high, return_index=True)[1])
    head, tail, kinship = head[closest], tail[closest], kinship[closest]
    either_first = np.isin(kinship, [list(pairs).index(name) for name in SAME_GENERATION])
    swap = either_first & (rng.random(len(head)) < 0.5)
    head, tail = np.where(swap, tail, head), np.where(swap, head, tail)
    ids = np.array([[RELATIONS.index(name) for name in KINSHIP[kin]] for kin in pairs])
    return np.stack([head, ids[kinship, np.where(tree.male[head], 0, 1)], tail], axis=1)


def find_kin(tree: Genealogy) -> dict[str, Ids]:
    """Pairs int64 `[P, 2]` of (head, tail) per kinship. A pair may occur more than once."""
    child = np.flatnonzero(tree.father != _NOBODY)
    father = np.stack([tree.father[child], child], axis=1)
    parent = np.concatenate([father, np.stack([tree.mother[child], child], axis=1)])
    married = np.flatnonzero(tree.spouse != _NOBODY)
    spouse = np.stack([married, tree.spouse[married]], axis=1)
    # couples stay together, so a father and a mother have the same children
    sibling = _compose(father[:, ::-1], father)
    sibling = sibling[sibling[:, 0] != sibling[:, 1]]
    grandparent = _compose(parent, parent)
    uncle_aunt = _compose(sibling, parent)
    found = {
        "parent": parent,
        "spouse": spouse,
        "sibling": sibling,
        "grandparent": grandparent,
        "uncle_aunt": uncle_aunt,
        "cousin": _compose(parent[:, ::-1], uncle_aunt),
        "great_grandparent": _compose(parent, grandparent),
        "great_uncle_aunt": _compose(sibling, grandparent),
        "parent_in_law": _compose(parent, spouse),
        "sibling_in_law": np.concatenate([_compose(sibling, spouse), _compose(spouse, sibling)]),
    }
    return {kinship: found[kinship] for kinship in KINSHIP}


def _compose(left: Ids, right: Ids) -> Ids:
    """Pairs (x, z) for all (x, y) in `left` and (y, z) in `right`."""
    right = right[np.argsort(right[:, 0], kind="stable")]
    start = np.searchsorted(right[:, 0], left[:, 1], "left")
    matches = np.searchsorted(right[:, 0], left[:, 1], "right") - start
    offset = np.arange(matches.sum()) - np.repeat(np.cumsum(matches) - matches, matches)
    return np.stack([np.repeat(left[:, 0], matches), right[np.repeat(start, matches) + offset, 1]], axis=1)


def _marry(tree: Genealogy, native: Ids, count: int, rng: np.random.Generator) -> int:
    """Marry a generation, partly to newcomers with ids from `count`; return the new count."""
    willing = native[_shuffled(len(native), rng)]
    if tree.generation[native[0]] > 0:  # an unmarried founder would have no relatives
        willing = willing[: max(1, round(len(native) * (1 - SINGLE_SHARE)))]
    at_home = rng.random(len(willing)) >= NEWCOMER_SHARE
    men = willing[at_home & tree.male[willing]]
    women = willing[at_home & ~tree.male[willing]]
    couples = np.stack([men[: len(women)], women[: len(men)]], axis=1)
    couples = couples[~_share_grandparent(tree, couples)]
    tree.spouse[couples] = couples[:, ::-1]
    alone = willing[tree.spouse[willing] == _NOBODY][: len(tree.male) - count]
    newcomers = np.arange(count, count + len(alone))
    tree.male[newcomers] = ~tree.male[alone]
    tree.generation[newcomers] = tree.generation[alone]
    tree.spouse[alone], tree.spouse[newcomers] = newcomers, alone
    return count + len(alone)


def _share_grandparent(tree: Genealogy, couples: Ids) -> NDArray[np.bool_]:
    """Bool `[P]`: True for pairs of siblings or first cousins."""
    parents = np.stack([tree.father, tree.mother], axis=1)
    # index -1 (unknown) selects the last row: unknown parents
    parents = np.concatenate([parents, [[_NOBODY, _NOBODY]]])
    grandparents = parents[parents[couples]].reshape(len(couples), 2, 4)
    his, hers = grandparents[:, 0, :, None], grandparents[:, 1, None, :]
    siblings = (parents[couples[:, 0]] == parents[couples[:, 1]]) & (parents[couples[:, 0]] != _NOBODY)
    cousins = (his == hers) & (his != _NOBODY)
    related: NDArray[np.bool_] = cousins.any(axis=(1, 2)) | siblings.any(axis=1)
    return related


def _bear_children(tree: Genealogy, generation: int, count: int, rng: np.random.Generator) -> Ids:
    """Children of a generation's couples, with ids from `count`: at least one, and no more than remain."""
    husbands = np.flatnonzero(tree.male & (tree.spouse != _NOBODY) & (tree.generation == generation))
    children = np.searchsorted(np.cumsum(CHILDREN_SHARES)[:-1], rng.random(len(husbands)), "right")
    if not children.any():
        children[0] = 1
    fathers = np.repeat(husbands, children)[: len(tree.male) - count]
    born = np.arange(count, count + len(fathers))
    tree.father[born] = fathers
    tree.mother[born] = tree.spouse[fathers]
    return born


def _names(tree: Genealogy, rng: np.random.Generator) -> tuple[str, ...]:
    """Distinct readable names. Children have the surname of their father."""
    draws = rng.random((2, len(tree.male)))
    surnames = (draws[0] * len(SURNAMES)).astype(np.int64)
    for generation in range(1, int(tree.generation.max()) + 1):
        born = np.flatnonzero((tree.generation == generation) & (tree.father != _NOBODY))
        surnames[born] = surnames[tree.father[born]]
    men, women = np.array(MEN), np.array(WOMEN)
    given = (draws[1] * len(MEN)).astype(np.int64)
    first = np.where(tree.male, men[given], women[given])
    return tuple(
        f"{name} {SURNAMES[surname]} {number}"
        for number, (name, surname) in enumerate(zip(first.tolist(), surnames.tolist(), strict=True), 1)
    )


def _shuffled(count: int, rng: np.random.Generator) -> Ids:
    """A permutation. It uses only `rng.random`, which gives the same numbers in every numpy version."""
    return np.argsort(rng.random(count), kind="stable")
