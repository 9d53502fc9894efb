"""The context layer as one differentiable op: the one place that chooses between the back ends."""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lightcake_fast.errors import InputError
from lightcake_fast.kernels.plan import GpuPlan, Plan
from lightcake_fast.launching import launching
from lightcake_fast.operators import operator
from lightcake_fast.reference import layer as reference
from lightcake_fast.reference import partial
from lightcake_fast.scores import fused, score_named

if TYPE_CHECKING:
    from lightcake_fast.graph import ContextGraph

CONTEXTS = ("both", "entity", "relation")
BACKENDS = ("auto", "triton", "numba", "reference")
ROWS = ("float32", "bfloat16")
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "y", "on")
_NARROW = (torch.float16, torch.bfloat16)
_REAL = (*_NARROW, torch.float32, torch.float64)
# asked at import: TorchDynamo of PyTorch 2.9 does not trace the question
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
    """One LightCAKE layer: each row plus the softmax-weighted sum over its context triples.

    Differentiable once in ``entities`` and ``relations``; "reference" in any order and mode, which "auto"
    therefore takes under ``torch.func`` and forward-mode differentiation. A row without a live context
    triple stays as it is. Under ``torch.autocast`` the layer casts to float32 first.

    Args:
        entities: shape (N, d); float32 or float64, or a 16-bit type, whose sums are float32.
        relations: shape (2R, d), same type; row r + R is the inverse of relation r.
        graph: the context, on the same device.
        score: psi, whose softmax weighs the triples: "distmult", "transe", "complex", "simple", "rotate"
            (d even in these three: a row is two halves; docs/op.md), "transh", whose relations are
            [r | normal of length one], (2R, 2 d), and which no kernel for GPUs has, or one of your own
            (``register_score``).
        context: "both", or only "entity" or "relation": then the other table comes back with its values
            unchanged.
        mask: bool of shape (T,), in the order of the graph's triples; True leaves the triple and its
            inverse out. None leaves nothing out.
        residual: False returns the sums alone, without the rows that they are added to.
        rows: "float32" reads the tables as they are. "bfloat16", for float32 tables, has context triples read
            the entities from a 16-bit copy, made once: half the bytes of a row. Relations, sums, gradients
            and the rows that the sums are added to stay float32; gradients pass the rounding as if it were
            none (docs/op.md has the error). float64 tables are rounded alike.
        backend: "auto" takes "numba" on the CPU and "triton" on a GPU, where they have the score;
            "reference" is plain PyTorch, with tensors of a row for each context triple. "triton" on the CPU
            needs its interpreter (TRITON_INTERPRET=1) and is for tests.

    Returns:
        New entities and relations, of the shapes and the type given.

    Raises:
        TypeError: if a table or the mask is no tensor, or the graph no ``ContextGraph``.
        ValueError: if a shape, type, device or name is wrong, or the back end cannot run here.

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
    """The softmax weights that ``context_layer`` gives each context triple, for looking at: no gradient.

    Args:
        entities: as in ``context_layer``.
        relations: as in ``context_layer``.
        graph: as in ``context_layer``.
        score: as in ``context_layer``.
        mask: as in ``context_layer``; a masked triple weighs zero.
        rows: as in ``context_layer``.
        backend: as in ``context_layer``.

    Returns:
        alpha, in the context of the triple's head, and beta, in the context of its relation: each of
        shape (2T,), the triples in the graph's order, then their inverses.

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
        if backend == "triton":
            from lightcake_fast.kernels import gpu_forward

            given = gpu_forward.scores_as_given(s, graph.gpu_plan)
        else:
            from lightcake_fast.kernels import cpu_forward

            given = cpu_forward.scores_as_given(s, graph.plan)
        alpha = partial.softmax_weights(given, norm_x, heads)
        beta = partial.softmax_weights(given, norm_y, relation_ids)
        return alpha.to(entities.dtype), beta.to(entities.dtype)


