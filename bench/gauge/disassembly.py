"""Read NVIDIA's disassembly: instructions, their source lines, loops, and waits for memory in a loop."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import networkx

_FRAME = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_CONDITIONAL = re.compile(r"BRA(\.\w+)* !?U?P\d")
_BITS = re.compile(r"\.(64|128|256)\b")

_MEMORY = 500  # cycles of a load from global or local memory
_LATENCIES = {r"LDG?|LDL": _MEMORY, r"LDS|LDSM|SHFL|REDUX|BAR": 25, r"MUFU": 20, r".*": 5}
_NO_RESULT = re.compile(r"ST|RED\b|BRA|BRX|BAR|EXIT|RET|CALL|BSSY|BSYNC|WARPSYNC|NOP|MEMBAR|DEPBAR|ERRBAR")
_REGISTER = re.compile(r"\b(UR|UP|R|P)(\d+)(\.64)?")
_ITERATIONS = 6  # the last one counts as the steady state


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes:
        guard: the predicate of the instruction; empty if it always runs.
        text: the disassembled text without the guard.
        frames: source files and lines: first the line itself, then the call sites that it was inlined into.
    """

    guard: str
    text: str
    frames: tuple[tuple[str, int], ...] = ()

    @property
    def opcode(self) -> str:
        """The name with its modifiers: ``LDG.E.128``."""
        return self.text.split()[0]

    @property
    def bytes(self) -> int:
        """Bytes per lane that a load or a store moves."""
        bits = _BITS.search(self.opcode)
        return int(bits.group(1)) // 8 if bits else 4


class Program:
    """A kernel, parsed from the output of ``nvdisasm -c``. With ``-gi``, instructions have source lines.

    Attributes:
        instructions: the reachable instructions, in the order of the code.
        loops: the instructions of each loop, including inner loops, in the order of the code.
        innermost: the same for the loops without inner loops.
    """

    def __init__(self, listing: str) -> None:
        blocks, graph = _read(listing)
        reachable = graph.subgraph(networkx.descendants(graph, 0) | {0})
        loops = _loops(reachable)

        def body(numbers: set[int]) -> list[Instruction]:
            return [one for number in sorted(numbers) for one in blocks[number]]

        self.instructions = body(set(reachable))
        self.loops = [body(loop) for loop in loops]
        self.innermost = [body(loop) for loop in loops if not any(other < loop for other in loops)]


def _read(listing: str) -> tuple[list[list[Instruction]], networkx.DiGraph]:
    """Cut a listing into blocks at labels and branches. An edge leads to a block that can follow."""
    blocks: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    ends: dict[int, tuple[str | None, bool]] = {}  # target of a block; whether the next block can follow
    frames: list[tuple[str, int]] = []
    frames_are_old = True
    for line in listing[listing.index("\n.text.") :].splitlines():
        if match := _FRAME.search(line):
            file, number, outer, outer_line = match.groups()
            frames, frames_are_old = [] if frames_are_old else frames, False
            frames.append((file, int(number)))
            if outer:
                frames.append((outer, int(outer_line)))  # the next line gives the outer call site
        elif match := _LABEL.match(line):
            if blocks[-1]:
                blocks.append([])
            labels[match.group(1)] = len(blocks) - 1
        elif match := _INSTRUCTION.match(line):
            frames_are_old = True
            one = Instruction(match.group(1) or "", match.group(2), tuple(dict.fromkeys(frames)))
            blocks[-1].append(one)
            if (end := _end(one)) is not None:
                ends[len(blocks) - 1] = end
                blocks.append([])
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    for number in graph:
        target, goes_on = ends.get(number, (None, True))
        graph.add_edges_from([(number, labels[target])] if target else [])
        graph.add_edges_from([(number, number + 1)] if goes_on and number + 1 < len(blocks) else [])
    return blocks, graph


def _end(one: Instruction) -> tuple[str | None, bool] | None:
    """Return the jump target of an instruction and whether the code can continue after it.

    The result is None if the instruction does not end a block. A conditional EXIT ends some threads, not the
    warp. A BRA.DIV is a detour for a diverged warp, and the warps of these kernels never diverge.
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


def _loops(graph: networkx.DiGraph) -> list[set[int]]:
    """Return the loops: sets of blocks that reach each other. Inner loops remain if the entry is removed."""
    loops, parts = [], [graph]
    while parts:
        part = parts.pop()
        for loop in networkx.strongly_connected_components(part):
            if part.subgraph(loop).edges:
                entries = {block for before, block in graph.in_edges(loop) if before not in loop}
                loops.append(loop)
                parts.append(graph.subgraph(loop - (entries or {min(loop)})))
    return sorted(loops, key=lambda loop: (min(loop), -len(loop)))


def round_trips(body: Sequence[Instruction]) -> int:
    """Return the exposed round trips to memory of one iteration of a loop in the steady state.

    A model warp issues one instruction per cycle, in order. Each instruction waits until the registers that
    it reads and writes are ready. Its results are ready a fixed latency later. An *exposed round trip* is an
    instruction at which the warp waits nearly as long as a memory access takes. With exactly one, all loads
    of a loop overlap. The model leaves out caches, bandwidth and other warps, and does not predict time.

    Args:
        body: instructions in the order of the code. Branches inside are assumed to fall through.
    """
    code = [(*_operands(one), _latency(one)) for one in body]
    ready: dict[str, int] = {}
    now = exposed = 0
    for _ in range(_ITERATIONS):
        exposed = 0
        for reads, writes, latency in code:
            needed = max((ready.get(register, 0) for register in (*reads, *writes)), default=0)
            exposed += needed - now > _MEMORY // 2
            now = max(now, needed) + 1
            ready |= dict.fromkeys(writes, now + latency)
    return exposed


def _latency(one: Instruction) -> int:
    name = one.opcode.split(".")[0]
    return next(cycles for names, cycles in _LATENCIES.items() if re.fullmatch(names, name))


def _operands(one: Instruction) -> tuple[list[str], list[str]]:
    """Return the registers and predicates that an instruction reads, and the ones that it writes.

    The first operand is written. The second is written too if one of the two is a predicate. This rule treats
    some predicates that are read as written, but the warp waits for both kinds.
    """
    operands = one.text.partition(" ")[2].split(",")
    written = 0
    if not _NO_RESULT.match(one.opcode):
        written = 1 + any(re.fullmatch(r"\s*!?U?P[T\d]", operand) for operand in operands[:2])
    width = one.bytes // 4
    if ".WIDE" in one.opcode or one.opcode.startswith("CS2R"):
        width = max(width, 2)
    writes = [name for operand in operands[:written] for name in _registers(operand, width)]
    reads = [name for operand in operands[written:] for name in _registers(operand, 1)]
    if one.opcode.startswith("ST"):
        reads += _registers(operands[-1], width)
    return reads + _registers(one.guard, 1), writes


def _registers(operand: str, width: int) -> list[str]:
    found = []
    for kind, number, pair in _REGISTER.findall(operand):
        many = 1 if kind.endswith("P") else max(width, 2 if pair else 1)
        found += [f"{kind}{int(number) + k}" for k in range(many)]
    return found
