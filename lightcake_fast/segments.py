"""Softmax over CSR segments times gathered rows: the core of the layer, for scores from any source."""

from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from lightcake_fast.backends import BACKENDS, runnable, without_transforms
from lightcake_fast.errors import InputError
from lightcake_fast.kernels import plan as kernels_plan
from lightcake_fast.kernels.segment_plan import SegmentPlan, build_segment_plan
from lightcake_fast.operators import launching, operator
from lightcake_fast.ops import autocast_first, check_real, check_tensor, no_second_derivative
from lightcake_fast.reference import segments as reference
from lightcake_fast.reference.partial import softmax_weights

_NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Segments:
    """M segments of E entries on one device; each entry refers to one of N rows. Make once, use many times.

    Attributes:
        num_segments: M.
        num_values: N, the number of rows.
        plan: index tensors for the fused passes, including the order by row for the gradient.
    """

    num_segments: int
    num_values: int
    plan: SegmentPlan

    @classmethod
    def from_csr(cls, indptr: Tensor, index: Tensor, num_values: int) -> "Segments":
        """Sort a CSR and cut it into chunks; the segments lie on the device of ``index``.

        Args:
            indptr: int64 of shape (M + 1,): segment m holds the entries indptr[m] to indptr[m + 1].
            index: int64 of shape (E,): the row of each entry; rows can repeat.
            num_values: N, greater than every index.

        Raises:
            TypeError: if an argument is not a tensor.
            ValueError: if a shape or dtype is wrong, ``indptr`` does not rise from 0 to E, an index is out of
                range, or E is 2^31 or more.
        """
        for name, tensor in (("indptr", indptr), ("index", index)):
            check_tensor(name, tensor)
            if tensor.dtype != torch.int64 or tensor.ndim != 1:
                raise ValueError(
                    f"{name}: expected torch.int64 (n,), got {tensor.dtype} {tuple(tensor.shape)}"
                )
        if len(index) >= 2**31:
            raise ValueError(f"index: expected fewer than 2^31 entries, got {len(index)}")
        bounds, rows = indptr.numpy(force=True), index.numpy(force=True)
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(rows) or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(
                f"indptr: expected bounds that rise from 0 to {len(rows)}, the length of index, got others"
            )
        if len(rows) and not 0 <= rows.min() <= rows.max() < num_values:
            raise ValueError(f"index: expected 0 to {num_values - 1}, got {rows.min()} to {rows.max()}")
        segments = cls(len(bounds) - 1, num_values, build_segment_plan(bounds, rows, num_values))
        return segments.to(index.device)

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_nodes: int) -> "tuple[Segments, Tensor]":
        """Make one segment per node from the edges that end there; entries refer to the starts, as in PyG.

        Args:
            edge_index: int64 of shape (2, E): starts, then ends, on one device, in any order.
            num_nodes: N, greater than every node.

        Returns:
            The segments, and the order of the edges in them, int64 (E,). For ``scores`` in the order of the
            edges, ``scores[order]`` are the scores in the order of the entries.

        Raises:
            TypeError: if ``edge_index`` is not a tensor.
            ValueError: if the shape or dtype is wrong, or a node is out of range.
        """
        check_tensor("edge_index", edge_index)
        if edge_index.dtype != torch.int64 or edge_index.ndim != 2 or len(edge_index) != 2:
            got = f"{edge_index.dtype} {tuple(edge_index.shape)}"
            raise ValueError(f"edge_index: expected torch.int64 (2, E), got {got}")
        for name, nodes in zip(("starts", "ends"), edge_index, strict=True):
            if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
                found = f"{nodes.min()} to {nodes.max()}"
                raise ValueError(f"{name} of edges: expected 0 to {num_nodes - 1}, got {found}")
        start, end = edge_index
        order = end.argsort(stable=True)
        indptr = torch.cat([end.new_zeros(1), torch.bincount(end, minlength=num_nodes).cumsum(0)])
        return cls.from_csr(indptr, start[order], num_nodes), order

    @property
    def num_entries(self) -> int:
        """E, the number of entries in all segments."""
        return len(self.plan.index)

    @property
    def device(self) -> torch.device:
        """The device of the segments."""
        return self.plan.index.device

    def to(self, device: torch.device | str) -> "Segments":
        """Return the same segments on another device."""
        plan = SegmentPlan(*(field.to(device) for field in self.plan))
        return Segments(self.num_segments, self.num_values, plan)