def tune_context_layer(
    graph: "ContextGraph", dim: int, *, dtype: torch.dtype = torch.float32, score: str = "distmult"
) -> dict[str, dict[tuple[int, int], float]]:
    """Choose the Triton kernels' launch shapes by measuring them on the graph's GPU; takes about a minute.

    What is fastest is kept in this process for all graphs, by width, type and kind of GPU. Nothing is
    measured unless this is called. Another shape may add in another order: results differ in the last bits.

    Args:
        graph: the context to measure on, on a GPU.
        dim: d, the width of the rows.
        dtype: their type.
        score: as in ``context_layer``, of those that the fused back ends have.

    Returns:
        Milliseconds of a layer, forward and backward, by kernel and by its shape: numbers of a row in each
        lane, and registers of a lane that NVIDIA's assembler may take.

    Raises:
        ValueError: if an argument is wrong, or Triton cannot run here.
    """
    _check_width(score, "dim", dim)
    check_fused(score, "triton")
    if dim < 1:
        raise ValueError(f"dim: got {dim}, wanted at least 1")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype: got {dtype}, wanted a floating-point type")
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
    """Check the arguments of the public functions once.

    Returns:
        The tables as the op takes them, and the back end that "auto" stands for.
    """
    _check_kinds(entities, relations, graph, mask)
    entities, relations = autocast_first(entities), autocast_first(relations)
    if not isinstance(score, str):
        raise TypeError(f"score: got {score!r}, wanted its name; register_score gives one of your own a name")
    for name, value, known in (
        ("context", context, CONTEXTS),
        ("rows", rows, ROWS),
        ("backend", backend, BACKENDS),
    ):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(known)}")
    _check_tables(entities, relations, graph, mask, score_named(score).planes)
    if rows == "bfloat16" and entities.dtype in _NARROW:
        raise ValueError(
            f"rows: got 'bfloat16' with entities of {entities.dtype}, 16 bits wide already, wanted "
            "'float32', which reads them as they are"
        )
    _check_width(score, "entities", entities.shape[1])
    return entities, relations, layer_backend(score, backend, entities, relations)


def layer_backend(score: str, backend: str, entities: Tensor, relations: Tensor) -> str:
    """The back end that "auto" stands for with a score and tables.

    Raises:
        InputError: it cannot run there, or lacks the score.
    """
    check_fused(score, backend)
    chosen = runnable(backend, entities.device.type)
    if not fused(score, chosen):
        return "reference"
    return without_transforms(chosen, backend, entities, relations)


def _check_kinds(entities: Any, relations: Any, graph: Any, mask: Any) -> None:
    """Raise ``TypeError`` for an argument that is no tensor, or no graph."""
    check_tensor("entities", entities)
    check_tensor("relations", relations)
    if mask is not None:
        check_tensor("mask", mask)
    if not hasattr(type(graph), "context_triples"):
        raise TypeError(
            f"graph: got {type(graph).__name__}, wanted a ContextGraph (see ContextGraph.from_triples)"
        )


