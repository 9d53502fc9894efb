"""The context of a graph: the triples, their inverses, and the order in which the layer processes them."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lightcake_fast.errors import InputError, counted
from lightcake_fast.kernels import plan as plans
from lightcake_fast.kernels.plan import GpuPlan, Plan, build_gpu_plan, build_plan
from lightcake_fast.ops import check_tensor


@contextmanager
def _kept() -> Iterator[None]:
    """Make ordinary tensors, not tensors of inference mode, torch.export or torch.func."""
    with torch.inference_mode(False), _disable_current_modes(), torch._C._DisableFuncTorch():
        yield


@dataclass(frozen=True, eq=False, repr=False)
class ContextGraph:
    """T raw triples and their inverses, the context of N entities and 2R relations, on one device.

    Attributes:
        num_entities: N.
        num_relations: R, raw relations; the inverse of relation r is r + R.
        device: the device of the graph.
    """

    _ids: npt.NDArray[np.int32]  # (T, 3), in CPU memory, because plans are built there at first use
    num_entities: int
    num_relations: int
    device: torch.device
    _plans: dict[str, Plan | GpuPlan] = field(default_factory=dict, init=False)
    _context: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list, init=False)

    @classmethod
    @_kept()
    def from_triples(
        cls,
        triples: Tensor | npt.NDArray[np.integer[Any]] | Sequence[Sequence[int]],
        num_entities: int,
        num_relations: int,
        *,
        copy: bool = True,
    ) -> "ContextGraph":
        """Check the triples and copy them. Index tensors of a back end are built when it first runs.

        Args:
            triples: int32 or int64 of shape (T, 3), or rows of integers: (head, relation, tail). Duplicates
                are allowed. The graph lies on the device of a tensor; other inputs give a graph on the CPU.
            num_entities: N, greater than every head and tail.
            num_relations: R, greater than every relation.
            copy: False uses an int32 array in CPU memory without a copy. Do not change this array later.

        Raises:
            TypeError: if the triples are not a tensor or rows of numbers, or N or R is not an integer.
            ValueError: if the shape or dtype is wrong, an id is out of range, T is 2^30 - 64 or more, or N or
                2R is negative, or 2^31 or more.
        """
        num_entities, num_relations = operator.index(num_entities), operator.index(num_relations)
        given = triples if isinstance(triples, Tensor) else _as_tensor(triples)
        if given.dtype not in (torch.int32, torch.int64) or given.ndim != 2 or given.shape[1] != 3:
            kind = str(given.dtype).removeprefix("torch.")
            raise ValueError(f"triples: expected int32 or int64 (T, 3), got {kind} {tuple(given.shape)}")
        if len(given) >= 2**30 - 64:  # kernels number 2T places in int32, and count slightly past the last
            raise ValueError(f"triples: expected fewer than 2^30 - 64, got {len(given)}")
        if not (0 <= num_entities < 2**31 and 0 <= num_relations < 2**30):
            raise ValueError(
                "sizes: expected 0 to 2^31 - 1 entities and 0 to 2^30 - 1 relations, got "
                f"{num_entities} and {num_relations}"
            )
        array = given.numpy(force=True)
        limits = (("head", num_entities), ("relation", num_relations), ("tail", num_entities))
        for (name, limit), ids in zip(limits, array.T, strict=True):
            if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
                raise ValueError(f"{name} ids: expected 0 to {limit - 1}, got {ids.min()} to {ids.max()}")
        ids = array.astype(np.int32, order="C", copy=copy and given.device.type == "cpu")
        return cls(ids, num_entities, num_relations, given.device)

    @classmethod
    @_kept()
    def from_edge_index(
        cls, edge_index: Tensor, edge_type: Tensor, num_nodes: int, num_relations: int
    ) -> "ContextGraph":
        """Build the graph from edges in PyTorch Geometric's format, as a copy of the tensors.

        Args:
            edge_index: int64 of shape (2, E): heads, then tails. List each edge once, without its inverse.
            edge_type: int64 of shape (E,), the relation of each edge.
            num_nodes: N, greater than every node.
            num_relations: R, greater than every edge type.

        Raises:
            TypeError: if an edge argument is not a tensor, or N or R is not an integer.
            ValueError: if a shape, dtype or device is wrong, or as ``from_triples``.
        """
        check_tensor("edge_index", edge_index)
        check_tensor("edge_type", edge_type)
        edges = tuple(edge_index.shape[1:])
        for name, tensor, right, wanted in (
            ("edge_index", edge_index, edge_index.ndim == 2 and len(edge_index) == 2, "(2, E)"),
            ("edge_type", edge_type, edge_type.shape == edges, edges),
        ):
            if tensor.dtype != torch.int64 or not right:
                raise InputError(
                    f"{name}: expected torch.int64 of shape {wanted}, got {tensor.dtype} of shape "
                    f"{tuple(tensor.shape)}: give heads and tails as two rows, and one type per edge"
                )
        if edge_type.device != edge_index.device:
            raise InputError(
                f"edge_type: expected device {edge_index.device}, got {edge_type.device}: move it"
            )
        triples = torch.stack([edge_index[0], edge_type, edge_index[1]], 1)
        return cls.from_triples(triples, num_nodes, num_relations, copy=False)

    def __repr__(self) -> str:
        """Return one line with the sizes and the device."""
        return (
            f"ContextGraph({counted(self.num_triples, 'triple')}, {counted(self.num_entities, 'entity')}, "
            f"{counted(self.num_relations, 'relation')}, on {self.device})"
        )

    @property
    def num_triples(self) -> int:
        """T, the number of raw triples."""
        return len(self._ids)

    @property
    def triples(self) -> Tensor:
        """A copy of the raw triples, int64 of shape (T, 3): (head, relation, tail)."""
        return self._narrow.long()

    def triples_at(self, places: Tensor) -> Tensor:
        """Return the raw triples, int64 of shape (B, 3), at the positions ``places``, int64 of shape (B,)."""
        return self._narrow.index_select(0, places).long()

    @cached_property
    @_kept()
    def _narrow(self) -> Tensor:
        return torch.from_numpy(self._ids).to(self.device)

    def to(self, device: torch.device | str) -> "ContextGraph":
        """Return the same graph on another device; its plan is built again there at first use."""
        if not isinstance(device, torch.device | str):
            raise TypeError(f"to: expected a device, got {device!r}: the dtype of a graph's ids is fixed")
        there = torch.empty(0, device=device).device
        if there == self.device:
            return self
        return ContextGraph(self._ids, self.num_entities, self.num_relations, there)

    @property
    def plan(self) -> Plan:
        """Index tensors of the Numba passes, built at first use."""
        self._make_plan("cpu")
        return self._plans["cpu"]  # type: ignore[return-value]

    @property
    def gpu_plan(self) -> GpuPlan:
        """Index tensors of the Triton kernels, built at first use.

        Raises:
            InputError: if the graph has more rows than the kernels can number.
        """
        self._make_plan("gpu")
        return self._plans["gpu"]  # type: ignore[return-value]

    @_kept()
    def _make_plan(self, kind: str) -> bool:
        if kind not in self._plans:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "plan: expected a graph with a plan, got one without during CUDA graph capture: run once "
                    "before the capture"
                )
            if kind == "gpu":
                self._check_gpu_sizes()
            build: Any = build_plan if kind == "cpu" else build_gpu_plan
            plan = build(self._ids, self.num_entities, self.num_relations)
            self._plans[kind] = type(plan)(*(field.to(self.device) for field in plan))
        return True

    def _check_gpu_sizes(self) -> None:
        """Check that the kernels' 32-bit indices can number all chunks and rows, before the sorting."""
        most, shortest = plans.GPU_MOST_CHUNKS, plans.GPU_RELATION_CHUNK[0]
        for name, rows, chunks in (
            ("entities", self.num_entities, 2 * self.num_triples // plans.GPU_ENTITY_CHUNK),
            ("relations", self.num_relations, self.num_triples // shortest),
        ):
            if rows + chunks + 2 * plans.GPU_SIDE_BY_SIDE > most:  # each kind has unused slots
                raise InputError(
                    f"{name}: expected fewer than {most:,} with {self.num_triples:,} triples for the back "
                    f"end 'triton', got {rows:,}: use backend 'reference', or several processes "
                    "(docs/scale.md)"
                )

    # torch.compile cannot trace this method. With this flag it runs the method and uses the result. Like
    # torch.compiler.assume_constant_result, which would import the whole compiler
    _make_plan._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @property
    def context_triples(self) -> tuple[Tensor, Tensor, Tensor]:
        """(h, r, t) of all E = 2T context triples, each int64 (E,): the raw triples, then their inverses."""
        self._make_context_triples()
        return self._context[0]

    @_kept()
    def _make_context_triples(self) -> bool:
        if not self._context:
            head, relation, tail = self.triples.unbind(1)
            kinds = torch.cat([relation, relation + self.num_relations])
            self._context.append((torch.cat([head, tail]), kinds, torch.cat([tail, head])))
        return True

    _make_context_triples._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _as_tensor(triples: Any) -> Tensor:
    """Convert triples that are not yet a tensor."""
    try:
        array = np.asarray(triples)
        if array.shape == (0,):
            array = array.reshape(-1, 3).astype(np.int64)
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # PyTorch needs both
    except (TypeError, ValueError) as error:  # e.g. names, or rows of different lengths
        kind = type(triples).__name__
        raise TypeError(
            f"triples: expected integer ids of shape (T, 3), got a {kind} without this form: for names use "
            "KnowledgeGraph.from_triples"
        ) from error
