"""The context layer as one differentiable operator."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lightcake_fast.backends import (
    BACKENDS,
    Backend,
    backend_named,
    check_fused,
    layer_backend,
    runnable,
)
from lightcake_fast.errors import InputError
from lightcake_fast.operators import launching, operator
from lightcake_fast.reference import layer as reference
from lightcake_fast.reference import partial
from lightcake_fast.scores import score_named

if TYPE_CHECKING:
    from lightcake_fast.graph import ContextGraph

CONTEXTS = ("both", "entity", "relation")
ROWS = ("float32", "bfloat16")
_NARROW = (torch.float16, torch.bfloat16)
_REAL = (*_NARROW, torch.float32, torch.float64)
# computed at import: TorchDynamo of PyTorch 2.9 cannot trace is_autocast_available
_AUTOCAST = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)]


def context_layer(
    entities: Tensor,
    relations: Tensor,
    graph: "ContextGraph",
    *,
    score: str = "distmult",
    context: str = "both",
    mask: Tensor | None = None,
    residual: bool = True,
    rows: str = "float32",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute one LightCAKE layer: each row plus the softmax-weighted sum over its context triples.

    The fused back ends have first derivatives in ``entities`` and ``relations``. "reference" has derivatives
    of any order and mode, so "auto" selects it under ``torch.func`` and forward-mode differentiation. A row
    whose context triples are all masked does not change. Under ``torch.autocast`` the layer first casts to
    float32.

    Args:
        entities: shape (N, d); float32, float64 or a 16-bit dtype. 16-bit rows are summed in float32.
        relations: shape (2R, d), same dtype; row r + R is the inverse of relation r.
        graph: the context, on the same device.
        score: psi, the score function in the softmax: "distmult", "transe", "complex", "simple", "rotate",
            "transh" or a name given to ``register_score``. With "complex", "simple" and "rotate" a row is two
            halves, so d is even (docs/op.md). With "transh" relations have shape (2R, 2 d), each row
            [r | normal of length one]. The GPU kernels do not have "transh".
        context: "both", "entity" or "relation". With "entity" or "relation" the values of the other table do
            not change.
        mask: bool of shape (T,), in the order of the graph's triples; True masks the triple and its inverse.
            None masks nothing.
        residual: False returns the context sums without adding the rows to them.
        rows: "float32" reads the tables as they are. "bfloat16", for float32 or float64 tables, rounds a copy
            of the entities once, and context triples read this copy. For float32 this halves the bytes per
            row. Relations, sums, gradients and the residual rows are not rounded. Gradients ignore the
            rounding (docs/op.md has the error).
        backend: "auto" is "numba" on the CPU and "triton" on a GPU if they have the score, else "reference".
            "reference" is plain PyTorch and makes tensors with one row per context triple. "triton" on the
            CPU needs its interpreter (TRITON_INTERPRET=1) and is for tests.

    Returns:
        New entities and relations, with the input shapes and dtypes.

    Raises:
        TypeError: if a table or the mask is not a tensor, or the graph is not a ``ContextGraph``.
        ValueError: if a shape, dtype, device or name is wrong, or the back end cannot run here.

    Source: LightCAKE, arXiv 2102.10826, equations 1-6.
    """
    entities, relations, backend = _checked(entities, relations, graph, score, context, mask, rows, backend)
    if backend == "reference":
        both_ways = None if mask is None else mask.repeat(2)
        x, y = reference.context_layer(
            _widened(entities),
            _widened(relations),
            graph.context_triples,
            both_ways,
            score,
            context,
            residual,
            rows,
        )
    else:
        x, y, *_ = _fused(entities, relations, graph, score, context, residual, mask, rows, backend)
    return x.to(entities.dtype), y.to(relations.dtype)