def check_tensor(name: str, value: Any) -> None:
    """Raise ``TypeError`` for what is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted a torch.Tensor")


def check_real(name: str, table: Tensor) -> None:
    """Raise ``ValueError`` for a tensor that no back end reads: of numbers of another type, or sparse."""
    if table.dtype not in _REAL:
        kinds = ", ".join(str(kind).removeprefix("torch.") for kind in _REAL)
        raise ValueError(f"{name}: got {table.dtype}, wanted a floating-point type of {kinds}")
    if table.layout != torch.strided:
        raise ValueError(f"{name}: got a tensor of layout {table.layout}, wanted a dense one")


def _check_tables(
    entities: Tensor, relations: Tensor, graph: "ContextGraph", mask: Tensor | None, planes: bool
) -> None:
    """Raise ``ValueError`` for a shape, type or device that does not fit the others."""
    for name, table, rows in (
        ("entities", entities, graph.num_entities),
        ("relations", relations, 2 * graph.num_relations),
    ):
        if table.ndim != 2 or table.shape[0] != rows:
            raise ValueError(f"{name}: got shape {tuple(table.shape)}, wanted ({rows}, d)")
        check_real(name, table)
    width = entities.shape[1] * (2 if planes else 1)
    if relations.shape[1] != width or relations.dtype != entities.dtype:
        wanted = "twice the width of the entities and their type" if planes else "those of the entities"
        raise ValueError(
            f"relations: got width {relations.shape[1]} and {relations.dtype}, "
            f"wanted {wanted}, {width} and {entities.dtype}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (graph.num_triples,)):
        raise ValueError(
            f"mask: got {mask.dtype} {tuple(mask.shape)}, wanted torch.bool ({graph.num_triples},)"
        )
    for name, tensor in (("relations", relations), ("graph", graph), ("mask", mask)):
        if tensor is not None and tensor.device != entities.device:
            raise ValueError(f"{name}: got device {tensor.device}, wanted the entities', {entities.device}")


def _check_width(score: str, name: str, width: int) -> None:
    columns = score_named(score).columns
    if width % columns:
        raise InputError(f"{name}: got width {width}, wanted a multiple of {columns} for score {score!r}")


def check_fused(score: str, backend: str) -> None:
    """Raise ``InputError`` for a fused back end by name that lacks the score."""
    if backend in ("numba", "triton") and not fused(score, backend):
        able = (
            "'numba' or 'reference', which have" if fused(score, "numba") else "'reference', which alone has"
        )
        raise InputError(f"backend: got {backend!r}, wanted {able} score {score!r}")


def runnable(backend: str, device: str) -> str:
    """The back end that "auto" stands for on a device.

    Raises:
        InputError: it cannot run there.
    """
    if backend == "auto":
        backend = {"cpu": "numba", "cuda": "triton"}.get(device, "reference")
    if backend == "numba" and device != "cpu":
        raise InputError(f"backend: got 'numba' with tensors on {device}, wanted them on the cpu")
    if backend == "triton":
        if not _HAS_TRITON:
            raise InputError("backend: got 'triton', which is not installed; wanted it, or 'reference'")
        if device != "cuda" and not (device == "cpu" and _INTERPRETED):
            raise InputError(
                f"backend: got 'triton' with tensors on {device}, wanted them on a GPU "
                "(or on the cpu with TRITON_INTERPRET=1)"
            )
    return backend


def without_transforms(chosen: str, asked: str, *tables: Tensor) -> str:
    """The back end chosen; the reference where only it has the derivatives.

    The fused ops have a backward and nothing else: a tangent would be dropped in silence.

    Raises:
        InputError: a fused back end was asked for by its name.
    """
    if chosen == "reference" or not (torch._C._are_functorch_transforms_active() or _have_tangents(tables)):
        return chosen
    if asked != "auto":
        raise InputError(
            f"backend: got {asked!r} under torch.func or forward-mode differentiation, wanted 'reference', "
            "which alone has more than a backward, or 'auto', which then takes it"
        )
    return "reference"


def _have_tangents(tables: tuple[Tensor, ...]) -> bool:
    if forward_ad._current_level < 0:  # outside of dual_level()
        return False
    duals = [forward_ad.unpack_dual(table) for table in tables]  # type: ignore[no-untyped-call]
    return any(dual.tangent is not None for dual in duals)


def autocast_first(table: Tensor) -> Tensor:
    """A table as PyTorch's own float32 operators take it under ``torch.autocast``; elsewhere as it is."""
    device = table.device.type
    autocast = device in _AUTOCAST and torch.is_autocast_enabled(device)
    return table.float() if autocast and table.dtype in (*_NARROW, torch.float32) else table


def _widened(table: Tensor) -> Tensor:
    """A 16-bit table in the type of its sums; others as they are."""
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
        if not torch.compiler.is_compiling():  # else its passes are compiled one by one, when they are called
            compile_together(x, y, score, context, rows)
    plan = graph.plan if backend == "numba" else graph.gpu_plan
    arguments = x, y, list(plan), mask, score, context, residual, rows, backend
    return _context_layer(*arguments)  # type: ignore[no-any-return]


def compile_together(x: Tensor, y: Tensor, score: str, context: str, rows: str) -> None:
    """Compile the CPU passes that a layer with these arguments lacks, in several processes."""
    from lightcake_fast.kernels import cpu_together

    real = str(x.dtype).removeprefix("torch.")
    read = "int16" if rows == "bfloat16" and x.dtype == torch.float32 else real
    differentiated = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
    cpu_together.compile_layer(
        score, x.shape[1], real, read, relations=context != "entity", differentiated=differentiated
    )


