"""Connections that become sessions, and those that do not."""

import asyncio
import contextlib
import ssl
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_switch import FakeSwitch, error, message, multipart, port
from openflow_bench import bench, run
from os_ken.ofproto import ofproto_v1_3 as of

from tidegate_controller.openflow import codec
from tidegate_controller.openflow import server as under_test
from tidegate_controller.openflow.limits import Allowance, Limits
from tidegate_controller.openflow.server import SwitchDown, SwitchUp
from tidegate_controller.openflow.session import SessionLost


def test_a_second_switch_with_an_id_that_works_is_refused() -> None:
    """The first one keeps its session."""

    async def test() -> None:
        async with bench() as at:
            first, session = await at.join(5)
            obeying = asyncio.create_task(first.obey())
            second = await (await FakeSwitch.connect(at.server.port)).greet(5)
            await second.closed()
            assert at.server.sessions == {f"{5:016x}": session}
            assert at.server.refused == 1
            assert not at.of(SwitchDown)
            obeying.cancel()

    run(test)


def test_a_second_connection_replaces_one_that_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that came back need not wait; its old session's end is told first."""
    monkeypatch.setattr(under_test, "ECHO_WITHIN", 0.1)

    async def test() -> None:
        async with bench() as at:
            _, old = await at.join(5)
            _, new = await at.join(5)
            assert old is not new
            assert "replaced" in str(old.lost)
            assert [type(event) for event in at.events] == [SwitchUp, SwitchDown, SwitchUp]
            assert list(at.server.sessions.values()) == [new]

    run(test)


def test_a_switch_that_comes_and_goes_has_to_wait() -> None:
    """Each session would be read and compared; another switch is served meanwhile."""

    async def test() -> None:
        async with bench() as at:
            for _ in range(under_test.RETURNS):
                switch, _ = await at.join(5)
                switch.close()
                await at.until(lambda: len(at.of(SwitchDown)) == len(at.of(SwitchUp)))
            begin = asyncio.get_running_loop().time()
            while len(at.of(SwitchUp)) == under_test.RETURNS:
                refused = await (await FakeSwitch.connect(at.server.port)).greet(5)
                reading = asyncio.create_task(refused.closed())
                await asyncio.wait([reading], timeout=0.2)
                await asyncio.sleep(0.02)
            assert asyncio.get_running_loop().time() - begin > under_test.RETURN_AFTER / 2
            assert at.server.refused > 0
            await at.join(6)

    run(test)


def test_allowances() -> None:
    """A burst at once, then the rate."""
    allowance = Allowance(2.0, 3.0)
    assert [allowance.take(now) for now in (0, 0, 0, 0, 0.4, 0.6, 0.7, 100, 100, 100, 100)] == [
        *(True, True, True, False, False, True, False),
        *(True, True, True, False),
    ]


def test_no_more_switches_than_allowed() -> None:
    """Those that have sessions keep them."""

    async def test() -> None:
        async with bench(most=2) as at:
            await at.join(1)
            await at.join(2)
            third = await (await FakeSwitch.connect(at.server.port)).greet(3)
            await third.closed()
            assert len(at.server.sessions) == 2

    run(test)


def test_switches_have_names_or_are_refused() -> None:
    """The caller says which."""

    async def test() -> None:
        async with bench(name=lambda datapath, _: {1: "s1"}.get(datapath)) as at:
            await at.join(1)
            stranger = await (await FakeSwitch.connect(at.server.port)).greet(2)
            await stranger.closed()
            assert list(at.server.sessions) == ["s1"]

    run(test)


def test_connections_that_say_nothing() -> None:
    """They end by the deadline, and do not keep a switch out, however many they are."""

    async def test() -> None:
        async with bench(Limits(handshake=2.0)) as at:
            silent = [await FakeSwitch.connect(at.server.port) for _ in range(3 * under_test.GREETING)]
            await at.join(1)
            assert at.server.refused >= 2 * under_test.GREETING
            await asyncio.gather(*(one.closed() for one in silent))
            assert at.server.refused == len(silent)
            assert not at.server._greeting

    run(test)


async def _early_error(switch: FakeSwitch) -> None:
    switch.write(error(1, of.OFPET_HELLO_FAILED, 0))


async def _old_version(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1, version=1))


async def _other_versions(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1, struct.pack("!HHI", 1, 8, 1 << 6), version=6))


async def _bad_hello(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1, struct.pack("!HH", 1, 0)))


async def _early_barrier(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_BARRIER_REPLY, 1))


async def _garbage(switch: FakeSwitch) -> None:
    switch.write(b"GET / HTTP/1.1\r\n\r\n")


async def _half_a_hello(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1)[:5])
    switch.writer.write_eof()


