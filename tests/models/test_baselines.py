"""Baselines: scores equal formulas and PyKEEN, layers equal dense algebra and PyG, and all models train."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import (
    A2N,
    COMPOSITIONS,
    DECOMPOSITIONS,
    MODELS,
    RGCN,
    CompGCN,
    CompGCNLayer,
    RelationModel,
    RGCNLayer,
    a2n,
)
from lightcake_fast.models.neighbours import neighbours, sum_rows
from lightcake_fast.train import main as train
from lightcake_fast.training.experiment import build_model
from lightcake_fast.training.presets import resolve
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.graphs import CPU_GRAPHS, layer_inputs

N, R, D = 7, 3, 6
GRAPH = ContextGraph.from_triples(torch.tensor([[0, 0, 1]]), N, R)
PLAIN = ("transe", "distmult", "complex", "simple", "rotate", "transh", "transr")


def made(name: str, **options: Any) -> RelationModel:
    """Return a small model in float64 with random values in every parameter."""
    settings: dict[str, Any] = {
        "dim": D,
        "dtype": torch.float64,
        "generator": torch.Generator().manual_seed(0),
    }
    if "layers" in MODELS[name].arguments:
        settings["layers"] = 2
    model = MODELS[name].make(N, R, **settings | options).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=settings["generator"])
    return model


def rows(model: RelationModel, h: int, r: int, t: int) -> tuple[Tensor, Tensor, Tensor]:
    return model.entities[h], model.relations[r], model.entities[t]


def length(row: Tensor) -> Tensor:
    return row.square().sum().sqrt()


def complex_row(row: Tensor) -> Tensor:
    real, imaginary = row.chunk(2)
    return torch.complex(real, imaginary)


def by_formula(model: RelationModel, name: str, h: int, r: int, t: int) -> Tensor:
    """Return the score of one triple from the formula of the model."""
    e_h, e_r, e_t = rows(model, h, r, t)
    if name == "distmult":
        return (e_h * e_r * e_t).sum()
    if name == "transe":
        return -length(e_h + e_r - e_t)
    if name == "complex":
        return torch.real((complex_row(e_h) * complex_row(e_r) * complex_row(e_t).conj()).sum())
    if name == "rotate":
        return (
            -(complex_row(e_h) * torch.polar(torch.ones_like(e_r), e_r) - complex_row(e_t))
            .abs()
            .square()
            .sum()
            .sqrt()
        )
    if name == "simple":
        (h_head, h_tail), (r_own, r_inverse), (t_head, t_tail) = (row.chunk(2) for row in (e_h, e_r, e_t))
        return ((h_head * r_own * t_tail).sum() + (t_head * r_inverse * h_tail).sum()) / 2
    if name == "transh":
        w = model.get_parameter("normals")[r]
        w = w / length(w)
        return -length((e_h - (w @ e_h) * w) + e_r - (e_t - (w @ e_t) * w))
    assert name == "transr"
    matrix = model.get_parameter("projections")[r]
    return -length(e_h @ matrix + e_r - e_t @ matrix)


def by_pykeen(modules: Any, model: RelationModel, name: str) -> Callable[[int, int, int], Tensor]:
    """Return the score function of PyKEEN's interaction, on the model's rows in PyKEEN's format."""
    if name in ("complex", "rotate"):
        interaction = modules.ComplExInteraction() if name == "complex" else modules.RotatEInteraction()

        def score(h: int, r: int, t: int) -> Tensor:
            e_h, e_r, e_t = rows(model, h, r, t)
            relation = complex_row(e_r) if name == "complex" else torch.complex(e_r.cos(), e_r.sin())
            return cast("Tensor", interaction(complex_row(e_h), relation, complex_row(e_t)))

        return score
    if name == "simple":
        interaction = modules.SimplEInteraction()

        def score(h: int, r: int, t: int) -> Tensor:
            head, relation, tail = (row.chunk(2) for row in rows(model, h, r, t))
            # PyKEEN multiplies equal halves, so swap the halves of the tail
            return cast("Tensor", interaction(head, relation, tail[::-1]))

        return score
    if name in ("transe", "distmult"):
        interaction = modules.TransEInteraction(p=2) if name == "transe" else modules.DistMultInteraction()
        return lambda h, r, t: interaction(*rows(model, h, r, t))
    if name == "transh":
        interaction = modules.TransHInteraction(p=2)
        normals = torch.nn.functional.normalize(model.get_parameter("normals"), dim=1)
        return lambda h, r, t: interaction(
            model.entities[h], (normals[r], model.relations[r]), model.entities[t]
        )
    interaction = modules.TransRInteraction(p=2, power_norm=False, max_projection_norm=1e9)
    matrices = model.get_parameter("projections")
    return lambda h, r, t: interaction(
        model.entities[h], (model.relations[r], matrices[r]), model.entities[t]
    )


