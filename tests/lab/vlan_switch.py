"""A VLAN-aware switch of another make: Open vSwitch in userspace, with a trunk and ports of single VLANs.

device ─ trunk ─ br0 (datapath netdev) ─┬ vlan42: an interface with that VLAN
                                        └ vlan43
"""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from .namespaces import Stack
from .process import Process

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


class VlanSwitch:
    """Connects `device` of a stack, as a trunk, with an interface `vlanN` there for each VLAN."""

    def __init__(self, stack: Stack, folder: Path, device: str, vlans: Iterable[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stack = stack
        self._socket = folder / "db.sock"
        self._environment = [f"OVS_{kind}DIR={folder}" for kind in ("RUN", "LOG", "DB")]
        database = folder / "conf.db"
        self._run("ovsdb-tool", "create", str(database), SCHEMA)
        server = self._spawn("ovsdb-server", str(database), f"--remote=punix:{self._socket}", "--no-chdir")
        try:
            server.wait_for("the database", self._socket.exists)
            self._vsctl("--no-wait", "init")
            self._switch = self._spawn(
                "ovs-vswitchd", f"unix:{self._socket}", "--disable-system", "--no-chdir"
            )
        except BaseException:
            server.stop()
            raise
        self._server = server
        trunks = ",".join(str(vlan) for vlan in vlans)
        commands = [
            "add-br br0",
            "set bridge br0 datapath_type=netdev",
            f"add-port br0 {device} trunks={trunks}",
        ]
        for vlan in vlans:
            name = f"vlan{vlan}"
            commands.append(f"add-port br0 {name} tag={vlan} -- set interface {name} type=internal")
        self._vsctl(*" -- ".join(commands).split())

    def _with_environment(self, argv: Iterable[str]) -> list[str]:
        return ["env", *self._environment, *argv]

    def _run(self, *argv: str) -> None:
        self._stack.run(self._with_environment(argv))

    def _spawn(self, *argv: str) -> Process:
        return self._stack.spawn(*self._with_environment(argv))

    def _vsctl(self, *argv: str) -> None:
        self._run("ovs-vsctl", "--timeout=20", f"--db=unix:{self._socket}", *argv)

    def stop(self) -> None:
        """End the switch."""
        self._switch.stop()
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
