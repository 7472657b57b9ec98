"""Open vSwitch with DPDK, in a folder of its own.

```text
 folder/  conf.db  db.sock  ovsdb-server.log  ovs-vswitchd.log
 bridge br0 (datapath netdev): port a ─ PMD thread on switch_cpu ─ port b
```
"""

from pathlib import Path

from harness.model import Missing
from lab.process import Process

from .base import Peer, need, run

DAEMON = Path("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


class Ovs(Peer):
    """OVS-DPDK; forwards by learned MACs until told otherwise."""

    front_end_listens = True

    name = "OVS-DPDK"

    def __init__(self, folder: Path, cpu: int, other_cpu: int) -> None:
        """PMD thread on `cpu`, everything else on `other_cpu`."""
        need("ovsdb-server", "openvswitch-switch-dpdk")
        if not DAEMON.exists():
            raise Missing(f"{DAEMON} is not installed (openvswitch-switch-dpdk): scripts/setup bench")
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.sockets = (folder / "a.sock", folder / "b.sock")
        self.environment = {"OVS_RUNDIR": str(folder), "OVS_LOGDIR": str(folder), "OVS_DBDIR": str(folder)}
        self.started: list[Process] = []
        try:
            self._start(cpu, other_cpu)
        except BaseException:
            self.stop()
            raise

    def _start(self, cpu: int, other_cpu: int) -> None:
        db = self.folder / "conf.db"
        self.db_socket = self.folder / "db.sock"
        run("ovsdb-tool", "create", db, SCHEMA)
        server = Process(
            ["ovsdb-server", db, f"--remote=punix:{self.db_socket}", f"--unixctl={self.folder}/db.ctl"],
            self.folder / "ovsdb-server.log",
            env=self.environment,
        )
        self.started.append(server)
        server.wait_for("its socket", self.db_socket.exists)
        self._vsctl("--no-wait", "init")
        dpdk = "--no-pci --in-memory --single-file-segments --iova-mode=va --no-telemetry"
        self._vsctl(
            *("--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true"),
            *("other_config:dpdk-socket-mem=384", f"other_config:dpdk-lcore-mask={1 << other_cpu:#x}"),
            *(f"other_config:pmd-cpu-mask={1 << cpu:#x}", f'other_config:dpdk-extra="{dpdk}"'),
        )
        self.process = Process(
            [DAEMON, f"unix:{self.db_socket}", f"--unixctl={self.folder}/vswitchd.ctl"],
            self.folder / "ovs-vswitchd.log",
            env=self.environment,
        )
        self.started.append(self.process)
        self.process.wait_for("DPDK", lambda: "DPDK Enabled - initialized" in self.process.output(), 30)
        self._vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        for number, socket in enumerate(self.sockets, 1):
            port = f"g{number}"
            self._vsctl(
                *("add-port", "br0", port, "--", "set", "Interface", port, "type=dpdkvhostuserclient"),
                *(f"options:vhost-server-path={socket}", f"ofport_request={number}"),
            )

    def learn(self) -> None:
        """Forward by learned MACs (the action NORMAL)."""
        self._flows("actions=NORMAL")

    def explicit(self) -> None:
        """Forward from port to port, by a flow each way."""
        self._flows("in_port=1,actions=output:2", "in_port=2,actions=output:1")

    def _flows(self, *flows: str) -> None:
        table = self.folder / "flows"
        table.write_text("".join(f"{flow}\n" for flow in flows))
        run("ovs-ofctl", "replace-flows", f"unix:{self.folder}/br0.mgmt", table)

    def _vsctl(self, *words: str) -> str:
        return run("ovs-vsctl", f"--db=unix:{self.db_socket}", "--timeout=20", *words)

    def connected(self) -> None:
        """Wait until OVS has connected to both front ends."""
        self.process.wait_for(
            "both ports",
            lambda: all(self._up(port) for port in ("g1", "g2")),
            30,
        )

    def _up(self, port: str) -> bool:
        return self._vsctl("get", "Interface", port, "link_state").strip() == "up"

    def forwarding_thread(self) -> int:
        """The one PMD thread."""
        return self.thread_named("pmd-")

    def stop(self) -> None:
        """End both daemons."""
        for process in reversed(self.started):
            if process is getattr(self, "process", None):
                self.resume()
            process.stop()
