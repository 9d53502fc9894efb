"""Scores of every raw relation for a batch of pairs, as one matrix.

Heads and tails have shape (B, d), relations (R, d), or (R, 2 d) with normals, scores (B, R). One or two
matrix products suffice, without a tensor of B x R x d. A complex row of d/2 numbers is stored as d reals:
real parts, then imaginary parts.

The square of a distance is expanded, and its terms cancel for short distances. So it is computed in float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def distmult(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = sum_i h_i r_i t_i.

    Source: Yang et al., ICLR 2015, arXiv 1412.6575.
    """
    return PRODUCTS["distmult"](heads, tails) @ relations.T


def complex_(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = Re sum_i h_i r_i conj(t_i) over complex numbers.

    Source: Trouillon et al., ICML 2016, arXiv 1606.06357.
    """
    return PRODUCTS["complex"](heads, tails) @ relations.T


def simple(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = (<h, r, t'> + <t, r', h'>) / 2, where x and x' are the halves of a row.

    Source: Kazemi and Poole, NeurIPS 2018, arXiv 1802.04868.
    """
    return PRODUCTS["simple"](heads, tails) @ relations.T


def transe(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = -||t - r - h||.

    Source: Bordes et al., NeurIPS 2013.
    """
    h, r, t = heads.double(), relations.double(), tails.double()
    difference = t - h
    lengths, relation_lengths = _squares(difference)[:, None], _squares(r)
    squared = lengths + relation_lengths - 2 * difference @ r.T
    return _negative_root(squared, lengths + relation_lengths.max()).to(heads.dtype)


def rotate(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = -||h r - t|| over complex numbers, from ||h r||^2 + ||t||^2 - 2 Re <h r, t>.

    Source: Sun et al., ICLR 2019, arXiv 1902.10197, with the Euclidean length.
    """
    h, r, t = heads.double(), relations.double(), tails.double()
    turned = _squared_moduli(h) @ _squared_moduli(r).T
    tail_lengths = _squares(t)[:, None]
    squared = turned + tail_lengths - 2 * _turns(h, t) @ r.T
    return _negative_root(squared, turned + tail_lengths).to(heads.dtype)


def transh(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = -||h' + r - t'||, x' = x - <w, x> w: projected onto the plane with the relation's normal w.

    A relation's row is [r | w], w of length one. Unlike the paper, this score has no soft constraint that r
    lies in the plane, and it does not square the distance, like TransE here.

    Source: Wang et al., AAAI 2014.
    """
    translations, normals = relations.double().chunk(2, 1)
    difference = tails.double() - heads.double()
    along = difference @ normals.T  # the part of the difference that the projection removes
    lengths, translation_lengths = _squares(difference)[:, None], _squares(translations)
    squared = (
        lengths
        + along.square() * (_squares(normals) - 2)  # float32 rounding changes the length of a normal
        - 2 * (difference @ translations.T - along * (translations * normals).sum(1))
        + translation_lengths
    )
    return _negative_root(squared, lengths + translation_lengths.max()).to(heads.dtype)


def with_normals(relations: Tensor, normals: Tensor) -> Tensor:
    """Return rows [r | w] (R, 2 d) from relations and normals (R, d) of any length."""
    return torch.cat([relations, functional.normalize(normals, dim=1)], 1)


def of_modulus_one(relations: Tensor) -> Tensor:
    """Divide each complex number by its modulus; zero stays zero."""
    squared = _squared_moduli(relations)
    return relations * squared.clamp_min(torch.finfo(squared.dtype).tiny).rsqrt().repeat(1, 2)


def negative_length(squared: Tensor) -> Tensor:
    """Return -sqrt. Negative squares from rounding count as zero, and zero has gradient zero."""
    return -squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()


def _negative_root(squared: Tensor, terms: Tensor) -> Tensor:
    """Return -sqrt; a square below 8 rounding errors of its terms becomes this limit, with gradient zero."""
    least = 8 * torch.finfo(squared.dtype).eps * terms.detach()
    return negative_length(torch.maximum(squared, least))


def _squares(rows: Tensor) -> Tensor:
    return rows.square().sum(1)


def _squared_moduli(rows: Tensor) -> Tensor:
    """Return the squared moduli (B, d/2) of rows of complex numbers."""
    real, imaginary = rows.chunk(2, 1)
    return real.square() + imaginary.square()


def _times_conjugate(heads: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary part of h conj(t), each (B, d/2)."""
    (a, b), (c, d) = heads.chunk(2, 1), tails.chunk(2, 1)
    return a * c + b * d, b * c - a * d


def _turns(heads: Tensor, tails: Tensor) -> Tensor:
    """Return rows with the property that their products with a relation's row are Re <h r, t>."""
    real, imaginary = _times_conjugate(heads, tails)
    return torch.cat([real, -imaginary], 1)


def _crossed(heads: Tensor, tails: Tensor) -> Tensor:
    (h_as_head, h_as_tail), (t_as_head, t_as_tail) = heads.chunk(2, 1), tails.chunk(2, 1)
    return torch.cat([h_as_head * t_as_tail, t_as_head * h_as_tail], 1) / 2


# For scores that are a product with the relation's row: the other factor, (B, d), from heads and tails.
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "distmult": torch.mul,
    "complex": _turns,
    "simple": _crossed,
}

SCORERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "distmult": distmult,
    "transe": transe,
    "complex": complex_,
    "simple": simple,
    "rotate": rotate,
    "transh": transh,
}
