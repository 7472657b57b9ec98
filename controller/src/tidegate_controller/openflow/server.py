"""Where switches connect.

```text
 listen ─▶ accept ─▶ TLS ─▶ handshake ─▶ name ─▶ Session ─▶ SwitchUp, PortsChanged, PacketIn, SwitchDown
             │        └──── deadline ───┘  └ not known, a second one that is not needed, too many: closed
             └ too many on the way: the oldest is closed
```

**A second connection of one datapath id**: the first is asked for an echo. If it answers within a second, the
second is refused, so that a copy with the same id does not push out the switch that works. If not, the second
replaces it, so that a switch that has lost its connection need not wait until the old one is found to be
dead.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate_controller.openflow.limits import Allowance, Limits
from tidegate_controller.openflow.replies import Frame, PortState
from tidegate_controller.openflow.session import Ports, Session, SessionLost

GREETING = 64
"""Connections that may be on the way to a session. A switch needs milliseconds for this."""
ECHO_WITHIN = 1.0
"""Seconds in which a session has to show that it is alive when another one wants its place."""
GONE = 1.0
"""Seconds for the end of a connection by TLS."""

RETURNS = 5
"""Sessions that a switch may begin at once: with each it is read and compared."""
RETURN_AFTER = 2.0
"""Seconds for each further one."""
REFUSALS_LOGGED = 5.0
"""Lines a second about connections that became no session."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwitchUp:
    """A switch has a session."""

    switch: str
    session: Session
    ports: dict[int, PortState]


@dataclass(frozen=True)
class SwitchDown:
    """A switch has no session any more."""

    switch: str
    reason: str


@dataclass(frozen=True)
class PortsChanged:
    """Ports of a switch came, went or changed: all of them now."""

    switch: str
    ports: dict[int, PortState]


@dataclass(frozen=True)
class PacketIn:
    """A rule of a switch sent a frame to the controller."""

    switch: str
    port: int
    frame: bytes


Event = SwitchUp | SwitchDown | PortsChanged | PacketIn


def by_datapath(datapath: int, certificate: Mapping[str, Any] | None) -> str | None:
    """Returns the id in hexadecimal as the name of any switch."""
    del certificate
    return f"{datapath:016x}"


