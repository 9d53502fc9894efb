"""A user-defined score function works in the reference layer, its gradient and the model."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.backends import BACKENDS
from lightcake_fast.data import family
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import LightCAKE
from lightcake_fast.ops import context_layer, context_weights
from lightcake_fast.scores import SCORES, Score, register_score
from tests.support.comparison import assert_close
from tests.support.graphs import layer_inputs, random_rows

NAME = "turn"


def turned(e_h: Tensor, e_r: Tensor) -> Tensor:
    """Rotate complex rows by the angles of a relation, as in RotatE."""
    (real, imaginary), angle = e_h.chunk(2, -1), e_r.chunk(2, -1)[0]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)


@pytest.fixture(autouse=True)
def own_score(registry: None) -> None:
    score = Score(
        psi=lambda e_h, e_r, e_t: -(turned(e_h, e_r) - e_t).square().sum(-1),
        phi_ent=lambda e_r, e_t: turned(e_t, -e_r),
        phi_rel=lambda e_h, e_t: e_t - e_h,
        columns=2,
    )
    register_score(NAME, score)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_layer_by_hand(backend: str) -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [0, 0, 2]]), 3, 1)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)
    quarter = torch.pi / 2
    y = torch.tensor([[quarter, 0.0], [-quarter, 0.0]], dtype=torch.float64)
    new_x, new_y = context_layer(x, y, graph, score=NAME, backend=backend)
    # (1, 0) rotated by 90 degrees is (0, 1): exact for the first triple, 0.5 and 1 off for the second
    first, second = torch.tensor([0.0, -1.25], dtype=torch.float64).softmax(0)
    turned_back = torch.tensor([[1.0, 0.0], [0.0, -0.5]], dtype=torch.float64)
    assert_close(new_x[0], x[0] + first * turned_back[0] + second * turned_back[1])
    assert_close(new_y[0], y[0] + first * (x[1] - x[0]) + second * (x[2] - x[0]))
    alpha, beta = context_weights(x, y, graph, score=NAME)
    assert_close(alpha[:2], torch.stack([first, second]))
    assert_close(beta[:2], torch.stack([first, second]))


def test_gradient() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [1, 1, 2], [0, 1, 2], [2, 0, 0]]), 3, 2)
    x, y = random_rows(graph, 4, torch.float64)
    arguments = (x.requires_grad_(), y.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: context_layer(a, b, graph, score=NAME), arguments)


def test_a_model_learns_with_it() -> None:
    data = family(people=60)
    graph = ContextGraph.from_triples(data.train, data.num_entities, data.num_relations)
    generator = torch.Generator().manual_seed(0)
    model = LightCAKE(data.num_entities, data.num_relations, dim=8, layers=1, score=NAME, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    triples = torch.from_numpy(data.train).long()
    pairs, relations = triples[:, ::2], triples[:, 1]
    losses = []
    for _ in range(30):
        loss = functional.cross_entropy(model.relation_scores(model.refine(graph), pairs), relations)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_a_score_with_planes_is_read_like_transh() -> None:
    register_score("planes-of-mine", dataclasses.replace(SCORES["transe"], planes=True))
    _, _, graph, _ = layer_inputs("degrees", 1, torch.float64)
    found = []
    for score in ("planes-of-mine", "transh"):
        sizes: dict[str, Any] = {"dim": 4, "layers": 2, "dtype": torch.float64}
        generator = torch.Generator().manual_seed(0)
        model = LightCAKE(graph.num_entities, graph.num_relations, score=score, generator=generator, **sizes)
        found.append(model.relation_scores(model.refine(graph), graph.triples[:, ::2]))
    assert_close(*found, slack=10)


def test_fused_back_ends_refuse_the_score() -> None:
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float32)
    for backend in set(BACKENDS) - {"auto", "reference"}:
        with pytest.raises(ValueError, match=f"expected 'reference' for score .*, got '{backend}'"):
            context_layer(x, y, graph, score=NAME, backend=backend)
