"""How many d-wide rows a layer moves on a graph, and how many bytes besides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.launches import Launch
from lightcake_fast.graph import ContextGraph

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowTraffic:
    """Rows of d numbers that a layer moves, forward and backward.

    A program that has fetched a row finds it in its multiprocessor's cache when it comes to it again: its
    distinct rows count.

    Attributes:
        gathered: entity rows, and rows of their gradients, fetched for triples.
        relation: relation rows, and rows of their gradients, fetched for triples or chunks.
        own: each row's own values, gradients and results.
        parts: the sums of chunks, written once and read once.
    """

    gathered: int
    relation: int
    own: int
    parts: int

    @property
    def total(self) -> int:
        """All rows."""
        return self.gathered + self.relation + self.own + self.parts


def row_traffic(graph: ContextGraph, launches: Sequence[Launch], width: int) -> tuple[RowTraffic, int]:
    """Rows that the launches of a layer move, and the bytes of their other tensors, each moved once.

    Args:
        graph: on the CPU.
        launches: of the forward and the backward.
        width: d.
    """
    gathered = relation = own = parts = 0
    for launch in launches:
        direction, _, kernel = launch.name.partition(".")
        forward = direction == "gpu_forward"
        tables = 1 if forward else 2  # e; e and its gradient
        match kernel:
            case "relation_pass":
                pairs, rows = _relation_pass(launch)
                gathered, relation = gathered + tables * pairs, relation + tables * rows
                parts += rows  # a sum of the relation and one of its inverse
            case "entity_pass":
                pairs, rows = _entity_pass(launch)
                # the backward also reads the rows of the inverse relation
                gathered, relation = gathered + tables * pairs, relation + (1 if forward else 4) * rows
                own += (2 if forward or not launch.arguments["OWN"] else 3) * graph.num_entities
                parts += int((launch.arguments["chunk_ptr"][:, 3] >= 0).sum())
            case "merge_pass" | "sum_pass":
                own += 2 * len(launch.arguments["row_ptr"])
                parts += int(launch.arguments["bound_ptr"].max())
            case "product_pass":
                rows = len(launch.arguments["product_x_ptr"]) + len(launch.arguments["product_y_ptr"])
                own += (2 if launch.arguments["FROM_SUM"] else 3) * rows
            case _:
                raise ValueError(f"{launch.name}: no count of its rows")
    other = sum(_other_bytes(launch, width) for launch in launches)
    return RowTraffic(gathered, relation, own, parts), other


def _relation_pass(launch: Launch) -> tuple[int, int]:
    """Distinct entity rows of the chunks, and their relation rows: the relation's and its inverse's."""
    chunks, raw = launch.arguments["chunk_ptr"].numpy(), launch.arguments["raw_ptr"].numpy()
    lengths = chunks[:, 1] - chunks[:, 0]
    program, triple = _spread(chunks[:, 0], lengths)
    return (
        _distinct(np.concatenate([program, program]), raw[triple, :2].T.reshape(-1)),
        2 * len(chunks),
    )


def _entity_pass(launch: Launch) -> tuple[int, int]:
    """Distinct entity rows and distinct relation rows of the programs.

    Raises:
        ValueError: if a program's first chunk is not its longest, as the kernel takes it to be.
    """
    chunks, context = launch.arguments["chunk_ptr"].numpy(), launch.arguments["context_ptr"].numpy()
    lengths, side_by_side = chunks[:, 1] - chunks[:, 0], launch.arguments["BLOCK_E"]
    grouped = lengths.reshape(-1, side_by_side)
    short = grouped[grouped.max(1) > grouped[:, 0]]
    if len(short):
        raise ValueError(
            f"{launch.name}: a program's chunks have lengths {short[0].tolist()}, "
            "but it runs as often as its first is long: the rest is left out"
        )
    chunk, triple = _spread(chunks[:, 0], lengths)
    program = chunk // side_by_side
    return _distinct(program, context[triple, 1]), _distinct(program, context[triple, 0])


def _spread(start: Array, length: Array) -> tuple[Array, Array]:
    """The chunk and the place of every triple."""
    chunk = np.repeat(np.arange(len(start)), length)
    first = np.cumsum(length) - length
    return chunk, start[chunk] + np.arange(len(chunk)) - first[chunk]


def _distinct(program: Array, row: npt.NDArray[Any]) -> int:
    """Distinct pairs of a program and a row."""
    return len(np.unique(program * (int(row.max(initial=0)) + 1) + row))


def _other_bytes(launch: Launch, width: int) -> int:
    """Bytes of the tensors that do not hold rows: ids, scores, links, totals."""
    tensors = [value for value in launch.arguments.values() if isinstance(value, torch.Tensor)]
    return sum(t.nbytes for t in tensors if t.ndim < 2 or t.shape[-1] != width or not t.is_floating_point())