class Server:
    """Listens, and keeps the sessions of all switches."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        *,
        tls: ssl.SSLContext | None = None,
        most: int = 256,
        limits: Limits | None = None,
        name: Callable[[int, Mapping[str, Any] | None], str | None] = by_datapath,
    ) -> None:
        """`tell` gets all events, and must not wait.

        `name` gets a datapath id and the switch's certificate, as `ssl.SSLSocket.getpeercert` has it; it
        returns the switch's name, or None to refuse it; or raises `SessionLost`, which says why.
        """
        self.sessions: dict[str, Session] = {}
        """Sessions of switches that are up, by name."""
        self.refused = 0
        """Connections that became no session."""
        self._tell, self._tls, self._most, self._name = tell, tls, most, name
        self._limits = limits or Limits()
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines = Allowance(REFUSALS_LOGGED)
        self._returns: OrderedDict[str, Allowance] = OrderedDict()
        """By name; the last `most` names."""
        self._shown: dict[Session, Mapping[str, Any] | None] = {}
        """Certificates of sessions."""
        self._greeting: deque[asyncio.Task[None]] = deque()

    @property
    def port(self) -> int:
        """The TCP port; useful when 0 was asked for."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listens at an address. `OSError` if it is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=GREETING)
        self._socket.setblocking(False)
        self._start(self._accept(self._socket))

    async def stop(self) -> None:
        """Ends all sessions, with their events, and listens no more."""
        if self._socket is not None:
            self._socket.close()
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def recheck(self) -> None:
        """Ends sessions whose certificates do not stand for their switches any more."""
        for name, session in list(self.sessions.items()):
            try:
                named = self._name(session.datapath, self._shown.get(session))
            except SessionLost as error:
                session.lose(str(error))
            else:
                if named != name:
                    session.lose("it is not one that is expected any more")

    def _start(self, work: Any) -> asyncio.Task[None]:  # noqa: ANN401 - coroutines of None
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as error:
                # Such as no descriptor left: sessions that end make room.
                log.error("cannot accept a switch: %s", error)
                await asyncio.sleep(0.1)
                continue
            # A change and its barrier would wait 40 ms for the acknowledgement of those before.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Connections that say nothing must not keep switches out: the newest is most likely to be one.
            if len(self._greeting) >= GREETING:
                self._greeting.popleft().cancel()
                self.refused += 1
            self._greeting.append(self._start(self._serve(connection, str(peer[0]))))

    def _greeted(self) -> None:
        task = asyncio.current_task()
        with contextlib.suppress(ValueError):
            self._greeting.remove(task)  # type: ignore[arg-type]

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        session: Session | None = None
        name = ""
        try:
            session, writer = await self._connect(connection, lambda event: self._on(name, event))
            await session.handshake()
            named = self._name(session.datapath, writer.get_extra_info("peercert"))
            await self._make_room(named, session)
            self._shown[session] = writer.get_extra_info("peercert")
            assert named is not None
            name = named
        except (SessionLost, OSError, TimeoutError) as error:
            self.refused += 1
            if self._lines.take(asyncio.get_running_loop().time()):
                log.warning("no session with a switch at %s: %s", peer, error)
            return
        except Exception:
            log.exception("a fault of the controller while a switch at %s connected", peer)
            return
        finally:
            self._greeted()
            if not name:
                connection.close() if session is None else session.lose("no session")
        await self._run(name, session)

    async def _run(self, name: str, session: Session) -> None:
        self.sessions[name] = session
        try:
            self._tell(SwitchUp(name, session, dict(session.ports)))
            await session.run()
        except Exception:
            log.exception("the session with %s ended by a fault of the controller", name)
        finally:
            session.lose("the controller ended the session")
            self._shown.pop(session, None)
            if self.sessions.get(name) is session:
                del self.sessions[name]
            log.info("switch %s: %s", name, session.lost)
            self._tell(SwitchDown(name, session.lost or ""))

    async def _connect(
        self, connection: socket.socket, tell: Callable[[Ports | Frame], None]
    ) -> tuple[Session, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        deadlines: dict[str, Any] = {}
        if self._tls is not None:
            deadlines = {"ssl_handshake_timeout": self._limits.handshake, "ssl_shutdown_timeout": GONE}
        made = partial(loop.connect_accepted_socket, lambda: protocol, connection, ssl=self._tls)
        transport, _ = await made(**deadlines)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return Session(reader, writer, tell, self._limits), writer

    async def _make_room(self, name: str | None, session: Session) -> None:
        """Raises `SessionLost` unless the session may be that of this switch."""
        if name is None:
            raise SessionLost(f"datapath id {session.datapath:016x} is not one that is expected")
        # While the old one is asked, a third may have taken the place.
        while (old := self.sessions.get(name)) is not None:
            if await old.alive(ECHO_WITHIN):
                raise SessionLost(
                    f"switch {name} has a session that works; is another one configured with its id?"
                )
            old.lose("replaced by a new connection: it did not answer an echo")
            # Its end is told before the new one's begin.
            while self.sessions.get(name) is old:
                await asyncio.sleep(0)
        returns = self._returns.setdefault(name, Allowance(1 / RETURN_AFTER, RETURNS))
        self._returns.move_to_end(name)
        if len(self._returns) > self._most:
            self._returns.popitem(last=False)
        if not returns.take(asyncio.get_running_loop().time()):
            raise SessionLost(f"switch {name} comes and goes: it has to wait {RETURN_AFTER:g} s")
        if len(self.sessions) >= self._most:
            raise SessionLost(f"{self._most} switches have sessions; more are not served")

    def _on(self, name: str, event: Ports | Frame) -> None:
        if isinstance(event, Frame):
            self._tell(PacketIn(name, event.port, event.data))
        else:
            self._tell(PortsChanged(name, event.ports))
