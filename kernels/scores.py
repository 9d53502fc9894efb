"""Score functions, one block a score, for every back end: arithmetic only.

``h, r, t`` are a triple's three rows as tuples of ``columns`` values, and so are ``g`` and ``q``, the
gradients of the head's and the relation's new rows. A value is a number in Numba, a tile in Triton, one of
``x.chunk(columns, -1)`` in PyTorch. With two columns a row is [first half | second half], and entry k of both
halves belongs together. ``alpha`` and ``beta`` are the triple's two softmax weights, ``slope`` is dL/dpsi
times ``psi_slope``. A block says:

    columns             1, or 2 where a row is made of two halves
    psi_term(h, r, t)   summed over a row's d / columns entries
    psi(total, sqrt)    the score, from that sum
    psi_slope(psi, where)
                        dpsi/dtotal up to the factor that the gradients below have; None where it is one
    phi_ent(r, t)       what the triple adds to its head, a tuple
    phi_rel(h, t)       what it adds to its relation, a tuple
    grad_h(slope, beta, q, h, r, t)
    grad_r(slope, alpha, g, h, r, t)
    grad_t(slope, alpha, g, beta, q, h, r, t)
                        the triple's share of dL/dh, dL/dr, dL/dt, a tuple: through psi (``slope``),
                        phi_ent (``alpha``, ``g``) and phi_rel (``beta``, ``q``)

``sqrt`` and ``where`` are the back end's own. TransH alone has ``planes``: a relation's row is [r | w], w the
normal of a plane, and in the CPU's passes its functions get r + c w for r, by which TransE's of projected
entities are those of raw ones (docs/op.md); the GPU's passes lack it.

Optional, each for the instructions that it saves where a triple and its inverse (t, r_back, h) are settled
together, as the Triton passes do:

    product(h, r, t)    summed over a row's entries a number linear in each row, whose derivatives by h and r
                        are phi_ent and phi_rel; where ``product = psi_term`` and ``inverse`` is given, the
                        gradients follow from these
    inverse(r)          phi_rel(t, h) is inverse(phi_rel(h, t)), and product(t, r, h), or without one
                        psi_term(t, r, h), is that of (h, inverse(r), t)
    add_grad_r(acc, slope, alpha, g, h, r, t, phi)
                        acc + grad_r; ``phi`` is what phi_rel gave
    add_grad_entity(acc, slope, beta, r, q, slope_back, beta_back, alpha_back, r_back, q_back, g, h, t)
                        acc + grad_h of (h, r, t) + grad_t of (t, r_back, h): both are h's; ``g`` is that of t
    own_row             these two leave out ``own_row`` * slope * the row itself, which is added once a row

Source: LightCAKE, arXiv 2102.10826, equations 1-6; docs/op.md, "The gradient of one layer".
"""

from typing import Any


class Product:
    """What scores share whose psi is the sum itself."""

    psi_slope = None

    @staticmethod
    def psi(total, sqrt):
        return total


class Distance:
    """What scores share whose psi is minus the square root of the sum; a zero length has gradient zero."""

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
    """psi = -||t - r - h||, phi_ent = t - r, phi_rel = t - h; a zero length has gradient zero."""

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

    A relation's second half is its inverse.
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

    With r of modulus one, sums of conj(h) t point to the rotation that takes the h nearest to the t; nothing
    here asks for it, so the gradients are those of any r. A zero length has gradient zero.
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
    """TransE of entities projected onto the relation's plane: x - <w, x> w. Source: Wang et al., 2014."""

    planes = True


def has_planes(block: Any) -> bool:
    """Whether a block's relations have planes."""
    return bool(getattr(block, "planes", False))


SCORES: dict[str, Any] = {
    "distmult": DistMult,
    "transe": TransE,
    "complex": ComplEx,
    "simple": SimplE,
    "rotate": RotatE,
    "transh": TransH,
}
