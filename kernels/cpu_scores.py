"""Score functions of the Numba kernels: one block a score, written for a single column of the rows.

``h, r, t`` are one column of a triple's three rows, ``g`` and ``q`` the same column of the gradients of
the head's and the relation's new rows, ``alpha`` and ``beta`` the triple's two softmax weights. A block
says:

    psi_term(h, r, t)   summed over the columns; psi(total) of that sum is the score
    phi_ent(r, t)       what the triple adds to its head
    phi_rel(h, t)       what it adds to its relation
    slope(delta, psi)   delta = dL/dpsi made into the factor of the column-wise gradients
    grad_h, grad_r, grad_t
                        the triple's share of dL/dh, dL/dr, dL/dt through psi (``slope``),
                        phi_ent (``alpha``, ``g``) and phi_rel (``beta``, ``q``)

Source: LightCAKE, arXiv 2102.10826, equations 1-6.
"""

import math
from typing import Any

from numba.extending import overload, register_jitable

from lightcake_fast.kernels.cpu_compiler import FAST


class DistMult:
    """psi = sum_k h_k r_k t_k, phi_ent = r * t, phi_rel = h * t."""

    @staticmethod
    def psi_term(h, r, t):
        return h * t * r

    @staticmethod
    def psi(total):
        return total

    @staticmethod
    def phi_ent(r, t):
        return r * t

    @staticmethod
    def phi_rel(h, t):
        return h * t

    @staticmethod
    def slope(delta, psi):
        return delta

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        return t * (slope * r + beta * q)

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        return t * (slope * h + alpha * g)

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        return alpha * r * g + h * (slope * r + beta * q)


class TransE:
    """psi = -||t - r - h||, phi_ent = t - r, phi_rel = t - h; a zero length has gradient zero."""

    @staticmethod
    def psi_term(h, r, t):
        v = t - h - r
        return v * v

    @staticmethod
    def psi(total):
        return -math.sqrt(total)

    @staticmethod
    def phi_ent(r, t):
        return t - r

    @staticmethod
    def phi_rel(h, t):
        return t - h

    @staticmethod
    def slope(delta, psi):
        return delta / -psi if psi != 0 else delta * 0

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        return slope * (t - h - r) - beta * q

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        return slope * (t - h - r) - alpha * g

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        return alpha * g + beta * q - slope * (t - h - r)


SCORES = {"distmult": DistMult, "transe": TransE}


def _column_function(name: str) -> Any:
    """``f(score, ...)``, compiled into a pass as the function of that name in the score's block."""

    def in_python(score: str, *columns: Any) -> Any:
        return getattr(SCORES[score], name)(*columns)

    @overload(in_python, jit_options=FAST, prefer_literal=True, strict=False)
    def resolve(score: Any, *columns: Any) -> Any:
        function = register_jitable(**FAST)(getattr(SCORES[score.literal_value], name))

        def compiled(score: Any, *columns: Any) -> Any:
            return function(*columns)

        return compiled

    return in_python


psi_term = _column_function("psi_term")
psi = _column_function("psi")
phi_ent = _column_function("phi_ent")
phi_rel = _column_function("phi_rel")
slope = _column_function("slope")
grad_h = _column_function("grad_h")
grad_r = _column_function("grad_r")
grad_t = _column_function("grad_t")
