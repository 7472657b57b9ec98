"""Requests of a session that wait for their answers.

```text
 request ─▶ put ─▶ ┌ Requests ┐ ─▶ the answer's parts, or RequestRefused
 answer, error ───▶└──────────┘ ─▶ late: the switch answers too slowly
```
"""

import asyncio
from dataclasses import dataclass, field

from tidegate_controller.openflow import replies
from tidegate_controller.openflow.limits import Limits
from tidegate_controller.openflow.replies import SwitchError
from tidegate_controller.openflow.wire import Malformed, Message


class RequestRefused(ValueError):
    """The switch answered a request with an error."""

    def __init__(self, error: SwitchError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class _Request:
    """A request whose answer may come in parts."""

    kind: int
    answer: asyncio.Future[list[bytes]]
    sent: float
    since: float
    """When it was sent, or its last part came."""
    part: int | None = None
    """Type of its parts, if there are any."""
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Requests:
    """All of one session, by transaction."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[int, _Request] = {}

    def __len__(self) -> int:
        """Requests without an answer."""
        return len(self._waiting)

    def __contains__(self, xid: int) -> bool:
        """Whether a request has this transaction."""
        return xid in self._waiting

    @property
    def since(self) -> list[float]:
        """When each was sent, or its last part came."""
        return [request.since for request in self._waiting.values()]

    def put(self, xid: int, kind: int, now: float, part: int | None = None) -> asyncio.Future[list[bytes]]:
        """Takes a request that was sent; returns its answer to come."""
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[xid] = _Request(kind, answer, now, now, part)
        return answer

    def forget(self, xid: int) -> None:
        """The caller has given up, or has its answer: late parts are strays."""
        self._waiting.pop(xid, None)

    def dripping(self, now: float) -> bool:
        """Whether an answer is not whole though it should be."""
        return any(now - request.sent > self._limits.whole for request in self._waiting.values())

    def answered(self, message: Message, now: float) -> None:
        """Takes an answer, or a part of one, to a request that is there. Raises `Malformed`."""
        request = self._waiting[message.xid]
        if message.kind != request.kind:
            raise Malformed(f"an answer of type {message.kind}; {request.kind} was expected")
        request.since = now
        request.parts.append(message.data)
        request.size += len(message.data)
        if request.size > self._limits.reply:
            raise Malformed(f"an answer of more than {self._limits.reply} bytes")
        if request.part is not None:
            kind, more = replies.multipart(message)
            if kind != request.part:
                raise Malformed(f"a part of type {kind}; {request.part} was expected")
            if more:
                return
        del self._waiting[message.xid]
        if not request.answer.done():
            request.answer.set_result(request.parts)

    def refused(self, xid: int, error: SwitchError) -> bool:
        """Takes an error; returns whether it belongs to a request."""
        request = self._waiting.pop(xid, None)
        if request is None:
            return False
        if not request.answer.done():
            request.answer.set_exception(RequestRefused(error))
        return True

    def end(self) -> list[asyncio.Future[list[bytes]]]:
        """Returns all that wait: the session is over."""
        waiting = [request.answer for request in self._waiting.values()]
        self._waiting.clear()
        return waiting
