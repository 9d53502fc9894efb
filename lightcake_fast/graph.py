"""A graph's context: the triples, their inverses and the order in which the layer walks them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightcake_fast.kernels.plan import GpuPlan, Plan, build_gpu_plan, build_plan


@dataclass(frozen=True, eq=False)
class ContextGraph:
    """T raw triples and their inverses as context of N entities and 2R relations, on one device.

    Attributes:
        triples: the raw triples given, int64 of shape (T, 3): (head, relation, tail).
        num_entities: N.
        num_relations: R, raw relations; the inverse of relation r is r + R.
        plan: index tensors of the fused passes.
    """

    triples: Tensor
    num_entities: int
    num_relations: int
    plan: Plan

    @classmethod
    def from_triples(
        cls, triples: Tensor | npt.NDArray[np.int64], num_entities: int, num_relations: int
    ) -> "ContextGraph":
        """Add the inverses, sort and cut: done once for a graph.

        Args:
            triples: int64 of shape (T, 3): (head, relation, tail), duplicates allowed; the graph lies on
                the device of the tensor given.
            num_entities: N, above every head and tail.
            num_relations: R, above every relation.

        Raises:
            ValueError: if the shape or type is wrong, an id is out of range or T is 2^30 - 64 or more.
        """
        given = torch.as_tensor(triples).clone()  # the plan is made of these: they must not change under it
        if given.dtype != torch.int64 or given.ndim != 2 or given.shape[1] != 3:
            raise ValueError(f"triples: got {given.dtype} {tuple(given.shape)}, wanted torch.int64 (T, 3)")
        if len(given) >= 2**30 - 64:  # kernels number 2T places in int32, and count on a little past the last
            raise ValueError(f"triples: got {len(given)}, wanted fewer than 2^30 - 64")
        array = given.numpy(force=True)
        limits = (("head", num_entities), ("relation", num_relations), ("tail", num_entities))
        for (name, limit), ids in zip(limits, array.T, strict=True):
            if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
                raise ValueError(f"{name} ids: got {ids.min()} to {ids.max()}, wanted 0 to {limit - 1}")
        graph = cls(given, num_entities, num_relations, build_plan(array, num_entities, num_relations))
        return graph.to(given.device)

    @property
    def num_triples(self) -> int:
        """T, the raw triples."""
        return len(self.triples)

    @property
    def device(self) -> torch.device:
        """Where the graph lies."""
        return self.triples.device

    def to(self, device: torch.device | str) -> "ContextGraph":
        """The same graph on another device."""
        plan = Plan(*(field.to(device) for field in self.plan))
        graph = ContextGraph(self.triples.to(device), self.num_entities, self.num_relations, plan)
        if graph.device.type == "cuda":
            _ = graph.gpu_plan  # made here: a captured or compiled step could not
        return graph

    @cached_property
    def gpu_plan(self) -> GpuPlan:
        """Index tensors of the Triton kernels, made with the graph on a GPU, elsewhere on first use."""
        return build_gpu_plan(self.plan)

    @cached_property
    def context_triples(self) -> tuple[Tensor, Tensor, Tensor]:
        """(h, r, t) of all E = 2T context triples, each int64 (E,): those given, then their inverses."""
        head, relation, tail = self.triples.unbind(1)
        return (
            torch.cat([head, tail]),
            torch.cat([relation, relation + self.num_relations]),
            torch.cat([tail, head]),
        )
