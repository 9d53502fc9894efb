"""What a compiled kernel executes: basic blocks, loops and how often each block runs.

Triton compiles for cards that are not there and its wheel brings NVIDIA's disassembler, so the
instructions of a kernel can be counted on any machine. How often a block runs follows from the source:
every branch is traced, by its line number, to the ``for``, ``while`` or ``if`` that it stands for, and the
caller states how often that statement's body runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.disassembly import (
    Block,
    Frame,
    Instruction,
    Statement,
    branch_statement,
    loop_around,
    read_listing,
)

Counts = npt.NDArray[Any]  # one number a program


@dataclass
class Tally:
    """How often a statement runs, in each program of a launch.

    Attributes:
        reached: how often it is come to.
        entered: how often a loop's body runs at all, or the condition of an ``if`` holds.
        runs: how often its body runs.
        assumed: its condition is data, and counts as always true.
    """

    reached: Counts
    entered: Counts
    runs: Counts
    assumed: bool = False


Key = tuple[Frame, ...]  # where a statement stands, and the calls that it was inlined at


@dataclass(frozen=True)
class Loop:
    """A natural loop: its header, its blocks, and the statement that it was compiled from."""

    header: int
    blocks: frozenset[int]
    statement: Statement | None


class Program:
    """The blocks of a kernel as a graph, from ``nvdisasm -c -gi``."""

    def __init__(self, listing: str) -> None:
        self.blocks = read_listing(listing)
        self.order = _reverse_postorder(self.blocks)
        self.dominators = _dominators(self.blocks, self.order)
        self.loops = [self._loop(*edges) for edges in self._back_edges().items()]

    @property
    def instructions(self) -> list[Instruction]:
        """All of them, in the order of the code."""
        return [instruction for block in self.blocks for instruction in block.instructions]

    def loop_instructions(self, loop: Loop) -> list[Instruction]:
        """Those of a loop's body, inner loops included."""
        return [i for number in sorted(loop.blocks) for i in self.blocks[number].instructions]

    def executions(self, tallies: Mapping[Key, Tally]) -> list[Counts]:
        """How often each block runs, by program: shape (programs,), or (1,) where all are alike.

        Raises:
            ValueError: if the code branches where the source does not, or on a statement without a tally.
        """
        return _Flow(self, tallies).solve()

    def _back_edges(self) -> dict[int, list[int]]:
        edges: dict[int, list[int]] = {}
        for number in self.order:
            for target in self.blocks[number].successors:
                if target in self.dominators[number]:
                    edges.setdefault(target, []).append(number)
        return edges

    def _loop(self, header: int, latches: list[int]) -> Loop:
        members, todo = {header}, list(latches)
        while todo:
            number = todo.pop()
            if number not in members:
                members.add(number)
                todo += [n for n, block in enumerate(self.blocks) if number in block.successors]
        return Loop(header, frozenset(members), self._loop_statement(members))

    def _loop_statement(self, members: set[int]) -> Statement | None:
        """What a loop was compiled from: most of its instructions stand in that statement's body."""
        votes: Counter[Statement] = Counter()
        for number in members:
            for instruction in self.blocks[number].instructions:
                around = loop_around(instruction.frames)
                votes.update([around] if around else [])
        return max(votes, key=lambda s: votes[s], default=None)

    def statement(self, number: int) -> Statement | None:
        """What the branch at the end of a block was compiled from; None if that is no such statement."""
        return branch_statement(self.blocks[number].instructions[-1].frames)


