"""The registry of scores: every block's gradients against autograd, valid and invalid scores."""

import ast
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightcake_fast
from lightcake_fast.errors import InputError
from lightcake_fast.kernels import cpu_blocks
from lightcake_fast.kernels.scores import SCORES as BLOCKS
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import FUSED, SCORES, Score, import_score, named_by_module, register_score
from tests.support import own_blocks
from tests.support.comparison import assert_close
from tests.support.graphs import CONTEXTS, layer_inputs, layer_results
from tests.support.own_blocks import Crossed

pytestmark = pytest.mark.usefixtures("registry")


def triple(columns: int, count: int) -> list[tuple[Tensor, ...]]:
    """Return ``count`` rows of 5 triples. A row is a tuple of columns (5, 7)."""
    random = torch.Generator().manual_seed(3)
    shape = (count, columns, 5, 7)
    rows = torch.randn(shape, generator=random, dtype=torch.float64)
    return [tuple(column.clone().requires_grad_() for column in row) for row in rows]


@pytest.mark.parametrize("name", [*FUSED, "crossed"])
def test_gradients_of_a_block_match_its_functions(name: str) -> None:
    """Tests each part of dL/dpsi, alpha g and beta q alone, so that two errors cannot cancel."""
    block: Any = Crossed if name == "crossed" else BLOCKS[name]
    h, r, t, g, q = triple(block.columns, 5)
    for delta, alpha, beta in ((1.5, 0.0, 0.0), (0.0, 0.7, 0.0), (0.0, 0.0, 0.3)):
        psi = block.psi(block.psi_term(h, r, t).sum(1, keepdim=True), torch.sqrt)
        loss = delta * psi.sum()
        loss = loss + alpha * sum((a * b).sum() for a, b in zip(g, block.phi_ent(r, t), strict=True))
        loss = loss + beta * sum((a * b).sum() for a, b in zip(q, block.phi_rel(h, t), strict=True))
        expected = torch.autograd.grad(loss, (*h, *r, *t), allow_unused=True, materialize_grads=True)
        slope = delta * (
            torch.ones_like(psi) if block.psi_slope is None else block.psi_slope(psi, torch.where)
        )
        actual = (
            *block.grad_h(slope, beta, q, h, r, t),
            *block.grad_r(slope, alpha, g, h, r, t),
            *block.grad_t(slope, alpha, g, beta, q, h, r, t),
        )
        for got, wanted in zip(actual, expected, strict=True):
            assert_close(got, wanted)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_users_block_runs_in_numba(context: str, dtype: torch.dtype) -> None:
    register_score("crossed", Crossed)
    for name in ("degrees", "hubs"):
        x, y, graph, mask = layer_inputs(name, 6, dtype)
        options: dict[str, Any] = {"score": "crossed", "context": context, "mask": mask}
        expected = layer_results(x, y, graph, dtype=torch.float64, backend="reference", **options)
        for table, actual in layer_results(x, y, graph, backend="numba", **options).items():
            assert actual.dtype == dtype
            assert_close(actual, expected[table], name=f"{table} of {name}", slack=4.0)


def test_public_names_exist() -> None:
    assert lightcake_fast.register_score is register_score
    assert lightcake_fast.Score is Score


def test_registering_twice_is_allowed_only_for_the_same_score() -> None:
    register_score("crossed", Crossed)
    register_score("crossed", Crossed)
    message = r"^name: expected a name other than distmult, .*, got '\w+': its score cannot be replaced"
    with pytest.raises(InputError, match=message):
        register_score("crossed", BLOCKS["complex"], replace=True)
    with pytest.raises(InputError, match=message):
        register_score("distmult", SCORES["transe"])
    with pytest.raises(InputError, match=message):
        register_score("transh", SCORES["transe"], replace=True)


@pytest.mark.usefixtures("registry")
def test_a_plain_score_can_be_replaced() -> None:
    first, second = SCORES["transe"], SCORES["complex"]
    register_score("mine", first)
    with pytest.raises(InputError, match=r"^name: expected .*, got 'mine': .*, or replace=True$"):
        register_score("mine", second)
    assert SCORES["mine"] is first
    register_score("mine", second, replace=True)
    assert SCORES["mine"] is second


