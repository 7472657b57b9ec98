"""The loop with switches that cut, drip, or are not in the configuration any more; and faults of the core."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from apis import Quick
from fake_switch import FakeSwitch, message, multipart
from openflow_bench import PATIENCE, bench, run
from os_ken.ofproto import ofproto_v1_3 as of
from test_outbox import Slow
from test_standby import Voted

from tidegate_controller import events as ev
from tidegate_controller.config import Config, parse
from tidegate_controller.decide.move import Update
from tidegate_controller.decide.phases import Phase
from tidegate_controller.model.intent import Queue, SwitchIntent
from tidegate_controller.model.paths import FlowKey, PathRequest, PathState
from tidegate_controller.model.topology import Port
from tidegate_controller.runtime import sampling
from tidegate_controller.runtime import switch as switches
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.runtime.switch import Switch
from tidegate_controller.state.election import Election

TERMS = """
[openflow]
listen = "127.0.0.1:0"
[discovery]
interval = "20s"
[terms]
capacity = "1Gbit"
reservable = "500Mbit"
overhead = "20B"
levels = [{ delay = "200us", frames = 5000 }, { delay = "2ms", buffer = "1MiB" }]
"""


def configuration(count: int) -> Config:
    """Switches in a line, with a host at each."""
    text = [TERMS]
    for n in range(1, count + 1):
        text.append(f'[switches.s{n}]\ndatapath = "{n:016x}"\ndatabase = "unix:/nowhere/{n}"')
        text.append(f'[hosts.h{n}]\nport = "s{n}:1"\naddress = "10.0.0.{n}"\nmac = "02:00:00:00:00:{n:02x}"')
        text += [f'[[links]]\nbetween = ["s{n - 1}:3", "s{n}:2"]'] * (n > 1)
    return parse("\n".join(text), "f")


def queue_counters(port: int, queue: int, errors: int) -> bytes:
    """As OpenFlow has them."""
    return struct.pack("!IIQQQII", port, queue, 0, 0, errors, 0, 0)


def port_counters(port: int, dropped: int) -> bytes:
    """As OpenFlow has them."""
    return struct.pack("!I4x6Q", port, 0, 0, 0, 0, 0, dropped) + bytes(56)


def request(source: str, target: str) -> PathRequest:
    """A small path."""
    key = FlowKey(f"10.0.0.{source[1:]}", f"10.0.0.{target[1:]}", 9001, 9000)
    return PathRequest(f"{source}/v>{target}", source, target, key, 46, 1_000_000, 3000, 100, 1500, 10**9)


async def until(what: object) -> None:
    """Waits until something is true."""
    assert callable(what)
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(config: Config, kept: Kept, election: Election | None = None) -> AsyncIterator[Runtime]:
    """A controller; it must have no fault at the end."""
    store = Slow()
    store.let = asyncio.Semaphore(1000)
    runtime = Runtime(config, kept, store=store if election else None, election=election)
    await runtime.start()
    try:
        yield runtime
        assert runtime._fault is not None
        assert not runtime._fault.done()
    finally:
        await runtime.stop()


def test_a_role_that_is_cut_ends_one_session() -> None:
    """A switch whose answer about the role has no content: the controller, and other switches, go on."""

    async def test() -> None:
        election = Voted()
        async with running(configuration(2), Kept(), election) as runtime:
            election.won.set()
            await until(lambda: runtime.leading)
            bad = await (await FakeSwitch.connect(runtime.server.port)).greet(1)
            good = await (await FakeSwitch.connect(runtime.server.port)).greet(2)
            for size, one in ((0, bad), (16, good)):
                xid, _ = await one.read_until(of.OFPT_ROLE_REQUEST)
                one.write(message(of.OFPT_ROLE_REPLY, xid, struct.pack("!I4xQ", 2, 9)[:size]))
            await until(lambda: list(runtime.server.sessions) == ["s2"])
            await until(lambda: runtime.switches["s2"].session is not None)
            bad.close()
            good.close()

    run(test)


def test_a_fault_beside_a_switch_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the process: what is overlooked is chosen by the switch."""

    async def test() -> None:
        async with running(configuration(1), Kept()) as runtime:

            async def broken(name: str, session: object) -> None:
                raise LookupError(f"{name} {bool(session)}")

            monkeypatch.setattr(runtime.switches["s1"], "_beside", broken)
            switch = await (await FakeSwitch.connect(runtime.server.port)).greet(1)
            await switch.closed()
            await until(lambda: "s1" not in runtime.server.sessions)

    run(test)


