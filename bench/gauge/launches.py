"""Record the kernel launches of a layer and compile them for a GPU that need not be present."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import gpu_backward, gpu_forward, gpu_segments
from lightcake_fast.ops import gathered
from lightcake_fast.segments import Segments

# One cache per checkout. Triton's usual cache does not distinguish equal sources of two checkouts, and the
# machine code then refers to lines of the other checkout.
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "triton"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SEGMENTS = "segments"  # instead of a score: the general op


@dataclass(frozen=True)
class Case:
    """A layer to compile, forward and backward.

    Attributes:
        target: a key of ``TARGETS``.
        width: d.
        dtype: dtype of the embeddings.
        score: a score with Triton kernels, or ``SEGMENTS``.
        context: "both", "entity" or "relation".
        masked: with a mask, as in training.
        rows: dtype of the entity rows that context triples read.
    """

    target: str
    width: int = 256
    dtype: str = "float32"
    score: str = "distmult"
    context: str = "both"
    masked: bool = True
    rows: str = "float32"


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        name: name of the kernel with its module, because several passes have the same name.
        arguments: values of its parameters, by name.
        compiled: Triton's compiled kernel.
    """

    name: str
    arguments: Mapping[str, Any]
    compiled: Any


def launches(case: Case) -> list[Launch]:
    """Compile the kernel launches of a case. They run on no device and write no results."""
    found: list[Launch] = []
    run, active = JITFunction.run, driver._active

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        names = [p.name for p in self.params]
        bound = self.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
        bound.apply_defaults()
        name = f"{self.fn.__module__.rpartition('.')[2]}.{self.fn.__name__}"
        found.append(Launch(name, dict(bound.arguments), compiled))
        return compiled

    layer = _segments(case) if case.score == SEGMENTS else _layer(case)
    absent: Any = SimpleNamespace(  # Triton's caches see each target as a separate device
        get_current_target=lambda: TARGETS[case.target],
        get_current_device=lambda: case.target,
        get_current_stream=lambda device: 0,
    )
    driver.set_active(absent)
    try:
        with patch.object(JITFunction, "run", record), knobs.cache.scope():
            knobs.cache.dir = str(CACHE)
            layer()
    finally:
        driver.set_active(active)
    return found


def _layer(case: Case) -> Callable[[], Any]:
    random = torch.Generator().manual_seed(0)
    triples = torch.stack([torch.randint(n, (4096,), generator=random) for n in (64, 8, 64)], 1)
    plan = ContextGraph.from_triples(triples, 64, 8).gpu_plan
    x, y = (torch.zeros(size, case.width, dtype=DTYPES[case.dtype]) for size in (64, 16))
    mask = torch.zeros(len(triples), dtype=torch.bool) if case.masked else None
    copy = gathered(x, case.rows)

    def layer() -> None:
        new_x, new_y, s, norm_x, norm_y, *sums = gpu_forward.forward(
            x, y, plan, mask, case.score, case.context, gathered=copy
        )
        made = new_x, new_y, s, norm_x, norm_y
        gpu_backward.backward(x, y, x, y, *made, plan, case.score, *sums, gathered=copy)

    return layer


def _segments(case: Case) -> Callable[[], Any]:
    index = torch.randint(4, (1000,), generator=torch.Generator().manual_seed(0))  # hub rows, so they are cut
    segments = Segments.from_csr(torch.tensor([0, 200, *range(202, 1002, 2)]), index, 4)
    values, s = torch.zeros(4, 1, case.width, dtype=DTYPES[case.dtype]), torch.zeros(1000, 1)  # one head

    def layer() -> None:
        out, norm = gpu_segments.forward(s, values, segments.plan, segments.num_segments)
        gpu_segments.backward(out.to(values.dtype), s, values, out, norm, segments.plan)

    return layer
