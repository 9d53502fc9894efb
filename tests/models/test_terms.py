"""Profile, links and mixing against dense float64 algebra, without label leakage."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS, LightCAKE, RelationModel, evidence
from lightcake_fast.models.evidence import GraphEvidence, RelationLists, Weighed, evidence_of
from lightcake_fast.models.scorers import of_modulus_one
from lightcake_fast.models.terms import TERMS
from lightcake_fast.models.terms.links import Links
from lightcake_fast.models.terms.paths import counted
from lightcake_fast.ops import context_layer
from tests.support.comparison import assert_close, assert_same_bits
from tests.support.graphs import CONTEXTS, CPU_GRAPHS, SCORES, layer_inputs
from tests.support.models import D, graph_named, made

CONTEXTUAL = ("lightcake", "rgcn", "compgcn", "a2n")
SIDES = ("head", "tail", "pair")


@pytest.fixture(params=["as on a CPU", "filled up as on a GPU"])
def filled_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "as on a CPU":

        def entries(lists: RelationLists, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
            rows = torch.arange(len(chosen))
            return lists.filled_up(lists.first[chosen], lists.length[chosen], rows)

        monkeypatch.setattr(RelationLists, "entries", entries)


def known(graph: ContextGraph) -> set[tuple[int, int, int]]:
    """The distinct context triples."""
    return set(zip(*(ids.tolist() for ids in graph.context_triples), strict=True))


def profile(triples: set[tuple[int, int, int]], entity: int, relations: int) -> Tensor:
    counts = torch.zeros(relations, dtype=torch.float64)
    for head, relation, _ in triples:
        counts[relation] += head == entity
    return counts.log1p()


def dense(rows: Weighed, relations: int) -> Tensor:
    """A sparse matrix as a dense matrix."""
    lists = torch.arange(len(rows.bounds) - 1).repeat_interleave(rows.bounds.diff())
    matrix = torch.zeros(len(rows.bounds) - 1, relations, dtype=rows.weight.dtype)
    return matrix.index_put_((lists, rows.relation), rows.weight, accumulate=True)


def by_hand(graph: ContextGraph, pairs: Tensor, targets: Tensor | None) -> list[Tensor]:
    """Profiles of heads and tails, and links, each (B, 2R), without the target in the set of triples."""
    half, rows = graph.num_relations, []
    for n, (h, t) in enumerate(pairs.tolist()):
        triples = known(graph)
        if targets is not None:
            r = int(targets[n])
            triples -= {(h, r, t), (t, r + half, h)}
        links = torch.tensor([float((h, r, t) in triples) for r in range(2 * half)], dtype=torch.float64)
        rows.append((profile(triples, h, 2 * half), profile(triples, t, 2 * half), links))
    return [torch.stack(list(column)) for column in zip(*rows, strict=True)]


@pytest.mark.usefixtures("filled_up")
@pytest.mark.parametrize("name", ["degrees", "duplicates"])
@pytest.mark.parametrize("training", [False, True])
def test_evidence_counts_distinct_triples(name: str, training: bool) -> None:
    graph = graph_named(name)
    pairs, targets = graph.triples[:, ::2], graph.triples[:, 1]
    if not training:
        n = graph.num_entities
        pairs = torch.cat([pairs, pairs.flip(1), torch.tensor([[0, n], [n, 0], [n, n], [n - 1, 0]])])
    wanted = by_hand(graph, pairs, targets if training else None)
    for part, expected in zip(SIDES, wanted, strict=True):
        rows = evidence_of(graph).of(part, pairs, torch.float64, targets if training else None)
        assert_close(dense(rows, 2 * graph.num_relations), expected, name=part)
    assert any(expected.any() for expected in wanted)


def test_graph_without_triples_gives_empty_evidence() -> None:
    graph = ContextGraph.from_triples(torch.empty(0, 3, dtype=torch.int64), 4, 3)
    pairs = torch.tensor([[0, 1], [2, 2], [4, 0]])
    for part in SIDES:
        assert not dense(evidence_of(graph).of(part, pairs, torch.float32), 6).any()
    assert counted(graph, pairs).bounds.tolist() == [0, 0, 0, 0]
    table = torch.ones(6, D, requires_grad=True)
    sums = evidence_of(graph).profiles_times(table)
    assert sums.shape == (4, D)
    assert not sums.any()
    assert not torch.autograd.grad(sums.sum(), table)[0].any()


def test_pair_numbers_beyond_32_bits_are_distinct() -> None:
    n = 2**18  # pairs up to 2^36, with 50,000 relations up to 2^52
    triples = torch.tensor([[n - 1, 24_999, n - 2], [n - 1, 1, n - 2], [n - 2, 24_999, n - 1]])
    graph = ContextGraph.from_triples(triples, n, 25_000)
    for part in ("pair", "head"):
        rows = evidence_of(graph).of(part, triples[:1, ::2], torch.float64)
        assert rows.relation.tolist() == [1, 24_999, 49_999]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_profiles_times_matches_dense_algebra(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_PIECE", 3)
    _, _, graph, mask = layer_inputs(name, 1, torch.float64)
    left = graph.triples[~mask] if masked else graph.triples
    triples = known(ContextGraph.from_triples(left, graph.num_entities, graph.num_relations))
    counts = torch.zeros(graph.num_entities, 2 * graph.num_relations, dtype=torch.float64)
    for head, relation, _ in triples:
        counts[head, relation] += 1
    random = torch.Generator().manual_seed(0)
    table = torch.randn(2 * graph.num_relations, D, dtype=torch.float64, generator=random, requires_grad=True)
    actual = GraphEvidence.of_graph(graph).profiles_times(table, mask if masked else None)
    expected = counts.log1p() @ table
    assert_close(actual, expected)
    g = torch.randn(expected.shape, dtype=torch.float64, generator=random)
    assert_close(torch.autograd.grad(actual, table, g)[0], torch.autograd.grad(expected, table, g)[0])


@pytest.mark.usefixtures("filled_up")
@pytest.mark.parametrize("name", MODELS)
def test_scores_match_dense_algebra(name: str) -> None:
    graph = graph_named("duplicates")
    model = made(name, graph, profile="score", links=True, relation_bias=True)
    pairs, targets = graph.triples[:, ::2], graph.triples[:, 1]
    actual = model.relation_scores(model.inputs(graph), pairs, model.evidence(graph, pairs, targets))
    heads, tails, links = by_hand(graph, pairs, targets)
    weight = model.get_parameter
    e_h = model.entities[pairs[:, 0]] + heads @ weight("profile.of_head") + weight("profile.head")
    e_t = model.entities[pairs[:, 1]] + tails @ weight("profile.of_tail") + weight("profile.tail")
    relations = model.inputs(graph)[1][: graph.num_relations]
    expected = model._score(e_h, relations, e_t) + weight("relation_bias")
    expected = expected + links @ weight("links.of_link") @ relations.T
    assert_close(actual, expected)
    parameters = list(model.parameters())
    g = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got, wanted = (torch.autograd.grad(s, parameters, g, allow_unused=True) for s in (actual, expected))
    for (each, _), a, b in zip(model.named_parameters(), got, wanted, strict=True):
        assert (a is None) == (b is None), each
        if a is not None and b is not None:
            assert_close(a, b, name=each)


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_the_input_profile_is_added_before_the_context(name: str) -> None:
    _, _, graph, mask = layer_inputs("duplicates", 1, torch.float64)
    model = made(name, graph, profile="both")
    actual = model.refine(graph, mask=mask, backend="reference")
    left = ContextGraph.from_triples(graph.triples[~mask], graph.num_entities, graph.num_relations)
    profiles = torch.stack(
        [profile(known(left), e, 2 * graph.num_relations) for e in range(graph.num_entities)]
    )
    with torch.no_grad():
        model.entities.add_(profiles @ model.get_parameter("input_profile"))
    model.register_parameter("input_profile", None)
    for got, wanted in zip(actual, model.refine(graph, mask=mask, backend="reference"), strict=True):
        assert_close(got, wanted)


def training_scores(model: RelationModel, graph: ContextGraph, place: int, relation: int) -> Tensor:
    """The training scores of a triple in the graph, with `relation` as its target."""
    pairs = graph.triples[place : place + 1, ::2]
    mask = torch.arange(graph.num_triples) == place
    refined = model.refine(graph, mask=mask, backend="reference")
    return model.relation_scores(refined, pairs, model.evidence(graph, pairs, torch.tensor([relation])))


@pytest.mark.parametrize("name", CONTEXTUAL)
@pytest.mark.parametrize("triple", ["single", "loop", "copied", "copied loop"])
def test_target_triples_do_not_leak_into_their_score(name: str, triple: str) -> None:
    graph = graph_named("duplicates")
    triples = graph.triples
    head, relation, tail = triples.T
    copies = (triples[:, None] == triples).all(2).sum(1) > 1
    kind = (copies == ("copied" in triple)) & ((head == tail) == ("loop" in triple))
    place = int(kind.nonzero()[0])
    options = {"mixing": True} if name == "lightcake" else {}
    model = made(name, graph, profile="both", links=True, **options)
    scores = training_scores(model, graph, place, int(relation[place]))

    # the graph without the triple gives the same score, without an exclusion
    sizes = graph.num_entities, graph.num_relations
    without = ContextGraph.from_triples(triples[torch.arange(len(triples)) != place], *sizes)
    pair = triples[place : place + 1, ::2]
    gone = model.evidence(without, pair, relation[place : place + 1] if "copied" in triple else None)
    expected = model.relation_scores(model.refine(without, backend="reference"), pair, gone)
    assert_close(scores, expected)

    # the graph with another relation in this triple also gives the same score
    other = triples.clone()
    other[place, 1] = 1 - relation[place]
    relabelled = training_scores(model, ContextGraph.from_triples(other, *sizes), place, int(other[place, 1]))
    if "copied" not in triple and not (triples == other[place]).all(1).any():
        assert_close(relabelled, scores)
    # without the exclusion, the target changes the score
    seen = model.relation_scores(model.refine(graph, backend="reference"), pair, model.evidence(graph, pair))
    assert not torch.allclose(seen, scores, rtol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_with_any_number_of_threads(threads: int) -> None:
    graph = graph_named("hubs")
    model = made("lightcake", graph, profile="both", links=True, mixing=True).float()
    pairs, targets = graph.triples[:, ::2], graph.triples[:, 1]

    def gradients() -> tuple[Tensor, ...]:
        scores = model.relation_scores(
            model.refine(graph, backend="reference"), pairs, model.evidence(graph, pairs, targets)
        )
        weights = [w for name, w in model.named_parameters() if "profile" in name or "links" in name]
        return torch.autograd.grad(functional.cross_entropy(scores, targets), weights)

    assert_same_bits(gradients, threads)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("score", SCORES)
def test_mixing_multiplies_the_context_sums(score: str, context: str) -> None:
    _, _, graph, mask = layer_inputs("degrees", 1, torch.float64)
    model = made("lightcake", graph, score=score, context=context, mixing=True)
    weights = dict(model.named_parameters())
    x, y = model.inputs(graph)
    for layer in range(2):
        new_x, new_y = context_layer(
            x, y, graph, score=score, context=context, mask=mask, backend="reference"
        )
        if context != "relation":
            new_x = x + (new_x - x) @ weights["entity_mixing"][layer]
        if context != "entity":
            new_y = y + (new_y - y) @ weights["relation_mixing"][layer]
        new_y = of_modulus_one(new_y) if score == "rotate" else new_y
        x, y = new_x, new_y
    for got, wanted in zip(model.refine(graph, mask=mask, backend="reference"), (x, y), strict=True):
        assert_close(got, wanted)
    assert ("entity_mixing" in weights) == (context != "relation")
    assert ("relation_mixing" in weights) == (context != "entity")


def test_initial_mixing_equals_the_paper() -> None:
    graph = graph_named("degrees")
    plain, mixed = (
        LightCAKE(
            graph.num_entities,
            graph.num_relations,
            dim=D,
            layers=2,
            mixing=mixing,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(0),
        )
        for mixing in (False, True)
    )
    for got, wanted in zip(mixed.refine(graph), plain.refine(graph), strict=True):
        assert_close(got, wanted)


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_residual_false_returns_only_the_context_sums(context: str, backend: str) -> None:
    x, y, graph, mask = layer_inputs("duplicates", D, torch.float64)
    options: dict[str, Any] = {"context": context, "mask": mask, "backend": backend}
    whole = context_layer(x, y, graph, **options)
    sums = context_layer(x, y, graph, residual=False, **options)
    for table, rows, only in zip((x, y), whole, sums, strict=True):
        assert_close(only, rows - table, slack=10)


@pytest.mark.parametrize("name", MODELS)
def test_input_profile_requires_a_context(name: str) -> None:
    graph = graph_named("degrees")
    if name in CONTEXTUAL:
        assert made(name, graph, profile="both").input_profile is not None
        return
    with pytest.raises(InputError, match=r"profile: expected .* without context layers, got 'both'"):
        made(name, graph, profile="both")


def test_models_with_terms_require_evidence() -> None:
    graph = graph_named("degrees")
    pairs = torch.tensor([[0, 1]])
    for options in ({"profile": "score"}, {"links": True}):
        model = made("distmult", graph, **options)
        with pytest.raises(ValueError, match=r"evidence: expected .*, got None"):
            model.relation_scores((model.entities, model.relations), pairs)
    model = made("distmult", graph)
    assert model.evidence(graph, pairs) is None


def test_int32_pairs_use_64_bit_keys() -> None:
    entities = 100_000
    generator = torch.Generator().manual_seed(0)
    triples = torch.randint(entities, (500, 3), generator=generator) % torch.tensor([entities, 5, entities])
    graph = ContextGraph.from_triples(triples.int(), entities, 5)
    model = LightCAKE(entities, 5, dim=4, layers=1, profile="score", links=True, paths=True).eval()
    narrow, wide = (model.evidence(graph, pairs) for pairs in (triples[:, ::2].int(), triples[:, ::2]))
    assert narrow is not None
    assert wide is not None
    assert narrow["pair"]["links"].weight.sum() >= len(triples)
    assert [(side, *terms) for side, terms in narrow.items()] == [
        ("head", "profile"),
        ("tail", "profile"),
        ("pair", "links", "paths"),
    ]
    for side, terms in narrow.items():
        for name, rows in terms.items():
            assert all(map(torch.equal, rows, wide[side][name])), (side, name)


def test_an_unknown_option_is_rejected() -> None:
    with pytest.raises(TypeError, match="link: expected an option of PlainModel, got an unknown name"):
        made("distmult", graph_named("degrees"), link=True)


def test_a_registered_term_needs_no_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TERMS, "again", Links)
    graph = graph_named("duplicates")
    pairs = graph.triples[:, ::2]
    twice, once = (made("distmult", graph, links=True, again=again) for again in (True, False))
    with torch.no_grad():
        for name in ("links.of_link", "again.of_link"):
            twice.get_parameter(name).copy_(once.get_parameter("links.of_link") / 2)
    twice.entities, twice.relations = once.entities, once.relations
    scores = [
        model.relation_scores(model.inputs(graph), pairs, model.evidence(graph, pairs))
        for model in (twice, once)
    ]
    assert_close(*scores)
