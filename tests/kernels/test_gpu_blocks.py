"""The Triton passes with other blocks: ComplEx's two columns, and blocks without their optional members."""

from typing import Any

import pytest
import torch

from lightcake_fast.kernels import plan as kernels_plan
from lightcake_fast.kernels import scores
from lightcake_fast.reference import scores as reference
from tests.kernels.test_gpu_kernels import DEVICE, check, lanes
from tests.support.graphs import layer_inputs

OPTIONAL = ("product", "inverse", "add_grad_r", "add_grad_entity", "own_row")


def stripped(block: Any) -> Any:
    """Return a block with only the required members."""
    return type(block.__name__, block.__bases__, {k: v for k, v in vars(block).items() if k not in OPTIONAL})


BLOCKS = {
    "complex": scores.ComplEx,
    "simple": scores.SimplE,
    "rotate": scores.RotatE,
    "plain complex": stripped(scores.ComplEx),
    "plain transe": stripped(scores.TransE),
    "plain rotate": stripped(scores.RotatE),
    "plain distmult": stripped(scores.DistMult),
}


@pytest.mark.parametrize(
    ("name", "graph", "context", "masked", "width", "dtype"),
    [
        ("complex", "hub", "both", True, 2, torch.float32),
        ("complex", "duplicates", "both", False, 6, torch.float64),
        ("complex", "edges", "entity", True, 64, torch.bfloat16),
        ("complex", "hub", "relation", False, 100, torch.float32),
        ("complex", "hub", "both", True, 256, torch.float32),
        ("complex", "sparse", "both", False, 64, torch.float64),
        ("complex", "duplicates", "both", True, 64, torch.bfloat16),
        ("complex", "hub", "both", False, 64, torch.float16),
        ("simple", "hub", "both", True, 6, torch.float32),
        ("simple", "duplicates", "both", False, 100, torch.float64),
        ("simple", "edges", "entity", True, 64, torch.bfloat16),
        ("simple", "hub", "relation", False, 256, torch.float32),
        ("simple", "sparse", "both", True, 64, torch.float16),
        ("rotate", "hub", "both", True, 6, torch.float32),
        ("rotate", "duplicates", "both", False, 100, torch.float64),
        ("rotate", "edges", "entity", True, 64, torch.bfloat16),
        ("rotate", "hub", "relation", False, 256, torch.float32),
        ("rotate", "sparse", "both", True, 64, torch.float16),
        ("plain rotate", "hub", "both", True, 64, torch.float32),
        ("plain complex", "hub", "both", True, 64, torch.float32),
        ("plain transe", "hub", "both", True, 100, torch.float32),
        ("plain distmult", "duplicates", "both", True, 63, torch.float32),
    ],
)
def test_layer_of_a_block(
    name: str,
    graph: str,
    context: str,
    masked: bool,
    width: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels_plan, "GPU_ENTITY_CHUNK", 7)
    monkeypatch.setattr(kernels_plan, "GPU_RELATION_CHUNK", (8, 16))
    monkeypatch.setitem(scores.SCORES, name, BLOCKS[name])
    monkeypatch.setitem(reference.SCORES, name, reference.of_block(BLOCKS[name]))
    lanes(monkeypatch, 256)
    x, y, context_graph, mask = layer_inputs(graph, width, dtype, DEVICE)
    check({"score": name, "context": context}, x, y, context_graph, mask if masked else None)