async def _auxiliary(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1))
    xid, _ = await switch.read_until(of.OFPT_FEATURES_REQUEST)
    switch.write(message(of.OFPT_FEATURES_REPLY, xid, struct.pack("!QIBB2xII", 1, 0, 3, 1, 0, 0)))


async def _short_features(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1))
    xid, _ = await switch.read_until(of.OFPT_FEATURES_REQUEST)
    switch.write(message(of.OFPT_FEATURES_REPLY, xid, bytes(5)))


async def _ports_for_ever(switch: FakeSwitch) -> None:
    switch.write(message(of.OFPT_HELLO, 1))
    xid, _ = await switch.read_until(of.OFPT_FEATURES_REQUEST)
    switch.write(message(of.OFPT_FEATURES_REPLY, xid, struct.pack("!QIBB2xII", 1, 0, 3, 0, 0, 0)))
    xid, _ = await switch.read_until(of.OFPT_MULTIPART_REQUEST)
    for number in range(1, 2000):
        switch.write(multipart(of.OFPMP_PORT_DESC, xid, port(number), more=True))


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (_early_error, "refused the handshake: hello-failed"),
        (_old_version, "OpenFlow version 1 "),
        (_other_versions, "does not offer OpenFlow 1.3"),
        (_bad_hello, "an element of the hello has a length of 0"),
        (_early_barrier, "before the hello"),
        (_garbage, "OpenFlow version 71"),
        (_half_a_hello, "closed the connection"),
        (_auxiliary, "auxiliary connection 1"),
        (_short_features, "the answer about features has 5 bytes"),
        (_ports_for_ever, "more than 1024 ports"),
    ],
)
def test_handshakes_that_fail(
    says: Callable[[FakeSwitch], asyncio.Future[None]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is named in the log, ends, and leaves nothing."""

    async def test() -> None:
        async with bench() as at:
            switch = await FakeSwitch.connect(at.server.port)
            with contextlib.suppress(OSError):
                await says(switch)
            await switch.closed()
            await at.until(lambda: at.server.refused)
            assert words in caplog.text
            assert not at.events
            assert len(at.server._tasks) == 1

    run(test)


def test_no_descriptor_is_left_behind() -> None:
    """Sessions that ended and handshakes that failed close their sockets."""

    async def test() -> None:
        async with bench() as at:
            before = len(list(Path("/proc/self/fd").iterdir()))
            for number in range(20):
                switch, _ = await at.join(number)
                switch.close()
                broken = await FakeSwitch.connect(at.server.port)
                broken.write(b"garbage that is long enough")
                await broken.closed()
                broken.close()
            await at.until(lambda: len(at.of(SwitchDown)) == 20)
            await at.until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)
            assert len(at.server._tasks) == 1

    run(test)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that trusts itself, for both ends."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=s7"
    subprocess.run(
        [*command.split(), "-keyout", folder / "key", "-out", folder / "certificate"],
        check=True,
        capture_output=True,
    )
    return folder


def test_switches_by_tls(certificates: Path) -> None:
    """A certificate names the switch; connections without TLS or certificate get no session."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "certificate"))
    context.load_cert_chain(certificates / "certificate", certificates / "key")
    context.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(certificates / "certificate"))
    client.check_hostname = False
    bare = ssl.create_default_context(cafile=str(certificates / "certificate"))
    bare.check_hostname = False
    client.load_cert_chain(certificates / "certificate", certificates / "key")

    def name(_: int, certificate: object) -> str | None:
        assert isinstance(certificate, dict)
        return str(dict(certificate["subject"][0])["commonName"])

    async def test() -> None:
        async with bench(Limits(handshake=2.0, answer=1.0, outbox=65536), tls=context, name=name) as at:
            ends = await asyncio.open_connection("127.0.0.1", at.server.port, ssl=client)
            named = await FakeSwitch(*ends).greet(9)
            await at.until(lambda: "s7" in at.server.sessions)
            silent = await FakeSwitch.connect(at.server.port)
            plain = await FakeSwitch.connect(at.server.port)
            plain.write(message(of.OFPT_HELLO, 1))
            await plain.closed()
            with contextlib.suppress(OSError):
                ends = await asyncio.open_connection("127.0.0.1", at.server.port, ssl=bare)
                await FakeSwitch(*ends).closed()
            await at.until(lambda: at.server.refused >= 2)
            assert list(at.server.sessions) == ["s7"]
            # The outbox is bounded here, too: the switch reads nothing, and loses its session.
            session = at.server.sessions["s7"]
            named.writer.transport.pause_reading()  # type: ignore[attr-defined]
            frame = codec.packet_out(1, bytes(1400))
            while session.send(frame):
                await asyncio.sleep(0)
            assert session.waiting <= session.limits.outbox + 2 * len(frame)
            with pytest.raises(SessionLost, match="no answer"):
                await session.apply([frame])
            named.close()
            await silent.closed()
            await at.until(lambda: at.server.refused == 3)

    run(test)
