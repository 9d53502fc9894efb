"""Parse NVIDIA's disassembly: instructions, their source lines, and the loops that they form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_FRAME = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_CONDITIONAL = re.compile(r"BRA(\.\w+)* !?U?P\d")

Frame = tuple[str, int]  # a source file and a line number


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes:
        guard: the predicate of the instruction; empty if it always runs.
        text: the disassembled text without the guard.
        frames: source lines: first the line itself, then the call sites that it was inlined into.
    """

    guard: str
    text: str
    frames: tuple[Frame, ...] = ()

    @property
    def opcode(self) -> str:
        """The name with its modifiers: ``LDG.E.128``."""
        return self.text.split()[0]


@dataclass
class Block:
    """Instructions that run together, and the numbers of the blocks that can follow."""

    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)


class Program:
    """A kernel, parsed from the output of ``nvdisasm -c``. With ``-gi``, instructions have source lines.

    Attributes:
        blocks: the reachable blocks, in the order of the code. The first is the entry.
        loops: the block numbers of each loop, including inner loops, in the order of the loop headers.
    """

    def __init__(self, listing: str) -> None:
        self.blocks = _read(listing)
        self.loops = _loops(self.blocks)

    @property
    def instructions(self) -> list[Instruction]:
        """All instructions, in the order of the code."""
        return [instruction for block in self.blocks for instruction in block.instructions]

    @property
    def innermost(self) -> list[list[Instruction]]:
        """The body of each innermost loop, in the order of the code."""
        return [self.body(loop) for loop in self.loops if not any(other < loop for other in self.loops)]

    def body(self, loop: frozenset[int]) -> list[Instruction]:
        """Return the instructions of a loop."""
        return [instruction for n in sorted(loop) for instruction in self.blocks[n].instructions]


def _read(listing: str) -> list[Block]:
    """Cut a listing into blocks at labels and branches.

    A conditional EXIT ends some threads, not the warp. A BRA.DIV is a detour for a diverged warp, and the
    warps of these kernels never diverge.
    """
    blocks, labels = [Block()], {}
    ends: dict[int, tuple[str | None, bool]] = {}  # target of a block; whether the next block can follow
    frames: list[Frame] = []
    frames_are_old = True
    for line in listing[listing.index("\n.text.") :].splitlines():
        if match := _FRAME.search(line):
            file, number, outer, outer_line = match.groups()
            frames, frames_are_old = [] if frames_are_old else frames, False
            frames.append((file, int(number)))
            if outer:
                frames.append((outer, int(outer_line)))  # the next line gives the outer call site
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
    """Return the jump target of an instruction and whether the code can continue after it.

    The result is None if the instruction does not end a block.
    """
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
    """Return the blocks that the entry reaches, renumbered in the order of the code."""
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
    """Return the natural loops.

    A loop consists of a header, a dominated block that jumps back to the header, and the blocks between them.
    """
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
    """Return the dominators of each block: every path from the entry passes them.

    A block dominates itself.
    """
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
