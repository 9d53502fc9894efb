"""Reads NVIDIA's disassembly: instructions, where they come from, and the blocks that they form."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

CLASSES = {
    "load": r"LDG|LD\b|LDC|LDCU|ULDC|LDGSTS|UBLKCP",
    "store": r"STG|ST\b|RED|ATOM",
    "shared": r"LDS|STS|LDSM|STSM|ATOMS",
    "local": r"LDL|STL",
    "float": r"FFMA|FADD|FMUL|FMNMX|FFMA2|FADD2|FMUL2|FSWZADD|HFMA2|HADD2|HMUL2|HMNMX2|DFMA|DADD|DMUL|MUFU",
    "shuffle": r"SHFL|REDUX|CREDUX|MATCH|VOTE|VOTEU",
    "move": r"MOV|UMOV|CS2R|S2R|S2UR|R2UR|R2P|P2R|PRMT|UPRMT|F2F|F2FP|F2I|I2F|I2FP",
    "barrier": r"BAR|UBAR|SYNCS|WARPSYNC|DEPBAR|LDGDEPBAR|MEMBAR|ERRBAR|NANOSLEEP",
    "branch": r"BRA|BRX|JMP|EXIT|CALL|RET|BSSY|BSYNC|BREAK|BMOV|NOP",
}
"""Classes of instructions by opcode; the rest is integer, address and predicate arithmetic ("integer")."""

_MOVES = ("IMAD.MOV", "IMAD.U32")  # the integer multiplier used as a mover
_FRAME = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_GUARD = re.compile(r"@!?U?P\w+\s+")
_CONDITIONAL = re.compile(r"BRA(\.\w+)* !?U?P\d")
_ZEROING = re.compile(r"HFMA2(\.MMA)? \w+, -RZ, RZ, ")


Frame = tuple[str, int]  # a source file and a line


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes:
        text: as disassembled, without its guard.
        frames: its own, then those of the calls that it was inlined at.
    """

    text: str
    frames: tuple[Frame, ...]

    @property
    def opcode(self) -> str:
        """With its modifiers: ``LDG.E.128``."""
        return self.text.split()[0]

    @property
    def kind(self) -> str:
        """A key of ``CLASSES``, or "integer"."""
        if self.opcode.startswith(_MOVES) or _ZEROING.match(self.text):
            return "move"
        return _class_of(self.opcode.split(".")[0])


@functools.cache
def _class_of(opcode: str) -> str:
    return next((name for name, codes in CLASSES.items() if re.fullmatch(codes, opcode)), "integer")


@dataclass
class Block:
    """Instructions that run together, and the blocks that can follow: the branch's target first."""

    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Statement:
    """A ``for``, ``while`` or ``if`` of a kernel's source, or of a function inlined at a chain of calls."""

    text: str  # its first line
    is_loop: bool
    file: str
    line: int
    body: range  # lines
    orelse: range  # lines
    calls: tuple[Frame, ...] = ()  # the innermost first

    @property
    def key(self) -> tuple[Frame, ...]:
        """What tells it from others: where it stands, and where it was called from."""
        return (self.file, self.line), *self.calls


def read_listing(listing: str) -> list[Block]:
    """The blocks of a kernel from ``nvdisasm -c -gi``, in the order of the code; the entry is the first."""
    reader = _Reader()
    code = listing[listing.index("\n.text.") :]
    for line in code.splitlines():
        reader.line(line)
    return reader.linked()


def count_kinds(instructions: Iterable[Instruction]) -> Counter[str]:
    """How many instructions of each class."""
    return Counter(instruction.kind for instruction in instructions)


