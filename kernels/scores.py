"""Score functions: one block per score, used by every back end. Blocks contain only arithmetic.

``h, r, t`` are the three rows of a triple, as tuples of ``columns`` values. ``g`` and ``q`` have the same
form: they are the gradients of the new rows of the head and of the relation. A value is a number in Numba, a
tile in Triton and one tensor of ``x.chunk(columns, -1)`` in PyTorch. With two columns, rows are [first half |
second half], and entry k of the first half belongs to entry k of the second. ``alpha`` and ``beta`` are the
two softmax weights of the triple. ``slope`` is dL/dpsi times ``psi_slope``. The members of a block are:

    columns             1, or 2 if a row consists of two halves
    psi_term(h, r, t)   terms that are summed over the d / columns entries of a row
    psi(total, sqrt)    the score, computed from that sum
    psi_slope(psi, where)
                        dpsi/dtotal up to the factor that the gradients below contain; None if it is one
    phi_ent(r, t)       the vector that the triple adds to its head, a tuple
    phi_rel(h, t)       the vector that the triple adds to its relation, a tuple
    grad_h(slope, beta, q, h, r, t)
    grad_r(slope, alpha, g, h, r, t)
    grad_t(slope, alpha, g, beta, q, h, r, t)
                        the triple's share of dL/dh, dL/dr, dL/dt, a tuple: through psi (``slope``),
                        phi_ent (``alpha``, ``g``) and phi_rel (``beta``, ``q``)

Each back end passes its version of ``sqrt`` and ``where``. Only TransH has ``planes``. Its relation row is [r
| w], where w is the normal of a plane. The CPU passes call the functions of TransH with r + c w in place of
r. Then TransE of raw entities equals TransE of projected entities (docs/op.md). The GPU passes do not support
planes.

The optional members below save instructions. The Triton passes process a triple (h, r, t) and its inverse (t,
r_back, h) together and use these members:

    product(h, r, t)    terms whose sum over the entries is linear in each row; the derivatives of the sum by
                        h and r are phi_ent and phi_rel. If ``product = psi_term`` and ``inverse`` is given,
                        the gradients follow from these two members
    inverse(r)          phi_rel(t, h) is inverse(phi_rel(h, t)). product(t, r, h) equals
                        product(h, inverse(r), t); without a product the same holds for psi_term
    add_grad_r(acc, slope, alpha, g, h, r, t, phi)
                        acc + grad_r; ``phi`` is the result of phi_rel
    add_grad_entity(acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, h, t)
                        acc + grad_h of (h, r, t) + grad_t of (t, r_back, h): both belong to h; ``g`` is the
                        gradient of the new row of t
    own_row             the two functions above leave out ``own_row`` * slope * (the row itself); the caller
                        adds this term once per row

Source: LightCAKE, arXiv 2102.10826, equations 1-6; docs/op.md, "The gradient of one layer".
"""

from typing import Any


class Product:
    """Base of the scores with psi equal to the sum."""

    psi_slope = None

    @staticmethod
    def psi(total, sqrt):
        return total


class Distance:
    """Base of the scores with psi = -sqrt(sum). The gradient at length zero is zero."""

    @staticmethod
    def psi(total, sqrt):
        return -sqrt(total)

    @staticmethod
    def psi_slope(psi, where):
        return where(psi < 0, -1.0 / where(psi < 0, psi, psi * 0 - 1), psi * 0)


class DistMult(Product):
    """psi = sum_k h_k r_k t_k, phi_ent = r * t, phi_rel = h * t."""

    columns = 1

    @staticmethod
    def psi_term(h, r, t):
        return h[0] * t[0] * r[0]

    product = psi_term

    @staticmethod
    def phi_ent(r, t):
        return (r[0] * t[0],)

    @staticmethod
    def phi_rel(h, t):
        return (h[0] * t[0],)

    @staticmethod
    def inverse(r):
        return r

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        return (t[0] * (slope * r[0] + beta * q[0]),)

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        return (t[0] * (slope * h[0] + alpha * g[0]),)

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        return (alpha * r[0] * g[0] + h[0] * (slope * r[0] + beta * q[0]),)


