"""The session with one switch.

```text
 apply(messages) ─▶ chunks, barriers ─▶ ┌ outbox ┐ ─▶ switch ─▶ Framer ─▶ ┌ barrier reply, error ─▶ apply
 rules(), role() ─▶ request ──────────▶ │ bounded│                       │ answers ─▶ rules(), role()
 send(packet_out) ─▶ or dropped ──────▶ └────────┘                       └ port, frame ─▶ tell(event)
                                            └──── no answer in time: the session is lost, with the reason
```

Nothing here waits for another switch. A switch that is deaf or too slow loses its session: each barrier has
to be answered within `Limits.answer` seconds after it was sent or the one before it was answered, and each
request within as many seconds after it was sent or its last part came; all parts within `Limits.whole`
seconds. Changes wait for room in the outbox and for earlier barriers; single frames are dropped, and counted,
when there is no room.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from operator import itemgetter
from typing import TypeVar

from os_ken.ofproto import ofproto_v1_3 as of

from tidegate_controller.openflow import codec, replies
from tidegate_controller.openflow.barriers import Barriers, Update
from tidegate_controller.openflow.limits import Allowance, Limits
from tidegate_controller.openflow.replies import (
    Frame,
    GroupEntry,
    PortCounters,
    PortState,
    QueueCounters,
    RuleEntry,
    SwitchError,
)
from tidegate_controller.openflow.requests import Requests
from tidegate_controller.openflow.wire import Framer, Malformed, Message

CHUNK = 32
"""Changes before each barrier. Encoding so many takes a few milliseconds, in which other sessions wait."""
READ = 16 << 10
"""Bytes read before other sessions have their turn."""
RESERVE = 64 << 10
"""Bytes beyond the outbox for answers to a switch's echo requests."""
SLICE = 64
"""Entries of a long answer that are decoded before other sessions have their turn."""

PORTS_DELAY = 0.005
"""Seconds in which reports about ports are gathered."""
PORTS_AT_ONCE = 20
"""Changes of ports that are told as they come."""
PORTS_LATER = 0.5
"""Seconds of the same, above the allowance."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class SessionLost(ConnectionError):
    """The session has ended; says why."""


class Role(IntEnum):
    """A controller's role at a switch (OpenFlow 1.3, 6.3.4)."""

    EQUAL = of.OFPCR_ROLE_EQUAL
    MASTER = of.OFPCR_ROLE_MASTER
    SLAVE = of.OFPCR_ROLE_SLAVE


@dataclass(frozen=True)
class Refusal:
    """A change that the switch did not take."""

    index: int
    """Which one of the messages, from 0."""
    error: SwitchError


@dataclass(frozen=True)
class Ports:
    """All ports of the switch, after some came, went or changed."""

    ports: dict[int, PortState]


@dataclass
class Counts:
    """What happened in a session."""

    frames: int = 0
    """Frames from the switch that were told on."""
    frames_dropped: int = 0
    """Frames from the switch above the allowance."""
    sent_dropped: int = 0
    """Frames to the switch that found no room in the outbox."""
    stray: int = 0
    """Answers and errors that belong to nothing that was asked."""


