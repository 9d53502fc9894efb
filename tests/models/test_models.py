"""LightCAKE: parameters, refinement and scores against formulas, dropout and unseen entities."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import LightCAKE, PlainModel, scorers
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import score_named
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import CONTEXTS, CPU_SCORES, layer_inputs

N, R, D = 60, 10, 6  # of the graph `degrees`


@pytest.fixture
def graph() -> ContextGraph:
    return layer_inputs("degrees", 1, torch.float64)[2]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(layers: int = 2, **options: Any) -> LightCAKE:
    settings: dict[str, Any] = {"dim": D, "generator": seeded(), "dtype": torch.float64}
    return LightCAKE(N, R, layers=layers, **settings | options)


def unit(rows: Tensor) -> Tensor:
    numbers = torch.complex(*rows.chunk(2, 1))
    return torch.cat([numbers.sgn().real, numbers.sgn().imag], 1)


@pytest.mark.parametrize("layers", [0, 1, 4])
@pytest.mark.parametrize("relation_bias", [False, True])
@pytest.mark.parametrize("unseen_rate", [0.0, 0.3])
def test_the_context_adds_no_weights(layers: int, relation_bias: bool, unseen_rate: float) -> None:
    shapes: dict[str, tuple[int, ...]] = {"entities": (N, D), "relations": (2 * R if layers else R, D)}
    if relation_bias:
        shapes["relation_bias"] = (R,)
    if unseen_rate:
        shapes |= {"unknown_head": (D,), "unknown_tail": (D,)}
    made = model(layers, relation_bias=relation_bias, unseen_rate=unseen_rate, dtype=torch.float32)
    assert {name: tuple(p.shape) for name, p in made.named_parameters()} == shapes
    assert {name: tuple(t.shape) for name, t in made.state_dict().items()} == shapes
    assert all(p.dtype == torch.float32 and p.requires_grad and p.is_leaf for p in made.parameters())
    count = N * D + (2 if layers else 1) * R * D + R * relation_bias + 2 * D * (unseen_rate > 0)
    assert sum(p.numel() for p in made.parameters()) == count


def test_tables_are_xavier_uniform() -> None:
    made = LightCAKE(300, 40, dim=60, layers=1, relation_bias=True, unseen_rate=0.1, generator=seeded())
    head, tail = made.get_parameter("unknown_head"), made.get_parameter("unknown_tail")
    # for Xavier a vector is a table with one row
    for table, rows in ((made.entities, 300), (made.relations, 80), (head, 1)):
        bound = (6 / (rows + 60)) ** 0.5
        assert table.abs().max() <= bound
        assert table.abs().max() > 0.9 * bound
        assert table.var().item() == pytest.approx(bound**2 / 3, rel=0.05 if rows > 1 else 0.5)
    assert not made.get_parameter("relation_bias").any()
    assert not torch.equal(head, tail)


def test_initial_values_depend_only_on_the_generator() -> None:
    state = torch.get_rng_state()
    first, again = (model(unseen_rate=0.3, relation_bias=True) for _ in range(2))
    for (name, a), b in zip(first.named_parameters(), again.parameters(), strict=True):
        assert_bitwise_equal(a, b, name=name)
    assert not torch.equal(model(generator=seeded(1)).entities, first.entities)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_layer_reads_bfloat16_rows(context: str, graph: ContextGraph) -> None:
    made = model(2, context=context, rows="bfloat16").eval()
    expected = made.inputs(graph)
    for _ in range(2):
        expected = context_layer(*expected, graph, context=context, rows="bfloat16", backend="reference")
    ids = torch.arange(3).repeat(2)
    for actual, wanted in zip(made.refine(graph, backend="reference"), expected, strict=True):
        assert_bitwise_equal(actual, wanted)
    some = made.refine(graph, backend="reference", rows=ids)
    for actual, wanted in zip(some, (expected[0][ids], expected[1]), strict=True):
        assert_close(actual, wanted)
    plain = model(2, context=context).eval().refine(graph, backend="reference")
    changed = 1 if context == "relation" else 0
    assert not torch.equal(expected[changed], plain[changed])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("score", CPU_SCORES)
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_refine_applies_every_layer(layers: int, score: str, context: str, graph: ContextGraph) -> None:
    made = model(layers, score=score, context=context).eval()
    mask = torch.arange(graph.num_triples) % 4 == 0
    expected = made.inputs(graph)
    for _ in range(layers):
        x, y = expected
        if score == "transh":
            y = torch.cat([y, functional.normalize(made.get_parameter("normals"), dim=1)], 1)
        x, y = context_layer(x, y, graph, score=score, context=context, mask=mask, backend="reference")
        expected = x, (unit(y) if score == "rotate" else y[:, :D])
    for backend in ("auto", "reference"):
        actual = made.refine(graph, mask=mask, backend=backend)
        for name, got, wanted in zip(("entities", "relations"), actual, expected, strict=True):
            assert_close(got, wanted, name=f"{name}, {backend}")


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("score", CPU_SCORES)
def test_gradients_reach_every_parameter(score: str, layers: int, graph: ContextGraph) -> None:
    made = model(layers, score=score, relation_bias=True, unseen_rate=0.9)
    pairs = graph.triples[:, [0, 2]]
    scores = made.relation_scores(made.refine(graph), pairs, generator=seeded())
    gradients = torch.autograd.grad(scores.logsumexp(1).sum(), list(made.parameters()))
    for (name, _), gradient in zip(made.named_parameters(), gradients, strict=True):
        assert gradient.any(), name


@pytest.mark.parametrize("relation_bias", [False, True])
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("score", CPU_SCORES)
def test_relation_scores_match_the_score_function(
    score: str, layers: int, relation_bias: bool, graph: ContextGraph
) -> None:
    made = model(layers, score=score, relation_bias=relation_bias).eval()
    bias = torch.zeros(R, dtype=torch.float64)
    if made.relation_bias is not None:
        bias = torch.nn.init.normal_(made.relation_bias, generator=seeded())
    x, y = made.inputs(graph)
    pairs = torch.tensor([[0, 1], [5, 5], [2, 59]])
    actual = made.relation_scores((x, y), pairs)
    for b, (h, t) in enumerate(pairs.tolist()):
        for r in range(R):
            if score == "distmult":
                wanted = (x[h] * y[r] * x[t]).sum()
            elif score == "complex":
                e_h, e_r, e_t = (torch.complex(*row.chunk(2)) for row in (x[h], y[r], x[t]))
                wanted = (e_h * e_r * e_t.conj()).sum().real
            elif score == "rotate":
                e_h, e_t, turn = (torch.complex(*row.chunk(2)) for row in (x[h], x[t], y[r]))
                assert_close(turn.angle(), made.relations[r])
                wanted = -torch.linalg.vector_norm(e_h * turn - e_t)
            elif score == "simple":
                (h_own, h_back), (t_own, t_back) = x[h].chunk(2), x[t].chunk(2)
                wanted = (torch.cat([h_own * t_back, t_own * h_back]) * y[r]).sum() / 2
            elif score == "transh":
                w = functional.normalize(made.get_parameter("normals"), dim=1)[r]
                wanted = -torch.linalg.vector_norm(x[t] - w * (w @ x[t]) - y[r] - x[h] + w * (w @ x[h]))
            else:
                wanted = -torch.linalg.vector_norm(x[t] - y[r] - x[h])
            assert actual[b, r].item() == pytest.approx((wanted + bias[r]).item(), rel=1e-12)


@pytest.mark.parametrize("score", CPU_SCORES)
def test_lightcake_without_layers_equals_the_plain_model(score: str, graph: ContextGraph) -> None:
    made = model(0, score=score).eval()
    plain = PlainModel(N, R, dim=D, score=score, generator=seeded(), dtype=torch.float64).eval()
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in plain.named_parameters()]
    pairs = torch.tensor([[0, 1], [5, 5], [2, 59]])
    actual, expected = (m.relation_scores(m.refine(graph), pairs) for m in (made, plain))
    assert_bitwise_equal(actual, expected)


def shortly_translated(near: float) -> tuple[Tensor, ...]:
    """Heads, relations, and tails very near to the head plus the relation with the same number."""
    random = seeded()
    heads, relations, off = (torch.randn(40, 64, generator=random, dtype=torch.float64) for _ in range(3))
    return heads, relations, heads + relations + near * off


def shortly_rotated(near: float) -> tuple[Tensor, ...]:
    random = seeded()
    heads, off = (torch.randn(40, 64, generator=random, dtype=torch.float64) for _ in range(2))
    angles = 6 * torch.rand(40, 32, generator=random, dtype=torch.float64)
    turned = torch.complex(*heads.chunk(2, 1)) * torch.polar(torch.ones_like(angles), angles)
    tails = torch.cat([turned.real, turned.imag], 1) + near * off
    return heads, torch.cat([angles.cos(), angles.sin()], 1), tails


def shortly_projected(near: float) -> tuple[Tensor, ...]:
    """Most of the difference of head and tail is along the normal, so the projected distance is short."""
    random = seeded()
    heads, relations, normals, off = (
        torch.randn(40, 64, generator=random, dtype=torch.float64) for _ in range(4)
    )
    normals = functional.normalize(normals, dim=1)
    relations -= (relations * normals).sum(1, keepdim=True) * normals  # otherwise no distance is zero
    return heads, torch.cat([relations, normals], 1), heads + relations + 20 * normals + near * off


SHORT = {"transe": shortly_translated, "rotate": shortly_rotated, "transh": shortly_projected}


@pytest.mark.parametrize("near", [1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("score", SHORT)
def test_short_distances_are_accurate_in_float32(score: str, near: float) -> None:
    """The expanded square subtracts large numbers: score and gradient must not be noise."""
    rows = [row.float().requires_grad_() for row in SHORT[score](near)]
    h, r, t = (row.double() for row in rows)
    named = score_named(score)
    exact = named.psi(*named.read(h[:, None], r, t[:, None]))
    actual = scorers.SCORERS[score](*rows)
    torch.testing.assert_close(actual, exact.float(), rtol=1e-4, atol=0)
    gradients, expected = (torch.autograd.grad(s.diagonal().sum(), rows) for s in (actual, exact))
    for one, other in zip(gradients, expected, strict=True):
        errors = (one - other).norm(dim=1)
        assert (errors <= 1e-4 * other.norm(dim=1)).all()
    torch.testing.assert_close(gradients[2].norm(dim=1), torch.ones(40), rtol=1e-4, atol=0)


@pytest.mark.parametrize("score", SHORT)
def test_zero_distance_has_no_rounding_noise(score: str) -> None:
    rows = [row.float() for row in SHORT[score](0.0)]
    rows[2].requires_grad_()
    scores = scorers.SCORERS[score](*rows).diagonal()
    assert (scores.abs() < 1e-5).all()  # rounding of the rows
    (gradient,) = torch.autograd.grad(scores.sum(), rows[2])
    assert (gradient.norm(dim=1) < 1.1).all()


def test_transe_at_zero_distance() -> None:
    made = model(0, score="transe")
    with torch.no_grad():
        made.relations[3] = made.entities[2] - made.entities[1]
        made.relations[4] = 0
    scores = made.relation_scores((made.entities, made.relations), torch.tensor([[1, 2], [7, 7]]))
    assert scores[0, 3].item() == pytest.approx(0.0, abs=1e-7)
    assert scores[1, 4].item() == pytest.approx(0.0, abs=1e-7)
    for score in (scores[0, 3], scores[1, 4]):
        for gradient in torch.autograd.grad(score, list(made.parameters()), retain_graph=True):
            assert not gradient.any()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_input_dropout(share: float, graph: ContextGraph) -> None:
    made = LightCAKE(2000, 400, dim=63, layers=0, input_dropout=share, generator=seeded())
    for table, full in zip(made.refine(graph, generator=seeded()), made.parameters(), strict=True):
        kept = table != 0
        assert_close(table[kept], (full / (1 - share))[kept])
        deviation = (share * (1 - share) / table.numel()) ** 0.5
        assert abs((~kept).double().mean().item() - share) < 5 * deviation
        # all rows and columns have about the same share
        assert (~kept).double().mean(0).std() < 3 * (share * (1 - share) / len(table)) ** 0.5
        assert (~kept).double().mean(1).std() < 3 * (share * (1 - share) / 63) ** 0.5


def test_row_dropout(graph: ContextGraph) -> None:
    made = LightCAKE(4000, 30, dim=7, layers=0, row_dropout=0.2, generator=seeded())
    entities, relations = made.refine(graph, generator=seeded())
    assert_bitwise_equal(relations, made.relations)
    dropped = (entities == 0).all(1)
    assert_bitwise_equal(entities[~dropped], made.entities[~dropped])  # whole rows, without rescaling
    assert abs(dropped.double().mean().item() - 0.2) < 5 * (0.2 * 0.8 / 4000) ** 0.5


def test_dropout_is_applied_before_the_first_layer(graph: ContextGraph) -> None:
    made = model(2, input_dropout=0.3, row_dropout=0.4)
    actual = made.refine(graph, generator=seeded(3))
    made.layers = 0  # the input of the first layer, with the same random numbers
    expected = made.refine(graph, generator=seeded(3))
    assert (expected[0] == 0).all(1).any()
    for _ in range(2):
        expected = context_layer(*expected, graph, backend="reference")
    for got, wanted in zip(actual, expected, strict=True):
        assert_close(got, wanted)


@pytest.mark.parametrize(
    "options", [{"input_dropout": 0.3}, {"row_dropout": 0.3}, {"unseen_rate": 0.3}], ids=str
)
def test_dropout_uses_the_generator_and_only_in_training(
    options: dict[str, Any], graph: ContextGraph
) -> None:
    made, pairs = model(**options), graph.triples[:, [0, 2]]

    def scores(seed: int) -> Tensor:
        random = seeded(seed)
        return made.relation_scores(made.refine(graph, generator=random), pairs, generator=random)

    state = torch.get_rng_state()
    assert_bitwise_equal(scores(1), scores(1))
    assert not torch.equal(scores(1), scores(2))
    made.eval()
    assert_bitwise_equal(scores(1), scores(2))
    assert_bitwise_equal(scores(1), model().eval().relation_scores(model().eval().refine(graph), pairs))
    assert torch.equal(torch.get_rng_state(), state)


def test_unknown_vectors_in_training() -> None:
    made = LightCAKE(30, 3, dim=4, layers=0, unseen_rate=0.4, generator=seeded())
    x, y = made.entities, made.relations
    pairs = torch.randint(0, 30, (20_000, 2), generator=seeded(1))
    heads, tails = x[pairs[:, 0]], x[pairs[:, 1]]
    actual = made.relation_scores((x, y), pairs, generator=seeded(2))
    plain = (heads * tails) @ y.T
    no_head = (made.get_parameter("unknown_head") * tails) @ y.T
    no_tail = (heads * made.get_parameter("unknown_tail")) @ y.T
    found = {
        name: torch.isclose(actual, wanted).all(1)
        for name, wanted in (("plain", plain), ("no head", no_head), ("no tail", no_tail))
    }
    assert (torch.stack(list(found.values())).sum(0) == 1).all()  # never both in one pair
    for name, share in (("plain", 0.6), ("no head", 0.2), ("no tail", 0.2)):
        assert abs(found[name].double().mean().item() - share) < 5 * (0.25 / len(pairs)) ** 0.5


def test_unknown_vectors_in_evaluation() -> None:
    made = model(0, unseen_rate=0.4).eval()
    x, y = made.entities, made.relations
    seen = torch.ones(N, dtype=torch.bool)
    seen[[3, 4]] = False
    pairs = torch.tensor([[0, 1], [3, 1], [0, 4], [3, 4], [4, 4]])
    actual = made.relation_scores((x, y), pairs, seen=seen)
    head, tail = made.get_parameter("unknown_head"), made.get_parameter("unknown_tail")
    ends = torch.stack([x[0] * x[1], head * x[1], x[0] * tail, head * tail, head * tail])
    assert_close(actual, ends @ y.T)
    assert_close(made.relation_scores((x, y), pairs), (x[pairs[:, 0]] * x[pairs[:, 1]]) @ y.T)


def test_seen_has_no_effect_without_unknown_vectors() -> None:
    made = model(0).eval()
    refined, pairs = (made.entities, made.relations), torch.tensor([[0, 1], [3, 1]])
    unseen = torch.zeros(N, dtype=torch.bool)
    assert_bitwise_equal(
        made.relation_scores(refined, pairs, seen=unseen), made.relation_scores(refined, pairs)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_entities": 0}, "num_entities: expected at least 1, got 0"),
        ({"num_relations": 0}, "num_relations: expected at least 1, got 0"),
        ({"dim": 0}, "dim: expected at least 1, got 0"),
        ({"layers": -1}, "layers: expected at least 0, got -1"),
        ({"input_dropout": 1.0}, "input_dropout: expected 0 <= value < 1, got 1.0"),
        ({"row_dropout": -0.1}, "row_dropout: expected 0 <= value < 1, got -0.1"),
        ({"unseen_rate": float("nan")}, "unseen_rate: expected 0 <= value < 1, got nan"),
        ({"score": "rescal"}, "score: expected one of distmult, transe, complex, simple, .*, got 'rescal'"),
        ({"score": "complex", "dim": 7}, "dim: expected a multiple of 2 for score 'complex', got 7"),
        (
            {"score": "mine:TURN"},
            "score: expected a registered score, got 'mine:TURN', which is code: .* give --score mine:TURN",
        ),
        ({"context": "none"}, "context: expected one of both, entity, relation, got 'none'"),
        ({"rows": "float16"}, "rows: expected one of float32, bfloat16, got 'float16'"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"num_entities": 3, "num_relations": 2, "dim": 4, "layers": 1} | change
    with pytest.raises(ValueError, match=message):
        LightCAKE(**arguments)
