"""The rates that the kernel place keeps, beside libvirt's recipe: set against achieved, on the wire.

The guest is a network namespace behind a veth; its frames are super-frames of up to 64 KiB, as a
VM's are. The receiving program counts, after the burst, in wire bytes: 1514 for
each 1448 of TCP (timestamps are on) or 1472 of UDP. `tcp8` is eight connections. Where this kernel lacks
what libvirt's recipe takes (act_police, sfq, fw), its columns are empty; `--lab` runs it all in an emulated
guest whose kernel has them. `stolen` is the share of CPU time that this machine's host took away:
tokens that come meanwhile are lost once the bucket is full.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

from harness.machine import stolen_ticks
from harness.model import Context, Json, Missing, OptionGroup, Result, Scene
from harness.report import table
from lab.guest import Guest
from lab.host import Host
from lab.namespaces import Stack
from scenes.kernel_place import ends

HOST, GUEST = "10.9.0.1", "10.9.0.2"
NETDEV = "vnet3"
RATES = "8,16,32,64,128,256,512,1000,5000"
SEGMENT, FRAME = 1448, 1514
MODULES = "veth ifb sch_htb sch_ingress sch_sfq cls_u32 cls_bpf cls_fw act_mirred act_police"

Row = dict[str, str | float | None]


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--rates", default=RATES, metavar="N,N,...", help=f"Mbit/s; {RATES}")
    group.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="of a line, after a warm-up; 10"
    )
    group.add_argument("--burst", default="", help="such as 16kB; the default of a contract")
    group.add_argument(
        "--method",
        default="shape",
        choices=["shape", "police"],
        help="how `tx.max` is kept: frames wait, or are dropped; shape",
    )
    group.add_argument(
        "--kinds", default="tcp,udp,gso", help="of tcp, tcp8, udp, gso (UDP in super-frames); tcp,udp,gso"
    )
    group.add_argument("--congestion", default="", help="of TCP, such as cubic; this machine's own")
    group.add_argument(
        "--lab",
        action="store_true",
        help="in an emulated guest, whose kernel has what libvirt's recipe takes",
    )


class Ends:
    """Two network namespaces: the host's, where the agent is, and the guest's."""

    def __init__(self, context: Context) -> None:
        self.host, self.guest = (
            context.cleanup.enter_context(Stack(context.folder / name)) for name in ("host", "guest")
        )
        pid = self.guest.path.parent.parent.name
        self.host.run(f"ip link add {NETDEV} type veth peer name eth0 netns {pid}")
        self.host.address(NETDEV, f"{HOST}/24")
        self.guest.address("eth0", f"{GUEST}/24")
        self.agent = context.cleanup.enter_context(
            Host(context.folder / "t", agent_wrapper=("nsenter", f"--net={self.host.path}"))
        )

    def tc(self, words: str) -> None:
        """Run tc where the agent is; `RuntimeError` if it fails."""
        self.host.run(["tc", *words.split()])

    def measure(
        self, kind: str, seconds: float, way: str, rate: float, congestion: str
    ) -> tuple[float, float]:
        """Mbit/s on the wire, and the share of CPU time that the machine's host took away meanwhile."""
        sender, receiver, to = (
            (self.guest, self.host, HOST) if way == "tx" else (self.host, self.guest, GUEST)
        )
        program = [sys.executable, ends.__file__]
        with subprocess.Popen(
            ["nsenter", f"--net={receiver.path}", *program, "receive", kind, str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        ) as there:
            assert there.stdout is not None
            assert there.stdout.readline().strip() == "ready"
            before = stolen_ticks()
            words = ["send", kind, to, str(seconds + ends.WARM_UP + 1), str(rate), congestion]
            here = subprocess.Popen(["nsenter", f"--net={sender.path}", *program, *words])
            counted = there.stdout.readline().split()
            here.kill()
            here.wait()
            taken, ticks = (now - then for now, then in zip(stolen_ticks(), before, strict=True))
        total, took = int(counted[0]), float(counted[1])
        wire = FRAME / (SEGMENT if ends.connections(kind) else ends.DATAGRAM)
        return total * wire * 8 / took / 1e6, taken / ticks

    @contextlib.contextmanager
    def tidegate(self, rate: str, burst: str, method: str) -> Iterator[None]:
        """A contract of this rate, both ways."""
        side = f'max = "{rate}mbit"' + (f', burst = "{burst}"' if burst else "")
        self.agent.apply(
            f'[vnic.guest]\nattach = {{ netdev = "{NETDEV}" }}\nmac = "52:54:00:00:00:01"\nsegment = 0\n'
            f'tx = {{ {side}, method = "{method}" }}\nrx = {{ {side} }}\n'
        )
        yield
        self.agent.cli("vnic", "rm", "guest")

    @contextlib.contextmanager
    def libvirt(self, rate: str) -> Iterator[None]:
        """What libvirt makes of a `<bandwidth>` that has averages alone (virnetdevbandwidth.c, libvirt 9.0).

        A burst that is not stated is as many kB as the average has kB/s.
        """
        average = round(float(rate) * 1000 / 8)
        try:
            self.tc(f"qdisc add dev {NETDEV} root handle 1: htb default 1")
            self.tc(f"class add dev {NETDEV} parent 1: classid 1:1 htb rate {average}kbps quantum 60000")
            self.tc(f"qdisc add dev {NETDEV} parent 1:1 handle 2: sfq perturb 10")
            self.tc(f"filter add dev {NETDEV} parent 1:0 protocol all prio 1 handle 1 fw flowid 1")
            self.tc(f"qdisc add dev {NETDEV} ingress")
            self.tc(
                f"filter add dev {NETDEV} parent ffff: protocol all u32 match u32 0 0 police "
                f"rate {average}kbps burst {average}kb mtu 64kb drop flowid :1"
            )
            yield
        finally:
            for words in f"qdisc del dev {NETDEV} root", f"qdisc del dev {NETDEV} ingress":
                with contextlib.suppress(RuntimeError):
                    self.tc(words)


def rows(context: Context, both: Ends) -> Iterator[Row]:
    """One row for each rate, direction and kind of traffic."""
    wanted = context.options
    cases = [(way, kind) for way in ("tx", "rx") for kind in wanted.kinds.split(",")]
    cases = [(way, kind) for way, kind in cases if context.wants(f"{way} {kind}")]

    def all_of(rate: str) -> list[tuple[float, float]]:
        return [
            both.measure(kind, wanted.seconds, way, float(rate), wanted.congestion) for way, kind in cases
        ]

    for rate in wanted.rates.split(","):
        with both.tidegate(rate, wanted.burst, wanted.method):
            ours = all_of(rate)
        theirs: list[tuple[float, float]] | None = None
        with contextlib.suppress(RuntimeError), both.libvirt(rate):
            theirs = all_of(rate)
        for i, (way, kind) in enumerate(cases):
            yield {
                "set_mbps": float(rate),
                "way": way,
                "kind": kind,
                "tidegate_mbps": ours[i][0],
                "tidegate_stolen": ours[i][1],
                "libvirt_mbps": theirs[i][0] if theirs else None,
                "libvirt_stolen": theirs[i][1] if theirs else None,
            }


def cells(row: Row, recipe: str) -> list[str]:
    """A rate, its deviation, and the share of CPU time taken away meanwhile."""
    got, wanted, taken = row[f"{recipe}_mbps"], row["set_mbps"], row[f"{recipe}_stolen"]
    if not isinstance(got, float) or not isinstance(wanted, float) or not isinstance(taken, float):
        return ["", "", ""]
    return [f"{got:.2f}", f"{(got / wanted - 1) * 100:+.2f} %", f"{taken:.1%}"]


def run(context: Context) -> Result:
    """Here, or with `--lab` in an emulated guest."""
    if context.options.lab:
        return in_lab(context)
    if os.geteuid() != 0:
        raise Missing("needs root, for network namespaces")
    both = Ends(context)
    found, lines = [], []
    for row in rows(context, both):
        found.append(row)
        lines.append(
            [
                *(f"{row['set_mbps']:.0f}", f"{row['way']}", f"{row['kind']}"),
                *cells(row, "tidegate"),
                *cells(row, "libvirt"),
            ]
        )
        context.say(" ".join(lines[-1]))
    head = ("set [Mbit/s]", "way", "kind", "Tidegate", "off", "stolen", "libvirt", "off", "stolen")
    return Result(tables=[table(head, lines)], data={"rows": found})


def in_lab(context: Context) -> Result:
    """The same, in a guest with Debian's kernel."""
    wanted = context.options
    words = ["--rates", wanted.rates, "--seconds", str(wanted.seconds), "--kinds", wanted.kinds]
    words += ["--method", wanted.method, "--burst", wanted.burst, "--congestion", wanted.congestion]
    words += ["--only", wanted.only]
    with Guest(context.folder / "g", memory_mb=1536, modules=MODULES.split()) as guest:
        note = f"In an emulated guest, Linux {guest.run('uname -r').strip()}."
        run_there = f"bench/run --scene kernel_rates --out /tmp/bench {shlex.join(words)}"
        guest.run(f"cd {shlex.quote(str(context.root))} && {run_there}", timeout=7200)
        scene: Json = json.loads(guest.run("cat /tmp/bench/results.json"))["scenes"][0]
    return Result(tables=scene["tables"], notes=[note], data=scene["data"])


SCENE = Scene(
    name="kernel_rates",
    title="Rates of the kernel place",
    about=(
        "Rates set and achieved of the kernel place beside libvirt's recipe, both directions, TCP and UDP. "
        "As root. --only tx measures one direction."
    ),
    order=940,
    run=run,
    has_cases=True,
    default=False,
    add_options=add_options,
)
