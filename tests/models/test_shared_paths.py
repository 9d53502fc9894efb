"""Paths between entities of several ranks, here threads, match a single process."""

import numpy as np
import pytest
import torch

from lightcake_fast.models.terms import paths
from lightcake_fast.models.terms.paths import PathKinds, SharedPaths, counted
from lightcake_fast.sharding.shard import HeldTriples, Layout
from lightcake_fast.sharding.world import World
from tests.support.graphs import CPU_GRAPHS
from tests.support.models import graph_named
from tests.support.worlds import in_threads


@pytest.mark.parametrize("together", [7, 2**14])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_paths_over_ranks_match_one_process(
    name: str, ranks: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "TOGETHER", together)
    graph = graph_named(name)
    random = np.random.default_rng(1)
    owner = random.integers(0, ranks, graph.num_entities)
    if ranks == 3:
        owner[owner == 1] = 2  # a rank without entities
    pairs = random.integers(0, graph.num_entities, (40, 2))
    triples = graph.triples.numpy()

    def work(world: World) -> PathKinds:
        held, rows = HeldTriples.of(triples, owner, world.rank), np.flatnonzero(owner == world.rank)
        layout = Layout.of(held, rows, world.rank, ranks)
        found = SharedPaths(held, layout, graph.num_entities, graph.num_relations, world)
        own = pairs[owner[pairs[:, 0]] == world.rank]
        return found.counted(own, owner[own[:, 1]])

    for rank, actual in enumerate(in_threads(ranks, work)):
        wanted = counted(graph, torch.from_numpy(pairs[owner[pairs[:, 0]] == rank]))
        for column, expected in zip(actual, wanted, strict=True):
            assert torch.equal(column, expected)
