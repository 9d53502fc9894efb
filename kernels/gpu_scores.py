"""Score functions of the Triton kernels: one block a score, written for tiles of the rows.

``h, r, t`` are tiles of a triple's three rows, shape (BLOCK_E, BLOCK_D), for BLOCK_E triples side by side;
``g`` and ``q`` the same tiles of the gradients of the head's and the relation's new rows; the weights
``alpha``, ``beta``, ``slope`` have shape (BLOCK_E, 1). A triple (h, r, t) and its inverse (t, r_back, h) are
settled together, so a block says what both share, and sums are passed through it to be fused with its last
product. A block says:

    phi_rel(h, t)           what the triple adds to its relation
    phi_rel_back(phi)       what its inverse adds to its own, from phi_rel(h, t)
    psi_term(acc, phi, r)   acc plus the term whose total over the columns psi makes the score
    psi(total)              the score
    phi_ent(r, t)           what the triple adds to its head
    dot_phi_ent(acc, g, r, t)
                            acc plus the terms of <g, phi_ent(r, t)>
    slope_factor(psi)       dL/dpsi times this is the factor of the column-wise gradients; None for one
    grad_r(acc, slope, alpha, g, phi, t)
                            acc plus the triple's share of dL/dr, but for the own-row term
    grad_ent(acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, t)
                            acc plus the triple's share of dL/dh and its inverse's share of dL/d(its tail),
                            which is the same entity, but for the own-row term; ``g`` is that of t
    OWN                     the own-row term: OWN * (sum of slopes) * the row itself, added once a row

Source: LightCAKE, arXiv 2102.10826, equations 1-6; docs/op.md, "The gradient of one layer".
"""

from typing import Any

import triton
import triton.language as tl


class DistMult:
    """psi = sum_k h_k r_k t_k, phi_ent = r * t, phi_rel = h * t."""

    OWN = 0
    slope_factor = None

    @staticmethod
    @triton.jit
    def phi_rel(h, t):
        return h * t

    @staticmethod
    @triton.jit
    def phi_rel_back(phi):
        return phi

    @staticmethod
    @triton.jit
    def psi_term(acc, phi, r):
        return tl.fma(phi, r, acc)

    @staticmethod
    @triton.jit
    def psi(total):
        return total

    @staticmethod
    @triton.jit
    def phi_ent(r, t):
        return r * t

    @staticmethod
    @triton.jit
    def dot_phi_ent(acc, g, r, t):
        return tl.fma(r, t * g, acc)

    @staticmethod
    @triton.jit
    def grad_r(acc, slope, alpha, g, phi, t):
        return tl.fma(slope, phi, tl.fma(alpha, t * g, acc))

    @staticmethod
    @triton.jit
    def grad_ent(acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, t):
        factor = tl.fma(slope, r, tl.fma(beta, q, tl.fma(slope_back, r_back, beta_back * q_back)))
        return tl.fma(t, factor, tl.fma(alpha_back * r_back, g, acc))


class TransE:
    """psi = -||t - r - h||, phi_ent = t - r, phi_rel = t - h; a zero length has gradient zero."""

    OWN = -1

    @staticmethod
    @triton.jit
    def phi_rel(h, t):
        return t - h

    @staticmethod
    @triton.jit
    def phi_rel_back(phi):
        return -phi

    @staticmethod
    @triton.jit
    def psi_term(acc, phi, r):
        v = phi - r
        return tl.fma(v, v, acc)

    @staticmethod
    @triton.jit
    def psi(total):
        return -tl.sqrt(total)

    @staticmethod
    @triton.jit
    def phi_ent(r, t):
        return t - r

    @staticmethod
    @triton.jit
    def dot_phi_ent(acc, g, r, t):
        return tl.fma(t - r, g, acc)

    @staticmethod
    @triton.jit
    def slope_factor(psi):
        return tl.where(psi < 0, -1.0 / tl.where(psi < 0, psi, -1.0), 0.0)

    @staticmethod
    @triton.jit
    def grad_r(acc, slope, alpha, g, phi, t):
        return tl.fma(slope, phi, tl.fma(-alpha, g, acc))

    @staticmethod
    @triton.jit
    def grad_ent(acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, t):
        acc = tl.fma(slope_back, r_back, tl.fma(-slope, r, tl.fma(slope + slope_back, t, acc)))
        return tl.fma(alpha_back, g, tl.fma(beta_back, q_back, tl.fma(-beta, q, acc)))


SCORES: dict[str, Any] = {"distmult": DistMult, "transe": TransE}
