"""Reads NVIDIA's disassembly: instructions, where they come from, and the loops that they form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_FRAME = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_CONDITIONAL = re.compile(r"BRA(\.\w+)* !?U?P\d")

Frame = tuple[str, int]  # a source file and a line


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes:
        guard: the predicate under which it runs; empty where it always does.
        text: as disassembled, without its guard.
        frames: where it comes from: its own line, then those of the calls that it was inlined at.
    """

    guard: str
    text: str
    frames: tuple[Frame, ...] = ()

    @property
    def opcode(self) -> str:
        """With its modifiers: ``LDG.E.128``."""
        return self.text.split()[0]


@dataclass
class Block:
    """Instructions that run together, and the blocks that can follow."""

    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)


class Program:
    """A kernel from ``nvdisasm -c``; with ``-gi`` its instructions know their lines.

    Attributes:
        blocks: those that the entry reaches, in the order of the code; the entry is the first.
        loops: the numbers of each loop's blocks, inner loops' included, in the order of their headers.
    """

    def __init__(self, listing: str) -> None:
        self.blocks = _read(listing)
        self.loops = _loops(self.blocks)

    @property
    def instructions(self) -> list[Instruction]:
        """All of them, in the order of the code."""
        return [instruction for block in self.blocks for instruction in block.instructions]

    @property
    def innermost(self) -> list[list[Instruction]]:
        """The body of each loop that holds no other, in the order of the code."""
        return [self.body(loop) for loop in self.loops if not any(other < loop for other in self.loops)]

    def body(self, loop: frozenset[int]) -> list[Instruction]:
        """The instructions of a loop."""
        return [instruction for n in sorted(loop) for instruction in self.blocks[n].instructions]


def _read(listing: str) -> list[Block]:
    """Cut a listing into blocks at labels and branches.

    A conditional EXIT ends some threads, not the warp; a BRA.DIV is the detour of a diverged warp, which
    these kernels never take.
    """
    blocks, labels = [Block()], {}
    ends: dict[int, tuple[str | None, bool]] = {}  # a block's target, and whether it may go on
    frames: list[Frame] = []
    frames_are_old = True
    for line in listing[listing.index("\n.text.") :].splitlines():
        if match := _FRAME.search(line):
            file, number, outer, outer_line = match.groups()
            frames, frames_are_old = [] if frames_are_old else frames, False
            frames.append((file, int(number)))
            if outer:
                frames.append((outer, int(outer_line)))  # the next line tells where that was inlined
        elif match := _LABEL.match(line):
            if blocks[-1].instructions:
                blocks.append(Block())
            labels[match.group(1)] = len(blocks) - 1
        elif match := _INSTRUCTION.match(line):
            frames_are_old = True
            one = Instruction(match.group(1) or "", match.group(2), tuple(dict.fromkeys(frames)))
            blocks[-1].instructions.append(one)
            if (end := _end(one)) is not None:
                ends[len(blocks) - 1] = end
                blocks.append(Block())
    for number, block in enumerate(blocks):
        target, goes_on = ends.get(number, (None, True))
        block.successors += [labels[target]] if target else []
        block.successors += [number + 1] if goes_on and number + 1 < len(blocks) else []
    return _reachable(blocks)


def _end(one: Instruction) -> tuple[str | None, bool] | None:
    """Where an instruction jumps to, and whether the code may go on behind it; None if it ends no block."""
    conditional = bool(one.guard or _CONDITIONAL.match(one.text))
    target = _TARGET.search(one.text)
    # sm_80 leaves some loops by a call that never returns, to a label of the same function
    jumps = one.opcode.startswith("BRA") or (one.opcode.startswith("CALL") and target)
    if jumps and not one.opcode.startswith("BRA.DIV"):
        return target.group(1) if target else None, conditional
    if one.opcode.startswith(("EXIT", "RET")) and not conditional:
        return None, False
    return None


def _reachable(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that the entry reaches, renumbered in the order of the code."""
    seen: set[int] = set()
    todo = [0]
    while todo:
        number = todo.pop()
        if number not in seen:
            seen.add(number)
            todo += blocks[number].successors
    rank = {number: place for place, number in enumerate(sorted(seen))}
    return [Block(blocks[n].instructions, [rank[t] for t in blocks[n].successors]) for n in sorted(seen)]


def _loops(blocks: Sequence[Block]) -> list[frozenset[int]]:
    """The natural loops: a header that dominates the block which jumps back to it, and what leads there."""
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for target in block.successors:
            before[target].append(number)
    dominators = _dominators(before)
    loops: dict[int, set[int]] = {}
    for number, block in enumerate(blocks):
        for header in dominators[number].intersection(block.successors):
            members, todo = loops.setdefault(header, {header}), [number]
            while todo:
                member = todo.pop()
                if member not in members:
                    members.add(member)
                    todo += before[member]
    return [frozenset(loops[header]) for header in sorted(loops)]


def _dominators(before: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each block those that every way from the entry goes through, itself included."""
    everything = set(range(len(before)))
    dominators = [{0}, *(set(everything) for _ in before[1:])]
    changed = True
    while changed:
        changed = False
        for number in range(1, len(before)):
            now = set.intersection(*(dominators[n] for n in before[number])) | {number}
            changed |= now != dominators[number]
            dominators[number] = now
    return dominators
