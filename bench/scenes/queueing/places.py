"""Where frames wait for a vNIC's limit. Each place has a vNIC with a limit, and a peer without one.

```text
 Tap        a ─tap─ switch ─tap─ b                                  tx.max, rx.max of a
 Kernel     vm ─veth─ vnet3, the agent's namespace                  tx.max, rx.max of vnet3
 InGuest    QEMU guest ─vhost-user─ switch ─tap─ b                  a qdisc, TCP and ECN of the guest's own
 Synthetic  front end ═ switch ═ front end, flows that never react  tx.max of the one, rx.max of the other
 Yardstick  vm ─veth─ vnet3, both in one emulated guest             HTB + fq_codel, cake, or the kernel place:
                                                                    this machine's kernel may lack them
```
"""

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from harness.model import Json, Missing
from lab.guest import Guest, vhost_user
from lab.guest_agent import GuestAgent
from lab.host import BINARY, Host, tap_vnic, vhost_user_vnic
from lab.initramfs import ROOT
from lab.namespaces import Stack
from lab.process import wait_for
from scenes.stacks.fabric import Tidegate

from .load import LISTENING, WARM_UP, Load, script, servers, sparse, timeout, values

VM, PEER = "10.9.0.1", "10.9.0.2"
MACS = {"a": "52:54:00:09:00:01", "b": "52:54:00:09:00:02"}
NETDEV = "vnet3"
QUIET_IPV6 = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"
MOST_EMULATED = 200e6
"""bit/s: an emulated machine does not reach more."""


def terms(load: Load, rate: str, more: Sequence[str] = ()) -> list[str]:
    """Lines of a contract: a limit in each direction that is loaded; of an idle vNIC in both."""
    ways = ("tx",) if load.up and not load.down else ("rx",) if load.down and not load.up else ("tx", "rx")
    return [*(f'{way} = {{ max = "{rate}" }}' for way in ways), *more]


class Place(ABC):
    """A place that is running."""

    most = float("inf")
    """bit/s: faster limits are not measured here."""

    @abstractmethod
    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        """Everything is made in `folder`, which does not exist yet, and ends with `cleanup`."""

    @abstractmethod
    def limit(self, load: Load, rate: str, more: Sequence[str]) -> None:
        """Limits the loaded directions. `more` are further lines of the contract."""

    @abstractmethod
    def run(self, command: str, timeout: float) -> str:
        """Runs a shell command at the VM's end; its output."""

    folder: str
    """A folder that such commands may write to."""

    def able(self, load: Load, rate: float) -> bool:
        """Whether it can be loaded like this, at so many bit/s."""
        del load
        return rate <= self.most

    def window(
        self, load: Load, rate: float, seconds: float, congestion: str = "cubic", warm_up: float = WARM_UP
    ) -> Json:
        """Loads it for a while, and for `warm_up` seconds before; the figures."""
        words = script(load, PEER, self.folder, seconds, congestion, warm_up)
        printed = self.run(words, timeout(seconds))
        return values(printed, load, rate)


def serve(stack: Stack) -> None:
    """Starts the servers of the peer."""
    for command in servers(PEER):
        stack.spawn(*command.split())
    wait_for("the peer's servers", lambda: stack.try_run(LISTENING).returncode == 0)


class Tap(Place):
    """Two namespaces on taps of a switch."""

    def __init__(
        self, folder: Path, cleanup: ExitStack, *, others: Sequence[str] = (), binary: Path | None = None
    ) -> None:
        """`others` are neighbours of both, without limits; `binary` is a `tidegate` to be compared."""
        self.fabric = Tidegate(folder, ("a", "b", *others), cleanup, binary=binary or BINARY)
        self.fabric.start({})
        self.folder = str(folder)
        serve(self.fabric.stacks["b"])

    def limit(self, load: Load, rate: str, more: Sequence[str]) -> None:
        """See `Place.limit`."""
        self.fabric.apply({"a": terms(load, rate, more)})

    def run(self, command: str, timeout: float) -> str:
        """See `Place.run`."""
        return self.fabric.stacks["a"].run(command, timeout)


