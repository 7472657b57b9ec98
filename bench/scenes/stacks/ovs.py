"""OVS-DPDK between namespaces: a bridge of its userspace datapath, taps made by DPDK's `net_tap`.

```text
 ovsdb-server, ovs-vswitchd (own folder)
   br0 (netdev) ─ port to-NAME: net_tap ─ kernel tap, moved into the namespace as eth0
```

Its rate limits for DPDK ports are policers: `ingress_policing_rate` for what the namespace sends, the QoS
type `egress-policer` for what it receives.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.machine import hugepages
from harness.model import Missing
from lab.process import Process, wait_for

from .fabric import Fabric

DAEMON = Path("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
MEMORY = 384
"""MB of hugepages for DPDK."""
HUGEPAGES = 1024
"""Of 2 MB, to be there while it runs: a generous multiple, since memory is fragmented."""


class OvsDpdk(Fabric):
    """A private Open vSwitch; raises `Missing` where it is not installed or does not come up."""

    def __init__(self, folder: Path, names: Sequence[str], cleanup: ExitStack, *, cpu: int) -> None:
        if not DAEMON.exists() or shutil.which("ovsdb-server") is None:
            raise Missing("OVS-DPDK is not installed (openvswitch-switch-dpdk): scripts/setup bench")
        cleanup.enter_context(hugepages(HUGEPAGES))
        super().__init__(folder, names, cleanup)
        self.run_folder = folder / "ovs"
        self.run_folder.mkdir()
        self.socket = self.run_folder / "db.sock"
        self.environment = {
            "OVS_RUNDIR": str(self.run_folder),
            "OVS_LOGDIR": str(self.run_folder),
            "OVS_DBDIR": str(self.run_folder),
            # DPDK's own files.
            "RUNTIME_DIRECTORY": str(self.run_folder),
        }
        database = self.run_folder / "conf.db"
        subprocess.run(["ovsdb-tool", "create", database, SCHEMA], check=True)
        server = cleanup.enter_context(
            Process(
                ["ovsdb-server", database, f"--remote=punix:{self.socket}", "--no-chdir"],
                self.run_folder / "ovsdb.log",
                env=self.environment,
            )
        )
        server.wait_for("the database", self.socket.exists)
        self.vsctl("--no-wait", "init")
        self.vsctl(
            "--no-wait",
            *("set", "Open_vSwitch", ".", "other_config:dpdk-init=true"),
            f"other_config:pmd-cpu-mask={1 << cpu:#x}",
            f"other_config:dpdk-lcore-mask={1 << cpu:#x}",
            f"other_config:dpdk-socket-mem={MEMORY}",
            "other_config:dpdk-extra=--no-pci --in-memory --single-file-segments --iova-mode=va",
        )
        self.daemon = cleanup.enter_context(
            Process(
                [DAEMON, f"unix:{self.socket}", "--no-chdir"], folder / "vswitchd.log", env=self.environment
            )
        )
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        for number, who in enumerate(names):
            device = f"tgovs{number}"
            self.vsctl(
                *("add-port", "br0", f"to-{who}", "--", "set", "interface", f"to-{who}", "type=dpdk"),
                # net_tap wants as many receive queues as OVS makes transmit queues: one per thread.
                "options:n_rxq=2",
                f"options:dpdk-devargs=net_tap{number},iface={device},mac={self.mac(who)}",
            )
            wait_for(f"tap {device}", Path(f"/sys/class/net/{device}").exists, 10)
            pid = self.stacks[who].path.parent.parent.name
            subprocess.run(["ip", "link", "set", device, "netns", pid, "name", "eth0"], check=True)
            self.stacks[who].run(f"ip link set eth0 address {self.mac(who)} up")
        self.settle()
        cleanup.callback(self.wake)  # A stopped process does not end when asked to.
        self.rest()

    def rest(self) -> None:
        """Stops its forwarding thread, which would spin on the core of the switch that is measured."""
        self.daemon.popen.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Lets it go on."""
        self.daemon.popen.send_signal(signal.SIGCONT)

    def vsctl(self, *arguments: str) -> str:
        """`ovs-vsctl` on the private database; must succeed within 20 s."""
        done = subprocess.run(
            ["ovs-vsctl", f"--db=unix:{self.socket}", "--timeout=20", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},
            check=False,
        )
        if done.returncode != 0:
            raise Missing(
                f"OVS-DPDK cannot be set up: ovs-vsctl {' '.join(arguments)}: {done.stderr.strip()}"
            )
        return done.stdout

    def ingress(self, name: str, rate: int, burst: int) -> None:
        """Polices what a namespace sends; bit/s and bytes, 0 for no limit."""
        self.vsctl(
            *("set", "interface", f"to-{name}", f"ingress_policing_rate={rate // 1000}"),
            f"ingress_policing_burst={burst * 8 // 1000}",
        )

    def egress(self, name: str, rate: int, burst: int) -> None:
        """Polices what a namespace receives; bit/s and bytes, 0 for no limit."""
        self.vsctl("clear", "port", f"to-{name}", "qos")
        self.vsctl("--all", "destroy", "qos")
        if rate:
            self.vsctl(
                *("set", "port", f"to-{name}", "qos=@q", "--", "--id=@q", "create", "qos"),
                "type=egress-policer",
                f"other-config:cir={rate // 8}",
                f"other-config:cbs={burst}",
            )