@pytest.mark.parametrize("name", ["", "a b", "../up", "a:b:c", ":x", "x:", "1st"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^name: expected letters"):
        register_score(name, Crossed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": 3}, "columns: expected 1 or 2, got 3"),
        ({"planes": True}, "planes: expected a block without planes, got planes: write a Score"),
        ({"psi_term": None}, "psi_term: expected a function, got None"),
        ({"psi_term": lambda h, r: h[0]}, "psi_term: TypeError: .* takes 2 positional arguments"),
        ({"psi_term": lambda h, r, t: (h[0], t[0])}, "psi_term: expected a tensor of shape .* got shapes"),
        (
            {"psi": lambda total, sqrt: total.sum()},
            r"psi: expected a tensor of shape \(5, 1\), got shapes \[\(\)\]",
        ),
        ({"phi_ent": lambda r, t: r[0] * t[0]}, "phi_ent: expected a tuple of 2 of shape .* got shapes"),
        ({"phi_rel": lambda h, t: (h[0],)}, "phi_rel: expected a tuple of 2 of .* got shapes"),
        (
            {"psi_slope": None},
            "grad_h: expected the gradient of psi and phi, got .* in column 0",
        ),
        (
            {"grad_r": lambda slope, alpha, g, h, r, t: (slope * t[1] * h[0], slope * t[0] * h[1])},
            "grad_r: expected the gradient .* in column 0",
        ),
    ],
)
def test_wrong_blocks_are_refused(change: dict[str, Any], message: str) -> None:
    wrong = type("Wrong", (Crossed,), {k: staticmethod(v) if callable(v) else v for k, v in change.items()})
    with pytest.raises(InputError, match=f"^score 'wrong': {message}") as caught:
        register_score("wrong", wrong)
    assert "\n" not in str(caught.value)
    assert "wrong" not in SCORES
    assert "wrong" not in BLOCKS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"psi": lambda h, r, t: h * r * t},
            r"psi: expected a tensor of shape \(3,\), got shapes \[\(3, 8\)\]",
        ),
        (
            {"psi": lambda h, r, t: torch.zeros(h.shape[0])},
            "psi: expected a tensor of shape .* got shapes|psi: .* got a constant",
        ),
        ({"phi_ent": lambda r, t: r.sum(-1)}, "phi_ent: expected a tensor of shape .* got shapes"),
        ({"phi_rel": "sum"}, "phi_rel: expected a function, got 'sum'"),
        ({"psi": lambda h, r, t: (h @ t.T).diagonal()}, "psi: RuntimeError|psi: expected .* got shapes"),
        ({"columns": 0}, "columns: expected an integer of at least 1, got 0"),
        ({"columns": -1}, "columns: expected .*, got -1"),
        ({"columns": 2.0}, "columns: expected .*, got 2.0"),
    ],
)
def test_wrong_scores_are_refused(change: dict[str, Any], message: str) -> None:
    given = SCORES["distmult"].__dict__ | change
    with pytest.raises(InputError, match=f"^score 'wrong': ({message})"):
        register_score("wrong", Score(**given))
    name: Any = 5
    with pytest.raises(InputError, match=r"name: expected letters.*, got 5"):
        register_score(name, SCORES["distmult"])


def test_none_is_refused_as_a_score() -> None:
    with pytest.raises(InputError, match=r"^score 'wrong': columns: expected 1 or 2, got None"):
        register_score("wrong", None)


def test_a_width_must_be_a_multiple_of_the_columns() -> None:
    x, y, graph, _ = layer_inputs("degrees", 5, torch.float32)
    for backend in ("numba", "reference"):
        with pytest.raises(
            InputError, match=r"^entities: expected a multiple of 2 for score 'complex', got width 5"
        ):
            context_layer(x, y, graph, score="complex", backend=backend)


@pytest.mark.parametrize("score", ["mine:TURN", "a.b_c:D1"])
def test_names_of_modules(score: str) -> None:
    assert named_by_module(score)


@pytest.mark.parametrize(
    "score", ["distmult", "mine:", ":x", "a:b:c", "../mine:TURN", "mine:TURN.x", "a b:c"]
)
def test_invalid_module_names_are_refused(score: str) -> None:
    assert not named_by_module(score)
    with pytest.raises(InputError, match="expected MODULE:NAME"):
        import_score(score)


def test_a_score_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scores_of_mine.py").write_text("from tests.support.own_blocks import Crossed as MINE\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    import_score("scores_of_mine:MINE")
    assert BLOCKS["scores_of_mine:MINE"] is Crossed
    for wrong in ("scores_of_mine:YOURS", "scores_of_nobody:MINE"):
        with pytest.raises(
            InputError, match=f"^score: expected MODULE:NAME that can be imported, got '{wrong}'"
        ):
            import_score(wrong)


def test_a_digest_covers_everything_that_a_function_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str | None:
        return cpu_blocks.digest_of(Crossed.psi, Crossed.psi_term)

    seen = [digest(), digest()]
    assert seen[0] == seen[1] is not None
    monkeypatch.setattr(own_blocks, "FACTOR", 2.0)
    seen.append(digest())
    monkeypatch.setattr(own_blocks, "both", lambda a, b: a - b)
    seen.append(digest())
    assert len(set(seen)) == 3
    monkeypatch.setattr(own_blocks, "FACTOR", [2.0])  # a list can change without notice
    assert digest() is None


def test_every_module_that_a_pass_imports_is_in_its_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightcake_fast.kernels import cpu_compiler

    kernels = Path(cpu_compiler.__file__).parent
    waiting, reached = [path.stem for path in kernels.glob("cpu_*.py")], set[str]()
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            tree = ast.parse((kernels / f"{module}.py").read_text())
            imports = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            ours = [name.split(".") for name in imports if name.startswith("lightcake_fast")]
            assert all(parts[1] == "kernels" for parts in ours), (
                f"{module} compiles in what the key leaves out"
            )
            waiting += [parts[2] for parts in ours]
    assert {"plan", "segment_plan", "scores"} <= reached
    read = Path.read_bytes
    digests = {cpu_compiler._sources_digest.__wrapped__()}
    for module, number in zip(sorted(reached), itertools.count(2), strict=False):
        monkeypatch.setattr(Path, "read_bytes", lambda p, m=module: read(p) + b"#" * (p.stem == m))
        digests.add(cpu_compiler._sources_digest.__wrapped__())
        assert len(digests) == number, module
