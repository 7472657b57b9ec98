"""TLS with real Open vSwitch: the controller, a switch that connects by `ssl:`, its database at `pssl:`.

```text
 Runtime ─OpenFlow, TLS, CN = s1─ ovs-vswitchd        certificates: tidegate-controller init, certificate
     └────OVSDB, TLS, CN = s1──── ovsdb-server (pssl:)
```
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tidegate_controller.config import Config, parse
from tidegate_controller.main import main
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.trust import Trust
from tidegate_controller.trust.trust import Clock

from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS, OpenVswitch

pytestmark = pytest.mark.abreast

PORT = 6640
"""Of the database, in the namespace."""


class Lab:
    """A switch, and the folder of its controller."""

    def __init__(self, folder: Path, ovs: OpenVswitch) -> None:
        self.folder, self.ovs = folder, ovs
        self.trusted = folder / "c"
        for name in ("c", "liar"):
            assert main(["init", "--folder", str(folder / name), "--name", "127.0.0.1"]) == 0
            for switch in ("s1", "s2"):
                assert main(["certificate", "--folder", str(folder / name), switch]) == 0

    def show(self, switch: str, authority: str = "c") -> None:
        """Have Open vSwitch show the certificate of a switch, by an authority; it trusts ours."""
        own = self.folder / authority
        self.ovs.vsctl(f"set-ssl {own}/{switch}.key {own}/{switch}.pem {self.trusted}/ca.pem")

    def config(self, revoked: str = "") -> Config:
        """The file, with this list of revoked serial numbers."""
        return parse(
            f"""
            [openflow]
            listen = "127.0.0.1:0"
            tls = true
            [tls]
            folder = "{self.trusted}"
            revoked = [{revoked}]
            [keys]
            store = "{self.folder}/trust.db"
            [switches.s1]
            datapath = "{1:016x}"
            database = "ssl:127.0.0.1:{PORT}"
            """,
            "f",
        )

    def run(self, test: Callable[["Running"], Awaitable[None]]) -> None:
        """Runs a test with a controller; it has 60 s."""

        async def limited() -> None:
            config = self.config()
            assert config.trust is not None
            trust = await Trust.open(config.trust, Clock(time.time(), asyncio.get_running_loop().time()))
            running = Running(self, trust, Runtime(config, Kept(), trust=trust))
            async with asyncio.timeout(60):
                await running.runtime.start()
                try:
                    await asyncio.to_thread(running.connect)
                    await test(running)
                finally:
                    await running.runtime.stop()
                    await trust.close()

        self.ovs.stack.call(lambda: asyncio.run(limited()))


class Running:
    """A controller."""

    def __init__(self, lab: Lab, trust: Trust, runtime: Runtime) -> None:
        self.lab, self.trust, self.runtime = lab, trust, runtime

    def connect(self, scheme: str = "ssl") -> None:
        """The switch connects at once, since its target is new."""
        self.lab.ovs.controller("s1", "tcp:127.0.0.1:9")
        self.lab.ovs.controller("s1", f"{scheme}:127.0.0.1:{self.runtime.server.port}")

    @property
    def there(self) -> bool:
        """Whether the switch has a session, and its database is known."""
        database = next(iter(self.runtime.databases.values()))
        return "s1" in self.runtime.server.sessions and "s1" in database.switches

    async def until(self, what: Callable[[], object]) -> None:
        """Waits."""
        while not what():
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module", name="lab")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need_commands(*COMMANDS)
    need("no network namespaces", can_make_namespaces())
    folder = tmp_path_factory.mktemp("t")
    with (
        Stack(folder / "stack") as stack,
        OpenVswitch(folder / "ovs", stack, f"pssl:{PORT}:127.0.0.1") as ovs,
    ):
        lab = Lab(folder, ovs)
        lab.show("s1")
        ovs.bridge("s1", 1)
        yield lab


def test_both_ends_show_who_they_are(lab: Lab) -> None:
    """The switch by its name, the controller by its authority."""

    async def test(running: Running) -> None:
        await running.until(lambda: running.there)
        assert await running.runtime.server.sessions["s1"].alive(10)

    lab.run(test)


def test_wrong_certificates_are_refused_with_the_reason(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Another switch's, another authority's, none, and one that is revoked."""
    caplog.set_level(logging.INFO, "tidegate_controller")

    async def test(running: Running) -> None:
        await running.until(lambda: running.there)
        certificate = running.runtime.server._shown[running.runtime.server.sessions["s1"]]
        assert certificate is not None
        for name, authority, scheme, reasons in (
            ("s2", "c", "ssl", ["switch s1: the certificate is that of 's2'; s1 was expected"]),
            ("s1", "liar", "ssl", ["CERTIFICATE_VERIFY_FAILED"]),
            ("s1", "c", "tcp", ["no session with a switch"]),
        ):
            await asyncio.to_thread(lab.show, name, authority)
            caplog.clear()
            await asyncio.to_thread(running.connect, scheme)
            await running.until(lambda: all(one in caplog.text for one in reasons))  # noqa: B023
            assert "s1" not in running.runtime.server.sessions
            print(next(line for line in caplog.messages if reasons[0] in line))
        await asyncio.to_thread(lab.show, "s1")
        await asyncio.to_thread(running.connect)
        await running.until(lambda: running.there)
        caplog.clear()
        config = lab.config(f'"{certificate["serialNumber"]}"').trust
        assert config is not None
        await running.trust.reload(config)
        running.runtime.rechecked()
        await running.until(lambda: not running.there)
        assert "of 's1' is revoked" in caplog.text

    try:
        lab.run(test)
    finally:
        lab.show("s1")


def test_a_database_of_another_name(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """It could say anything of a switch: no query goes to it."""
    caplog.set_level(logging.INFO, "tidegate_controller")

    async def test(running: Running) -> None:
        for name, authority, reason in (
            ("s2", "c", f"ssl:127.0.0.1:{PORT}: the certificate is that of 's2'; s1 was expected"),
            ("s1", "liar", "CERTIFICATE_VERIFY_FAILED"),
        ):
            await asyncio.to_thread(lab.show, name, authority)
            caplog.clear()
            database = next(iter(running.runtime.databases.values()))
            if database._connection is not None:
                database._connection.close()
            await running.until(lambda: reason in caplog.text)  # noqa: B023
            assert database._connection is None
        await asyncio.to_thread(lab.show, "s1")
        await running.until(lambda: running.there)

    try:
        lab.run(test)
    finally:
        lab.show("s1")
