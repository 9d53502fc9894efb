"""Compare random layers of each fused back end with float64: `python -m tests.support.fuzz --graphs 10000`.

It stops at the first wrong layer, and shows the smallest similar layer that is also wrong. It prints its
seed, and `--seed` repeats a search.
"""

import argparse
import math
import os
import secrets
import sys
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before the package reads it

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import plan
from lightcake_fast.kernels.cpu_compiler import FIXED_WIDTHS
from lightcake_fast.ops import ROWS
from lightcake_fast.scores import BUILT_IN, FUSED, score_named
from tests.support.comparison import TOLERANCES
from tests.support.graphs import CONTEXTS, as_read, layer_results, random_rows

BACKENDS = ("numba", "triton")
INTERPRETED_SHARE = 100  # the interpreter takes about a second per layer
WIDTHS = (1, 2, 3, 5, 16, 31, 33)  # compiled once for all
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SCALES = (0.7, 0.0, 1e-3, 2.0, 8.0)


@dataclass(frozen=True)
class Case:
    """A layer and its inputs. The CPU and GPU plans cut rows at the length `chunk`."""

    entities: int
    relations: int
    triples: tuple[tuple[int, int, int], ...]
    masked: tuple[bool, ...] | None
    width: int
    dtype: torch.dtype
    score: str
    context: str
    rows: str
    scale: float
    whole: bool
    chunk: int
    seed: int


@st.composite
def cases(
    draw: st.DrawFn,
    widths: tuple[int, ...] = WIDTHS,
    scores: tuple[str, ...] = FUSED,
    rows: tuple[str, ...] = ROWS,
) -> Case:
    """Draw a random case. Hypothesis tries small cases first."""
    entities, relations = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    ids = st.tuples(*(st.integers(0, n - 1) for n in (entities, relations, entities)))
    triples = draw(st.lists(ids, max_size=40).map(tuple))
    flags = st.lists(st.booleans(), min_size=len(triples), max_size=len(triples)).map(tuple)
    dtype, scale = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SCALES))
    score = draw(st.sampled_from(scores))
    taken = [width for width in widths if width % score_named(score).columns == 0]
    # drawn for every dtype, because a smaller case could not change the dtype otherwise
    chosen = draw(st.sampled_from(rows))
    return Case(
        entities,
        relations,
        triples,
        draw(st.none() | flags),
        draw(st.sampled_from(taken)),
        dtype,
        score,
        draw(st.sampled_from(CONTEXTS)),
        chosen if dtype.itemsize > 2 else ROWS[0],
        min(scale, 2.0) if dtype == torch.float16 else scale,  # larger gradients overflow float16
        draw(st.booleans()),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 99)),
    )


def check(case: Case, backend: str) -> None:
    """Compare a back end's rows and gradients with the float64 reference.

    Raises:
        AssertionError: An error exceeds four times the error of the reference in the dtype of the sums, plus
            the tolerance of the dtype. For gradients, the bound also includes `slope_error`.
    """
    device = "cuda" if backend != "numba" and torch.cuda.is_available() else "cpu"
    x, y, graph, mask = inputs(case)
    options: dict[str, Any] = {"score": case.score, "context": case.context, "rows": case.rows}
    real = torch.float64 if case.dtype == torch.float64 else torch.float32
    exact, plain = (
        layer_results(x, y, graph, dtype=dtype, mask=mask, backend="reference", **options)
        for dtype in (torch.float64, real)
    )
    mask = None if mask is None else mask.to(device)
    results = layer_results(
        x.to(device), y.to(device), graph.to(device), mask=mask, backend=backend, **options
    )
    for name, actual in results.items():
        assert actual.dtype == case.dtype, name
        if not actual.numel():
            continue
        wide, tolerance = exact[name], TOLERANCES[case.dtype]
        allowed = 4 * (tolerance.relative * wide.abs() + tolerance.scaled * wide.abs().max())
        allowed += 4 * (plain[name].double() - wide).abs().max()
        if name.startswith("dL/"):
            most = max(table.abs().max().item() for table in (x, y))
            allowed += slope_error(case.score, case.dtype, case.width, most)
        error = (actual.cpu().double() - wide).abs()
        assert (error <= allowed).all(), (
            f"{name}: expected {wide.tolist()} with errors up to {allowed.tolist()}, got {actual.tolist()}"
        )


