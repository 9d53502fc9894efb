"""Paths of two triples: kinds against brute force, the term against dense algebra, no label leakage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import MODELS, blocks
from lightcake_fast.models.evidence import evidence_of
from lightcake_fast.models.terms.path_search import seek
from lightcake_fast.models.terms.paths import PathKinds, counted
from lightcake_fast.sharding.world import World
from lightcake_fast.train import prepared
from lightcake_fast.training import experiment
from lightcake_fast.training.experiment import Experiment
from tests.support.comparison import assert_close, assert_same_bits
from tests.support.graphs import CPU_GRAPHS
from tests.support.models import D, graph_named, made


def all_pairs(graph: ContextGraph) -> Tensor:
    """Every pair of some entities, and pairs with an entity that is not in the graph."""
    some = torch.arange(min(graph.num_entities, 12))
    pairs, n = torch.cartesian_prod(some, some), graph.num_entities
    return torch.cat([pairs, torch.tensor([[0, n], [n, 0], [n, n]])])


def by_hand(graph: ContextGraph, pairs: Tensor) -> Tensor:
    """Number of paths of each kind for each pair: (B, 2R, 2R)."""
    triples = set(zip(*(ids.tolist() for ids in graph.context_triples), strict=True))
    out: dict[int, list[tuple[int, int]]] = {}
    for head, relation, tail in triples:
        out.setdefault(head, []).append((relation, tail))
    counts = torch.zeros(len(pairs), 2 * graph.num_relations, 2 * graph.num_relations, dtype=torch.float64)
    for n, (h, t) in enumerate(pairs.tolist()):
        for p, middle in out.get(h, []):
            for q, end in out[middle]:
                counts[n, p, q] += end == t and middle not in (h, t)
    return counts


def dense(found: PathKinds, relations: int) -> Tensor:
    """Weights as (B, 2R, 2R)."""
    lists = torch.arange(len(found.bounds) - 1).repeat_interleave(found.bounds.diff())
    matrix = torch.zeros(len(found.bounds) - 1, relations, relations, dtype=found.weight.dtype)
    place = lists, found.relation.long(), found.second.long()
    assert len(set(zip(*(ids.tolist() for ids in place), strict=True))) == len(lists), "a kind stands twice"
    return matrix.index_put_(place, found.weight)


def found_in(graph: ContextGraph, pairs: Tensor, numbers: Tensor | None = None) -> PathKinds:
    """The evidence of pairs, or of triples with these numbers."""
    evidence = made("distmult", graph, paths=True).evidence(graph, pairs, numbers=numbers)
    assert evidence is not None
    found: PathKinds = evidence["pair"]["paths"]
    return found


@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_path_kinds_match_brute_force(name: str) -> None:
    graph, relations = graph_named(name), 2 * graph_named(name).num_relations
    pairs = all_pairs(graph)
    expected = by_hand(graph, pairs).log1p()
    assert_close(dense(found_in(graph, pairs), relations), expected)
    numbers = torch.tensor([graph.num_triples - 1, 0, 0])
    pairs = graph.triples[numbers][:, ::2]
    found = found_in(graph, pairs, numbers)
    expected = by_hand(graph, pairs).log1p()
    assert_close(dense(found, relations), expected)


def test_test_graphs_contain_paths() -> None:
    graph = graph_named("hubs")
    counts = by_hand(graph, all_pairs(graph))
    assert (counts > 1).any()
    assert (counts == 0).any()


def test_buffers_grow_for_many_paths() -> None:
    """Two hubs have 60 common neighbors by 5 relations each: 1,500 paths of 25 kinds."""
    ends = torch.cartesian_prod(torch.tensor([0, 1]), torch.arange(5), torch.arange(2, 62))
    graph = ContextGraph.from_triples(ends, 62, 5)
    found = found_in(graph, torch.tensor([[0, 1], [2, 3], [0, 0]]))
    kinds = torch.cartesian_prod(torch.arange(5), torch.arange(5, 10))
    assert_close(found.weight.expm1(), torch.tensor([60.0] * 25 + [2.0] * 25 + [60.0] * 25).double())
    for n, swapped in enumerate((False, True, False)):
        relation, second = (ids[25 * n : 25 * n + 25] for ids in (found.relation, found.second))
        expected = kinds.flip(1) if swapped else kinds
        assert sorted(zip(relation.tolist(), second.tolist(), strict=True)) == sorted(
            map(tuple, expected.tolist())
        )


def test_seek_finds_entities_in_long_lists() -> None:
    random = np.random.default_rng(0)
    other = np.sort(random.integers(0, 5000, 2000))
    for _ in range(300):
        place, wanted = int(random.integers(0, 1999)), int(random.integers(0, 5001))
        expected = max(place, int(np.searchsorted(other, wanted)))
        assert seek(other, place, len(other), wanted) == expected


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_path_scores_and_gradients_match_dense_algebra(
    name: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if links:
        monkeypatch.setattr(blocks, "BLOCK", 5 * D)  # five kinds per block; some pairs have more
    graph = graph_named("duplicates")
    pairs = graph.triples[:, ::2]
    whole, plain = (made(name, graph, links=links, paths=with_them) for with_them in (True, False))
    plain.load_state_dict(whole.state_dict(), strict=False)
    tables = [table.detach().requires_grad_() for table in whole.inputs(graph)]
    kinds = by_hand(graph, pairs).log1p()
    first, second = (whole.get_parameter(f"paths.of_{part}") for part in ("first", "second"))
    joined = torch.einsum("bpq,pd,qd->bd", kinds, first, second)
    expected = plain.relation_scores((tables[0], tables[1]), pairs, plain.evidence(graph, pairs))
    expected = expected + joined @ tables[1][: graph.num_relations].T
    actual = whole.relation_scores((tables[0], tables[1]), pairs, whole.evidence(graph, pairs))
    assert_close(actual, expected)
    g = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = [*tables, first, second]
    gradients = (torch.autograd.grad(scores, wanted, g) for scores in (actual, expected))
    for got, by_algebra in zip(*gradients, strict=True):
        assert_close(got, by_algebra)


def test_initial_path_term_is_zero_with_a_gradient() -> None:
    graph = graph_named("hubs")
    model = MODELS["distmult"].make(graph.num_entities, graph.num_relations, dim=D, paths=True)
    found = counted(graph, graph.triples[:, ::2]).weighed(torch.float32)
    rows = model.terms["paths"].of("pair", found)
    assert not rows.any()
    (gradient,) = torch.autograd.grad(rows.sum(), [model.get_parameter("paths.of_first")])
    assert (gradient.any(1) == torch.bincount(found.relation, minlength=len(gradient)).bool()).all()


@pytest.mark.parametrize("triple", ["single", "loop"])
def test_target_triples_do_not_change_their_paths(triple: str) -> None:
    graph = graph_named("duplicates")
    triples = graph.triples
    copies = (triples[:, None] == triples).all(2).sum(1) > 1
    loops = triples[:, 0] == triples[:, 2]
    place = (~copies & (loops == (triple == "loop"))).nonzero()[:1, 0]
    model = made("distmult", graph, profile="score", links=True, paths=True)
    pair, target = triples[place, ::2], triples[place, 1]
    left = triples[torch.arange(len(triples)) != place]
    without = ContextGraph.from_triples(left, graph.num_entities, graph.num_relations)
    tables = model.entities, model.relations
    expected = model.relation_scores(tables, pair, model.evidence(without, pair))
    for numbers in (None, place):
        evidence = model.evidence(graph, pair, target, numbers)
        assert_close(model.relation_scores(tables, pair, evidence), expected)


def test_models_with_paths_require_path_evidence() -> None:
    graph = graph_named("degrees")
    model = made("distmult", graph, links=True, paths=True)
    links = evidence_of(graph).of("pair", graph.triples[:, ::2], torch.float64)
    with pytest.raises(ValueError, match=r"evidence: expected evidence for paths, got None"):
        model.joined({"links": links})


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_with_any_number_of_threads(threads: int) -> None:
    graph = graph_named("hubs")
    model = made("distmult", graph, paths=True).float()
    pairs = graph.triples[:, ::2]

    def gradients() -> tuple[Tensor, ...]:
        scores = model.relation_scores((model.entities, model.relations), pairs, model.evidence(graph, pairs))
        return torch.autograd.grad(scores.square().sum(), list(model.parameters()))

    assert_same_bits(gradients, threads)


def test_unsupported_options_with_paths_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="paths: expected no value for task 'entity', got True"):
        Experiment.of(dataset="family:60", paths=True, dim=4, task="entity")
    monkeypatch.setattr(experiment, "wants_capture", lambda *_: True)
    made = Experiment.of(dataset="family:60", paths=True, dim=4, cuda_graph="on")
    with pytest.raises(InputError, match="cuda_graph: expected 'auto' or 'off' with paths, got 'on'"):
        experiment.check(made.config, made.data)


def test_paths_work_under_torchrun(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "dataset": "family:60",
        "paths": True,
        "dim": 4,
        "out": str(tmp_path / "several"),
    }
    config, _, run = prepared(None, flags, world=World())
    assert config.paths
    assert run.config.paths