class Kernel(Place):
    """A veth pair, and the kernel place at its outer end."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        folder.mkdir(parents=True)
        self.folder = str(folder)
        self.vm, self.outer = (cleanup.enter_context(Stack(folder / name)) for name in ("vm", "outer"))
        for stack in (self.vm, self.outer):
            stack.run(QUIET_IPV6)
        pid = self.vm.path.parent.parent.name
        self.outer.run(f"ip link add {NETDEV} type veth peer name eth0 netns {pid}")
        self.outer.address(NETDEV, f"{PEER}/24")
        self.vm.address("eth0", f"{VM}/24")
        wrapper = ("nsenter", f"--net={self.outer.path}")
        self.host = cleanup.enter_context(Host(folder / "h", agent_wrapper=wrapper))
        serve(self.outer)

    def limit(self, load: Load, rate: str, more: Sequence[str]) -> None:
        """See `Place.limit`."""
        self.host.apply(netdev(terms(load, rate, more)))

    def ask_for_ecn(self, ecn: bool) -> None:
        """Whether TCP of both ends asks for ECN."""
        for stack in (self.vm, self.outer):
            stack.run(f"sysctl -qw net.ipv4.tcp_ecn={1 if ecn else 2}")

    def run(self, command: str, timeout: float) -> str:
        """See `Place.run`."""
        return self.vm.run(command, timeout)


def netdev(lines: Sequence[str]) -> str:
    """The contract of the outer end."""
    head = f'[vnic.vm]\nattach = {{ netdev = "{NETDEV}" }}\nmac = "{MACS["a"]}"\nsegment = 0\n'
    return head + "".join(f"{line}\n" for line in lines)


class InGuest(Place):
    """A QEMU guest on a vhost-user socket; its peer is a namespace on a tap."""

    most = MOST_EMULATED

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        folder.mkdir(parents=True)
        self.folder = "/tmp"
        self.peer = cleanup.enter_context(Stack(folder / "b"))
        self.peer.run(QUIET_IPV6)
        self.host = cleanup.enter_context(Host(folder / "h"))
        self.socket = folder / "h" / "a.sock"
        self.own = ("", False)
        self.limit(Load(), "200mbit", ())
        nic = vhost_user(self.socket, MACS["a"])
        setup = f"{QUIET_IPV6}; ip addr add {VM}/24 dev eth0 && ip link set eth0 up"
        self.guest = cleanup.enter_context(
            Guest(folder / "g", [nic], modules=["sch_fq", "tcp_bbr"], setup=setup)
        )
        self.peer.address("eth0", f"{PEER}/24")
        serve(self.peer)
        self.guest.ready()
        self.host.wait_up("a", "b")
        self.guest.run(f"ping -c 1 -W 5 {PEER}")

    def limit(self, load: Load, rate: str, more: Sequence[str]) -> None:
        """See `Place.limit`."""
        vm = vhost_user_vnic("a", self.socket, MACS["a"], *terms(load, rate, more))
        self.host.apply(vm + tap_vnic("b", self.peer.path, MACS["b"]))

    def queue_by(self, qdisc: str, ecn: bool) -> None:
        """The guest's own queueing, and whether its TCP asks for ECN."""
        if (qdisc, ecn) == self.own:
            return
        self.guest.run(
            f"tc qdisc replace dev eth0 root {qdisc} && sysctl -qw net.ipv4.tcp_ecn={1 if ecn else 2}"
        )
        self.own = (qdisc, ecn)

    def run(self, command: str, timeout: float) -> str:
        """See `Place.run`."""
        return self.guest.run(command, int(timeout))


