"""Measure launch shapes of the layer's kernels on the current device. A launch never starts a measurement."""

import torch
from triton.testing import do_bench

from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.gpu_backward import backward
from lightcake_fast.kernels.gpu_forward import forward
from lightcake_fast.kernels.plan import GpuPlan

VALUES = (8, 16, 32, 64)  # numbers of a row tile per lane
REGISTERS = (96, 128, 168, 255)  # registers per lane, on NVIDIA GPUs


def tune(
    plan: GpuPlan, entities: int, relations: int, width: int, dtype: torch.dtype, score: str
) -> dict[str, dict[tuple[int, int], float]]:
    """Measure a layer with each candidate, for one kernel after another, and keep the fastest shape.

    Returns:
        Milliseconds of a layer, forward and backward, by kernel and candidate.
    """
    random = torch.Generator(plan.raw.device).manual_seed(0)
    x, y = (
        torch.randn(rows, width, generator=random, device=plan.raw.device).to(dtype)
        for rows in (entities, relations)
    )

    def layer() -> None:
        new_x, new_y, s, norm_x, norm_y, *sums = forward(x, y, plan, None, score, "both")
        backward(x, y, x, y, new_x, new_y, s, norm_x, norm_y, plan, score, *sums)

    times: dict[str, dict[tuple[int, int], float]] = {}
    for kernel, shipped in gpu_launch.SHIPPED.items():
        times[kernel] = {}
        best = shipped
        for field, candidates in (("values", VALUES), ("registers", REGISTERS)):
            for candidate in candidates:
                shape = best._replace(**{field: candidate})
                gpu_launch.keep_shape(kernel, width, dtype, shape)
                times[kernel][shape] = do_bench(layer, return_mode="median")
            best = min(times[kernel], key=times[kernel].__getitem__)
        gpu_launch.keep_shape(kernel, width, dtype, best)
    return times