class TransE(Distance):
    """psi = -||t - r - h||, phi_ent = t - r, phi_rel = t - h. The gradient at length zero is zero."""

    columns = 1

    @staticmethod
    def psi_term(h, r, t):
        v = t[0] - h[0] - r[0]
        return v * v

    @staticmethod
    def phi_ent(r, t):
        return (t[0] - r[0],)

    @staticmethod
    def phi_rel(h, t):
        return (t[0] - h[0],)

    @staticmethod
    def inverse(r):
        return (-r[0],)

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        return (slope * (t[0] - h[0] - r[0]) - beta * q[0],)

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        return (slope * (t[0] - h[0] - r[0]) - alpha * g[0],)

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        return (alpha * g[0] + beta * q[0] - slope * (t[0] - h[0] - r[0]),)

    own_row = -1

    @staticmethod
    def add_grad_r(acc, slope, alpha, g, h, r, t, phi):
        return (acc[0] + slope * phi[0] - alpha * g[0],)

    @staticmethod
    def add_grad_entity(
        acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, h, t
    ):  # fmt: skip
        total = acc[0] + (slope + slope_back) * t[0] - slope * r[0] + slope_back * r_back[0]
        return (total - beta * q[0] + beta_back * q_back[0] + alpha_back * g[0],)


class ComplEx(Product):
    """psi = Re sum_k h_k r_k conj(t_k), phi_ent = conj(r) t, phi_rel = conj(h) t; halves: real, imaginary."""

    columns = 2

    @staticmethod
    def psi_term(h, r, t):
        return (h[0] * t[0] + h[1] * t[1]) * r[0] + (h[0] * t[1] - h[1] * t[0]) * r[1]

    product = psi_term

    @staticmethod
    def phi_ent(r, t):
        return (r[0] * t[0] + r[1] * t[1], r[0] * t[1] - r[1] * t[0])

    @staticmethod
    def phi_rel(h, t):
        return (h[0] * t[0] + h[1] * t[1], h[0] * t[1] - h[1] * t[0])

    @staticmethod
    def inverse(r):
        return (r[0], -r[1])

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        a, b = slope * r[0] + beta * q[0], slope * r[1] + beta * q[1]
        return (a * t[0] + b * t[1], a * t[1] - b * t[0])

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        a, b = slope * h[0] + alpha * g[0], slope * h[1] + alpha * g[1]
        return (a * t[0] + b * t[1], a * t[1] - b * t[0])

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        a, b = slope * r[0] + beta * q[0], slope * r[1] + beta * q[1]
        c, d = alpha * g[0], alpha * g[1]
        return (
            a * h[0] - b * h[1] + c * r[0] - d * r[1],
            a * h[1] + b * h[0] + c * r[1] + d * r[0],
        )


class SimplE(Product):
    """psi = sum_k (h_k r_k t'_k + t_k r'_k h'_k) / 2, phi its derivatives; halves: as head x, as tail x'.

    The second half of a relation row is the inverse relation.
    """

    columns = 2

    @staticmethod
    def psi_term(h, r, t):
        return (h[0] * t[1] * r[0] + h[1] * t[0] * r[1]) * 0.5

    product = psi_term

    @staticmethod
    def phi_ent(r, t):
        return (r[0] * t[1] * 0.5, r[1] * t[0] * 0.5)

    @staticmethod
    def phi_rel(h, t):
        return (h[0] * t[1] * 0.5, h[1] * t[0] * 0.5)

    @staticmethod
    def inverse(r):
        return (r[1], r[0])

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        a, b = slope * r[0] + beta * q[0], slope * r[1] + beta * q[1]
        return (a * t[1] * 0.5, b * t[0] * 0.5)

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        a, b = slope * h[0] + alpha * g[0], slope * h[1] + alpha * g[1]
        return (a * t[1] * 0.5, b * t[0] * 0.5)

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        a, b = slope * r[0] + beta * q[0], slope * r[1] + beta * q[1]
        c, d = alpha * g[0], alpha * g[1]
        return ((b * h[1] + d * r[1]) * 0.5, (a * h[0] + c * r[0]) * 0.5)