class Yardstick(Place):
    """One emulated guest with both ends, whose kernel has cake, fq_codel and HTB."""

    most = MOST_EMULATED
    MODULES = (
        "veth",
        "ifb",
        "sch_htb",
        "sch_cake",
        "sch_tbf",
        "sch_fq_codel",
        "sch_ingress",
        "cls_u32",
        "cls_bpf",
        "act_mirred",
    )

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.folder = "/tmp"
        self.guest = cleanup.enter_context(Guest(folder, cpus=2, memory_mb=1024, modules=list(self.MODULES)))
        self.guest.run(
            f"{QUIET_IPV6}; ip link set lo up; ip netns add vm"
            f" && ip link add {NETDEV} type veth peer name eth0 netns vm"
            f" && ip addr add {PEER}/24 dev {NETDEV} && ip link set {NETDEV} up"
            f" && ip -n vm addr add {VM}/24 dev eth0 && ip -n vm link set eth0 up && ip -n vm link set lo up"
        )
        for command in servers(PEER):
            self.guest.run(f"setsid {command} >/tmp/server.log 2>&1 </dev/null &")
        wait_for("the peer's servers", lambda: self.guest.try_run(LISTENING).status == 0)
        self.shaper = ""

    @cached_property
    def agent(self) -> GuestAgent:
        """An agent there, started when it is first asked for."""
        return GuestAgent(self.guest)

    def limit(self, load: Load, rate: str, more: Sequence[str]) -> None:
        """See `Place.limit`; `shaper` says by what."""
        ends = {"tx": ("ip netns exec vm tc", "eth0"), "rx": ("tc", NETDEV)}
        for tc, device in ends.values():
            self.guest.try_run(f"{tc} qdisc del dev {device} root")
        if self.shaper == KERNEL_PLACE:
            self.agent.run("apply -f -", stdin=netdev(terms(load, rate, more)))
            return
        if "agent" in self.__dict__:
            self.agent.try_run("vnic rm vm")
        for line in terms(load, rate):
            tc, device = ends[line[:2]]
            for command in SHAPERS[self.shaper]:
                self.guest.run(f"{tc} {command.format(device=device, rate=rate)}")

    def run(self, command: str, timeout: float) -> str:
        """See `Place.run`."""
        quoted = command.replace("'", "'\\''")
        return self.guest.run(f"ip netns exec vm sh -c '{quoted}'", int(timeout))


class Synthetic(Place):
    """Two front ends without a VM: one fills its ring with super-frames and sends probes to the other."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.host = cleanup.enter_context(Host(folder))
        self.program = self.host.binary.with_name("tidegate-bench")
        if not self.program.exists():
            self.program = ROOT / "target/release/tidegate-bench"
        if not self.program.exists():
            raise Missing(f"{self.program} is missing: cargo build --release")
        self.spare = 8

    def able(self, load: Load, rate: float) -> bool:
        """One direction at a time."""
        del rate
        return not (load.up and load.down)

    def limit(self, load: Load, rate: str, more: Sequence[str]) -> None:
        """See `Place.limit`: of the one that sends, or of the one that receives."""
        limited = "b" if load.down else "a"
        lines = {limited: terms(load, rate, more)}
        sockets = {name: self.host.folder / f"{name}.sock" for name in MACS}
        self.host.apply(
            "".join(vhost_user_vnic(name, sockets[name], MACS[name], *lines.get(name, ())) for name in MACS)
        )

    def run(self, command: str, timeout: float) -> str:
        """There is no shell in a synthetic guest: this is one of the machine."""
        words = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"`{command}` ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    def window(
        self, load: Load, rate: float, seconds: float, congestion: str = "", warm_up: float = 1
    ) -> Json:
        """See `Place.window`; nothing here has a congestion control."""
        del congestion
        contracts = self.host.folder / "contracts.toml"
        flows = f"--flows {load.up or load.down} --spare {self.spare} --warm-up {warm_up} --seconds {seconds}"
        command = f"{self.program} --json --contracts {contracts} sparse --from a --to b {flows}"
        return sparse(json.loads(self.run(command, timeout(seconds))), load, rate)


KERNEL_PLACE = "kernel place"
"""A shaper, beside `SHAPERS`: the agent's."""
SHAPERS = {
    "htb": (
        "qdisc add dev {device} root handle 1: htb default 1",
        "class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate}",
        "qdisc add dev {device} parent 1:1 fq_codel",
    ),
    "cake": ("qdisc add dev {device} root cake bandwidth {rate}",),
}
"""Commands of tc(8), as people write them."""