@operator("context_layer", "cpu")
def _context_layer(
    x: Tensor,
    y: Tensor,
    plan: list[Tensor],
    mask: Tensor | None,
    score: str,
    context: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    if backend == "triton":
        return _forward_on_gpu(x, y, plan, mask, score, context, residual, rows)
    from lightcake_fast.kernels import cpu_forward

    copy = gathered(x, rows)
    made = cpu_forward.forward(x, y, Plan(*plan), mask, score, context, residual=residual, gathered=copy)
    return [*made, *_given(copy)]


@_context_layer.register_kernel("cuda")
def _(
    x: Tensor,
    y: Tensor,
    plan: list[Tensor],
    mask: Tensor | None,
    score: str,
    context: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    return _forward_on_gpu(x, y, plan, mask, score, context, residual, rows)


def _forward_on_gpu(
    x: Tensor,
    y: Tensor,
    plan: list[Tensor],
    mask: Tensor | None,
    score: str,
    context: str,
    residual: bool,
    rows: str,
) -> list[Tensor]:
    from lightcake_fast.kernels import gpu_forward

    copy, order = gathered(x, rows), GpuPlan(*plan)
    with launching(x.device):
        made = gpu_forward.forward(x, y, order, mask, score, context, residual=residual, gathered=copy)
    return [*made, *_given(copy)]


def gathered(x: Tensor, rows: str) -> Tensor | None:
    """The copy of entities (N, d) that context triples read; None where they read the table itself.

    Of float64 rows it is as wide as they are, of the values that bfloat16 has.
    """
    if rows == "float32":
        return None
    copy = x.bfloat16()
    return copy if x.dtype == torch.float32 else copy.to(x.dtype)


def _given(copy: Tensor | None) -> list[Tensor]:
    """The last outputs of the operator: the copy, which the backward reads again."""
    return [] if copy is None else [copy]


@_context_layer.register_fake
def _(
    x: Tensor,
    y: Tensor,
    plan: list[Tensor],
    mask: Tensor | None,
    score: str,
    context: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    real = torch.float32 if x.dtype in _NARROW else x.dtype
    scores = x.new_empty(2 * len(plan[0]), dtype=real)
    norm_x, norm_y = (rows.new_empty(len(rows), 2, dtype=real) for rows in (x, y))
    outputs = [torch.empty_like(x), torch.empty_like(y), scores, norm_x, norm_y]
    if x.dtype in _NARROW:
        outputs += [torch.empty_like(x, dtype=real), torch.empty_like(y, dtype=real)]
    if rows == "bfloat16":
        outputs.append(torch.empty_like(x, dtype=torch.bfloat16 if x.dtype == torch.float32 else x.dtype))
    return outputs


@operator("context_layer_backward", "cpu")
def _context_layer_backward(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    outputs: list[Tensor],
    plan: list[Tensor],
    score: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    if backend == "triton":
        return _backward_on_gpu(g, q, x, y, outputs, plan, score, residual, rows)
    from lightcake_fast.kernels import cpu_backward

    (new_x, new_y, s, norm_x, norm_y), copy = _without_copy(outputs, rows)
    tables, order = (x, y, new_x, new_y, s, norm_x, norm_y), Plan(*plan)
    return list(cpu_backward.backward(g, q, *tables, order, score, residual=residual, gathered=copy))


@_context_layer_backward.register_kernel("cuda")
def _(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    outputs: list[Tensor],
    plan: list[Tensor],
    score: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    return _backward_on_gpu(g, q, x, y, outputs, plan, score, residual, rows)


def _backward_on_gpu(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    outputs: list[Tensor],
    plan: list[Tensor],
    score: str,
    residual: bool,
    rows: str,
) -> list[Tensor]:
    from lightcake_fast.kernels import gpu_backward

    (new_x, new_y, s, norm_x, norm_y, *sums), copy = _without_copy(outputs, rows)
    tables, order = (x, y, new_x, new_y, s, norm_x, norm_y), GpuPlan(*plan)
    with launching(x.device):
        found = gpu_backward.backward(g, q, *tables, order, score, *sums, residual=residual, gathered=copy)
    return list(found)


def _without_copy(outputs: list[Tensor], rows: str) -> tuple[list[Tensor], Tensor | None]:
    """What the forward's passes made, and the copy that triples read."""
    return (outputs, None) if rows == "float32" else (outputs[:-1], outputs[-1])


@_context_layer_backward.register_fake
def _(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    outputs: list[Tensor],
    plan: list[Tensor],
    score: str,
    residual: bool,
    rows: str,
    backend: str,
) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(y)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, y, plan, _, score, _, residual, rows, backend = inputs
    ctx.set_materialize_grads(False)  # nobody asks for those of the scores and the softmax's norms
    ctx.save_for_backward(x, y, *output, *plan)
    ctx.outputs, ctx.rest = len(output), (score, residual, rows, backend)


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    x, y, *rest = ctx.saved_tensors
    outputs, plan = rest[: ctx.outputs], rest[ctx.outputs :]
    g, q = (
        torch.zeros_like(rows) if gradient is None else gradient.contiguous()
        for rows, gradient in zip((x, y), gradients[:2], strict=True)
    )
    grad_x, grad_y = _context_layer_backward(g, q, x, y, outputs, plan, *ctx.rest)
    return grad_x, grad_y, [None] * len(plan), *[None] * 6


def no_second_derivative(ctx: Any, *gradients: Any) -> None:
    """The derivative of a fused backward, which there is not."""
    raise RuntimeError("the fused back ends are differentiable once: wanted backend='reference'")


_context_layer_backward.register_autograd(no_second_derivative)
_context_layer.register_autograd(_differentiate, setup_context=_save)
_context_layer.register_autocast(torch.float32)
