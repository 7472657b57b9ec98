"""Instructions of a frame by stage of the hot path, from a callgrind profile.

```text
 profile: address, Ir ─▶ addr2line -i: the functions it was inlined from ─▶ stage ─▶ Ir a frame
```

Nearly everything on the direct way is inlined into a few functions, so an instruction belongs to the
first stage of which any function is among those it was inlined into. The rest is told by module.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

STAGES: dict[str, frozenset[str]] = {
    "receive buffers": frozenset({"find_room", "give_back_buffers"}),
    "tokens": frozenset({"conform", "charge", "charge_waiting", "tokens", "__divti3", "u128_div_rem"}),
    "FDB": frozenset({"lookup", "learn"}),
    "ring: look, take": frozenset({"pop_singles", "available", "polled", "of"}),
    "ring: give back, show": frozenset({"complete", "flush", "publish"}),
    "headers, anti-spoofing": frozenset(
        {"look", "look_closely", "decide_plain", "passes_plain", "clear_marks", "parse", "inspect"}
    ),
    "counters, histogram": frozenset({"record", "record_many", "raise", "account_deadlines"}),
    "copy headers in": frozenset({"read"}),
    "copy frame out": frozenset({"write", "write_parts"}),
    "one decision a frame": frozenset({"classify", "classify_others", "join_closely", "group"}),
    "queue: slots": frozenset({"take_slots", "hand_on"}),
    "queue: in": frozenset({"enqueue_all"}),
    "queue: out": frozenset({"head", "take_by"}),
    "fates, settle": frozenset({"fate", "settle_group", "settle_here"}),
    "one delivery a frame": frozenset({"carry"}),
}
"""By the names of functions of crates/switch, without generics."""
REST = "the loop, for a batch"
MODULE = re.compile(r"tidegate_switch::((?:[a-z_0-9]+::)+)")
"""The module of a function that was not inlined, for functions that no stage names."""


def by_address(lines: Iterable[str], program: str) -> Counter[int]:
    """Instructions of `program`'s own code by address; the profile is made with `--dump-instr=yes`."""
    names: dict[str, str] = {}
    is_program = callee = False
    at = 0
    found: Counter[int] = Counter()
    for line in lines:
        if match := re.match(r"c?ob=(\(\d+\))(?: (.*))?", line):
            number, name = match.groups()
            if name:
                names[number] = name.rstrip()
            if line.startswith("ob="):
                is_program = names.get(number) == program
        elif line.startswith("calls="):
            callee = True
        elif line and line[0] in "0123456789+-*":
            position, _, cost = line.split()
            # Positions count from that of the line before, whatever kind it is.
            if position[0] in "+-":
                at += int(position)
            elif position != "*":
                at = int(position, 16)
            if is_program and not callee:
                found[at] += int(cost)
            callee = False
    return found


def chains(program: Path, addresses: list[int]) -> dict[int, list[str]]:
    """The functions that the instruction at each address comes from, innermost first."""
    asked = "\n".join(hex(address) for address in addresses)
    command = ["addr2line", "-e", str(program), "-a", "-i", "-f", "-C"]
    output = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    found: dict[int, list[str]] = {}
    chain: list[str] = []
    lines = iter(output.splitlines())
    for line in lines:
        if re.fullmatch(r"0x[0-9a-f]+", line):
            chain = found.setdefault(int(line, 16), [])
        else:
            chain.append(line)
            next(lines, None)  # its file and line
    return found


def stage(chain: list[str]) -> str:
    """The stage of an instruction; its module if no stage names it."""
    names = {re.sub(r"<.*", "", function.rsplit("::", 1)[-1]) for function in chain}
    if named := next((stage for stage, functions in STAGES.items() if functions & names), ""):
        return named
    module = MODULE.match(chain[-1])
    return f"rest of {module[1].removesuffix('::')}" if module and "turn" not in names else REST


def by_stage(lines: Iterable[str], program: Path) -> Counter[str]:
    """Instructions of `program`'s own code by stage."""
    addresses = by_address(lines, str(program))
    found: Counter[str] = Counter()
    for address, chain in chains(program, sorted(addresses)).items():
        found[stage(chain)] += addresses[address]
    return found
