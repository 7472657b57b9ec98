"""Queues and BFD of real Open vSwitch bridges, by sessions with their database."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from tidegate_controller.model.intent import BEST_EFFORT, Queue, SwitchIntent, control_queue, queue_of
from tidegate_controller.model.topology import Port
from tidegate_controller.ovsdb.events import Changed, Connected, Event, Left, LinkDown, LinkUp, Lost
from tidegate_controller.ovsdb.session import Database

from lab.fabric import Fabric, fat_tree, line
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.traffic import Flow, Report

MBIT = 1_000_000
RATE = 20 * MBIT
MARKS = {46: queue_of(0), 34: queue_of(1)}


@pytest.fixture(autouse=True)
def _possible() -> None:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())


@pytest.fixture
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """Three switches in a row, which learn."""
    # A short path: a Unix socket's is limited to 107 bytes.
    with Fabric(tmp_path_factory.mktemp("f"), line(3)) as running:
        running.learn()
        yield running


def queues(first: int = 9 * MBIT) -> tuple[Queue, ...]:
    """Two levels, the first with this minimum."""
    return (
        control_queue(2),
        Queue(queue_of(0), first, RATE, 20_000, 0),
        Queue(queue_of(1), 4 * MBIT, RATE, 20_000, 1),
        Queue(BEST_EFFORT, 1 * MBIT, RATE, 2_000, 2),
    )


class Session:
    """A session, and what it has told."""

    def __init__(self, fabric: Fabric) -> None:
        self.events: list[tuple[float, Event]] = []
        self.up: set[Port] = set()
        """Links that are up."""
        names = {fabric.datapath(switch): switch for switch in fabric.ports}
        self.database = Database(fabric.ovs.remote, self._tell, names)

    def _tell(self, event: Event) -> None:
        self.events.append((time.monotonic(), event))
        if isinstance(event, LinkUp):
            self.up.add(event.port)
        elif isinstance(event, LinkDown):
            self.up.discard(event.port)

    def told(self, kind: type[Event], since: float = 0) -> list[Event]:
        """Events of a kind."""
        return [event for at, event in self.events if isinstance(event, kind) and at >= since]

    async def until(self, what: str, ready: Callable[[], object], timeout: float = 15) -> float:
        """Wait, and let the session work; seconds."""
        began = time.monotonic()
        while not ready():
            assert time.monotonic() < began + timeout, f"waited in vain for {what}: {self.events}"
            await asyncio.sleep(0.002)
        return time.monotonic() - began


@asynccontextmanager
async def connected(fabric: Fabric) -> AsyncIterator[Session]:
    """A session that is connected."""
    session = Session(fabric)
    task = asyncio.create_task(session.database.run())
    try:
        await session.until("the connection", lambda: session.told(Connected))
        yield session
    finally:
        task.cancel()
        await asyncio.wait([task])


def watched(fabric: Fabric, switch: str) -> set[int]:
    """Ports of a switch with a link to another one."""
    ends = [port.rsplit(".", 1) for link in fabric.links for port in link]
    return {int(number) for name, number in ends if name == switch}


def listed(fabric: Fabric, table: str) -> int:
    """Rows of a table, by `ovs-vsctl`."""
    text = fabric.net.run(f"ovs-vsctl --db={fabric.ovs.remote} --format=json list {table}")
    return len(json.loads(text)["data"])


def test_queues_are_made_changed_and_removed(fabric: Fabric) -> None:
    """Open vSwitch makes classes of them; a raise changes one class in place."""

    async def main() -> None:
        async with connected(fabric) as session:
            database = session.database
            assert database.switches["s2"] == {1: "s2.1", 2: "s2.2", 3: "s2.3"}
            database.want("s2", SwitchIntent(queues={1: queues(), 2: queues()}))
            assert await database.settled("s2") == {}
            classes = fabric.classes("s2.2")
            # 20,000 bytes come back as 19,999 from ticks of the kernel.
            first = "parent 1:fffe prio 0 rate 9Mbit ceil 20Mbit burst "
            assert classes["1:2"].startswith((first + "19999b", first + "20000b"))
            assert classes["1:3"].startswith("parent 1:fffe prio 1 rate 4Mbit ceil 20Mbit")
            assert classes["1:9"].startswith("parent 1:fffe prio 2 rate 1Mbit ceil 20Mbit burst 2000b")
            assert classes["1:1"].startswith("parent 1:fffe prio 2 rate 2Mbit ceil 2Mbit")
            assert classes["1:fffe"].startswith("root rate 20Mbit")
            assert fabric.classes("s2.3") == {}
            assert (listed(fabric, "qos"), listed(fabric, "queue")) == (2, 8)

            fabric.net.run("tc qdisc add dev s2.2 parent 1:2 handle 77: pfifo limit 7")
            database.want("s2", SwitchIntent(queues={1: queues(), 2: queues(12 * MBIT)}))
            await database.settled("s2")
            assert "rate 12Mbit" in fabric.classes("s2.2")["1:2"]
            # The HTB was not made anew: what hangs below it still hangs there.
            assert "qdisc pfifo 77: parent 1:2" in fabric.net.run("tc qdisc show dev s2.2")

            database.want("s2", SwitchIntent(queues={1: queues()}))
            await database.settled("s2")
            await session.until("rows to go", lambda: listed(fabric, "queue") == 4)
            assert fabric.classes("s2.2") == {}
            assert listed(fabric, "qos") == 1
            fabric.net.run("ip link set s2.1 up")

    asyncio.run(main())


def test_drift_is_repaired_and_others_are_left_alone(fabric: Fabric) -> None:
    """What another program undoes is done again and told; a QoS of its own is named, until it goes."""
    vsctl = fabric.ovs.vsctl

    async def main() -> None:
        async with connected(fabric) as session:
            database = session.database
            vsctl("set port s1.1 qos=@q -- --id=@q create qos type=linux-sfq")
            database.want("s1", SwitchIntent(queues={1: queues(), 2: queues()}, watched={1}))
            left = await database.settled("s1")
            assert left.keys() == {1}
            assert "s1.1 has a QoS of another program (linux-sfq, " in left[1]
            assert len(session.told(Left)) == 1

            for harm in (
                "clear port s1.2 qos",
                "set qos {qos} other_config:max-rate=7",
                "set qos {qos} type=linux-hfsc",
                "remove qos {qos} queues 1",
                "clear queue {queue} other_config",
                "set interface s1.1 bfd:enable=false",
            ):
                qos = fabric.net.run(f"ovs-vsctl --db={fabric.ovs.remote} get port s1.2 qos").strip()
                get = f"ovs-vsctl --db={fabric.ovs.remote} get qos {qos} queues:1"
                queue = fabric.net.run(get).strip()
                since = time.monotonic()
                vsctl(harm.format(qos=qos, queue=queue))

                def repairs(since: float = since) -> list[str]:
                    told = session.told(Changed, since)
                    return [
                        event.text for event in told if isinstance(event, Changed) and event.switch == "s1"
                    ]

                await session.until(f"the repair of {harm}", repairs)
                await database.settled("s1")
                print(f"{harm}: {repairs()[0]}")
                assert "prio 0 rate 9Mbit ceil 20Mbit" in fabric.classes("s1.2")["1:2"]

            vsctl("clear port s1.1 qos")
            await session.until("queues", lambda: "1:2" in fabric.classes("s1.1"))
            assert await database.settled("s1") == {}
            await session.until("rows to go", lambda: listed(fabric, "queue") == 8)
            # The other program's row is still there.
            assert listed(fabric, "qos") == 3

    asyncio.run(main())


def test_a_database_that_is_killed_comes_back(fabric: Fabric) -> None:
    """The session notices, and repairs afterwards what it could not see."""
    ovs = fabric.ovs

    async def main() -> None:
        async with connected(fabric) as session:
            database = session.database
            database.want("s1", SwitchIntent(queues={1: queues()}))
            await database.settled("s1")
            before = fabric.classes("s1.1")
            ovs.kill_database()
            await session.until("the loss", lambda: session.told(Lost))
            assert fabric.classes("s1.1") == before
            database.want("s2", SwitchIntent(queues={1: queues()}))
            ovs.start_database()
            took = await session.until("the connection", lambda: len(session.told(Connected)) == 2)
            await database.settled("s1", 20)
            await session.until("s2", lambda: "1:2" in fabric.classes("s2.1"))
            print(f"connected again {took * 1000:.0f} ms after the database was started")

    asyncio.run(main())


def test_a_restarted_controller_changes_nothing(fabric: Fabric) -> None:
    """A second session finds the rows of the first one; before it knows what is wanted it touches nothing."""
    wanted = SwitchIntent(queues={1: queues()}, watched={1})

    async def first() -> None:
        async with connected(fabric) as session:
            session.database.want("s1", wanted)
            await session.database.settled("s1")

    async def second() -> None:
        async with connected(fabric) as session:
            await asyncio.sleep(0.3)
            session.database.want("s1", wanted)
            await session.database.settled("s1")
            assert session.told(Changed) == []

    asyncio.run(first())
    asyncio.run(second())
    assert listed(fabric, "queue") == 4


def test_ports_that_vanish(fabric: Fabric) -> None:
    """The other ports get their queues, the missing one is named, and gets them when it is back."""

    async def main() -> None:
        async with connected(fabric) as session:
            database = session.database
            fabric.ovs.vsctl("del-port s2.2")
            database.want("s2", SwitchIntent(queues={1: queues(), 2: queues()}))
            assert await database.settled("s2") == {2: "s2 has no port 2"}
            assert "1:2" in fabric.classes("s2.1")
            fabric.ovs.vsctl("add-port s2 s2.2 -- set interface s2.2 ofport_request=2")
            await session.until("queues", lambda: "1:2" in fabric.classes("s2.2"))
            fabric.ovs.vsctl("del-port s2.1 -- del-port s2.2")
            await session.until("rows to go", lambda: listed(fabric, "queue") == 0)

    asyncio.run(main())


def test_a_link_that_goes_silent_is_told(fabric: Fabric) -> None:
    """Frames are lost in one direction, and the carriers stay up."""

    async def main() -> None:
        async with connected(fabric) as session:
            for switch in fabric.ports:
                session.database.want(switch, SwitchIntent(watched=watched(fabric, switch)))
            await session.until("four links", lambda: len(session.up) == 4)
            for _ in range(2):
                # A new session sends a frame a second until both ends agree on more (RFC 5880, 6.8.3).
                await asyncio.sleep(2.5)
                await silence(fabric, session)

    asyncio.run(main())


async def silence(fabric: Fabric, session: Session) -> None:
    """Cut one direction of a link, see both ends tell it, and mend it."""
    fabric.cut("s1.1")
    since = time.monotonic()
    ends = {Port("s1", 1), Port("s2", 1)}
    await session.until("one end", lambda: ends - session.up)
    first = time.monotonic() - since
    await session.until("both ends", lambda: not ends & session.up)
    both = time.monotonic() - since
    print(f"silence told after {first * 1000:.0f} ms, by both ends after {both * 1000:.0f} ms")
    fabric.mend("s1.1")
    await session.until("all ends up", lambda: len(session.up) == 4)


def test_real_time_beside_a_competing_flow(fabric: Fabric) -> None:
    """With one queue for all, the real-time flow loses frames, and so does BFD; with queues, neither."""
    real = Flow(count=1000, interval=2000, dscp=46)
    other = Flow.of_rate(2 * RATE, real.seconds + 0.6, port=9100)

    async def compete(session: Session) -> tuple[Report, Report, int]:
        """Both flows, and how many links seemed to break meanwhile."""
        await session.until("links", lambda: len(session.up) == 4)
        since = time.monotonic()
        running = fabric.flow("h2", "h3", other)
        await asyncio.sleep(0.3)
        measured = fabric.flow("h1", "h3", real)
        reports = await asyncio.gather(*(asyncio.to_thread(flow.report) for flow in (measured, running)))
        return reports[0], reports[1], len(session.told(LinkDown, since))

    async def main() -> None:
        async with connected(fabric) as session:
            for host in fabric.hosts.values():
                host.run("ping -c 1 -W 2 10.0.0.3")
            found = {}
            alone = (Queue(0, 1 * MBIT, RATE, 20_000, 0),)
            for name, wanted, marks, rest in (
                ("one queue", alone, {}, 0),
                ("queues", queues(), MARKS, BEST_EFFORT),
            ):
                for switch in fabric.ports:
                    intent = SwitchIntent(queues={2: wanted}, watched=watched(fabric, switch))
                    session.database.want(switch, intent)
                    await session.database.settled(switch)
                fabric.steer(marks, rest)
                found[name] = await compete(session)
                print(f"{name}: real time {found[name][0]}")
                print(f"{name}: best effort {found[name][1]}; {found[name][2]} links seemed to break")
                print(f"{name}: sent and dropped by queue {fabric.queue_statistics('s2.2')}")
            (before, _, false), (after, _, fewer) = found["one queue"], found["queues"]
            ratios = [
                f"p{percent} {before.delay(percent) / after.delay(percent):.1f}" for percent in (50, 90, 99)
            ]
            print(f"delays of received frames lower by: {', '.join(ratios)}")
            assert before.lost > real.count / 10
            # A machine that is busy may lose a few frames before any queue.
            assert after.lost < before.lost / 20
            assert fewer == 0 or fewer < false

    asyncio.run(main())


def test_a_fat_tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    """20 switches behind one database: queues on all ports, BFD on all links."""

    async def main(fabric: Fabric) -> None:
        began = time.monotonic()
        async with connected(fabric) as session:
            used = time.process_time()
            for switch, ports in fabric.ports.items():
                everywhere = dict.fromkeys(range(1, len(ports) + 1), queues())
                intent = SwitchIntent(queues=everywhere, watched=watched(fabric, switch))
                session.database.want(switch, intent)
            for switch in fabric.ports:
                assert await session.database.settled(switch, 30) == {}
            took = time.monotonic() - began
            await session.until("all links", lambda: len(session.up) == 64, 30)
            print(
                f"20 switches, {listed(fabric, 'queue')} queues in force after {took:.2f} s, "
                f"64 ends of links up after {time.monotonic() - began:.2f} s, "
                f"{time.process_time() - used:.2f} s of CPU"
            )
            assert all("1:9" in fabric.classes(port) for ports in fabric.ports.values() for port in ports)

    with Fabric(tmp_path_factory.mktemp("f"), fat_tree()) as fabric:
        asyncio.run(main(fabric))