class _Reader:
    """Cuts a listing into blocks at labels and branches.

    A conditional EXIT ends some threads, not the warp; a BRA.DIV is the detour of a diverged warp, which
    these kernels never take.
    """

    def __init__(self) -> None:
        self.blocks = [Block()]
        self.labels: dict[str, int] = {}
        self.ends: dict[int, tuple[str | None, bool]] = {}  # a block's target, and whether it may go on
        self.frames: list[Frame] = []
        self.frames_are_old = True

    def line(self, line: str) -> None:
        if match := _FRAME.search(line):
            self.frame(*match.groups())
        elif match := _LABEL.match(line.strip()):
            if self.blocks[-1].instructions:
                self.blocks.append(Block())
            self.labels[match.group(1)] = len(self.blocks) - 1
        elif match := _INSTRUCTION.match(line):
            self.instruction(match.group(2))

    def frame(self, file: str, line: str, outer: str | None, outer_line: str | None) -> None:
        if self.frames_are_old:
            self.frames, self.frames_are_old = [], False
        self.frames.append((file, int(line)))
        if outer and outer_line:
            self.frames.append((outer, int(outer_line)))  # the next line tells where that was inlined

    def instruction(self, text: str) -> None:
        self.frames_are_old = True
        guard = _GUARD.match(text)
        text = text[guard.end() :] if guard else text
        self.blocks[-1].instructions.append(Instruction(text, tuple(dict.fromkeys(self.frames))))
        opcode = text.split()[0]
        conditional = guard is not None or _CONDITIONAL.match(text) is not None
        target = _TARGET.search(text)
        # sm_80 leaves some loops by a call that never returns, to a label of the same function
        jumps = opcode.startswith("BRA") or (opcode.startswith("CALL") and target)
        if jumps and not opcode.startswith("BRA.DIV"):
            self.end(target.group(1) if target else None, conditional)
        elif opcode.startswith(("EXIT", "RET")) and not conditional:
            self.end(None, False)

    def end(self, target: str | None, goes_on: bool) -> None:
        self.ends[len(self.blocks) - 1] = target, goes_on
        self.blocks.append(Block())

    def linked(self) -> list[Block]:
        """The blocks that the entry reaches, in the order of the code."""
        for number, block in enumerate(self.blocks):
            target, goes_on = self.ends.get(number, (None, True))
            if target:
                block.successors.append(self.labels[target])
            if goes_on and number + 1 < len(self.blocks):
                block.successors.append(number + 1)
        return _reachable(self.blocks)


def _reachable(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that the kernel's entry reaches, renumbered in the order of the code."""
    seen, todo = set(), [0]
    while todo:
        number = todo.pop()
        if number not in seen:
            seen.add(number)
            todo += blocks[number].successors
    rank = {number: place for place, number in enumerate(sorted(seen))}
    return [Block(blocks[n].instructions, [rank[t] for t in blocks[n].successors]) for n in sorted(seen)]


def branch_statement(frames: tuple[Frame, ...]) -> Statement | None:
    """The statement whose header a branch stands in."""
    for depth, (file, line) in enumerate(frames):
        found = _statements(file).get(line)
        if found is not None:
            return replace(found, calls=frames[depth + 1 :])
    return None


def loop_around(frames: tuple[Frame, ...]) -> Statement | None:
    """The innermost loop whose header or body an instruction stands in."""
    for depth, (file, line) in enumerate(frames):
        loops = [s for s in set(_statements(file).values()) if s.is_loop and s.line <= line < s.body.stop]
        if loops:
            return replace(max(loops, key=lambda loop: loop.line), calls=frames[depth + 1 :])
    return None


@functools.cache
def _statements(file: str) -> dict[int, Statement]:
    """The branching statements of a source file, by each line of their headers.

    Loops over a ``static_range`` are none: Triton unrolls them.
    """
    path = Path(file)
    if not path.is_file():
        return {}
    source = path.read_text()
    lines = source.splitlines()
    found: dict[int, Statement] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.For) and "static_range" in ast.dump(node.iter):
            continue
        if isinstance(node, ast.For | ast.While | ast.If):
            body = _lines(node.body)
            statement = Statement(
                text=lines[node.lineno - 1].strip(),
                is_loop=not isinstance(node, ast.If),
                file=file,
                line=node.lineno,
                body=body,
                orelse=_lines(node.orelse),
            )
            for line in range(node.lineno, max(body.start, node.lineno + 1)):
                found[line] = statement
    return found


def _lines(statements: Sequence[ast.stmt]) -> range:
    if not statements:
        return range(0)
    last = statements[-1]
    return range(statements[0].lineno, (last.end_lineno or last.lineno) + 1)
