"""The package on a machine that systemd has booted, with contracts of each place that needs no hardware.

vm (vhost-user) ─┐                            plc ── veth ─┐
box (tap, container) ─┼─ switch                            ├─ br0
here (tap, host) ─┘                           lan ── veth ─┘
"""

import json
import re
import shutil
from pathlib import Path

from .booted import Booted
from .host import Vnic
from .process import wait_for

VM = {"mac": "52:54:00:00:0b:01", "socket": "run/tidegate/vm/vm.sock", "peer": "52:54:00:00:0b:02"}
"""The front end that is not there yet, and whom it can send to."""

_CONTRACTS = """
[vnic.vm]
attach  = { vhost-user = "/run/tidegate/vm/vm.sock" }
mac     = "52:54:00:00:0b:01"
segment = 7
tx      = { max = "10mbit" }

[vnic.box]
attach  = { tap = "eth0", netns = "/run/netns/box" }
mac     = "52:54:00:00:0b:02"
segment = 7

[vnic.here]
attach  = { tap = "tg-here" }
mac     = "52:54:00:00:0b:03"
segment = 7

[vnic.plc]
attach   = { netdev = "plc" }
mac      = "52:54:00:00:0b:04"
segment  = 0
tx       = { max = "10mbit", burst = "8kB" }
deadline = "20ms"
to       = ["lan"]

[vnic.lan]
attach  = { netdev = "lan" }
mac     = "52:54:00:00:0b:05"
segment = 0
rx      = { max = "100mbit" }
"""

_NETWORK = """
set -e
ip netns add box
for end in plc lan; do
    ip netns add vm-$end
    ip link add $end type veth peer name eth0 netns vm-$end
    ip link set $end up
    ip -n vm-$end link set eth0 up
done
ip link add br0 type bridge
ip link set br0 up
ip link set plc master br0
ip link set lan master br0
ip -n vm-plc addr add 10.9.0.1/24 dev eth0
ip -n vm-lan addr add 10.9.0.2/24 dev eth0
"""


class Installed(Booted):
    """A machine that the package is on, or is put on."""

    def install(self, package: Path) -> str:
        """Install or upgrade; what dpkg and the package's scripts say."""
        shutil.copy(package, self.root / "run/package.deb")
        return self.run("dpkg --force-unsafe-io --install /run/package.deb 2>&1")

    def apply(self, contracts: str) -> None:
        """`tidegate apply -f`; must succeed."""
        (self.root / "run/contracts.toml").write_text(contracts)
        self.run("tidegate apply -f /run/contracts.toml")

    def prepare(self) -> None:
        """Make a network, and bring the contracts into force.

        The container's namespace is made while the agent runs: it has to see what is mounted later.
        """
        self.run(_NETWORK)
        self.apply(_CONTRACTS)
        self.run("ip -n box addr add 10.8.0.2/24 dev eth0; ip addr add 10.8.0.3/24 dev tg-here")

    def prepare_again(self) -> None:
        """Bring the contracts into force once more."""
        self.apply(_CONTRACTS)

    def show(self, vnic: str) -> Vnic:
        """`tidegate vnic show`."""
        return Vnic(json.loads(self.run(["tidegate", "vnic", "show", vnic, "--json"])))

    def wait_in_force(self) -> None:
        """Wait until each contract is."""
        wait_for("contracts in force", self._is_in_force)

    def _is_in_force(self) -> bool:
        answer = self.try_run("tidegate vnic ls --json")
        document = json.loads(answer.stdout) if answer.returncode == 0 else []
        vnics = document["vnics"] if isinstance(document, dict) else document
        return len(vnics) == _CONTRACTS.count("[vnic.") and all(v["state"] == "in force" for v in vnics)

    def check_traffic(self) -> None:
        """Frames pass at each place, and are counted."""
        self.run("ping -c 2 -i 0.1 -W 5 10.8.0.2")
        self.run("ip netns exec vm-plc ping -c 2 -i 0.1 -W 5 10.9.0.2")
        for vnic in ("box", "here", "plc"):
            assert self.show(vnic).tx_frames > 0, vnic

    def property(self, service: str, name: str) -> str:
        """What systemd says of a service."""
        return self.run(["systemctl", "show", "--value", "--property", name, service]).strip()

    def restarts(self, service: str) -> int:
        """How often systemd has started it anew by itself."""
        return int(self.property(service, "NRestarts"))

    def main_process(self, service: str) -> int:
        """The main process of a service, by its number here."""
        inside = self.property(service, "MainPID")
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                numbers = re.search(r"^NSpid:\t(\d+)\t(\d+)$", status.read_text(), re.MULTILINE)
            except OSError:
                continue
            if numbers and numbers[2] == inside and self.holds(int(numbers[1])):
                return int(numbers[1])
        raise LookupError(f"{service} has no process {inside}")

    def threads(self, service: str) -> dict[str, list[str]]:
        """Scheduling class and real-time priority of each thread."""
        lines = self.run(
            f"ps --no-headers -Lo comm,cls,rtprio {self.property(service, 'MainPID')}"
        ).splitlines()
        return {name.strip(): rest for name, *rest in (line.rsplit(maxsplit=2) for line in lines)}

    def edit(self, service: str, text: str) -> None:
        """Put a drop-in for a service there; systemd does not know of it yet."""
        folder = self.root / f"etc/systemd/system/{service}.service.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "test.conf").write_text(text)

    def restart_with(self, service: str, text: str) -> None:
        """`systemctl edit`, and a restart."""
        self.edit(service, text)
        self.run(f"systemctl daemon-reload && systemctl restart {service}")

    def check_nothing_denied(self) -> None:
        """Neither service has missed a right."""
        log = self.run("journalctl --no-pager -o cat -u tidegate-switch -u tidegate-agent")
        denied = r"denied|not permitted|Permission|Read-only|gets no real-time|not supported"
        assert [line for line in log.splitlines() if re.search(denied, line)] == []
