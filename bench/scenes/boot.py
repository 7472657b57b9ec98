"""A machine that boots: iPXE fetches a file by HTTP, by the switch and by a tap of the kernel's.

```text
 HTTP server, in a namespace ─┬─ tap ─ Tidegate ─ vhost-user ─┬─ iPXE (QEMU)
                              └─ tap of the kernel's ─ QEMU ──┘
```
"""

from harness.model import Context, Figure, Missing, Result, Sample, Scene, Target
from lab.firmware import Netboot, boot_nic, ipxe_script, kernel_tap, power_on
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack

BYTES = 12_000_000
ROUNDS = 11
MACS = {"server": "52:54:00:00:00:0a", "ipxe": "52:54:00:00:00:0b"}


def run(context: Context) -> Result:
    """In turns, in one boot."""
    rounds = context.rounds(ROUNDS)
    stack = context.cleanup.enter_context(Stack(context.folder / "ns"))
    host = context.cleanup.enter_context(Host(context.folder / "h"))
    socket = host.folder / "ipxe.sock"
    server = tap_vnic("server", stack.path, MACS["server"])
    host.apply(server + vhost_user_vnic("ipxe", socket, MACS["ipxe"]))
    stack.address("eth0", "10.0.0.1/24")
    tap = kernel_tap(stack)
    netboot = Netboot(stack, context.folder / "files", "eth0")
    (netboot.folder / "large").write_bytes(bytes(BYTES))
    (netboot.folder / "boot.ipxe").write_text(ipxe_script(rounds, netboot.url, "http://10.0.1.1"))
    (netboot.folder / "done").touch()
    nics = [boot_nic(socket, MACS["ipxe"]), tap]
    machine = context.cleanup.enter_context(power_on(context.folder / "ipxe", [], nics, stack=stack))
    machine.wait_for("iPXE", lambda: len(netboot.took()) == 2 * rounds, 60.0 + 30 * rounds)
    took = netboot.took()
    if len(took) != 2 * rounds:
        raise Missing("iPXE did not fetch the file as often as it was to")
    switch, kernel = took[::2], took[1::2]
    row = f"iPXE fetches {BYTES // 1_000_000} MB by HTTP"
    ratios = tuple(Sample(theirs / ours) for ours, theirs in zip(switch, kernel, strict=True))
    return Result(
        figures=[
            Figure(row, "tidegate", "s", tuple(map(Sample, switch))),
            Figure(row, "kernel's tap", "s", tuple(map(Sample, kernel))),
        ],
        targets=[
            Target(f"{row}: the kernel's tap's time / Tidegate's", "at least 1x", "x", 1, "more", ratios)
        ],
    )


SCENE = Scene(
    name="boot",
    title="A machine that boots",
    about=(
        "iPXE in QEMU (emulated) fetches 12 MB by HTTP from a network namespace: by vhost-user, the switch "
        "and a tap of it, and by a tap of the kernel's, in turns in one boot. Its driver posts few buffers, "
        "and takes no super-frames; the namespace sends super-frames."
    ),
    order=64,
    run=run,
)
