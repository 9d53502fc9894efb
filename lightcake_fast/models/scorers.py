"""The score of every raw relation for each of a batch of pairs, as one matrix.

Heads and tails have shape (B, d), relations (R, d), or (R, 2 d) with normals, scores (B, R): one or two
matrix products, without a tensor of B x R x d. A complex row of d/2 numbers lies as d reals: real parts, then
imaginary parts.
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
    difference = tails - heads
    squared = (
        difference.square().sum(1, keepdim=True) + relations.square().sum(1) - 2 * difference @ relations.T
    )
    return negative_length(squared)


def rotate(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = -||h r - t|| over complex numbers, each number of a relation's row of modulus one.

    ||h||^2 + ||t||^2 - 2 Re <h r, t> loses the digits of a small length to those of h and t: below 1e-3 of
    them in float32 it would be noise with a steep gradient, and counts as just that, with gradient zero.

    Source: Sun et al., ICLR 2019, arXiv 1902.10197, with the Euclidean length.
    """
    turned = _turns(heads, tails) @ relations.T
    lengths = heads.square().sum(1, keepdim=True) + tails.square().sum(1, keepdim=True)
    least = 8 * torch.finfo(lengths.dtype).eps * lengths.detach()
    return negative_length(torch.maximum(lengths - 2 * turned, least))


def transh(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = -||h' + r - t'||, x' = x - <w, x> w: projected onto the plane with the relation's normal w.

    A relation's row is [r | w], w of length one. The paper's soft constraint that r lie in the plane is left
    out, and the length is not squared, as in TransE here. What the projection takes away, and lengths that
    cancel, cost digits: a square below 8 roundings of what it is made of counts as that, with gradient zero.

    Source: Wang et al., AAAI 2014.
    """
    translations, normals = relations.chunk(2, 1)
    difference = tails - heads
    along = difference @ normals.T  # the part of the difference that the projection takes away
    lengths, translation_lengths = difference.square().sum(1, keepdim=True), translations.square().sum(1)
    squared = (
        lengths
        - along.square()
        - 2 * (difference @ translations.T - along * (translations * normals).sum(1))
        + translation_lengths
    )
    least = 8 * torch.finfo(lengths.dtype).eps * (lengths + translation_lengths.max()).detach()
    return negative_length(torch.maximum(squared, least))


def with_normals(relations: Tensor, normals: Tensor) -> Tensor:
    """Rows [r | w] (R, 2 d) of relations and normals (R, d) of any length."""
    return torch.cat([relations, functional.normalize(normals, dim=1)], 1)


def of_modulus_one(relations: Tensor) -> Tensor:
    """Rows of complex numbers, each divided by its modulus; a zero stays one."""
    real, imaginary = relations.chunk(2, 1)
    squared = real.square() + imaginary.square()
    return relations * squared.clamp_min(torch.finfo(squared.dtype).tiny).rsqrt().repeat(1, 2)


def negative_length(squared: Tensor) -> Tensor:
    """-sqrt, where a square that rounding makes negative counts as zero, and zero has gradient zero."""
    return -squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()


def _times_conjugate(heads: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of h conj(t), each (B, d/2)."""
    (a, b), (c, d) = heads.chunk(2, 1), tails.chunk(2, 1)
    return a * c + b * d, b * c - a * d


def _turns(heads: Tensor, tails: Tensor) -> Tensor:
    """Rows whose products with a relation's are Re <h r, t>."""
    real, imaginary = _times_conjugate(heads, tails)
    return torch.cat([real, -imaginary], 1)


def _crossed(heads: Tensor, tails: Tensor) -> Tensor:
    (h_as_head, h_as_tail), (t_as_head, t_as_tail) = heads.chunk(2, 1), tails.chunk(2, 1)
    return torch.cat([h_as_head * t_as_tail, t_as_head * h_as_tail], 1) / 2


# Of scores that are a product with the relation's row: the other factor, (B, d), of heads and tails.
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
