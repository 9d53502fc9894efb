"""How often a loop of machine code waits for memory, by an in-order scoreboard: no card needed.

A model warp issues one instruction a cycle, in order; each waits until what it reads and writes is ready, and
its own results are ready a fixed latency later. In the steady state an *exposed round trip* is an instruction
at which the warp waits nearly as long as memory takes. A loop that uses what it loads has one at least: then
all its loads travel together. A loop whose loads the assembler sank next to their uses, to save registers,
shows one for each. Caches, bandwidth and other warps are not modelled: this counts, it tells no time.
"""

import re
from collections.abc import Sequence

from bench.gauge.disassembly import Instruction

MEMORY = 500  # cycles of a load from global or local memory
_LATENCIES = {r"LDG?|LDL": MEMORY, r"LDS|LDSM|SHFL|REDUX|BAR": 25, r"MUFU": 20, r".*": 5}
_NO_RESULT = re.compile(r"ST|RED\b|BRA|BRX|BAR|EXIT|RET|CALL|BSSY|BSYNC|WARPSYNC|NOP|MEMBAR|DEPBAR|ERRBAR")
_REGISTER = re.compile(r"\b(UR|UP|R|P)(\d+)(\.64)?")
_TRIPS = 6  # the last of them is taken for the steady state


def round_trips(body: Sequence[Instruction]) -> int:
    """Exposed round trips of one trip through a loop in the steady state.

    Args:
        body: its instructions in the order of the code; branches within are taken to fall through.
    """
    code = [(*_operands(one), _latency(one)) for one in body]
    ready: dict[str, int] = {}
    now = exposed = 0
    for _ in range(_TRIPS):
        exposed = 0
        for reads, writes, latency in code:
            needed = max((ready.get(register, 0) for register in (*reads, *writes)), default=0)
            exposed += needed - now > MEMORY // 2
            now = max(now, needed) + 1
            ready |= dict.fromkeys(writes, now + latency)
    return exposed


def _latency(one: Instruction) -> int:
    name = one.opcode.split(".")[0]
    return next(cycles for names, cycles in _LATENCIES.items() if re.fullmatch(names, name))


def _operands(one: Instruction) -> tuple[list[str], list[str]]:
    """The registers and predicates that an instruction reads, and those that it writes.

    The first operand is written, and the second where one of the two is a predicate. That takes some
    predicates that are read for written ones, which makes a scoreboard wait no less.
    """
    operands = one.text.partition(" ")[2].split(",")
    written = 0
    if not _NO_RESULT.match(one.opcode):
        written = 1 + any(re.fullmatch(r"\s*!?U?P[T\d]", operand) for operand in operands[:2])
    width = _width(one.opcode)
    writes = [name for operand in operands[:written] for name in _registers(operand, width)]
    reads = [name for operand in operands[written:] for name in _registers(operand, 1)]
    if one.opcode.startswith("ST"):
        reads += _registers(operands[-1], width)
    return reads + _registers(one.guard, 1), writes


def _width(opcode: str) -> int:
    """Registers of a result, or of what is stored."""
    if bits := re.search(r"\.(64|128|256)\b", opcode):
        return int(bits.group(1)) // 32
    return 2 if ".WIDE" in opcode or opcode.startswith("CS2R") else 1


def _registers(operand: str, width: int) -> list[str]:
    found = []
    for kind, number, pair in _REGISTER.findall(operand):
        many = 1 if kind.endswith("P") else max(width, 2 if pair else 1)
        found += [f"{kind}{int(number) + k}" for k in range(many)]
    return found
