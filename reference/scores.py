"""Score functions in plain PyTorch, to be read beside the paper's equations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """A score function and its two context functions, on rows of any shape [..., d].

    Source: LightCAKE, arXiv 2102.10826, equations 1-6 and section 4.
    """

    psi: Callable[[Tensor, Tensor, Tensor], Tensor]  # (e_h, e_r, e_t) -> [...]
    phi_ent: Callable[[Tensor, Tensor], Tensor]  # (e_r, e_t) -> [..., d], what a triple adds to its head
    phi_rel: Callable[[Tensor, Tensor], Tensor]  # (e_h, e_t) -> [..., d], what it adds to its relation


DISTMULT = Score(
    psi=lambda e_h, e_r, e_t: (e_h * e_r * e_t).sum(-1),
    phi_ent=lambda e_r, e_t: e_t * e_r,
    phi_rel=lambda e_h, e_t: e_t * e_h,
)

TRANSE = Score(
    psi=lambda e_h, e_r, e_t: -torch.linalg.vector_norm(e_t - e_r - e_h, dim=-1),
    phi_ent=lambda e_r, e_t: e_t - e_r,
    phi_rel=lambda e_h, e_t: e_t - e_h,
)

SCORES = {"distmult": DISTMULT, "transe": TRANSE}
