"""The back ends of the context layer: one object per back end, and the choice between them."""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lightcake_fast.errors import InputError
from lightcake_fast.kernels.plan import GpuPlan, Plan
from lightcake_fast.operators import launching
from lightcake_fast.reference import partial as reference_partial
from lightcake_fast.scores import fused

if TYPE_CHECKING:
    from lightcake_fast.graph import ContextGraph

Pair = tuple[Tensor, Tensor]  # of entities and relations
BACKENDS = ("auto", "triton", "numba", "reference")
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "y", "on")


class Backend(Protocol):
    """The two passes of a layer on arrays. The files in ``kernels/`` describe the arguments."""

    def plan(self, graph: "ContextGraph") -> Sequence[Tensor]:
        """Return the order of work."""

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        plan: Sequence[Tensor],
        mask: Tensor | None,
        score: str,
        context: str,
        *,
        residual: bool,
        partial: bool = False,
        gathered: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Return new entities and relations, scores, both norms, and for 16-bit rows the float32 sums."""

    def backward(
        self,
        gradients: Pair,
        tables: Pair,
        made: Sequence[Tensor],
        plan: Sequence[Tensor],
        score: str,
        *,
        residual: bool,
        partial: bool = False,
        gathered: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Return dL/dx and dL/dy. ``made`` is the result of ``forward``."""

    def scores_as_given(self, s: Tensor, plan: Sequence[Tensor]) -> Tensor:
        """Return scores in the graph's order of context triples."""


class Fused:
    """The kernels of a kind of device.

    Args:
        prefix: prefix of the files in ``kernels/``.
        order: type of the order of work.
        attribute: name of the order of work in a graph.
    """

    def __init__(self, prefix: str, order: type[Plan] | type[GpuPlan], attribute: str) -> None:
        self._prefix, self._order, self._attribute = prefix, order, attribute
        self._triton = order is GpuPlan

    def plan(self, graph: "ContextGraph") -> Sequence[Tensor]:
        """See ``Backend``."""
        plan: Sequence[Tensor] = getattr(graph, self._attribute)
        return plan

    def forward(self, x: Tensor, y: Tensor, plan: Sequence[Tensor], *rest: Any, **options: Any) -> Any:
        """See ``Backend``."""
        with launching(x.device, triton=self._triton):
            return self._kernels("forward").forward(x, y, self._order(*plan), *rest, **options)

    def backward(
        self, gradients: Pair, tables: Pair, made: Any, plan: Sequence[Tensor], score: str, **options: Any
    ) -> Any:
        """See ``Backend``."""
        results, sums = made[:5], made[5:]
        arguments = (*gradients, *tables, *results, self._order(*plan), score, *sums)
        with launching(tables[0].device, triton=self._triton):
            return self._kernels("backward").backward(*arguments, **options)

    def scores_as_given(self, s: Tensor, plan: Sequence[Tensor]) -> Tensor:
        """See ``Backend``."""
        given: Tensor = self._kernels("forward").scores_as_given(s, self._order(*plan))
        return given

    def _kernels(self, part: str) -> Any:
        """Import on first use: an import of the package brings no compiler."""
        return importlib.import_module(f"lightcake_fast.kernels.{self._prefix}_{part}")


class Reference:
    """Plain PyTorch. It has the passes for a part of the triples; autograd differentiates a whole layer."""

    def plan(self, graph: "ContextGraph") -> Sequence[Tensor]:
        """See ``Backend``."""
        return graph.context_triples

    def forward(
        self, x: Tensor, y: Tensor, plan: Any, mask: Any, score: str, context: str, **options: Any
    ) -> Any:
        """See ``Backend``."""
        assert options["partial"]
        both_ways, wide = mask.T.reshape(-1), _as_wide(options["gathered"], x)
        triples, residual = tuple(plan), options["residual"]
        return reference_partial.forward(x, y, triples, both_ways, score, context, residual, wide)

    def backward(
        self, gradients: Pair, tables: Pair, made: Any, plan: Any, score: str, **options: Any
    ) -> Any:
        """See ``Backend``."""
        assert options["partial"]
        wide = _as_wide(options["gathered"], tables[0])
        arguments = (*gradients, *tables, *made, tuple(plan), score, options["residual"], wide)
        return reference_partial.backward(*arguments)

    def scores_as_given(self, s: Tensor, plan: Sequence[Tensor]) -> Tensor:
        """See ``Backend``."""
        return s


_BY_NAME: dict[str, Backend] = {
    "numba": Fused("cpu", Plan, "plan"),
    "triton": Fused("gpu", GpuPlan, "gpu_plan"),
    "reference": Reference(),
}


def backend_named(name: str) -> Backend:
    """Return a back end by name, without "auto"."""
    return _BY_NAME[name]


def _as_wide(copy: Tensor | None, x: Tensor) -> Tensor | None:
    """Cast a copy of rows, if there is one, to their dtype."""
    return None if copy is None else copy.to(x.dtype)


def layer_backend(score: str, backend: str, entities: Tensor, relations: Tensor) -> str:
    """Return the back end that "auto" selects for a score and tables; check a back end given by name.

    Raises:
        InputError: the back end cannot run on this device, or does not have the score.
    """
    check_fused(score, backend)
    chosen = runnable(backend, entities.device.type)
    if not fused(score, chosen):
        return "reference"
    return without_transforms(chosen, backend, entities, relations)


def check_fused(score: str, backend: str) -> None:
    """Raise ``InputError`` if a fused back end, given by name, does not have the score."""
    if backend in ("numba", "triton") and not fused(score, backend):
        able = "'numba' or 'reference'" if fused(score, "numba") else "'reference'"
        raise InputError(f"backend: expected {able} for score {score!r}, got {backend!r}")


def runnable(backend: str, device: str) -> str:
    """Return the back end that "auto" selects on a device; check a back end given by name.

    Raises:
        InputError: the back end cannot run on this device.
    """
    if backend == "auto":
        backend = {"cpu": "numba", "cuda": "triton"}.get(device, "reference")
    if backend == "numba" and device != "cpu":
        raise InputError(f"backend: expected tensors on the cpu for 'numba', got them on {device}")
    if backend == "triton":
        if not _HAS_TRITON:
            raise InputError(
                "backend: expected an installed triton package, got 'triton' without it: install it, or use "
                "'reference'"
            )
        if device != "cuda" and not (device == "cpu" and _INTERPRETED):
            raise InputError(
                f"backend: expected tensors on a GPU for 'triton' (or on the cpu with TRITON_INTERPRET=1), "
                f"got them on {device}"
            )
    return backend


def without_transforms(chosen: str, asked: str, *tables: Tensor) -> str:
    """Return the chosen back end, or "reference" where only it has the derivatives.

    The fused operators have only a backward. Without this check a forward-mode tangent would silently be
    lost.

    Raises:
        InputError: the caller named a fused back end.
    """
    if chosen == "reference" or not (torch._C._are_functorch_transforms_active() or _have_tangents(tables)):
        return chosen
    if asked != "auto":
        raise InputError(
            "backend: expected 'auto' or 'reference' under torch.func or forward-mode differentiation, got "
            f"{asked!r}, which has only a backward"
        )
    return "reference"


def _have_tangents(tables: tuple[Tensor, ...]) -> bool:
    if forward_ad._current_level < 0:  # outside of dual_level()
        return False
    duals = [forward_ad.unpack_dual(table) for table in tables]  # type: ignore[no-untyped-call]
    return any(dual.tangent is not None for dual in duals)
