"""Open vSwitch in a network namespace: userspace datapath, its database and sockets in a folder of its own.

```text
 eth0 ─ br-phy (has the host's addresses) ─ VXLAN ─ br-int (has the endpoint's addresses)
```
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from .namespaces import Stack
from .process import Process, wait_for

COMMANDS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl")
TLS = [
    f"--{option}=db:Open_vSwitch,SSL,{column}"
    for option, column in (
        ("private-key", "private_key"),
        ("certificate", "certificate"),
        ("ca-cert", "ca_cert"),
    )
]
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


class OpenVswitch:
    """A running Open vSwitch, the other end of a tunnel from `stack`'s eth0."""

    def __init__(self, folder: Path, stack: Stack, remote: str = "") -> None:
        """`remote` is one more that the database listens at; `pssl:` has the files of `ovs-vsctl set-ssl`."""
        folder.mkdir(parents=True)
        self._more = [f"--remote={remote}", *TLS] if remote else []
        self.folder = folder
        self.stack = stack
        self.remote = f"unix:{folder}/db.sock"
        database = folder / "conf.db"
        stack.run(["ovsdb-tool", "create", str(database), SCHEMA])
        self.start_database()
        self.vsctl("--no-wait init")
        self._daemon = self._start("ovs-vswitchd", self.remote)

    @property
    def pid(self) -> int:
        """The process id of the switch."""
        return self._daemon.pid

    def start_database(self) -> None:
        """Start the database, for the first time or after `kill_database`."""
        socket = self.folder / "db.sock"
        socket.unlink(missing_ok=True)
        words = (str(self.folder / "conf.db"), f"--remote=punix:{socket}", *self._more)
        self._database = self._start("ovsdb-server", *words)
        wait_for("the database's socket", socket.exists)

    def kill_database(self) -> None:
        """End the database as a crash would; the switch goes on without it."""
        self._database.kill()

    def _start(self, program: str, *words: str) -> Process:
        log = self.folder / f"{program}.log"
        own = f"--unixctl={self.folder}/{program}.ctl"
        enter = ("nsenter", f"--net={self.stack.path}")
        return Process([*enter, program, *words, own], log, env={"OVS_RUNDIR": str(self.folder)})

    def vsctl(self, words: str) -> None:
        """`ovs-vsctl WORDS`, which must succeed within 15 seconds."""
        # The database's socket is there shortly before it listens.
        self.stack.run(f"ovs-vsctl --db={self.remote} --retry --timeout=15 {words}")

    def tunnel(self, vni: int, local: str, remote: str, endpoint: str, mtu: int) -> None:
        """A VXLAN tunnel of this VNI from the host's address to another; the endpoint's address inside."""
        self.vsctl("add-br br-phy -- set bridge br-phy datapath_type=netdev -- add-port br-phy eth0")
        self.stack.run(f"ip addr flush dev eth0 && ip addr add {local} dev br-phy && ip link set br-phy up")
        self.vsctl(
            "add-br br-int -- set bridge br-int datapath_type=netdev -- add-port br-int vx0"
            f" -- set interface vx0 type=vxlan options:remote_ip={remote} options:key={vni}"
        )
        self.stack.run(f"ip addr add {endpoint} dev br-int && ip link set br-int mtu {mtu} up")

    def bridge(self, name: str, datapath: int) -> None:
        """A bridge of OpenFlow 1.3 that drops what no rule takes."""
        self.vsctl(
            f"add-br {name} -- set bridge {name} datapath_type=netdev protocols=OpenFlow13 fail_mode=secure"
            f" other_config:datapath-id={datapath:016x}"
        )

    def controller(self, name: str, target: str) -> None:
        """Have a bridge connect to a controller, such as tcp:HOST:PORT.

        A target that is new is tried at once; between attempts at an old one are up to 8 s. Without any
        controller the bridge would lose its rules, so the target is replaced.
        """
        self.vsctl(f"set-controller {name} {target}")

    def patch(self, one: str, other: str) -> None:
        """Join two bridges; the ports are called ONE-OTHER and OTHER-ONE."""
        for here, there in ((one, other), (other, one)):
            name = f"{here}-{there}"
            self.vsctl(
                f"add-port {here} {name} -- set interface {name} type=patch options:peer={there}-{here}"
            )

    def restart(self) -> None:
        """Kill the switch, as a crash would, and start it anew: its rules are gone."""
        self._daemon.kill()
        self._daemon = self._start("ovs-vswitchd", self.remote)

    def stop(self) -> None:
        """End both programs."""
        self._daemon.stop()
        self._database.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
