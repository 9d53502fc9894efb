"""A graph's context: the triples, their inverses and the order in which the layer walks them."""

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
    """Make ordinary tensors, not those of inference mode, of torch.export or of torch.func."""
    with torch.inference_mode(False), _disable_current_modes(), torch._C._DisableFuncTorch():
        yield


@dataclass(frozen=True, eq=False, repr=False)
class ContextGraph:
    """T raw triples and their inverses as context of N entities and 2R relations, on one device.

    Attributes:
        num_entities: N.
        num_relations: R, raw relations; the inverse of relation r is r + R.
        device: where the graph lies.
    """

    _ids: npt.NDArray[np.int32]  # (T, 3), kept by the host: plans are made of them when first asked for
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
        """Check the triples and keep a copy; what a back end needs of them is made when it first runs.

        Args:
            triples: int32 or int64 of shape (T, 3), or rows of whole numbers: (head, relation, tail),
                duplicates allowed; the graph lies on the device of the tensor given, with others on the CPU.
            num_entities: N, above every head and tail.
            num_relations: R, above every relation.
            copy: False keeps int32 in CPU memory as it is, which must then not change.

        Raises:
            TypeError: if the triples are neither a tensor nor rows of numbers, or N or R is no whole number.
            ValueError: if the shape or type is wrong, an id is out of range, T is 2^30 - 64 or more, or N or
                2R is negative, or 2^31 or more.
        """
        num_entities, num_relations = operator.index(num_entities), operator.index(num_relations)
        given = triples if isinstance(triples, Tensor) else _as_tensor(triples)
        if given.dtype not in (torch.int32, torch.int64) or given.ndim != 2 or given.shape[1] != 3:
            kind = str(given.dtype).removeprefix("torch.")
            raise ValueError(f"triples: got {kind} {tuple(given.shape)}, wanted int32 or int64 (T, 3)")
        if len(given) >= 2**30 - 64:  # kernels number 2T places in int32, and count on a little past the last
            raise ValueError(f"triples: got {len(given)}, wanted fewer than 2^30 - 64")
        if not (0 <= num_entities < 2**31 and 0 <= num_relations < 2**30):
            raise ValueError(
                f"sizes: got {num_entities} entities and {num_relations} relations, wanted 0 or more, fewer "
                "than 2^31 and 2^30"
            )
        array = given.numpy(force=True)
        limits = (("head", num_entities), ("relation", num_relations), ("tail", num_entities))
        for (name, limit), ids in zip(limits, array.T, strict=True):
            if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
                raise ValueError(f"{name} ids: got {ids.min()} to {ids.max()}, wanted 0 to {limit - 1}")
        ids = array.astype(np.int32, order="C", copy=copy and given.device.type == "cpu")
        return cls(ids, num_entities, num_relations, given.device)

    @classmethod
    @_kept()
    def from_edge_index(
        cls, edge_index: Tensor, edge_type: Tensor, num_nodes: int, num_relations: int
    ) -> "ContextGraph":
        """The graph of edges as PyTorch Geometric has them; it does not change when the tensors do.

        Args:
            edge_index: int64 of shape (2, E): heads, then tails, each edge once, without its inverse.
            edge_type: int64 of shape (E,), the relation of each edge.
            num_nodes: N, above every node.
            num_relations: R, above every edge type.

        Raises:
            TypeError: if an argument is no tensor, or N or R is no whole number.
            ValueError: if a shape, type or device is wrong, or as ``from_triples``.
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
        """One line."""
        return (
            f"ContextGraph({counted(self.num_triples, 'triple')}, {counted(self.num_entities, 'entity')}, "
            f"{counted(self.num_relations, 'relation')}, on {self.device})"
        )

    @property
    def num_triples(self) -> int:
        """T, the raw triples."""
        return len(self._ids)

    @property
    def triples(self) -> Tensor:
        """The raw triples given, int64 of shape (T, 3): (head, relation, tail); a copy."""
        return self._narrow.long()

    def triples_at(self, places: Tensor) -> Tensor:
        """Some of the raw triples, int64 of shape (B, 3), by their places, int64 of shape (B,)."""
        return self._narrow.index_select(0, places).long()

    @cached_property
    @_kept()
    def _narrow(self) -> Tensor:
        return torch.from_numpy(self._ids).to(self.device)

    def to(self, device: torch.device | str) -> "ContextGraph":
        """The same graph on another device, where its plan is made anew when it is needed."""
        if not isinstance(device, torch.device | str):
            raise TypeError(f"to: got {device!r}, wanted a device; a graph holds ids, which have one type")
        there = torch.empty(0, device=device).device
        if there == self.device:
            return self
        return ContextGraph(self._ids, self.num_entities, self.num_relations, there)

    @property
    def plan(self) -> Plan:
        """Index tensors of the Numba passes, made when first asked for."""
        self._make_plan("cpu")
        return self._plans["cpu"]  # type: ignore[return-value]

    @property
    def gpu_plan(self) -> GpuPlan:
        """Index tensors of the Triton kernels, made when first asked for.

        Raises:
            InputError: if the graph has more rows than the kernels can number.
        """
        self._make_plan("gpu")
        return self._plans["gpu"]  # type: ignore[return-value]

    @_kept()
    def _make_plan(self, kind: str) -> bool:
        if kind not in self._plans:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a plan cannot be made while a CUDA graph is captured: run once before")
            if kind == "gpu":
                self._check_gpu_sizes()
            build: Any = build_plan if kind == "cpu" else build_gpu_plan
            plan = build(self._ids, self.num_entities, self.num_relations)
            self._plans[kind] = type(plan)(*(field.to(self.device) for field in plan))
        return True

    def _check_gpu_sizes(self) -> None:
        """Refuse more chunks and rows than the kernels' 32-bit places hold, before anything is sorted."""
        most, shortest = plans.GPU_MOST_CHUNKS, plans.GPU_RELATION_CHUNK[0]
        for name, rows, chunks in (
            ("entities", self.num_entities, 2 * self.num_triples // plans.GPU_ENTITY_CHUNK),
            ("relations", self.num_relations, self.num_triples // shortest),
        ):
            if rows + chunks + 2 * plans.GPU_SIDE_BY_SIDE > most:  # each kind has empty places
                raise InputError(
                    f"{name}: expected fewer than {most:,} with {self.num_triples:,} triples for the back "
                    f"end 'triton', got {rows:,}: use backend 'reference', or several processes "
                    "(docs/scale.md)"
                )

    # torch.compile cannot trace this: it runs it and goes on with what it then finds. What
    # torch.compiler.assume_constant_result does, which imports the whole compiler for it
    _make_plan._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @property
    def context_triples(self) -> tuple[Tensor, Tensor, Tensor]:
        """(h, r, t) of all E = 2T context triples, each int64 (E,): those given, then their inverses."""
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
    """Triples that are no tensor yet."""
    try:
        array = np.asarray(triples)
        if array.shape == (0,):
            array = array.reshape(-1, 3).astype(np.int64)
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # PyTorch has no other kind
    except (TypeError, ValueError) as error:  # names, or rows of different lengths
        kind = type(triples).__name__
        raise TypeError(
            f"triples: got a {kind} that is no table of numbers, wanted ids of shape (T, 3) (names: "
            "KnowledgeGraph.from_triples)"
        ) from error