def assert_scores(name: str, one: Callable[[int, int, int], Tensor], model: RelationModel) -> None:
    """Compare a model's scores of some pairs with the scores of single triples."""
    pairs = torch.tensor([[0, 1], [5, 5], [2, 6]])
    actual = model.relation_scores(model.inputs(GRAPH), pairs)
    wanted = torch.stack([torch.stack([one(h, r, t) for r in range(R)]) for h, t in pairs.tolist()])
    assert_close(actual, wanted, name=name)


@pytest.mark.parametrize("name", PLAIN)
def test_scores_match_their_formulas(name: str) -> None:
    model = made(name)
    assert_scores(name, lambda h, r, t: by_formula(model, name, h, r, t), model)


@pytest.mark.parametrize("name", PLAIN)
def test_scores_match_pykeen(name: str, peer: Callable[[str], Any]) -> None:
    model = made(name)
    assert_scores(name, by_pykeen(peer("pykeen.nn.modules"), model, name), model)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_models_do_not_refine_entities(name: str) -> None:
    model = made(name)
    for refined, table in zip(model.refine(GRAPH), model.inputs(GRAPH), strict=True):
        assert_bitwise_equal(refined, table)


def adjacency(graph: ContextGraph, mask: Tensor | None) -> Tensor:
    """Return A_r of all 2R relations, (2R, N, N): A_r x is the mean over the unmasked neighbors."""
    head, relation, tail = graph.context_triples
    live = torch.ones(len(head), dtype=torch.bool) if mask is None else ~mask.repeat(2)
    dense = torch.zeros(2 * graph.num_relations, graph.num_entities, graph.num_entities, dtype=torch.float64)
    dense.index_put_(
        (relation[live], head[live], tail[live]), torch.ones((), dtype=torch.float64), accumulate=True
    )
    return dense / dense.sum(2, keepdim=True).clamp_min(1)


def relation_matrices(layer: RGCNLayer) -> Tensor:
    """Return the 2R relation matrices (2R, d, d) of a layer."""
    if layer.coefficients is not None:
        return torch.einsum("rb,bde->rde", layer.coefficients, layer.matrices)
    return torch.stack([torch.block_diag(*blocks) for blocks in layer.matrices])  # type: ignore[no-untyped-call]


def rgcn_layer(graph: ContextGraph, decomposition: str, dtype: torch.dtype = torch.float64) -> RGCNLayer:
    generator = torch.Generator().manual_seed(3)
    return RGCNLayer(
        graph.num_relations, D, decomposition=decomposition, bases=2, generator=generator, dtype=dtype
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
@pytest.mark.parametrize("graph_name", CPU_GRAPHS)
def test_rgcn_layer_matches_dense_algebra(graph_name: str, decomposition: str, masked: bool) -> None:
    x, _, graph, mask = layer_inputs(graph_name, D, torch.float64)
    layer = rgcn_layer(graph, decomposition)
    x.requires_grad_()
    chosen = mask if masked else None
    wanted = x @ layer.root + torch.einsum(
        "rnm,md,rde->ne", adjacency(graph, chosen), x, relation_matrices(layer)
    )
    actual = layer(x, graph, chosen)
    assert_close(actual, wanted, slack=10.0)
    gradient = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(4))
    names = ["entities", *dict(layer.named_parameters())]
    inputs = [x, *layer.parameters()]
    found, expected = (torch.autograd.grad(out, inputs, gradient) for out in (actual, wanted))
    for name, ours, theirs in zip(names, found, expected, strict=True):
        assert_close(ours, theirs, name=name, slack=10.0)