class Session:
    """One connection. `handshake`, then `run` until the end; the other methods meanwhile, by others."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tell: Callable[[Ports | Frame], None],
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.counts = Counts()
        self.datapath = 0
        self.ports: dict[int, PortState] = {}
        self.lost: str | None = None
        """Why the session ended, once it has."""
        self._reader, self._writer, self._tell = reader, writer, tell
        self._loop = asyncio.get_running_loop()
        self._framer = Framer()
        self._inbox: deque[Message] = deque()
        self._xid = 0
        self._barriers = Barriers(self.limits.outstanding)
        self._requests = Requests(self.limits)
        self._asking = asyncio.Lock()
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._allowance = Allowance(self.limits.switch_packets)
        self._port_allowances: dict[int, Allowance] = {}
        self._ports_timer: asyncio.TimerHandle | None = None
        self._ports_told = Allowance(self.limits.port_reports, PORTS_AT_ONCE)
        self.may: Callable[[], bool] = lambda: True
        """Asked before each change: whether this controller may still make it."""
        # Waiting writers are woken at half of it, so they do not alternate with the switch byte by byte.
        writer.transport.set_write_buffer_limits(high=self.limits.outbox, low=self.limits.outbox // 2)

    # The connection's life.

    async def handshake(self) -> None:
        """Learns the switch's datapath id and ports. `SessionLost` if it is not a switch of OpenFlow 1.3."""
        try:
            async with asyncio.timeout(self.limits.handshake):
                self._write(codec.hello())
                message = await self._next(of.OFPT_HELLO)
                replies.check_hello(message)
                self._write(codec.FEATURES_REQUEST)
                features = replies.features(await self._next(of.OFPT_FEATURES_REPLY))
                if features.auxiliary:
                    raise Malformed(
                        f"auxiliary connection {features.auxiliary}; only main connections are served"
                    )
                self.datapath = features.datapath
                self._write(codec.ports_request())
                more = True
                while more:
                    part = await self._next(of.OFPT_MULTIPART_REPLY)
                    kind, more = replies.multipart(part)
                    if kind != of.OFPMP_PORT_DESC:
                        raise Malformed(f"an answer of type {kind} instead of the ports")
                    self._learn(replies.ports(part.data))
        except TimeoutError:
            self.lose(f"no handshake within {self.limits.handshake:g} s")
        except Malformed as error:
            self._write(codec.hello_failed(str(error)))
            self.lose(str(error))
        except OSError as error:
            self.lose(f"the connection failed: {error}")
        self._check()

    async def _next(self, kind: int) -> Message:
        """Returns the next message of this type; answers echoes and skips reports before it."""
        while True:
            while not self._inbox:
                data = await self._reader.read(READ)
                if not data:
                    raise Malformed("the switch closed the connection")
                self._inbox.extend(self._framer.feed(data))
            message = self._inbox.popleft()
            if message.kind == kind:
                return message
            if message.kind == of.OFPT_ERROR:
                raise Malformed(f"the switch refused the handshake: {replies.error(message)}")
            if message.kind == of.OFPT_ECHO_REQUEST:
                self._echo(message)
            elif message.kind == of.OFPT_PORT_STATUS:
                self._port(message)
            elif kind == of.OFPT_HELLO:
                raise Malformed(f"a message of type {message.kind} before the hello")

    async def run(self) -> str:
        """Takes in what the switch sends until the session ends; returns why."""
        self._heard = self._loop.time()
        self._watch()
        try:
            while self.lost is None:
                while self._inbox:
                    self._take(self._inbox.popleft())
                data = await self._reader.read(READ)
                if not data:
                    self.lose("the switch closed the connection")
                    break
                self._heard = self._loop.time()
                self._inbox.extend(self._framer.feed(data))
                # Reading what has arrived already does not wait: others' turn.
                await asyncio.sleep(0)
        except Malformed as error:
            self.lose(str(error))
        except OSError as error:
            self.lose(f"the connection failed: {error}")
        except Exception as error:
            self.lose(f"a fault of the controller: {error}")
            raise
        except asyncio.CancelledError:
            self.lose("the controller ended the session")
            raise
        return self.lost or "ended"

    def lose(self, reason: str) -> None:
        """Ends the session. All that wait for this switch get `SessionLost` with the reason."""
        if self.lost is not None:
            return
        self.lost = reason
        for timer in (self._timer, self._ports_timer):
            if timer is not None:
                timer.cancel()
        # What waits is dropped: a switch that does not read would keep it for ever.
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        else:
            self._writer.close()
        waiting: list[asyncio.Future[None] | asyncio.Future[list[bytes]]] = [*self._barriers.end()]
        waiting += self._requests.end()
        for future in waiting:
            if not future.done():
                future.set_exception(SessionLost(reason))
                # The caller may have given up: an exception that was not read would be logged.
                future.exception()

    def _check(self) -> None:
        if self.lost is not None:
            raise SessionLost(self.lost)

    def _watch(self) -> None:
        """Looks every now and then whether the switch still answers, and asks after silence."""
        if self.lost is not None:
            return
        now = self._loop.time()
        if self._requests.dripping(now):
            self.lose(f"an answer was not whole within {self.limits.whole:g} s")
            return
        due = [self._barriers.since] * len(self._barriers) + self._requests.since
        if due and now - min(due) > self.limits.answer:
            late = f"no answer for {self.limits.answer:g} s"
            self.lose(f"{late}: {len(due)} are due, and {self.waiting} bytes wait unread")
            return
        if not due and now - self._heard > self.limits.echo:
            self._ask_echo()
        period = min(self.limits.answer, self.limits.echo) / 4
        self._timer = self._loop.call_later(period, self._watch)

    # Sending.

    @property
    def waiting(self) -> int:
        """Bytes that wait for the switch to read them, besides those in the kernel."""
        return self._writer.transport.get_write_buffer_size()

    def _write(self, *messages: bytes) -> int:
        """Puts messages into the outbox; returns the last one's transaction id: they count up to it."""
        numbered: list[bytes] = []
        for message in messages:
            self._xid = (self._xid + 1) & 0xFFFF_FFFF
            numbered += (message[:4], self._xid.to_bytes(4), message[8:])
        if self.lost is None:
            # At once: each write is a system call while nothing waits.
            self._writer.write(b"".join(numbered))
        return self._xid

    def send(self, message: bytes) -> bool:
        """Sends a message without an answer, such as a packet_out, unless the outbox is full."""
        if self.lost is not None or self.waiting > self.limits.outbox:
            self.counts.sent_dropped += 1
            return False
        self._write(message)
        return True

    async def apply(self, messages: Iterable[bytes]) -> list[Refusal]:
        """Sends changes, and waits until the switch has them all; returns those that it refused.

        The messages are taken as they are sent, so an iterator that encodes them spreads that work.
        `SessionLost` if the session ends before: then each change is either done or not.
        """
        self._check()
        update = Update(self._loop.create_future())
        index, rest = 0, iter(messages)
        while chunk := list(islice(rest, CHUNK)):
            await self._wait_for_room()
            if not self.may():
                self.lose("another controller may lead by now: nothing more is changed")
                self._check()
            barrier = self._write(*chunk, codec.BARRIER_REQUEST)
            self._barriers.put(barrier, update, index, len(chunk), self._loop.time())
            index += len(chunk)
        update.complete = True
        if update.barriers:
            await update.done
        return [Refusal(*refused) for refused in sorted(update.refusals.items(), key=itemgetter(0))]

    async def _wait_for_room(self) -> None:
        """Waits until the outbox and the barriers under way have room for a chunk."""
        while True:
            self._check()
            if self.waiting > self.limits.outbox:
                # Frames without an answer may have filled it: the time of a deaf switch begins now.
                if not self._barriers and not self._requests:
                    self._ask_echo()
                try:
                    await self._writer.drain()
                except OSError as error:
                    self.lose(f"the connection failed: {error}")
            elif self._barriers.full:
                await self._barriers.room()
            else:
                return

    async def _ask(self, message: bytes, kind: int, part: int | None = None) -> list[bytes]:
        """Sends a request; returns its answer's parts. `RequestRefused` if the switch answers with an error.

        One request at a time, so that a switch can fill one answer's memory only.
        """
        async with self._asking:
            await self._wait_for_room()
            xid = self._write(message)
            answer = self._requests.put(xid, kind, self._loop.time(), part)
            try:
                return await answer
            finally:
                self._requests.forget(xid)

    async def _sliced(self, parts: list[bytes], read: Callable[[bytes], Iterator[T]]) -> list[T]:
        found: list[T] = []
        try:
            for part in parts:
                entries = read(part)
                while some := list(islice(entries, SLICE)):
                    found += some
                    await asyncio.sleep(0)
        except Malformed as error:
            self.lose(str(error))
            self._check()
        return found

    async def rules(self) -> list[RuleEntry]:
        """Returns all rules of the switch, others' too."""
        parts = await self._ask(codec.rules_request(), of.OFPT_MULTIPART_REPLY, of.OFPMP_FLOW)
        return await self._sliced(parts, replies.rules)

    async def groups(self) -> list[GroupEntry]:
        """Returns all groups of the switch, others' too."""
        parts = await self._ask(codec.groups_request(), of.OFPT_MULTIPART_REPLY, of.OFPMP_GROUP_DESC)
        return await self._sliced(parts, replies.groups)

    async def port_counters(self) -> list[PortCounters]:
        """Returns the counters of all ports."""
        parts = await self._ask(codec.port_statistics_request(), of.OFPT_MULTIPART_REPLY, of.OFPMP_PORT_STATS)
        return await self._sliced(parts, replies.port_counters)

    async def queue_counters(self) -> list[QueueCounters]:
        """Returns the counters of all queues."""
        parts = await self._ask(codec.queue_statistics_request(), of.OFPT_MULTIPART_REPLY, of.OFPMP_QUEUE)
        return await self._sliced(parts, replies.queue_counters)

    async def role(self, role: Role, generation: int) -> Role:
        """Takes a role; returns the one the switch gave. `RequestRefused` if the generation is an old one."""
        (data,) = await self._ask(codec.role_request(role, generation), of.OFPT_ROLE_REPLY)
        try:
            given, _ = replies.role(Message(of.OFPT_ROLE_REPLY, 0, data))
        except Malformed as error:
            self.lose(str(error))
            raise SessionLost(str(error)) from error
        return Role(given) if given in {int(known) for known in Role} else Role.EQUAL

    async def alive(self, within: float) -> bool:
        """Asks for an echo; returns whether it comes within so many seconds."""
        if self.lost is not None:
            return False
        future = self._ask_echo()
        await asyncio.wait([future], timeout=within)
        return future.done() and self.lost is None

    def _ask_echo(self) -> asyncio.Future[list[bytes]]:
        xid = self._write(codec.ECHO_REQUEST)
        return self._requests.put(xid, of.OFPT_ECHO_REPLY, self._loop.time())

    # What arrives.

    def _take(self, message: Message) -> None:
        kind = message.kind
        if kind == of.OFPT_BARRIER_REPLY:
            self.counts.stray += not self._barriers.answered(message.xid, self._loop.time())
        elif kind == of.OFPT_PACKET_IN:
            self._packet_in(message)
        elif kind == of.OFPT_ECHO_REQUEST:
            self._echo(message)
        elif kind == of.OFPT_ERROR:
            self._error(message)
        elif kind == of.OFPT_PORT_STATUS:
            self._port(message)
        elif message.xid in self._requests:
            self._requests.answered(message, self._loop.time())
        else:
            self.counts.stray += 1

    def _error(self, message: Message) -> None:
        error = replies.error(message)
        if self._requests.refused(message.xid, error) or self._barriers.refused(message.xid, error):
            return
        self.counts.stray += 1
        log.debug("switch %x: an error that belongs to nothing: %s", self.datapath, error)

    def _echo(self, message: Message) -> None:
        if self.waiting > self.limits.outbox + RESERVE:
            raise Malformed(f"the switch asks for echoes and does not read: {self.waiting} bytes wait")
        # The answer has the request's transaction and content.
        self._writer.write(message.data[:1] + bytes([of.OFPT_ECHO_REPLY]) + message.data[2:])

    def _packet_in(self, message: Message) -> None:
        frame = replies.packet_in(message)
        now = self._loop.time()
        # A flood at one port takes nothing of the others' allowances.
        if frame.port in self.ports:
            mine = self._port_allowances.setdefault(frame.port, Allowance(self.limits.port_packets))
            if mine.take(now) and self._allowance.take(now):
                self.counts.frames += 1
                self._tell(frame)
                return
        self.counts.frames_dropped += 1

    def _learn(self, found: Iterable[PortState]) -> None:
        for port in found:
            self.ports[port.number] = port
            if len(self.ports) > self.limits.ports:
                raise Malformed(f"more than {self.limits.ports} ports")

    def _port(self, message: Message) -> None:
        there, port = replies.port_status(message)
        if not 0 < port.number <= of.OFPP_MAX:
            return
        if there:
            self._learn([port])
        else:
            self.ports.pop(port.number, None)
            self._port_allowances.pop(port.number, None)
        # Many reports at once are told as one; a flood of them costs the rest of the controller little.
        if self._ports_timer is None and self._timer is not None:
            soon = self._ports_told.take(self._loop.time())
            delay = PORTS_DELAY if soon else PORTS_LATER
            self._ports_timer = self._loop.call_later(delay, self._tell_ports)

    def _tell_ports(self) -> None:
        self._ports_timer = None
        try:
            self._tell(Ports(dict(self.ports)))
        except Exception as error:
            log.exception("switch %x: a change of ports could not be told", self.datapath)
            self.lose(f"a fault of the controller: {error}")
