"""An encoder after CompGCN: neighbors composed with relations, one matrix per direction; then DistMult."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.batches import batches
from lightcake_fast.models.neighbours import Neighbours, neighbours, sum_rows, threads_for
from lightcake_fast.models.scorers import distmult
from lightcake_fast.models.weights import check_at_least, check_choice, xavier
from lightcake_fast.sharding.layer import AnyGraph, with_halo

COMPOSITIONS = ("sub", "mult", "corr")


class CompGCNLayer(nn.Module):
    """e_h' = tanh(m_O W_O + m_I W_I + phi(e_h, z) W_S) and e_r' = e_r W_rel.

    m_O is the mean of phi(e_t, e_r) over the original triples (h, r, t), m_I the mean over inverse triples.
    Every phi is linear in e_t. So the layer sums the neighbors by relation, then composes the sums, then
    multiplies them by the matrices. It makes no tensor with one row per context triple.

    Args:
        dim: d.
        composition: phi(e, z): "sub", e - z; "mult", the elementwise product; "corr", the circular
            correlation: element k is the sum over i of e_i z_{(i + k) mod d}.
        generator: random generator for the initial values.
        dtype: floating-point dtype of the parameters.

    Shapes:
        ``of_original``, ``of_inverse``, ``of_self`` and ``of_relation`` (d, d); ``loop`` (d,), the z of the
        self-loop. Rows are multiplied from the left.

    Raises:
        ValueError: if the composition is unknown.

    Source: Vashishth et al., ICLR 2020, arXiv 1911.03082, section 4. Unlike the paper, each direction is
    averaged, not summed. Unlike the authors' code, there is no batch normalization or bias.
    """

    def __init__(
        self,
        dim: int,
        *,
        composition: str = "mult",
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_choice("composition", composition, COMPOSITIONS)
        made: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.composition = composition
        self.of_original, self.of_inverse, self.of_self, self.of_relation = (
            xavier(dim, dim, **made) for _ in range(4)
        )
        self.loop = nn.Parameter(xavier(1, dim, **made)[0].detach())

    def forward(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the new rows (N, d) of the entities and the new rows (2R, d) of the relations.

        Args:
            entities: (N, d); with a shard, the rows that this rank owns.
            relations: (2R, d).
            graph: the context on the same device, or a shard of it.
            mask: bool (T,), triples to leave out together with their inverses, or None.
        """
        x, whole = with_halo(entities, graph)
        z, phi = torch.cat([relations, self.loop[None]]), self.composition
        if phi == "corr":
            x, z = _frequencies(x), _frequencies(z)
        found, own = neighbours(whole), len(entities)
        shares = found.direction_shares(mask, entities.dtype)
        means: Tensor = _Means.apply(x, z[:-1], *shares, phi, found)  # type: ignore[no-untyped-call]
        sides = [*means[:, :own], _composed(x[:own], z[-1], torch.ones_like(x[:own, 0]), phi)]
        if phi == "corr":
            sides = [_of_frequencies(side, entities.shape[1]) for side in sides]
        original, inverse, itself = sides
        out = original @ self.of_original + inverse @ self.of_inverse + itself @ self.of_self
        return out.tanh(), relations @ self.of_relation


