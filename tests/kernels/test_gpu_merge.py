"""Triton's merge of rows against plain sums: few parts, one block of parts, and more."""

import pytest
import torch

from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.gpu_merge import merge_pass, sum_pass
from tests.support.comparison import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS = (1, 130, 3, 0, 16, 21, 64)  # parts of three relations, then of four entities


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_merged_from_their_parts(dtype: torch.dtype) -> None:
    width, random = 20, torch.Generator().manual_seed(0)
    bounds = torch.tensor([0, *PARTS]).cumsum(0)
    part = torch.randn(int(bounds[-1]), width, generator=random).to(DEVICE, dtype)
    top = 40 * torch.randn(len(part), generator=random).to(DEVICE, dtype)
    total = torch.rand(len(part), generator=random).to(DEVICE, dtype)
    x, y = (
        torch.randn(9, width, generator=random).to(DEVICE, dtype),
        torch.zeros(3, width, device=DEVICE).to(part),
    )
    rows = torch.tensor([0, 1, 2, 8, 0, 3, 5], dtype=torch.int32, device=DEVICE)
    shape, programs, relation_programs = gpu_launch.merge_shape(3, 4, width, dtype)
    chosen = {
        "row_ptr": rows, "bound_ptr": bounds.int().to(DEVICE), "part_ptr": part, "relation_rows": 3,
        "relation_programs": relation_programs, **shape,
    }  # fmt: skip
    new_x, new_y, norm_x, norm_y = x.clone(), y.clone(), x[:, :2].clone(), y[:, :2].clone()
    merge_pass[(programs,)](
        x_ptr=x, y_ptr=y, part_top_ptr=top, part_total_ptr=total, new_x_ptr=new_x, new_y_ptr=new_y,
        sum_x_ptr=new_x, sum_y_ptr=new_y, norm_x_ptr=norm_x, norm_y_ptr=norm_y, HAS_SUM=False, **chosen,
    )  # fmt: skip
    grad_x, grad_y = x.clone(), y.clone()
    sum_pass[(programs,)](g_ptr=x, q_ptr=y, grad_x_ptr=grad_x, grad_y_ptr=grad_y, **chosen)
    for n, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        of, new, norm, grad = (y, new_y, norm_y, grad_y) if n < 3 else (x, new_x, norm_x, grad_x)
        row = int(rows[n])
        wide, weighed = part[start:end].double(), top[start:end].double() + total[start:end].double().log()
        added = (wide / total[start:end, None].double() * weighed.softmax(0)[:, None]).sum(0)
        assert_close(new[row], of[row].double() + added, name=f"row of {end - start}", slack=8.0)
        assert_close(grad[row], of[row].double() + wide.sum(0), name=f"gradient of {end - start}", slack=4.0)
        if end > start:
            assert norm[row, 0] == top[start:end].max()
            assert_close(
                norm[row, 0] - norm[row, 1].log(), weighed.logsumexp(0), name=f"norm of {end - start}"
            )
        else:
            assert norm[row, 0] == torch.inf