@overload
def segment_softmax_aggregate(
    scores: Tensor,
    values: Tensor,
    segments: Segments,
    mask: Tensor | None = None,
    return_weights: Literal[False] = False,
    *,
    backend: str = "auto",
) -> Tensor: ...


@overload
def segment_softmax_aggregate(
    scores: Tensor,
    values: Tensor,
    segments: Segments,
    mask: Tensor | None = None,
    *,
    return_weights: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


def segment_softmax_aggregate(
    scores: Tensor,
    values: Tensor,
    segments: Segments,
    mask: Tensor | None = None,
    return_weights: bool = False,
    *,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Sum the rows of each segment, weighted by a softmax of the segment's scores.

    ``out[m] = sum of w_e values[index_e]`` over the entries e of segment m. This is PyTorch Geometric's
    ``softmax`` followed by ``scatter``, without a tensor of E x d. It uses no atomics, so results are
    bitwise repeatable. Derivatives in ``scores`` and ``values``, and ``torch.autocast``, work as in
    ``context_layer``. A segment without unmasked entries gives zeros.

    Args:
        scores: shape (E,), in the order of the entries, or (E, H) for H heads with separate softmaxes; a
            score of -inf masks its entry.
        values: shape (N, d), d at least 1, or (N, H, d); float64, float32 or a 16-bit dtype. 16-bit rows
            are summed in float32. The softmax is computed in the dtype of the sums.
        segments: the entries, on the same device.
        mask: bool of shape (E,); True masks the entry in all heads. None masks nothing.
        return_weights: also return the softmax weights.
        backend: as in ``context_layer``.

    Returns:
        The sums (M, d) or (M, H, d), in the dtype of ``values``. With ``return_weights`` also the weights,
        in the shape and dtype of ``scores``.

    Raises:
        TypeError: if an argument is not a tensor, or ``segments`` is not ``Segments``.
        ValueError: if a shape, dtype, device or name is wrong, or the back end cannot run here.
    """
    check_tensor("scores", scores)
    check_tensor("values", values)
    if mask is not None:
        check_tensor("mask", mask)
    if not isinstance(segments, Segments):
        raise TypeError(
            f"segments: expected Segments, got {type(segments).__name__}: make them with Segments.from_csr"
        )
    scores, values = autocast_first(scores), autocast_first(values)
    backend = _checked(scores, values, segments, mask, backend)
    real = torch.float64 if values.dtype == torch.float64 else torch.float32
    s, plan, rows = scores.to(real), segments.plan, values
    if scores.ndim == 1:
        s, rows = s[:, None], rows[:, None]
    if backend == "reference":
        out, w = reference.segment_softmax_aggregate(
            s, rows.to(real), plan.segment.long(), plan.index.long(), segments.num_segments, mask
        )
    else:
        s = s if mask is None else s.masked_fill(mask[:, None], -torch.inf)
        rows = rows.to(real) if backend == "numba" else rows
        out, _, w = _aggregate(
            s.contiguous(), rows.contiguous(), list(plan), segments.num_segments, return_weights, backend
        )
    out = out.to(values.dtype)
    if scores.ndim == 1:
        out, w = out[:, 0], w[:, 0] if return_weights else w
    return (out, w.to(scores.dtype)) if return_weights else out


def _checked(scores: Tensor, values: Tensor, segments: Segments, mask: Tensor | None, backend: str) -> str:
    """Check the arguments; return the back end that "auto" selects."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    for name, tensor in (("scores", scores), ("values", values)):
        check_real(name, tensor)
    entries, heads = segments.num_entries, scores.shape[1:]
    if scores.ndim not in (1, 2) or len(scores) != entries or not all(heads):
        raise ValueError(f"scores: expected shape ({entries},) or ({entries}, H), got {tuple(scores.shape)}")
    if values.shape[:-1] != (segments.num_values, *heads) or not values.shape[-1]:
        wanted = ", ".join(map(str, (segments.num_values, *heads)))
        raise ValueError(f"values: expected shape ({wanted}, d) with d at least 1, got {tuple(values.shape)}")
    if max(entries, segments.num_values, segments.num_segments) * heads.numel() >= 2**31:
        raise ValueError(f"scores: expected fewer than 2^31 entries times heads, got {heads[0]} heads")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (entries,)):
        raise ValueError(f"mask: expected torch.bool ({entries},), got {mask.dtype} {tuple(mask.shape)}")
    for name, device in (
        ("scores", scores.device),
        ("segments", segments.device),
        ("mask", values.device if mask is None else mask.device),
    ):
        if device != values.device:
            raise ValueError(f"{name}: expected the device of the values, {values.device}, got {device}")
    chosen = without_transforms(runnable(backend, values.device.type), backend, scores, values)
    if chosen == "triton":
        _check_gpu_sizes(segments, heads.numel())
    return chosen


def _check_gpu_sizes(segments: Segments, heads: int) -> None:
    """Check that the kernels' 32-bit indices can number all chunks and rows."""
    plan = segments.plan
    chunks, rows = max(len(plan.chunk), len(plan.index_chunk)), segments.num_segments * heads
    for name, got, most in (
        ("chunks", chunks, kernels_plan.GPU_MOST_CHUNKS),
        ("rows", rows, kernels_plan.GPU_MOST_ROWS),
    ):
        if got > most:
            raise InputError(
                f"segments: expected at most {most:,} {name} for the back end 'triton', got {got:,}: use "
                "backend 'reference', or fewer segments at a time"
            )


def _kernels(backend: str) -> Any:
    if backend == "triton":
        from lightcake_fast.kernels import gpu_segments

        return gpu_segments
    from lightcake_fast.kernels import cpu_segments

    return cpu_segments


@operator("segment_softmax_aggregate")
def _aggregate(
    s: Tensor, values: Tensor, plan: list[Tensor], num_segments: int, with_weights: bool, backend: str
) -> list[Tensor]:
    order = SegmentPlan(*plan)
    if len(s):
        with launching(values.device, triton=backend == "triton"):
            out, norm = _kernels(backend).forward(s, values, order, num_segments)
    else:
        out = s.new_zeros(num_segments, *values.shape[1:])
        norm = s.new_zeros(num_segments, s.shape[1], 2)
    w = softmax_weights(s, norm, order.segment) if with_weights else s.new_empty(0)
    return [out, norm, w]


@_aggregate.register_fake
def _(
    s: Tensor, values: Tensor, plan: list[Tensor], num_segments: int, with_weights: bool, backend: str
) -> list[Tensor]:
    w = torch.empty_like(s) if with_weights else s.new_empty(0)
    return [s.new_empty(num_segments, *values.shape[1:]), s.new_empty(num_segments, s.shape[1], 2), w]


@operator("segment_softmax_aggregate_backward")
def _aggregate_backward(
    g: Tensor,
    c: Tensor | None,
    s: Tensor,
    values: Tensor,
    out: Tensor,
    norm: Tensor,
    plan: list[Tensor],
    backend: str,
) -> list[Tensor]:
    if not len(s):
        return [torch.zeros_like(s), torch.zeros_like(values)]
    kernels, order = _kernels(backend), SegmentPlan(*plan)
    with launching(values.device, triton=backend == "triton"):
        slope, grad_values, w = kernels.backward(g.to(values.dtype), s, values, out, norm, order)
        if c is not None:
            # the gradient of the returned weights needs its weighted mean, another sum of the same kind
            itself = torch.arange(len(s), dtype=torch.int32, device=s.device)
            mean, _ = kernels.forward(s, c[..., None].contiguous(), order._replace(index=itself), len(norm))
            slope += w * (c - mean[..., 0].index_select(0, order.segment))
    return [slope, grad_values]


@_aggregate_backward.register_fake
def _(
    g: Tensor,
    c: Tensor | None,
    s: Tensor,
    values: Tensor,
    out: Tensor,
    norm: Tensor,
    plan: list[Tensor],
    backend: str,
) -> list[Tensor]:
    return [torch.empty_like(s), torch.empty_like(values)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    s, values, plan, _, with_weights, backend = inputs
    ctx.set_materialize_grads(False)  # norms never need gradients
    ctx.save_for_backward(s, values, output[0], output[1], *plan)
    ctx.with_weights, ctx.backend = with_weights, backend


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    s, values, out, norm, *plan = ctx.saved_tensors
    g, _, c = gradients
    c = c if ctx.with_weights else None  # without weights, the output is an empty tensor
    g = torch.zeros_like(out) if g is None else g.contiguous()
    grad_s, grad_values = _aggregate_backward(g, c, s, values, out, norm, plan, ctx.backend)
    return grad_s, grad_values, [None] * len(plan), None, None, None


_aggregate_backward.register_autograd(no_second_derivative)
_aggregate.register_autograd(_differentiate, setup_context=_save)
_aggregate.register_autocast(torch.float32)