def test_an_order_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others wait for it, so the session is lost; the order, and those behind it, fail."""
    monkeypatch.setattr(switches, "ORDER", 0.2)

    async def test() -> None:
        async with bench() as at:
            _, session = await at.join()
            told: list[ev.Event] = []
            one = Switch("s1", told.append)
            one.up(session)
            tickets = [ev.Ticket("v", 1, serial) for serial in (1, 2)]
            for ticket in tickets:
                one.order(ev.Install(ticket, Update(ticket.serial, "s1")))
            reason = await at.reason()
            assert "an order was not done in its time" in reason
            one.down(reason)
            assert told == [ev.SwitchFailed("s1", ticket, reason) for ticket in tickets]

    run(test)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_switch_that_drips_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, deaf: bool) -> None:
    """One answers nothing, or without end; rules of the others follow the topology all the same."""
    monkeypatch.setattr(switches, "ORDER", 0.5)
    monkeypatch.setattr(switches, "COMPARISON", 0.5)

    async def drip(switch: FakeSwitch) -> None:
        try:
            while True:
                kind, xid, body = await switch.read()
                while not deaf and kind == of.OFPT_MULTIPART_REQUEST:
                    switch.write(multipart(int.from_bytes(body[:2]), xid, b"", more=True))
                    await asyncio.sleep(0.01)
        except (asyncio.IncompleteReadError, OSError):
            pass

    async def test() -> None:
        async with running(configuration(2), Kept()) as runtime:
            core = runtime.core
            port = runtime.server.port
            played = [await (await FakeSwitch.connect(port)).greet(n, (1, 2, 3)) for n in (1, 2)]
            tasks = [asyncio.create_task(work) for work in (played[0].obey(), drip(played[1]))]
            await until(lambda: core.followed.switches == {"s1", "s2"} and core.basis.phase != Phase.IDLE)
            await until(lambda: core.followed == core.engine.newest and core.basis.phase == Phase.IDLE)
            assert runtime.switches["s1"].session is not None
            assert runtime.switches["s1"].changed > 0
            for task in tasks:
                task.cancel()

    run(test)


def test_drops_of_ports_and_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ours only, and what is new; a counter that is unknown, or begins anew, tells nothing."""
    monkeypatch.setattr(sampling, "SAMPLES", 0.01)

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            told: list[ev.Event] = []
            intent = SwitchIntent(queues={1: (Queue(1, 1, 1, 1, 1),), 2: (Queue(1, 1, 1, 1, 1),)})
            task = asyncio.create_task(sampling.Sampling({"s1": intent}, told.append).run("s1", session))
            for drops in (7, 7, 9, 2, 3):
                for kind in (of.OFPMP_QUEUE, of.OFPMP_PORT_STATS):
                    xid, _ = await switch.read_until(of.OFPT_MULTIPART_REQUEST)
                    if kind == of.OFPMP_QUEUE:
                        entries = b"".join(queue_counters(port, 1, drops) for port in (1, 9))
                    else:
                        counted = {1: drops, 2: sampling.UNKNOWN, 9: 5 * drops}
                        entries = b"".join(port_counters(*one) for one in counted.items())
                    switch.write(multipart(kind, xid, entries))
            await switch.read()
            task.cancel()
            sampled = [event.samples for event in told if isinstance(event, ev.Sampled)]
            assert [[(one.port, one.drops) for one in some] for some in sampled] == [
                [(Port("s1", 1), drops)] for drops in (7, 7, 9, 2, 3)
            ]
            assert [event for event in told if isinstance(event, ev.Dropped)] == [
                ev.Dropped(Port("s1", 1), 2),
                ev.Dropped(Port("s1", 1), 1),
            ]

    run(test)


def test_a_panic_of_the_core_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native module's is no `Exception`; a core that is deaf from then on would be worse than none."""

    class PanicException(BaseException):
        """As PyO3's."""

    def panic(event: ev.Event, now: float) -> list[ev.Effect]:
        raise PanicException(f"{event} at {now}")

    async def test() -> None:
        runtime = Runtime(configuration(1), Kept())
        await runtime.start()
        monkeypatch.setattr(runtime.core, "handle", panic)
        runtime.happened(ev.Tick())
        with pytest.raises(RuntimeError, match="PanicException: Tick"):
            await runtime.run()
        await runtime.stop()

    run(test)


def test_a_switch_that_is_not_configured_any_more() -> None:
    """Paths over it end as those over a link that is down; others stay, and the rest of the network works."""

    async def test() -> None:
        kept = Kept()
        before = Quick(configuration(3), kept)
        before.begin()
        for target in ("h2", "h3"):
            assert (await before.ask(request("h1", target))).path is not None
        assert len(kept.paths) == 2
        async with running(configuration(2), kept) as runtime:
            engine = runtime.core.engine
            assert set(engine.paths) == {"h1/v>h2", "h1/v>h3"}
            port = runtime.server.port
            played = [await (await FakeSwitch.connect(port)).greet(n, (1, 2, 3)) for n in (1, 2)]
            obeying = [asyncio.create_task(one.obey()) for one in played]
            await until(lambda: engine.paths["h1/v>h3"].state == PathState.BROKEN and not engine.running)
            assert runtime.core.followed.switches == {"s1", "s2"}
            assert engine.book.names() == [engine.paths["h1/v>h2"].reservation]
            assert engine.paths["h1/v>h2"].state == PathState.ACTIVE
            for task in obeying:
                task.cancel()

    run(test)
