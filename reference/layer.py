"""One LightCAKE layer in plain PyTorch: the oracle of the tests, the "eager" baseline of the benchmarks."""

import torch
from torch import Tensor

from lightcake_fast.reference.scores import SCORES


def context_layer(
    entities: Tensor,
    relations: Tensor,
    triples: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    score: str,
    context: str,
    residual: bool = True,
    rows: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Add to each entity and relation the softmax-weighted sum over its context triples.

    Args:
        entities: shape (N, d), any float dtype.
        relations: shape (2R, d), or (2R, 2 d) for a score with planes. The inverse of relation r is r + R.
        triples: ids of all E context triples, inverses included: (h, r, t), each int64 of shape (E,).
        mask: bool of shape (E,) or None. True masks the context triple.
        score: a key of ``SCORES``.
        context: "both", "entity" or "relation".
        residual: False returns only the sums, without the old rows.
        rows: "float32" reads the entities as given in all triples, "bfloat16" reads them rounded to bfloat16.

    Returns:
        The new entities (N, d), and new relations of the same shape as ``relations``.

    Source: LightCAKE, arXiv 2102.10826, equations 1-6.
    """
    h, r, _ = triples
    functions = SCORES[score]
    read = rounded(entities) if rows == "bfloat16" else entities
    e_h, e_r, e_t = functions.gather(read, relations, triples)
    s = functions.psi(e_h, e_r, e_t)
    new_entities, new_relations = (
        table if residual else nothing_added(table) for table in (entities, relations)
    )
    if context != "relation":
        alpha = segment_softmax(s, h, len(entities), mask)
        new_entities = new_entities.index_add(0, h, alpha[:, None] * functions.phi_ent(e_r, e_t))
    elif residual:
        new_entities = new_entities.clone()  # a result must not alias an argument
    if context != "entity":
        beta = segment_softmax(s, r, len(relations), mask)
        new_relations = _plus(new_relations, r, beta[:, None] * functions.phi_rel(e_h, e_t))
    elif residual:
        new_relations = new_relations.clone()
    return new_entities, new_relations


def _plus(table: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """Return a table with rows (E, d) added to the first d columns."""
    d = rows.shape[1]
    if d == table.shape[1]:
        return table.index_add(0, ids, rows)
    return torch.cat([table[:, :d].index_add(0, ids, rows), table[:, d:]], 1)


def rounded(table: Tensor) -> Tensor:
    """Round a table to the nearest bfloat16 values, in its dtype.

    Autograd treats the result as the table itself.
    """
    off = (table.bfloat16().to(table.dtype) - table).detach()
    # Keep infinities as they are. Values beyond the largest bfloat16 round to infinity.
    return table + off.nan_to_num(0.0, torch.inf, -torch.inf)


def nothing_added(table: Tensor) -> Tensor:
    """Return zeros that autograd treats as a function of the table."""
    return torch.zeros_like(table) + table[:0].sum()


def context_weights(
    entities: Tensor,
    relations: Tensor,
    triples: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    score: str,
    rows: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Return the weights (E,) of each context triple: alpha in its head's context, beta in its relation's."""
    h, r, _ = triples
    functions = SCORES[score]
    read = rounded(entities) if rows == "bfloat16" else entities
    s = functions.psi(*functions.gather(read, relations, triples))
    return segment_softmax(s, h, len(entities), mask), segment_softmax(s, r, len(relations), mask)


def segment_softmax(s: Tensor, segment: Tensor, num_segments: int, mask: Tensor | None) -> Tensor:
    """Softmax of the scores s (E,) within each segment. A masked score has weight zero."""
    if mask is not None:
        s = s.masked_fill(mask, -torch.inf)
    top = s.new_full((num_segments,), -torch.inf).scatter_reduce(0, segment, s.detach(), "amax")
    top = top.masked_fill(top == -torch.inf, 0)  # a segment without a live triple
    exponent = (s - top.index_select(0, segment)).exp()
    total = s.new_zeros(num_segments).index_add(0, segment, exponent)
    total = total.masked_fill(total == 0, 1)
    return exponent / total.index_select(0, segment)