def context_weights(
    entities: Tensor,
    relations: Tensor,
    graph: "ContextGraph",
    *,
    score: str = "distmult",
    mask: Tensor | None = None,
    rows: str = "float32",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the softmax weight of each context triple in ``context_layer``, without gradients.

    Args:
        entities: as in ``context_layer``.
        relations: as in ``context_layer``.
        graph: as in ``context_layer``.
        score: as in ``context_layer``.
        mask: as in ``context_layer``; the weight of a masked triple is zero.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``.

    Returns:
        alpha, the weights in the context of the head, and beta, the weights in the context of the relation.
        Each has shape (2T,): the triples in the graph's order, then their inverses.

    Raises:
        TypeError, ValueError: as ``context_layer``.

    Source: LightCAKE, arXiv 2102.10826, equations 2 and 4.
    """
    entities, relations, backend = _checked(entities, relations, graph, score, "both", mask, rows, backend)
    with torch.no_grad():
        if backend == "reference":
            both_ways = None if mask is None else mask.repeat(2)
            alpha, beta = reference.context_weights(
                _widened(entities), _widened(relations), graph.context_triples, both_ways, score, rows
            )
            return alpha.to(entities.dtype), beta.to(entities.dtype)
        made = _fused(entities, relations, graph, score, "both", True, mask, rows, backend)
        s, norm_x, norm_y = made[2:5]
        heads, relation_ids, _ = graph.context_triples
        used = backend_named(backend)
        given = used.scores_as_given(s, used.plan(graph))
        alpha = partial.softmax_weights(given, norm_x, heads)
        beta = partial.softmax_weights(given, norm_y, relation_ids)
        return alpha.to(entities.dtype), beta.to(entities.dtype)


def tune_context_layer(
    graph: "ContextGraph", dim: int, *, dtype: torch.dtype = torch.float32, score: str = "distmult"
) -> dict[str, dict[tuple[int, int], float]]:
    """Choose launch shapes of the Triton kernels by measurement on the graph's GPU, in about a minute.

    Without this call nothing is measured. This process keeps the fastest shapes for all graphs, by width,
    dtype and GPU model. Another shape can change the order of a sum, so results can differ in the last bits.

    Args:
        graph: the context to measure on, on a GPU.
        dim: d, the width of the rows.
        dtype: dtype of the rows.
        score: as in ``context_layer``; a score that the fused back ends have.

    Returns:
        Milliseconds per layer, forward plus backward, by kernel and launch shape. A launch shape is the
        number of row entries per lane and the maximum number of registers per lane.

    Raises:
        ValueError: if an argument is wrong, or Triton cannot run here.
    """
    _check_width(score, "dim", dim)
    check_fused(score, "triton")
    if dim < 1:
        raise ValueError(f"dim: expected at least 1, got {dim}")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating-point dtype, got {dtype}")
    runnable("triton", graph.device.type)
    from lightcake_fast.kernels import gpu_tune

    with launching(graph.device):
        return gpu_tune.tune(graph.gpu_plan, graph.num_entities, 2 * graph.num_relations, dim, dtype, score)


def _checked(
    entities: Tensor,
    relations: Tensor,
    graph: "ContextGraph",
    score: str,
    context: str,
    mask: Tensor | None,
    rows: str,
    backend: str,
) -> tuple[Tensor, Tensor, str]:
    """Check the arguments of the public functions; return the tables after autocast and the back end."""
    _check_kinds(entities, relations, graph, mask)
    entities, relations = autocast_first(entities), autocast_first(relations)
    if not isinstance(score, str):
        raise TypeError(f"score: expected a name, got {score!r}: register a custom score with register_score")
    for name, value, known in (
        ("context", context, CONTEXTS),
        ("rows", rows, ROWS),
        ("backend", backend, BACKENDS),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    _check_tables(entities, relations, graph, mask, score_named(score).planes)
    if rows == "bfloat16" and entities.dtype in _NARROW:
        raise ValueError(
            f"rows: expected 'float32' for 16-bit entities, got 'bfloat16' with entities of {entities.dtype}"
        )
    _check_width(score, "entities", entities.shape[1])
    return entities, relations, layer_backend(score, backend, entities, relations)


def _check_kinds(entities: Any, relations: Any, graph: Any, mask: Any) -> None:
    """Raise ``TypeError`` if a table or the mask is not a tensor, or the graph is not a ``ContextGraph``."""
    check_tensor("entities", entities)
    check_tensor("relations", relations)
    if mask is not None:
        check_tensor("mask", mask)
    if not hasattr(type(graph), "context_triples"):
        raise TypeError(
            f"graph: expected a ContextGraph, got {type(graph).__name__}: make one with "
            "ContextGraph.from_triples"
        )


def check_tensor(name: str, value: Any) -> None:
    """Raise ``TypeError`` if the value is not a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")


def check_real(name: str, table: Tensor) -> None:
    """Raise ``ValueError`` if the dtype is not a supported floating-point dtype, or the tensor is sparse."""
    if table.dtype not in _REAL:
        kinds = ", ".join(str(kind).removeprefix("torch.") for kind in _REAL)
        raise ValueError(f"{name}: expected a floating-point dtype of {kinds}, got {table.dtype}")
    if table.layout != torch.strided:
        raise ValueError(f"{name}: expected a dense tensor, got a tensor of layout {table.layout}")


def _check_tables(
    entities: Tensor, relations: Tensor, graph: "ContextGraph", mask: Tensor | None, planes: bool
) -> None:
    """Raise ``ValueError`` if the shape, dtype or device of an argument does not fit the others."""
    for name, table, rows in (
        ("entities", entities, graph.num_entities),
        ("relations", relations, 2 * graph.num_relations),
    ):
        if table.ndim != 2 or table.shape[0] != rows:
            raise ValueError(f"{name}: expected shape ({rows}, d), got {tuple(table.shape)}")
        check_real(name, table)
    width = entities.shape[1] * (2 if planes else 1)
    if relations.shape[1] != width or relations.dtype != entities.dtype:
        wanted = "twice the width of the entities" if planes else "the width of the entities"
        raise ValueError(
            f"relations: expected {wanted} and their dtype, {width} and {entities.dtype}, "
            f"got {relations.shape[1]} and {relations.dtype}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (graph.num_triples,)):
        raise ValueError(
            f"mask: expected torch.bool ({graph.num_triples},), got {mask.dtype} {tuple(mask.shape)}"
        )
    for name, tensor in (("relations", relations), ("graph", graph), ("mask", mask)):
        if tensor is not None and tensor.device != entities.device:
            raise ValueError(
                f"{name}: expected the device of the entities, {entities.device}, got {tensor.device}"
            )


def _check_width(score: str, name: str, width: int) -> None:
    columns = score_named(score).columns
    if width % columns:
        raise InputError(f"{name}: expected a multiple of {columns} for score {score!r}, got width {width}")


def autocast_first(table: Tensor) -> Tensor:
    """Cast a table to float32 under ``torch.autocast``, as PyTorch's float32 operators do."""
    device = table.device.type
    autocast = device in _AUTOCAST and torch.is_autocast_enabled(device)
    return table.float() if autocast and table.dtype in (*_NARROW, torch.float32) else table


def _widened(table: Tensor) -> Tensor:
    """Cast a 16-bit table to float32, the dtype of its sums; return other tables unchanged."""
    return table.float() if table.dtype in _NARROW else table


def _fused(
    entities: Tensor,
    relations: Tensor,
    graph: "ContextGraph",
    score: str,
    context: str,
    residual: bool,
    mask: Tensor | None,
    rows: str,
    backend: str,
) -> list[Tensor]:
    x, y = entities.contiguous(), relations.contiguous()
    if backend == "numba":
        x, y = _widened(x), _widened(y)
        if not torch.compiler.is_compiling():  # under torch.compile, each pass compiles at its first call
            compile_together(x, y, score, context, rows)
    plan = list(backend_named(backend).plan(graph))
    options = packed_options(score, context, residual, rows, backend)
    return _context_layer(x, y, plan, mask, options)  # type: ignore[no-any-return]


def compile_together(x: Tensor, y: Tensor, score: str, context: str, rows: str) -> None:
    """Compile the missing CPU passes of a layer with these arguments, in several processes."""
    from lightcake_fast.kernels import cpu_together

    real = str(x.dtype).removeprefix("torch.")
    read = "int16" if rows == "bfloat16" and x.dtype == torch.float32 else real
    differentiated = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
    cpu_together.compile_layer(
        score, x.shape[1], real, read, relations=context != "entity", differentiated=differentiated
    )


def packed_options(score: str, context: str, residual: bool, rows: str, backend: str) -> str:
    """Return the options of the operators as one string, because a schema has no tuples."""
    return "\n".join([score, context, "residual" if residual else "sums", rows, backend])


class _Options(NamedTuple):
    """The options of the operators."""

    score: str
    context: str
    residual: bool
    rows: str
    backend: Backend

    @classmethod
    def unpacked(cls, text: str) -> "_Options":
        score, context, residual, rows, backend = text.split("\n")
        return cls(score, context, residual == "residual", rows, backend_named(backend))


@operator("context_layer")
def _context_layer(
    x: Tensor, y: Tensor, plan: list[Tensor], mask: Tensor | None, options: str
) -> list[Tensor]:
    score, context, residual, rows, backend = _Options.unpacked(options)
    copy = gathered(x, rows)
    made = backend.forward(x, y, plan, mask, score, context, residual=residual, gathered=copy)
    return [*made, *([] if copy is None else [copy])]  # the backward reads the copy again


def gathered(x: Tensor, rows: str) -> Tensor | None:
    """Return the rounded copy of entities (N, d) that context triples read; None if they read the table.

    The copy of a float64 table has bfloat16 values but is still float64.
    """
    if rows == "float32":
        return None
    copy = x.bfloat16()
    return copy if x.dtype == torch.float32 else copy.to(x.dtype)


@_context_layer.register_fake
def _(x: Tensor, y: Tensor, plan: list[Tensor], mask: Tensor | None, options: str) -> list[Tensor]:
    real = torch.float32 if x.dtype in _NARROW else x.dtype
    scores = x.new_empty(2 * len(plan[0]), dtype=real)
    norm_x, norm_y = (rows.new_empty(len(rows), 2, dtype=real) for rows in (x, y))
    outputs = [torch.empty_like(x), torch.empty_like(y), scores, norm_x, norm_y]
    if x.dtype in _NARROW:
        outputs += [torch.empty_like(x, dtype=real), torch.empty_like(y, dtype=real)]
    if _Options.unpacked(options).rows == "bfloat16":
        outputs.append(torch.empty_like(x, dtype=torch.bfloat16 if x.dtype == torch.float32 else x.dtype))
    return outputs


@operator("context_layer_backward")
def _context_layer_backward(
    g: Tensor, q: Tensor, x: Tensor, y: Tensor, outputs: list[Tensor], plan: list[Tensor], options: str
) -> list[Tensor]:
    score, _, residual, rows, backend = _Options.unpacked(options)
    made, copy = (outputs, None) if rows == "float32" else (outputs[:-1], outputs[-1])
    return list(backend.backward((g, q), (x, y), made, plan, score, residual=residual, gathered=copy))


@_context_layer_backward.register_fake
def _(
    g: Tensor, q: Tensor, x: Tensor, y: Tensor, outputs: list[Tensor], plan: list[Tensor], options: str
) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(y)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, y, plan, _, options = inputs
    ctx.set_materialize_grads(False)  # scores and softmax norms never need gradients
    ctx.save_for_backward(x, y, *output, *plan)
    ctx.outputs, ctx.options = len(output), options


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    x, y, *rest = ctx.saved_tensors
    outputs, plan = rest[: ctx.outputs], rest[ctx.outputs :]
    g, q = (
        torch.zeros_like(rows) if gradient is None else gradient.contiguous()
        for rows, gradient in zip((x, y), gradients[:2], strict=True)
    )
    grad_x, grad_y = _context_layer_backward(g, q, x, y, outputs, plan, ctx.options)
    return grad_x, grad_y, [None] * len(plan), None, None


def no_second_derivative(ctx: Any, *gradients: Any) -> None:
    """Raise ``RuntimeError``: a fused backward is not differentiable."""
    raise RuntimeError(
        "backend: expected 'reference' for second derivatives, got a fused back end, which has only the first"
    )


_context_layer_backward.register_autograd(no_second_derivative)
_context_layer.register_autograd(_differentiate, setup_context=_save)
_context_layer.register_autocast(torch.float32)