@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
def test_rgcn_layer_matches_torch_geometric(decomposition: str, peer: Callable[[str], Any]) -> None:
    geometric = peer("torch_geometric.nn")
    x, _, graph, _ = layer_inputs("degrees", D, torch.float32)
    layer = rgcn_layer(graph, decomposition, torch.float32)
    sizes = {"full": {}, "basis": {"num_bases": 2}, "block": {"num_blocks": 2}}[decomposition]
    theirs = geometric.RGCNConv(D, D, 2 * graph.num_relations, bias=False, **sizes)
    state: dict[str, Tensor] = {"root": layer.root, "weight": layer.matrices}
    if decomposition == "full":
        state["weight"] = layer.matrices[:, 0]
    if layer.coefficients is not None:
        state["comp"] = layer.coefficients
    theirs.load_state_dict({name: weight.detach() for name, weight in state.items()})
    head, relation, tail = graph.context_triples
    assert_close(layer(x, graph), theirs(x, torch.stack([tail, head]), relation), slack=5.0)


def test_rgcn_applies_relu_between_layers() -> None:
    x, _, graph, mask = layer_inputs("degrees", D, torch.float64)
    model = RGCN(graph.num_entities, graph.num_relations, dim=D, layers=3, dtype=torch.float64).eval()
    with torch.no_grad():
        model.entities.copy_(x)
    wanted = x
    for n, layer in enumerate(model.convolutions):
        wanted = layer(wanted.relu() if n else wanted, graph, mask)
    refined = model.refine(graph, mask=mask)
    assert_bitwise_equal(refined[0], wanted)
    assert_bitwise_equal(refined[1], model.relations)


def composed(composition: str, e: Tensor, z: Tensor) -> Tensor:
    """Return phi(e, z) of two rows from its definition."""
    d = len(e)
    if composition == "corr":
        return torch.stack(
            [sum((e[i] * z[(i + k) % d] for i in range(d)), z.new_zeros(())) for k in range(d)]
        )
    return e - z if composition == "sub" else e * z


def compgcn_by_hand(
    layer: CompGCNLayer, x: Tensor, z: Tensor, graph: ContextGraph, mask: Tensor | None
) -> Tensor:
    """Return the new entities from a loop over entities, their triples and both directions."""
    triples = torch.stack(graph.context_triples, 1)
    if mask is not None:
        triples = triples[~mask.repeat(2)]
    rows = []
    for h in range(graph.num_entities):
        row = composed(layer.composition, x[h], layer.loop) @ layer.of_self
        own = triples[triples[:, 0] == h]
        inverses = own[:, 1] >= graph.num_relations
        for matrix, side in ((layer.of_original, own[~inverses]), (layer.of_inverse, own[inverses])):
            if len(side):
                near = [composed(layer.composition, x[t], z[r]) for _, r, t in side.tolist()]
                row = row + torch.stack(near).mean(0) @ matrix
        rows.append(row.tanh())
    return torch.stack(rows)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize(("graph_name", "dim"), [("degrees", 6), ("duplicates", 6), ("sparse", 5)])
def test_compgcn_layer_matches_a_loop(graph_name: str, dim: int, composition: str, masked: bool) -> None:
    x, z, graph, mask = layer_inputs(graph_name, dim, torch.float64)
    random = torch.Generator().manual_seed(3)
    layer = CompGCNLayer(dim, composition=composition, generator=random, dtype=torch.float64)
    x.requires_grad_()
    z.requires_grad_()
    chosen = mask if masked else None
    wanted = compgcn_by_hand(layer, x, z, graph, chosen), z @ layer.of_relation
    actual = layer(x, z, graph, chosen)
    names = ["entities", "relations", *dict(layer.named_parameters())]
    inputs = [x, z, *layer.parameters()]
    cotangents = [torch.randn(rows.shape, dtype=rows.dtype, generator=random) for rows in wanted]
    for ours, theirs in zip(actual, wanted, strict=True):
        assert_close(ours, theirs, slack=10.0)
    found, expected = (torch.autograd.grad(out, inputs, cotangents) for out in (actual, wanted))
    for name, ours, theirs in zip(names, found, expected, strict=True):
        assert_close(ours, theirs, name=name, slack=10.0)