class _Flow:
    """Propagates counts through the blocks, forward edges first.

    Compilers unroll small loops: a loop that takes four trips at a time, then pieces that take two and one.
    A piece's trips show in how often it holds the body's loads; each takes what those before it left.
    """

    def __init__(self, program: Program, tallies: Mapping[Key, Tally]) -> None:
        self.program, self.tallies = program, tallies
        self.loop_at = {loop.header: loop for loop in program.loops}
        self.entering: dict[int, Counts] = {}
        self.remaining: dict[Statement, Counts] = {}
        self.pieces = self._find_pieces()

    def solve(self) -> list[Counts]:
        program = self.program
        runs: list[Counts] = [np.zeros(1)] * len(program.blocks)
        inflow = {0: np.ones(1)}
        for number in program.order:
            count = inflow.get(number, np.zeros(1))
            if number in self.loop_at:
                self.entering[number] = count
                count = self._loop_count(self.loop_at[number])
            runs[number] = count
            flows = self._split(number, count)
            for target, flow in zip(program.blocks[number].successors, flows, strict=True):
                if target not in program.dominators[number]:
                    inflow[target] = inflow.get(target, np.zeros(1)) + flow
        return runs

    def _split(self, number: int, count: Counts) -> list[Counts]:
        """How a block's count divides between its successors."""
        targets = self.program.blocks[number].successors
        if len(targets) < 2:
            return [count] * len(targets)
        loop = self._left_by(number)
        if loop is not None:
            leaving = self.entering[loop.header]
            return [count - leaving if target in loop.blocks else leaving for target in targets]
        statement = self.program.statement(number) or self._guarded(number)
        if statement is None:
            return self._compilers_own(number, count)
        if statement.is_loop:
            return self._guard(statement, number, count)
        weights = [self._weight(statement, number, target) for target in targets]
        if weights[0] == weights[1]:
            raise ValueError(f"cannot tell the sides of `{statement.text}`: {self._place(number)}")
        tally = self._tally(statement)
        holds = count * tally.entered / np.maximum(tally.reached, 1)
        return [holds, count - holds] if weights[0] > weights[1] else [count - holds, holds]

    def _tally(self, statement: Statement) -> Tally:
        here = [key for key in self.tallies if key[0] == statement.key[0]]
        if len(here) > 1:  # of the calls that it stands in, the last that begins at or above their lines
            here = [key for key in here if _begins_before(key, statement.key)]
            here = sorted(here, key=lambda key: key[1:])[-1:]
        if not here:
            raise ValueError(f"no count for `{statement.text}` at {statement.key}")
        return self.tallies[here[0]]

    def _guard(self, statement: Statement, number: int, count: Counts) -> list[Counts]:
        """A branch around a loop, or around a piece of an unrolled one: taken where trips are left for it."""
        targets = self.program.blocks[number].successors
        inside = [
            [p for p in self.pieces.get(statement, []) if p <= self._region(number, t)] for t in targets
        ]
        if bool(inside[0]) == bool(inside[1]):
            raise ValueError(f"a guard that reaches no loop: {self._place(number)}")
        pieces = inside[0] or inside[1]
        if self.loop_of(pieces[0]) is not None and len(self.pieces[statement]) == 1:
            through = np.minimum(count, self._tally(statement).entered)
        else:
            least = min(self._trips(statement, piece) for piece in pieces)
            left = self._left(statement)
            through = np.where(left >= least, count, 0)
            if len(pieces) == 1 and self.loop_of(pieces[0]) is None:
                self.remaining[statement] = left - least * through
        return [through if pieces is inside[k] else count - through for k in range(2)]

    def _guarded(self, number: int) -> Statement | None:
        """The loop that a branch without a line skips: one side leads to it and to nothing else."""
        sides = [self._region(number, target) for target in self.program.blocks[number].successors]
        if bool(sides[0]) == bool(sides[1]):
            return None
        inside = [loop.statement for loop in self.program.loops if loop.blocks <= (sides[0] or sides[1])]
        return inside[0] if len(set(inside)) == 1 else None

    def _loop_count(self, loop: Loop) -> Counts:
        statement = loop.statement
        if statement is None:
            raise ValueError(f"a loop that no statement explains: {self._place(loop.header)}")
        if len(self.pieces[statement]) == 1:
            return self._tally(statement).runs
        trips = self._trips(statement, loop.blocks)
        left = self._left(statement)
        self.remaining[statement] = left % trips
        return left // trips

    def _left(self, statement: Statement) -> Counts:
        """The trips that no piece has taken so far."""
        tally = self._tally(statement)
        if (tally.reached > 1).any():
            raise ValueError(f"an unrolled loop within another: `{statement.text}`")
        return self.remaining.get(statement, tally.runs)

    def _find_pieces(self) -> dict[Statement, list[frozenset[int]]]:
        """For each loop statement the blocks that run its body: loops, or what a guard leads to."""
        found: dict[Statement, list[frozenset[int]]] = {}
        for loop in self.program.loops:
            if loop.statement is not None:
                found.setdefault(loop.statement, []).append(loop.blocks)
        for number, block in enumerate(self.program.blocks):
            statement = self.program.statement(number)
            if len(block.successors) == 2 and statement in found and self._left_by(number) is None:
                for target in block.successors:
                    region = frozenset(self._region(number, target))
                    nested = any(
                        len(self.program.blocks[n].successors) == 2 and self.program.statement(n) == statement
                        for n in region
                    )
                    if region and not nested and self._loads(region):
                        found[statement].append(region)
        return found

    def _trips(self, statement: Statement, piece: frozenset[int]) -> int:
        """How many trips a piece takes at a time."""
        loads = self._loads(piece)
        unit = min(self._loads(other) for other in self.pieces[statement])
        if not unit or loads % unit:
            raise ValueError(f"cannot tell how `{statement.text}` was unrolled: {loads} and {unit} loads")
        return loads // unit

    def _loads(self, piece: frozenset[int]) -> int:
        return sum(i.opcode.startswith("LDG") for number in piece for i in self._code(number))

    def loop_of(self, piece: frozenset[int]) -> Loop | None:
        """The loop that a piece is."""
        return next((loop for loop in self.program.loops if loop.blocks == piece), None)

    def _left_by(self, number: int) -> Loop | None:
        """The innermost loop around a block, if the block is its exit."""
        around = [loop for loop in self.program.loops if number in loop.blocks]
        loop = min(around, key=lambda loop: len(loop.blocks), default=None)
        if loop is None:
            return None
        exits = [n for n in loop.blocks if set(self.program.blocks[n].successors) - loop.blocks]
        if len(exits) != 1:
            raise ValueError(f"a loop with {len(exits)} exits: {self._place(loop.header)}")
        return loop if number in exits else None

    def _compilers_own(self, number: int, count: Counts) -> list[Counts]:
        """A branch that the compiler made: the longer side counts, but not slow paths of its library."""
        lengths = []
        for target in self.program.blocks[number].successors:
            code = [i for n in self._region(number, target) for i in self._code(n)]
            lengths.append(-1 if any(i.opcode.startswith("CALL") for i in code) else len(code))
        none = np.zeros_like(count)
        return [count, none] if lengths[0] > lengths[1] else [none, count]

    def _region(self, number: int, target: int) -> set[int]:
        """The blocks that run only by this branch: none where the branch goes straight to the join."""
        dominators = self.program.dominators
        before = [n for n, block in enumerate(self.program.blocks) if target in block.successors]
        if any(n != number and target not in dominators[n] for n in before):
            return set()
        return {n for n, above in dominators.items() if target in above}

    def _weight(self, statement: Statement, number: int, target: int) -> int:
        """Instructions of the body less those of the ``else`` on this side of a branch."""
        body, orelse = set(statement.body), set(statement.orelse)
        weight = 0
        for n in self._region(number, target):
            for instruction in self._code(n):
                lines = {line for file, line in instruction.frames if file == statement.file}
                weight += bool(lines & body) - bool(lines & orelse)
        return weight

    def _code(self, number: int) -> list[Instruction]:
        return self.program.blocks[number].instructions

    def _place(self, number: int) -> str:
        last = self._code(number)[-1]
        return f"{last.text} at {last.frames[0] if last.frames else 'no line'}"


def _begins_before(key: Key, other: Key) -> bool:
    """Whether the calls of a key may be those of another, which names any line of a call of several lines."""
    return len(key) == len(other) and all(
        a[0] == b[0] and a[1] <= b[1] for a, b in zip(key, other, strict=True)
    )


def _reverse_postorder(blocks: Sequence[Block]) -> list[int]:
    order: list[int] = []
    seen: set[int] = set()

    def visit(number: int) -> None:
        seen.add(number)
        for target in blocks[number].successors:
            if target not in seen:
                visit(target)
        order.append(number)

    visit(0)
    return order[::-1]


def _dominators(blocks: Sequence[Block], order: Sequence[int]) -> dict[int, set[int]]:
    dominators = {number: set(order) for number in order}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            before = [dominators[n] for n in order if number in blocks[n].successors]
            now = set.intersection(*before) | {number}
            changed |= now != dominators[number]
            dominators[number] = now
    return dominators
