"""Queues of the kernel's datapath, in an emulated machine, by the link's rate and the load of best effort.

```text
 guest (QEMU, Debian's kernel): h1 ─ s1 ══ s2 ─ h2     real time: 228-byte packets each 4 ms, set_queue 1
                                                       best effort: pktgen, at parts of the link's rate,
                                                       in frames that take the link 1 ms each
```

The delay has that of the emulated machine in it: rows with a load of 0 show what that alone makes. A machine
that takes its CPU away leaves the link idle meanwhile: `carried` shows it. As root:
`nice -n -10 python controller/bench/kernel_sweep.py --rounds 1`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "tests"))

from lab.guest import Guest
from rounds import machine, spread, table

DELAYS = ("delay p50, us", "p99", "p99.9", "worst")
MODULES = ["crc32c_generic", "openvswitch", "veth", "sch_htb", "pktgen"]
"""libcrc32c, which conntrack needs, wants the algorithm without saying so."""


def main() -> None:
    """Boots a guest, and sweeps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rates", default="10,50,200", help="Mbit/s")
    parser.add_argument("--loads", default="0,0.8,1.5", help="of the rate")
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    print(f"{machine()}; {options}", flush=True)
    path = f"PYTHONPATH={ROOT}/tests:{ROOT}/controller/src"
    words = f"{options.rates} {options.loads} {options.seconds:g}"
    rows = [
        [
            "Mbit/s",
            "load",
            "offered",
            "carried",
            "lost",
            "by its queue",
            "delay p50, us",
            "p99",
            "p99.9",
            "worst",
        ]
    ]
    found: dict[tuple[float, float], list[dict[str, object]]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        Guest(Path(name) / "guest", cpus=2, memory_mb=1024, modules=MODULES) as guest,
    ):
        for number in range(options.rounds):
            run = f"{path} python3 -m lab.kernel_sweep /tmp/{number} {words}"
            for line in guest.run(run, timeout=900).splitlines():
                print(line, flush=True)
                one = json.loads(line)
                found.setdefault((one["rate"], one["load"]), []).append(one)
    for (rate, load), runs in found.items():
        lost = sum(int(str(one["lost"])) for one in runs)
        count = sum(int(str(one["count"])) for one in runs)
        dropped = sum(int(str(one["dropped"])) for one in runs)
        columns = zip(*(one["delays"] for one in runs), strict=True)
        ends = [spread((float(str(one[key])) for one in runs), 1) for key in ("offered", "carried")]
        delays = [spread(map(float, column)) for column in columns]
        rows.append([f"{rate:g}", f"{load:g}", *ends, f"{lost} of {count}", str(dropped), *delays])
    print(f"\nmedian (worst) of {options.rounds} rounds\n\n{table(rows)}\n\n{machine()}")


if __name__ == "__main__":
    main()
