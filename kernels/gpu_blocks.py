"""The blocks of ``scores.py`` as Triton functions, and the calls that the passes make.

The passes process a triple (h, r, t) and its inverse (t, r_back, h) together and add gradients to existing
sums. A block can have optional members for this (``scores.py``, "optional"). Without them, its required
members are called once for each of the two triples. Rows are tuples of ``columns`` tiles (BLOCK_E, BLOCK_D).
Weights have shape (BLOCK_E, 1).
"""

import functools
from typing import Any, NamedTuple

import triton
import triton.language as tl

from lightcake_fast.kernels.gpu_tiles import add_dot, add_row, add_scaled_row, scale_row


class Block(NamedTuple):
    """The functions of a score. Optional functions that the score lacks are None."""

    psi_term: Any
    psi: Any
    psi_slope: Any
    phi_ent: Any
    phi_rel: Any
    grad_h: Any
    grad_r: Any
    grad_t: Any
    product: Any
    inverse: Any
    psi_inverse: Any  # equals ``inverse`` if it gives psi of an inverse triple, else None
    add_grad_r: Any
    add_grad_entity: Any


class Compiled(NamedTuple):
    """A block in the form that kernel launches take: functions and constants."""

    block: Block
    columns: int
    bilinear: bool
    own_row: int


@functools.cache
def compile_block(score: Any) -> Compiled:
    """Prepare a block of ``scores.py`` for the device. Triton compiles it at the first launch of a pass."""
    members = {name: getattr(score, name, None) for name in Block._fields}
    product, inverse = members["product"], members["inverse"]
    bilinear = product is score.psi_term and inverse is not None
    members["psi_inverse"] = inverse if bilinear or product is None else None
    if not triton.knobs.runtime.interpret:
        members = {name: f and triton.jit(f) for name, f in members.items()}
    return Compiled(Block(**members), score.columns, bilinear, getattr(score, "own_row", 0))


@triton.jit
def sqrt(x):
    """``tl.sqrt``. Triton 3.5 does not accept ``tl.sqrt`` itself as an argument."""
    return tl.sqrt(x)


@triton.jit
def where(condition, a, b):
    """``tl.where``."""
    return tl.where(condition, a, b)


@triton.jit
def psi_term_back(h, r_back, t, block):
    """psi_term of the inverse triple."""
    if block.psi_inverse is None:  # not two returns: Triton also compiles the code after the first return
        term = block.psi_term(t, r_back, h)
    else:
        term = block.psi_term(h, block.psi_inverse(r_back), t)
    return term


@triton.jit
def phi_rel_back(h, t, block):
    """phi_rel of the inverse triple, computed from phi_rel of the triple if the block supports it."""
    if block.inverse is None:
        phi = block.phi_rel(t, h)
    else:
        phi = block.inverse(block.phi_rel(h, t))
    return phi


@triton.jit
def add_dot_phi_ent(acc, g, r, t, block):
    """``acc`` plus the terms of <g, phi_ent(r, t)>. If the block has a product, this is product(g, r, t)."""
    if block.product is not None:
        return acc + block.product(g, r, t)
    return add_dot(acc, g, block.phi_ent(r, t))


@triton.jit
def add_grad_r(acc, slope, alpha, g, h, r, t, phi, block, BILINEAR: tl.constexpr):
    """``acc`` plus the triple's share of dL/dr. ``phi`` is phi_rel of the triple."""
    if block.add_grad_r is not None:
        return block.add_grad_r(acc, slope, alpha, g, h, r, t, phi)
    if BILINEAR:
        return add_scaled_row(add_scaled_row(acc, slope, phi), alpha, block.phi_rel(g, t))
    return add_row(acc, block.grad_r(slope, alpha, g, h, r, t))


@triton.jit
def add_grad_entity(
    acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, h, t, block,
    BILINEAR: tl.constexpr,
):  # fmt: skip
    """``acc`` plus dL/dh of a triple (as its head) and of its inverse (as its tail). ``g`` is of row t."""
    if block.add_grad_entity is not None:
        return block.add_grad_entity(
            acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, h, t
        )
    if BILINEAR:
        turned, turned_q = block.inverse(r_back), block.inverse(q_back)
        both = add_scaled_row(add_scaled_row(scale_row(r, slope), beta, q), slope_back, turned)
        both = add_scaled_row(both, beta_back, turned_q)
        acc = add_row(acc, block.phi_ent(both, t))
        return add_row(acc, block.phi_ent(scale_row(turned, alpha_back), g))
    acc = add_row(acc, block.grad_h(slope, beta, q, h, r, t))
    return add_row(acc, block.grad_t(slope_back, alpha_back, g, beta_back, q_back, t, r_back, h))