def inputs(case: Case) -> tuple[Tensor, Tensor, ContextGraph, Tensor | None]:
    """Return the entities, relations, graph with both plans, and mask, on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RELATION_CHUNK", "ENTITY_CHUNK", "GPU_ENTITY_CHUNK"):
            patch.setattr(plan, name, case.chunk)
        patch.setattr(plan, "GPU_RELATION_CHUNK", (case.chunk, 2 * case.chunk))
        patch.setattr(plan, "TASK_COST", 4 * case.chunk)
        triples = torch.tensor(case.triples, dtype=torch.int64).view(-1, 3)
        graph = ContextGraph.from_triples(triples, case.entities, case.relations)
        _ = graph.gpu_plan
    x, y = random_rows(graph, case.width, torch.float64, scale=case.scale, seed=case.seed)
    if case.whole:
        x, y = (2 * x).round() / 2, (2 * y).round() / 2  # creates equal rows, zero lengths and exact ties
    mask = None if case.masked is None else torch.tensor(case.masked, dtype=torch.bool)
    return x.to(case.dtype), as_read(y, case.score).to(case.dtype), graph, mask


def slope_error(score: str, dtype: torch.dtype, width: int, most: float) -> float:
    """Bound the gradient error that the rounding of D causes, if rows hold numbers up to `most`.

    The slope of a score is alpha (<g, phi> - D). The back ends compute D from the new row. If one triple has
    all the weight, both terms cancel except for rounding. In the reference the terms are equal in every bit.
    """
    epsilon: float = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    # bounds of a number of a new row, and of a score's derivative by one number
    product = {"distmult": 1, "complex": 2, "simple": 0.5, "rotate": 2}.get(score, 0) * most**2
    new, score_slope = (most + product, product) if product else (3 * most, 1.0)
    if score == "rotate":  # times the modulus of h or r
        score_slope = max(1.0, math.sqrt(2) * most)
    return 4 * epsilon * math.sqrt(width) * new * score_slope


def fuzz(
    backend: str,
    graphs: int,
    widths: tuple[int, ...] = WIDTHS,
    scores: tuple[str, ...] = FUSED,
    rows: tuple[str, ...] = ROWS,
    seed: int | None = None,
) -> None:
    """Check random cases. Without ``seed``, Hypothesis chooses them by its profile and seed.

    Raises:
        AssertionError: As in `check`, for the smallest wrong case found. The case is printed.
    """

    @settings(
        max_examples=graphs,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @given(case=cases(widths, scores, rows))
    def search(case: Case) -> None:
        check(case, backend)

    (search if seed is None else hypothesis.seed(seed)(search))()


def main() -> int:
    """Fuzz the back ends that run on this machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument(
        "--graphs", type=int, default=10_000, help="random graphs per back end (default: 10000)"
    )
    parser.add_argument("--backend", choices=BACKENDS, help="back end to test (default: all)")
    parser.add_argument("--seed", type=int, help="seed of the random graphs (default: new, printed)")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    for backend in [options.backend] if options.backend else BACKENDS:
        interpreted = backend == "triton" and not torch.cuda.is_available()
        graphs = max(1, options.graphs // INTERPRETED_SHARE) if interpreted else options.graphs
        scores = BUILT_IN if backend == "numba" else FUSED
        fuzz(backend, graphs, (*WIDTHS, *FIXED_WIDTHS[:2]), scores, seed=seed)
        print(f"{backend}: {graphs} graphs{' in the interpreter' * interpreted}, no error found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