def test_compgcn_applies_its_layers_in_order() -> None:
    x, z, graph, mask = layer_inputs("degrees", D, torch.float64)
    model = CompGCN(graph.num_entities, graph.num_relations, dim=D, layers=2, dtype=torch.float64).eval()
    with torch.no_grad():
        model.entities.copy_(x)
        model.relations.copy_(z)
    for layer in model.convolutions:
        x, z = layer(x, z, graph, mask)
    for refined, wanted in zip(model.refine(graph, mask=mask), (x, z), strict=True):
        assert_bitwise_equal(refined, wanted)


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_compgcn_is_bitwise_repeatable(composition: str) -> None:
    x, z, graph, mask = layer_inputs("hubs", D, torch.float32)
    layer = CompGCNLayer(D, composition=composition, generator=torch.Generator().manual_seed(3))
    x.requires_grad_()
    first, second = (
        torch.autograd.grad(layer(x, z, graph, mask)[0].square().sum(), [x, layer.loop]) for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert_bitwise_equal(a, b)


@pytest.mark.parametrize("name", ["rgcn", "compgcn"])
@pytest.mark.parametrize(("worth", "threads"), [(0, 2), (2**60, 1)])
def test_small_sums_use_one_thread(
    name: str, worth: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, graph, mask = layer_inputs("degrees", D, torch.float32)
    model = MODELS[name].make(graph.num_entities, graph.num_relations, dim=D, layers=1)
    seen = set()

    def seeing(*arguments: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        return sum_rows(*arguments)

    monkeypatch.setattr(f"lightcake_fast.models.{name}.sum_rows", seeing)
    monkeypatch.setattr("lightcake_fast.models.neighbours.WORTH_A_THREAD", worth)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.autograd.grad(model.refine(graph, mask=mask)[0].sum(), model.entities)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {threads}


@pytest.mark.parametrize("name", ["rgcn", "compgcn", "a2n"])
def test_a_graph_first_used_in_inference_mode_trains(name: str) -> None:
    _, _, graph, _ = layer_inputs("degrees", D, torch.float32)
    options: dict[str, Any] = {"dim": D, "profile": "score", "links": True}
    options |= {} if name == "a2n" else {"layers": 1}
    model = MODELS[name].make(graph.num_entities, graph.num_relations, **options)
    triples = graph.triples_at(torch.arange(6))
    pairs, targets = triples[:, ::2], triples[:, 1]
    with torch.inference_mode():
        model.relation_scores(model.refine(graph), pairs, model.evidence(graph, pairs))
    refined = model.refine(graph, rows=pairs.T.reshape(-1))
    loss = model.relation_loss(refined, targets, model.evidence(graph, pairs, targets))
    (gradient,) = torch.autograd.grad(loss, model.entities)
    assert gradient.any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("graph_name", ["degrees", "duplicates", "sparse"])
def test_a2n_matches_a_loop(graph_name: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2n, "_BLOCK", 7)
    x, y, graph, mask = layer_inputs(graph_name, D, torch.float64)
    model = A2N(graph.num_entities, graph.num_relations, dim=D, dtype=torch.float64).eval()
    with torch.no_grad():
        model.entities.copy_(x)
        model.relations.copy_(y)
    refined, relations = model.refine(graph, mask=mask if masked else None, backend="reference")
    triples = torch.stack(graph.context_triples, 1)
    if masked:
        triples = triples[~mask.repeat(2)]
    rows = []
    for h in range(graph.num_entities):
        own = triples[triples[:, 0] == h]
        near = model.relations[own[:, 1]] @ model.of_relation + model.entities[own[:, 2]] @ model.of_tail
        alpha = (near @ model.entities[h] / D**0.5).softmax(0)
        rows.append(model.entities[h] @ model.of_self + alpha @ near @ model.of_neighbours)
    wanted = torch.stack(rows)
    assert_close(refined, wanted, slack=10.0)
    assert_bitwise_equal(relations, model.relations)
    gradient = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(4))
    parameters = dict(model.named_parameters())
    found, expected = (
        torch.autograd.grad(out, list(parameters.values()), gradient) for out in (refined, wanted)
    )
    for name, ours, theirs in zip(parameters, found, expected, strict=True):
        assert_close(ours, theirs, name=name, slack=10.0)


def test_sorted_orders_of_a_graph_are_cached_and_freed_with_it() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 1, 2], [3, 0, 1]]), 5, 2)
    assert neighbours(graph) is neighbours(graph)
    again = ContextGraph.from_triples(graph.triples, 5, 2)
    assert neighbours(again) is not neighbours(graph)


def closed_form(name: str, n: int, r: int, d: int, layers: int, bases: int, decomposition: str) -> int:
    """Return the number of parameters without bias and unknown-entity vectors."""
    tables = n * d + r * d
    if name == "lightcake":
        return tables + (r * d if layers else 0)
    if name == "rotate":
        return n * d + r * d // 2
    if name == "transh":
        return tables + r * d
    if name == "transr":
        return tables + r * d * d
    if name == "a2n":
        return tables + r * d + 4 * d * d
    if name == "compgcn":
        return tables + r * d + layers * (4 * d * d + d)
    if name == "rgcn":
        each = {
            "full": 2 * r * d * d,
            "basis": bases * d * d + 2 * r * bases,
            "block": 2 * r * d * d // bases,
        }
        return tables + layers * (d * d + each[decomposition])
    return tables