class RotatE(Distance):
    """psi = -||h r - t||, phi_ent = conj(r) t, phi_rel = conj(h) t; halves: real, imaginary.

    If r has modulus one, the sum of conj(h) t points to the rotation that brings the h closest to the t. The
    code does not require modulus one: the gradients are correct for any r. The gradient at length zero is
    zero.
    """

    columns = 2

    @staticmethod
    def psi_term(h, r, t):
        a, b = t[0] - h[0] * r[0] + h[1] * r[1], t[1] - h[0] * r[1] - h[1] * r[0]
        return a * a + b * b

    @staticmethod
    def phi_ent(r, t):
        return (r[0] * t[0] + r[1] * t[1], r[0] * t[1] - r[1] * t[0])

    @staticmethod
    def phi_rel(h, t):
        return (h[0] * t[0] + h[1] * t[1], h[0] * t[1] - h[1] * t[0])

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        a, b = slope * r[0] + beta * q[0], slope * r[1] + beta * q[1]
        c = slope * (r[0] * r[0] + r[1] * r[1])
        return (a * t[0] + b * t[1] - c * h[0], a * t[1] - b * t[0] - c * h[1])

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        a, b = slope * h[0] + alpha * g[0], slope * h[1] + alpha * g[1]
        c = slope * (h[0] * h[0] + h[1] * h[1])
        return (a * t[0] + b * t[1] - c * r[0], a * t[1] - b * t[0] - c * r[1])

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        a, b = slope * r[0] + beta * q[0], slope * r[1] + beta * q[1]
        c, d = alpha * g[0], alpha * g[1]
        return (
            a * h[0] - b * h[1] + c * r[0] - d * r[1] - slope * t[0],
            a * h[1] + b * h[0] + c * r[1] + d * r[0] - slope * t[1],
        )

    @staticmethod
    def product(h, r, t):
        return (h[0] * t[0] + h[1] * t[1]) * r[0] + (h[0] * t[1] - h[1] * t[0]) * r[1]

    @staticmethod
    def inverse(r):
        return (r[0], -r[1])

    @staticmethod
    def add_grad_r(acc, slope, alpha, g, h, r, t, phi):
        size = h[0] * h[0] + h[1] * h[1]
        a, b = g[0] * t[0] + g[1] * t[1], g[0] * t[1] - g[1] * t[0]
        return (
            acc[0] + slope * (phi[0] - size * r[0]) + alpha * a,
            acc[1] + slope * (phi[1] - size * r[1]) + alpha * b,
        )

    @staticmethod
    def add_grad_entity(
        acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, h, t
    ):  # fmt: skip
        a = slope * r[0] + beta * q[0] + slope_back * r_back[0] + beta_back * q_back[0]
        b = slope * r[1] + beta * q[1] - slope_back * r_back[1] - beta_back * q_back[1]
        c, d = alpha_back * r_back[0], alpha_back * r_back[1]
        size = slope * (r[0] * r[0] + r[1] * r[1]) + slope_back
        return (
            acc[0] + a * t[0] + b * t[1] + c * g[0] - d * g[1] - size * h[0],
            acc[1] + a * t[1] - b * t[0] + c * g[1] + d * g[0] - size * h[1],
        )


class TransH(TransE):
    """TransE of entities projected onto the relation's plane: x - <w, x> w.

    Source: Wang et al., 2014.
    """

    planes = True


def has_planes(block: Any) -> bool:
    """Return whether the relations of a block have planes."""
    return bool(getattr(block, "planes", False))


SCORES: dict[str, Any] = {
    "distmult": DistMult,
    "transe": TransE,
    "complex": ComplEx,
    "simple": SimplE,
    "rotate": RotatE,
    "transh": TransH,
}
