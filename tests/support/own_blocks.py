# mypy: allow-untyped-defs, allow-untyped-calls
"""A user-defined block that uses two columns, a slope, a constant and a function of its module."""

FACTOR = 3.0


def both(a, b):
    return a + b


class Crossed:
    """psi = 3 sum (h0 r0 t1 + t0 r1 h1), phi_ent = (r0 t1, r1 t0), phi_rel = (h0 t1, h1 t0)."""

    columns = 2

    @staticmethod
    def psi_term(h, r, t):
        return both(h[0] * r[0] * t[1], t[0] * r[1] * h[1])

    @staticmethod
    def psi(total, sqrt):
        return FACTOR * total

    @staticmethod
    def psi_slope(psi, where):
        return where(psi < 0, FACTOR, psi * 0 + FACTOR)

    @staticmethod
    def phi_ent(r, t):
        return (r[0] * t[1], r[1] * t[0])

    @staticmethod
    def phi_rel(h, t):
        return (h[0] * t[1], h[1] * t[0])

    @staticmethod
    def grad_h(slope, beta, q, h, r, t):
        return (t[1] * both(slope * r[0], beta * q[0]), t[0] * both(slope * r[1], beta * q[1]))

    @staticmethod
    def grad_r(slope, alpha, g, h, r, t):
        return (t[1] * (slope * h[0] + alpha * g[0]), t[0] * (slope * h[1] + alpha * g[1]))

    @staticmethod
    def grad_t(slope, alpha, g, beta, q, h, r, t):
        return (
            h[1] * (slope * r[1] + beta * q[1]) + alpha * g[1] * r[1],
            h[0] * (slope * r[0] + beta * q[0]) + alpha * g[0] * r[0],
        )
