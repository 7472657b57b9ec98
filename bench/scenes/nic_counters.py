"""Bytes that a VM with a VF sends, counted from the host and in the VM, while the NIC's 32-bit counter wraps.

A nested VM owns a VF of QEMU's igb (an 82576); in the outer machine an agent counts by the NIC's registers.
The VM's own figure is of the program that sends: frames times their size. Its sent octets' register is set to
just below 2^32 first, in QEMU's memory: the wrap comes in the middle. Needs `scripts/setup test`; takes two
minutes.
"""

from harness.model import Context, OptionGroup, Result, Scene
from harness.report import table
from lab.guest_agent import GuestAgent
from lab.igb import Pf
from lab.nested import InnerGuest, outer_guest
from lab.vf_counters import set_counter

MAC = "52:54:00:00:00:10"
CONTRACT = f'[vnic.web]\nattach = {{ vf = "eth0/0" }}\nmac = "{MAC}"\nsegment = 0\n'


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--frames", type=int, default=20_000, metavar="N", help="of a round; 20000")
    group.add_argument("--rounds", type=int, default=5, metavar="N", help="5")
    group.add_argument("--size", type=int, default=1514, metavar="N", help="of a frame, bytes; 1514")


def run(context: Context) -> Result:
    """All rounds in one nested VM."""
    options, program = context.options, context.root / "tests/lab/sent.py"
    lines = []
    with outer_guest(context.folder / "outer") as outer:
        pf = Pf(outer)
        pf.make_vfs(1, macs=[MAC], driver="vfio-pci")
        with InnerGuest(context.folder / "inner", outer=outer, vf=pf.vf_pci(0)) as inner:
            inner.run("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set eth0 up")
            inner.run("until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.05; done", timeout=60)
            inner.run("ip addr add 10.0.2.9/24 dev eth0 && ping -c 3 -W 5 10.0.2.2", timeout=30)
            half = options.frames * options.rounds * (options.size + 4) // 2
            set_counter(pf, 0, "tx_bytes", 2**32 - half)
            agent = GuestAgent(outer)
            agent.run("apply -f -", CONTRACT)
            agent.wait("counted", lambda: "tx.bytes" in agent.figures("web"))
            first = agent.figures("web")["tx.bytes"]["value"]
            source = agent.figures("web")["tx.bytes"]["source"]
            said = 0
            for _ in range(options.rounds):
                sent = inner.run(f"python3 {program} eth0 {options.frames} {options.size}", timeout=600)
                said += int(sent)
                # The driver may still have some.
                outer.run("sleep 1")
                counted = agent.figures("web")["tx.bytes"]["value"] - first
                lines.append((f"{said:,}", f"{counted:,}", f"{(counted - said) / said:+.3%}"))
                context.say(f"sent {lines[-1][0]}, counted {lines[-1][1]}, error {lines[-1][2]}")
    return Result(
        tables=[table(("sent by the VM [bytes]", "counted by the host [bytes]", "error"), lines)],
        notes=[f"source: {source}; wraps after {half:,} octets with FCS"],
    )


SCENE = Scene(
    name="nic_counters",
    title="A VM's bytes, counted from the host",
    about=(
        "What a nested VM with a VF of QEMU's 82576 sends, counted from the host and in the VM, while the "
        "NIC's 32-bit counter wraps."
    ),
    order=954,
    run=run,
    default=False,
    add_options=add_options,
)