@pytest.mark.parametrize("sizes", [(40_943, 11), (63_917, 198), (14_541, 237), (9_203, 14), (5, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name: str, sizes: tuple[int, int]) -> None:
    n, r = sizes
    for decomposition in DECOMPOSITIONS if name == "rgcn" else ("basis",):
        for layers in (0, 2) if name == "lightcake" else (1, 2) if "layers" in MODELS[name].own else (0,):
            flags: dict[str, Any] = {"model": name, "dim": 16, "relation_bias": True, "unseen_rate": 0.1}
            flags |= {"layers": layers} if "layers" in MODELS[name].own else {}
            flags |= {"decomposition": decomposition, "bases": 4} if name == "rgcn" else {}
            flags |= {"profile": "none", "links": False} | ({"mixing": False} if name == "lightcake" else {})
            with torch.device("meta"):
                model = build_model(resolve(flags), n, r)
            count = sum(weight.numel() for weight in model.parameters())
            assert count == closed_form(name, n, r, 16, layers, 4, decomposition) + r + 2 * 16


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_parameter(name: str) -> None:
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1], [2, 1, 3], [4, 2, 5], [6, 2, 0]]), N, R)
    model = made(name, relation_bias=True, unseen_rate=0.9).train()
    refined = model.refine(graph, backend="reference", generator=torch.Generator().manual_seed(0))
    pairs = torch.arange(N).repeat(2, 1).T.repeat(9, 1).contiguous()
    pairs[:, 1] = (pairs[:, 1] * 3 + 1) % N
    scores = model.relation_scores(refined, pairs, generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(scores.logsumexp(1).sum(), list(model.parameters()))
    for (weight, _), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert gradient.any(), weight


@pytest.mark.parametrize("name", PLAIN[:1] + PLAIN[4:])
def test_zero_distance_has_zero_gradient(name: str) -> None:
    model = made(name)
    with torch.no_grad():
        model.relations.zero_()
    scores = model.relation_scores(model.inputs(GRAPH), torch.tensor([[1, 1]]))
    assert scores.abs().max() < 1e-6
    for gradient in torch.autograd.grad(scores.sum(), list(model.parameters()), allow_unused=True):
        assert gradient is None or not gradient.any()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lightcake"])
def test_train_command_trains_every_model(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ["--dataset", "family:60", "--model", name, "--dim", "8", "--batch-size", "64", "--lr", "0.02"]
    flags += ["--epochs", "3", "--patience", "3", "--quiet", "--out", str(folder)]
    if "backend" in MODELS[name].own:
        flags += ["--backend", "reference"]
    assert train(flags) == 0
    losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.98 * losses[0]
    results = json.loads((folder / "results.json").read_text())
    assert results["model"] == name
    before = (folder / "results.json").read_bytes()
    assert train(["--resume", str(folder), "--quiet"]) == 0
    assert (folder / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model": "transx"}, "model: expected one of lightcake, transe, distmult, "),
        (
            {"model": "transe", "layers": 2},
            "layers: expected model lightcake or rgcn or compgcn, got transe: omit layers",
        ),
        ({"model": "rgcn", "score": "transe"}, "score: expected model lightcake, got rgcn: omit score"),
        ({"bases": 2}, "bases: expected model rgcn, got lightcake: omit bases"),
        ({"model": "a2n", "context": "entity"}, "context: expected model lightcake, got a2n"),
        ({"composition": "sub"}, "composition: expected model compgcn, got lightcake: omit composition"),
        ({"model": "rgcn", "bases": 0}, "bases: expected an integer of at least 1, got 0"),
    ],
)
def test_unknown_settings_of_a_model_are_rejected(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model": "complex", "dim": 5}, "dim: expected an even number for complex, got 5"),
        ({"model": "rotate", "dim": 7}, "dim: expected an even number for rotate, got 7"),
        (
            {"model": "rgcn", "decomposition": "block", "dim": 10, "bases": 4},
            "dim: expected a multiple of bases=4, got 10: change dim or bases",
        ),
    ],
)
def test_unsuitable_widths_are_rejected(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(resolve(flags), N, R)