class _Means(torch.autograd.Function):
    """The means of phi(x_t, z_r) over original triples and over inverse triples, (2, N, w).

    It keeps the rows of one batch at a time. A row has w real numbers. For "corr" they are the real and
    imaginary parts of its frequencies, and phi is conj(x) z.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor, of_entry: Tensor, of_group: Tensor, phi: str, found: Neighbours
    ) -> Tensor:
        ctx.save_for_backward(x, z, of_entry, of_group)
        ctx.phi, ctx.found = phi, found
        out, totals = x.new_zeros(2, *x.shape), functional.pad(of_group, (0, 1))
        for batch in batches(found, x.shape[1]):
            with threads_for(batch.entries, x.shape[1]):
                sums = sum_rows(x, found.tail[batch.entries], batch.bounds, of_entry[batch.entries])
                total, z_rows = batch.in_tiles(totals[batch.groups]), batch.for_rows(z, batch.relations)
                rows = _composed(batch.in_tiles(sums), z_rows, total, phi)
                batch.add_to_heads(out[int(batch.inverse)], rows)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        x, z, of_entry, of_group = ctx.saved_tensors
        found, phi, totals = ctx.found, ctx.phi, functional.pad(of_group, (0, 1))
        of_inverse = of_entry.index_select(0, found.inverse)
        dx, dz = torch.zeros_like(x), torch.zeros_like(z)
        for batch in batches(found, x.shape[1]):
            with threads_for(batch.entries, x.shape[1]):
                tail = found.tail[batch.entries]
                rows = batch.in_tiles(g[int(batch.inverse)].index_select(0, batch.heads))
                if phi == "sub":
                    total = batch.in_tiles(totals[batch.groups])
                    tiles = -(total.unsqueeze(-2) @ rows).squeeze(-2)
                else:
                    sums = sum_rows(x, tail, batch.bounds, of_entry[batch.entries])
                    tiles = _product(batch.in_tiles(sums), rows, phi, conjugate=False).sum(-2)
                batch.add_to_relations(dz, tiles)
                # the heads of a relation are the neighbors by its inverse, which has the other direction
                side = g[int(not batch.inverse)]
                sums = batch.in_tiles(sum_rows(side, tail, batch.bounds, of_inverse[batch.entries]))
                if phi != "sub":
                    sums = _product(sums, batch.for_rows(z, batch.inverses), phi)
                batch.add_to_heads(dx, sums)
        return dx, dz, None, None, None, None


def _composed(sums: Tensor, z: Tensor, total: Tensor, phi: str) -> Tensor:
    """Return sum c phi(e, z), (..., M, w), from ``sums`` = sum c e and ``total`` = sum c, (..., M)."""
    return sums - total[..., None] * z if phi == "sub" else _product(sums, z, phi)


def _product(a: Tensor, b: Tensor, phi: str, *, conjugate: bool = True) -> Tensor:
    """Return a b by element. For "corr": conj(a) b or a b of complex numbers, stored as parts."""
    if phi == "mult":
        return a * b
    x, y = _complex(a), _complex(b)
    return torch.view_as_real((x.conj() if conjugate else x) * y).flatten(-2)


def _frequencies(rows: Tensor) -> Tensor:
    """Return the Fourier transform of real rows (M, d) as pairs (real, imaginary): (M, 2 (d // 2 + 1))."""
    if not len(rows):  # MKL rejects an empty transform
        return functional.pad(rows, (0, 2 - rows.shape[1] % 2))
    return torch.view_as_real(torch.fft.rfft(rows)).flatten(1)


def _of_frequencies(parts: Tensor, dim: int) -> Tensor:
    """Return the rows (M, d) from their ``_frequencies``."""
    rows: Tensor = torch.fft.irfft(_complex(parts), n=dim) if len(parts) else parts[:, :dim]
    return rows


def _complex(parts: Tensor) -> Tensor:
    """Return complex numbers from pairs (real, imaginary) in the last dimension."""
    return torch.view_as_complex(parts.view(*parts.shape[:-1], parts.shape[-1] // 2, 2))


class CompGCN(RelationModel):
    """CompGCN layers, scored by DistMult with the last layer's entities and relations.

    Args:
        num_entities: N.
        num_relations: R, raw relations; inverses have separate rows.
        dim: d, the width of all layers.
        layers: L, at least 1.
        composition: as in ``CompGCNLayer``.
        options: the options of ``RelationModel``.

    Shapes:
        ``entities`` (N, d); ``relations`` (2R, d); each of ``convolutions`` as in ``CompGCNLayer``.

    Source: Vashishth et al., ICLR 2020, arXiv 1911.03082; see ``CompGCNLayer`` for the differences.
    """

    entity_score = "distmult"

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        *,
        dim: int,
        layers: int,
        composition: str = "mult",
        **options: Any,
    ) -> None:
        check_at_least(1, layers=layers)
        rows = 2 * num_relations
        super().__init__(
            num_entities, num_relations, dim=dim, relation_rows=rows, has_context=True, **options
        )
        made: dict[str, Any] = {"generator": options.get("generator"), "dtype": self.entities.dtype}
        self.convolutions = nn.ModuleList(
            CompGCNLayer(dim, composition=composition, **made) for _ in range(layers)
        )

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        for convolution in self.convolutions:
            entities, relations = convolution(entities, relations, graph, mask)
        return entities, relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return distmult(heads, relations, tails)
