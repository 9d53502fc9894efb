"""Count how often a loop of machine code waits for memory, with an in-order scoreboard. It needs no GPU.

A model warp issues one instruction per cycle, in order. Each instruction waits until the registers that it
reads and writes are ready. Its results are ready a fixed latency later. An *exposed round trip* is an
instruction in the steady state at which the warp waits nearly as long as a memory access takes.

A loop that uses its loads has at least one exposed round trip. With exactly one, all loads overlap. To save
registers, the assembler can move loads next to their uses. Then each load shows one round trip. The model
leaves out caches, bandwidth and other warps. It counts waits and does not predict time.
"""

import re
from collections.abc import Sequence

from bench.gauge.disassembly import Instruction

MEMORY = 500  # cycles of a load from global or local memory
_LATENCIES = {r"LDG?|LDL": MEMORY, r"LDS|LDSM|SHFL|REDUX|BAR": 25, r"MUFU": 20, r".*": 5}
_NO_RESULT = re.compile(r"ST|RED\b|BRA|BRX|BAR|EXIT|RET|CALL|BSSY|BSYNC|WARPSYNC|NOP|MEMBAR|DEPBAR|ERRBAR")
_REGISTER = re.compile(r"\b(UR|UP|R|P)(\d+)(\.64)?")
_TRIPS = 6  # iterations; the last one counts as the steady state


def round_trips(body: Sequence[Instruction]) -> int:
    """Return the exposed round trips of one iteration of a loop in the steady state.

    Args:
        body: instructions in the order of the code. Branches inside are assumed to fall through.
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
    """Return the registers and predicates that an instruction reads, and the ones that it writes.

    The first operand is written. The second is written too if one of the two is a predicate. This rule treats
    some predicates that are read as written, but the scoreboard waits for both kinds.
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
    """Return the number of registers of a result or of a stored value."""
    if bits := re.search(r"\.(64|128|256)\b", opcode):
        return int(bits.group(1)) // 32
    return 2 if ".WIDE" in opcode or opcode.startswith("CS2R") else 1


def _registers(operand: str, width: int) -> list[str]:
    found = []
    for kind, number, pair in _REGISTER.findall(operand):
        many = 1 if kind.endswith("P") else max(width, 2 if pair else 1)
        found += [f"{kind}{int(number) + k}" for k in range(many)]
    return found
