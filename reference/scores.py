"""Score functions in plain PyTorch, built from the blocks of the kernels.

They are written so that a reader can compare them with the equations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.kernels.scores import SCORES as BLOCKS
from lightcake_fast.kernels.scores import has_planes


@dataclass(frozen=True)
class Score:
    """A score function and its two context functions, on rows of any shape (..., d).

    Attributes:
        psi: the score (...) of e_h, e_r, e_t.
        phi_ent: the vector (..., d) that a triple adds to its head, from e_r, e_t.
        phi_rel: the vector (..., d) that a triple adds to its relation, from e_h, e_t.
        columns: d must be a multiple of this number.
        planes: whether each relation has a plane, onto which the entities of its triples are projected first.
            Then a relation row is [r | w] with 2 d numbers, where w is the plane's normal of length one. The
            functions get r, and x - <w, x> w for an entity row x. The layer adds nothing to w.

    Source: LightCAKE, arXiv 2102.10826, equations 1-6 and section 4.
    """

    psi: Callable[[Tensor, Tensor, Tensor], Tensor]
    phi_ent: Callable[[Tensor, Tensor], Tensor]
    phi_rel: Callable[[Tensor, Tensor], Tensor]
    columns: int = 1
    planes: bool = False

    def read(self, e_h: Tensor, e_r: Tensor, e_t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Convert rows of the tables to the rows (..., d) that the functions get."""
        if not self.planes:
            return e_h, e_r, e_t
        r, normal = e_r.chunk(2, -1)
        return _projected(e_h, normal), r, _projected(e_t, normal)

    def gather(
        self, entities: Tensor, relations: Tensor, triples: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gather the rows that the functions get for triples (h, r, t), ids (E,) each, from two tables."""
        h, r, t = triples
        return self.read(
            entities.index_select(0, h), relations.index_select(0, r), entities.index_select(0, t)
        )


def _projected(rows: Tensor, normal: Tensor) -> Tensor:
    """Project rows (..., d) onto the planes with these normals of length one."""
    along = (rows * normal).sum(-1, keepdim=True)
    return torch.addcmul(rows, along, normal, value=-1)


def of_block(block: Any) -> Score:
    """Build a score from a block of ``kernels.scores``. Autograd computes its gradients."""

    def columns(row: Tensor) -> tuple[Tensor, ...]:
        return row.chunk(block.columns, -1)

    def psi(e_h: Tensor, e_r: Tensor, e_t: Tensor) -> Tensor:
        terms: Tensor = block.psi_term(columns(e_h), columns(e_r), columns(e_t))
        score: Tensor = block.psi(terms.sum(-1), square_root)
        return score

    def phi_ent(e_r: Tensor, e_t: Tensor) -> Tensor:
        return torch.cat(block.phi_ent(columns(e_r), columns(e_t)), -1)

    def phi_rel(e_h: Tensor, e_t: Tensor) -> Tensor:
        return torch.cat(block.phi_rel(columns(e_h), columns(e_t)), -1)

    return Score(psi, phi_ent, phi_rel, block.columns, has_planes(block))


def square_root(total: Tensor) -> Tensor:
    """A square root whose gradient at zero is zero."""
    zero = total == 0
    return total.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


SCORES = {name: of_block(block) for name, block in BLOCKS.items()}
