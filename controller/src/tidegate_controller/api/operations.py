"""The operations of the API: one function for each `operationId` of `openapi.json`.

```text
 Call: who asks, parameters, body ─▶ checks of `decide/asked` ─▶ Service, Runtime ─▶ JSON, or Problem
```

`enrol` and `keys` belong to certificates: the part that has these gives its functions to `create`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate_controller.api import read, write
from tidegate_controller.api.identity import Identity, Kind
from tidegate_controller.api.problem import Code, Problem, busy
from tidegate_controller.api.schema import contract
from tidegate_controller.api.service import Service
from tidegate_controller.decide import asked
from tidegate_controller.decide.admission import nanoseconds
from tidegate_controller.model.paths import Path
from tidegate_controller.runtime.kept import Kept

MOST_DECISIONS = 1000
CODES = {
    asked.Unsound: Code.INVALID,
    asked.NotYours: Code.FORBIDDEN,
    asked.NotYet: Code.WAITING,
    asked.No: Code.REFUSED,
}


@dataclass(frozen=True)
class Call:
    """A request that is checked against the file."""

    who: Identity
    parameters: dict[str, Any] = field(default_factory=dict)
    """Of the path and the query."""
    body: Any = None


@dataclass(frozen=True)
class Text:
    """An answer that is no JSON."""

    text: str
    kind: str


Handler = Callable[[Call], Awaitable[Any]]
"""Returns JSON, `None` for an empty answer, or `Text`. Raises `Problem`."""


class Operations:
    """All operations."""

    def __init__(self, service: Service, kept: Kept, exposition: Callable[[], Text]) -> None:
        self._service, self._kept, self._exposition = service, kept, exposition

    def handlers(self) -> dict[str, Handler]:
        """By operation."""
        return {
            "register": self.register,
            "view": self.view,
            "leave": self.leave,
            "misses": self.misses,
            "enrol": self.enrol,
            "keys": self.keys,
            "hosts": self.hosts,
            "paths": self.paths,
            "path": self.path,
            "request": self.request,
            "release": self.release,
            "topology": self.topology,
            "decisions": self.decisions,
            "health": self.health,
            "openapi": self.openapi,
            "metrics": self.metrics,
        }

    # Hosts.

    async def register(self, call: Call) -> Any:  # noqa: ANN401
        """A host announces itself."""
        self._lead()
        host = self._host(call)
        self._service.register(host, read.registration(call.body))
        return self._service.view(host)

    async def view(self, call: Call) -> Any:  # noqa: ANN401
        """What a host is to know."""
        self._lead()
        host = self._registered(call)
        after, wait = call.parameters.get("after"), call.parameters.get("wait", 0)
        if after is not None and wait:
            await self._service.wait(host, after, wait / 1e9)
            self._lead()
            self._registered(call)
        return self._service.view(host)

    async def leave(self, call: Call) -> None:
        """A host goes."""
        self._lead()
        self._service.leave(self._host(call))

    async def misses(self, call: Call) -> None:
        """Late frames."""
        self._lead()
        host = self._registered(call)
        if call.body["run"] != self._service.registry.run(host):
            text = f"host {host} is registered with another `run`; register first"
            raise Problem(Code.NOT_FOUND, text)
        await self._service.misses(host, call.body["paths"])

    async def enrol(self, call: Call) -> Any:  # noqa: ANN401
        """Served by another part."""
        raise busy("this controller signs no certificates: its configuration has no [tls]", 60)

    async def keys(self, call: Call) -> Any:  # noqa: ANN401
        """Served by another part."""
        raise busy("this controller has no keys of segments: its configuration has no [tls]", 60)

    async def hosts(self, call: Call) -> Any:  # noqa: ANN401
        """All hosts."""
        self._lead()
        return {"hosts": self._all_hosts()}

    # Paths.

    async def paths(self, call: Call) -> Any:  # noqa: ANN401
        """All paths."""
        self._lead()
        engine = self._service.engine
        fresh = {
            name: one.new for name, one in engine.running.items() if name not in engine.paths and one.new
        }
        return {"paths": [self._service.path(path) for _, path in sorted({**engine.paths, **fresh}.items())]}

    async def path(self, call: Call) -> Any:  # noqa: ANN401
        """One path."""
        self._lead()
        path = self._known(call)
        self._own(call, path.request.source, path.request.target)
        return self._service.path(path)

    async def request(self, call: Call) -> Any:  # noqa: ANN401
        """A path is wanted."""
        self._lead()
        name, body = call.parameters["name"], call.body
        by_host = call.who.kind == Kind.HOST
        request = read.path_request(name, body, lasting=not by_host)
        try:
            asked.sound(name, body["vnic"], body["remote"], request)
            if by_host:
                registry = self._service.registry
                asked.of_host(registry, call.who.name, body["vnic"], body["remote"], request)
        except asked.NotWanted as error:
            raise Problem(CODES[type(error)], str(error), [str(error)]) from None
        answer = await self._service.ask(request)
        if answer.path is None:
            raise Problem(Code.REFUSED, f"path {name} is refused; what was before stays", answer.reasons)
        return self._service.path(answer.path)

    async def release(self, call: Call) -> None:
        """A path is wanted no more."""
        self._lead()
        path = self._known(call)
        self._own(call, path.request.source)
        if call.who.kind == Kind.HOST and path.request.lasting:
            text = f"path {path.request.name} stays until an operator releases it: an operator asked for it"
            raise Problem(Code.FORBIDDEN, text)
        answer = await self._service.release(path.request.name)
        if answer.path is None:
            raise Problem(Code.NOT_FOUND, answer.reasons[0] if answer.reasons else "it is not there")

    # Looking.

    async def topology(self, call: Call) -> Any:  # noqa: ANN401
        """Switches, links with what is reserved, hosts."""
        self._lead()
        return {"switches": self._switches(), "links": self._links(), "hosts": self._all_hosts()}

    async def decisions(self, call: Call) -> Any:  # noqa: ANN401
        """Decisions with their reasons; without `after`, the last ones."""
        self._lead()
        after, path = call.parameters.get("after"), call.parameters.get("path")
        limit = call.parameters.get("limit", MOST_DECISIONS)
        found = [
            one
            for one in self._kept.decisions
            if (after is None or one.number > after) and (path is None or one.path == path)
        ]
        part = found[-limit:] if after is None else found[:limit]
        return {"decisions": [write.decision(one) for one in part], "last": self._kept.decided}

    async def health(self, call: Call) -> Any:  # noqa: ANN401
        """Whether it leads."""
        service = self._service
        sessions = len(service.runtime.server.sessions)
        return {"leader": service.leads, "term": service.term, "switches": sessions}

    async def openapi(self, call: Call) -> Any:  # noqa: ANN401
        """The file."""
        return contract()

    async def metrics(self, call: Call) -> Text:
        """Prometheus' text."""
        return self._exposition()

    # Parts.

    def _lead(self) -> None:
        if not self._service.leads:
            raise self._service.standby()

    def _host(self, call: Call) -> str:
        return str(call.parameters["host"])

    def _registered(self, call: Call) -> str:
        host = self._host(call)
        if not self._service.registry.registered(host):
            raise Problem(Code.NOT_FOUND, f"host {host} is not registered, or its lease is over; register")
        return host

    def _known(self, call: Call) -> Path:
        name = call.parameters["name"]
        path = self._service.known(name)
        if path is None:
            raise Problem(Code.NOT_FOUND, f"there is no path {name}")
        return path

    def _own(self, call: Call, *hosts: str) -> None:
        if call.who.kind == Kind.HOST and call.who.name not in hosts:
            raise Problem(Code.FORBIDDEN, f"path {call.parameters['name']} is not of host {call.who.name}")

    def _all_hosts(self) -> list[dict[str, Any]]:
        registry, now = self._service.registry, self._service.runtime.now
        found = []
        for name, host in sorted(self._service.config.hosts.items()):
            until = registry.until(name)
            found.append(
                {
                    "name": name,
                    "port": str(host.port),
                    "address": host.address,
                    "registered": until is not None,
                    "lease_left": max(0, int((until - now) * 1e9)) if until is not None else 0,
                    "vnics": registry.vnics(name),
                }
            )
        return found

    def _switches(self) -> list[dict[str, Any]]:
        config, runtime = self._service.config, self._service.runtime
        remotes = {number: remote for remote, numbers in config.databases.items() for number in numbers}
        found = []
        for number, name in sorted(config.datapaths.items(), key=lambda item: item[1]):
            database = runtime.databases[remotes[number]].fault(name)
            connected = name in runtime.server.sessions
            error = database
            if name in runtime.core.stale:
                error = "it did not take its rules; they are set again"
            if not connected:
                error = "not connected"
            found.append(
                {
                    "name": name,
                    "datapath": f"{number:016x}",
                    "connected": connected,
                    "database": database is None,
                    "error": error[:500] if error is not None else None,
                }
            )
        return found

    def _links(self) -> list[dict[str, Any]]:
        engine, found = self._service.engine, []
        usage = {str(one["link"]): one for one in engine.book.usage()}
        for name, terms in sorted(engine.book.terms.items()):
            use: dict[str, Any] = usage[name]
            bounds = [nanoseconds(text) for text in use["needed"]]
            rates = [engine.loads.at(name, level).rate for level in range(len(terms.levels))]
            found.append(
                {
                    "name": name,
                    "source": terms.source,
                    "target": terms.target,
                    "up": engine.up([name]),
                    "capacity": terms.capacity,
                    "reservable": terms.reservable,
                    "reserved": min(int(use["reserved-bits"]), write.MOST_COUNT),
                    "levels": write.levels((one.delay for one in terms.levels), bounds, rates),
                }
            )
        return found
