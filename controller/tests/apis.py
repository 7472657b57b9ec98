"""The API for tests: switches that do all at once, and a client that checks all against openapi.json.

```text
 test ─ call(operation, body) ─▶ as the file says? ─HTTP─▶ Api ─▶ Quick: the core, and switches without delay
            status, JSON ◀─ as the file says? ◀──────────┘
```
"""

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from jsonschema import Draft202012Validator

from tidegate_controller import events as ev
from tidegate_controller.api.buckets import Limits
from tidegate_controller.api.identity import Kind
from tidegate_controller.api.operations import Handler
from tidegate_controller.api.schema import contract
from tidegate_controller.api.server import Api, create
from tidegate_controller.config import Config, parse
from tidegate_controller.core import Core
from tidegate_controller.model.paths import PathRequest
from tidegate_controller.model.topology import Topology
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime

HOLD = 0.3
NETWORK = """
[openflow]
listen = "127.0.0.1:0"
[paths]
marks = [46, 34]
hold = "300ms"
[terms]
capacity = "1Gbit"
reservable = "500Mbit"
levels = [{ delay = "200us", frames = 5000 }, { delay = "2ms", frames = 5000 }]
[switches.s1]
datapath = "0000000000000001"
database = "unix:/nowhere/1"
[switches.s2]
datapath = "0000000000000002"
database = "unix:/nowhere/2"
[[links]]
between = ["s1:1", "s2:1"]
"""


def digest(token: str) -> str:
    """As in the configuration."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def configuration(lease: str = "5s", hosts: int = 3) -> Config:
    """Hosts h1... with tokens `token-h1`...; the first at s1, the others at s2."""
    text = [NETWORK, f'[api]\nlisten = "127.0.0.1:0"\nlease = "{lease}"']
    text.append(f'operator-token = "{digest("token-operator")}"')
    for n in range(1, hosts + 1):
        text.append(
            f'[hosts.h{n}]\nport = "s{1 if n == 1 else 2}:{n + 1}"\naddress = "10.0.{n >> 8}.{n & 255}"\n'
            f'mac = "02:00:00:00:{n >> 8:02x}:{n & 255:02x}"\ntoken = "{digest(f"token-h{n}")}"\n'
            'segments = [100, 200]\nmacs = ["02:00:0a:00:00:00/24"]'
        )
    return parse("\n".join(text), "network.toml")


class Quick:
    """A runtime whose switches and databases do what they are told at once."""

    def __init__(self, config: Config, kept: Kept) -> None:
        self.core, self.kept = Core(config.settings), kept
        self.leading, self.leader, self.term = True, None, 7
        self.held = False
        """Whether switches answer nothing."""
        self.told: Callable[[ev.TellHost], None] = lambda change: None
        self.server = SimpleNamespace(sessions={"s1": None, "s2": None})
        state = SimpleNamespace(fault=lambda name: None)
        self.databases = dict.fromkeys(config.databases, state)
        self.led: Callable[[], None] = lambda: None
        self.questions = 0
        self._config, self._answers = config, dict[int, asyncio.Future[ev.Answer]]()
        self._events: deque[ev.Event] = deque()
        self._at_work = False

    @property
    def now(self) -> float:
        """Unix time, s."""
        return time.time()

    def begin(self) -> None:
        """All links are there."""
        config = self._config
        there = Topology(set(config.datapaths.values()), set(config.links), dict(config.hosts))
        self.happened(ev.TopologyChanged(there, config.terms))

    async def ask(self, request: PathRequest) -> ev.Answer:
        """A path is wanted."""
        return await self._question(lambda asker: ev.Requested(asker, request))

    async def release(self, name: str) -> ev.Answer:
        """A path is wanted no more."""
        return await self._question(lambda asker: ev.Released(asker, name))

    async def _question(self, event: Callable[[int], ev.Event]) -> ev.Answer:
        self.questions += 1
        asker = self.questions
        future: asyncio.Future[ev.Answer] = asyncio.get_running_loop().create_future()
        self._answers[asker] = future
        self.happened(event(asker))
        return await future

    def fail(self, fault: BaseException) -> None:
        """No test wants this."""
        raise fault

    def happened(self, event: ev.Event) -> None:
        """Tells the core."""
        self._events.append(event)
        if self._at_work:
            return
        self._at_work = True
        while self._events:
            for effect in self.core.handle(self._events.popleft(), self.now):
                self._carry_out(effect)
        self._at_work = False

    def _carry_out(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Install():
                if not self.held:
                    self.happened(ev.SwitchDone(effect.update.switch, effect.ticket))
            case ev.SetQueues():
                self.happened(ev.QueuesDone(effect.number))
            case ev.Answer():
                future = self._answers.pop(effect.asker)
                if not future.done():
                    future.set_result(effect)
            case ev.TellHost():
                self.told(effect)
            case ev.Wake(at):
                later = max(0.0, at - self.now) + 0.001
                asyncio.get_running_loop().call_later(later, self.happened, ev.Tick())
            case ev.Sync():
                pass
            case _:
                self.kept.take(effect)


def checked(schema: Mapping[str, Any], value: object) -> None:
    """Checks a value by the library, not by the controller's own checks."""
    whole = {**schema, "components": contract()["components"]}
    Draft202012Validator(whole).validate(value)


class Client:
    """Calls operations by their names; an unknown one is a fault of the test."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url
        self.operations = {
            one["operationId"]: (method, path, one)
            for path, methods in contract()["paths"].items()
            for method, one in methods.items()
        }

    async def call(
        self,
        operation: str,
        token: str | None = "token-operator",
        body: object = None,
        bad: bool = False,
        headers: Mapping[str, str] | None = None,
        **parameters: str | int,
    ) -> tuple[int, Any]:
        """Returns status and JSON (or text). What is sent is checked, too, unless it is `bad`."""
        method, path, one = self.operations[operation]
        query: dict[str, str] = {}
        known = {each["name"]: each for each in one.get("parameters", ())}
        for name, value in parameters.items():
            if not bad:
                checked(known[name]["schema"], value)
            if known.get(name, {}).get("in") == "path":
                path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
            else:
                query[name] = str(value)
        if body is not None and not bad:
            checked(one["requestBody"]["content"]["application/json"]["schema"], body)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {token}"} if token is not None else {}
        if data is not None:
            sent["Content-Type"] = "application/json"
        url = f"{self.url}{path}"
        async with self.session.request(
            method, url, data=data, params=query, headers={**sent, **(headers or {})}
        ) as response:
            text = await response.text()
            return response.status, answered(one, response.status, response.content_type, text)

    async def good(self, operation: str, token: str | None = "token-operator", **rest: Any) -> Any:  # noqa: ANN401
        """The JSON of an answer that is 200 or 204."""
        status, found = await self.call(operation, token, **rest)
        assert status in (200, 204), found
        return found


def answered(operation: Mapping[str, Any], status: int, kind: str, text: str) -> Any:  # noqa: ANN401
    """Reads an answer, as the file says; a status that is not in the file is a fault."""
    responses = operation["responses"]
    assert str(status) in responses, (operation["operationId"], status, text)
    content = responses[str(status)].get("content")
    if content is None:
        assert text == ""
        return None
    assert kind in content, (kind, text)
    if kind != "application/json":
        return text
    found = json.loads(text)
    if schema := content[kind].get("schema"):
        checked(schema, found)
    return found


class Served:
    """A controller with an API."""

    def __init__(self, config: Config, runtime: Quick, api: Api, client: Client) -> None:
        self.config, self.runtime, self.api, self.client = config, runtime, api, client
        self.call, self.good = client.call, client.good
        self.versions: dict[str, int] = {}
        """Of the newest view of each host that registers."""

    async def until(self, what: str, ready: Callable[[], Awaitable[object]], timeout: float = 20) -> Any:  # noqa: ANN401
        """Waits."""
        try:
            async with asyncio.timeout(timeout):
                while not (found := await ready()):
                    await asyncio.sleep(0.02)
                return found
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}") from None

    async def register(self, host: str, **rest: Any) -> Any:  # noqa: ANN401
        """A host announces itself, by the newest view that it has; returns its view."""
        body = {**announcement(host), "view": self.versions.get(host, 0), **rest}
        view = await self.good("register", f"token-{host}", host=host, body=body)
        self.versions[host] = view["version"]
        return view

    async def newer(self, host: str) -> Any:  # noqa: ANN401
        """Waits for a view of another version than the host has."""
        after = self.versions[host]
        view = await self.good("view", f"token-{host}", host=host, after=after, wait=10**10)
        self.versions[host] = view["version"]
        return view

    async def pair(self) -> None:
        """h1 with a1 and h2 with b1, which has admitted a1."""
        await self.register("h1")
        await self.register("h2")
        await self.register("h2", arrivals=[{"remote": "a1", "refused": None}])


@asynccontextmanager
async def served(
    config: Config | None = None,
    limits: Mapping[Kind, Limits] | None = None,
    handlers: Mapping[str, Handler] | None = None,
) -> AsyncIterator[Served]:
    """Runs one."""
    config = config or configuration()
    kept = Kept()
    runtime = Quick(config, kept)
    api = create(config, cast(Runtime, runtime), kept, limits=limits, handlers=handlers)
    runtime.told = api.service.told
    runtime.led()
    await api.start()
    runtime.begin()
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Served(config, runtime, api, Client(session, f"http://127.0.0.1:{api.port}"))
    finally:
        await api.stop()


def run(test: Callable[[], Awaitable[None]], limit: float = 100) -> None:
    """Runs a test."""

    async def limited() -> None:
        async with asyncio.timeout(limit):
            await test()

    asyncio.run(limited())


def vnic(name: str, number: int, segment: int = 100, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
    """A vNIC that may be announced, with a deadline to all."""
    found = {"name": name, "mac": f"02:00:0a:00:{number >> 8:02x}:{number & 255:02x}", "segment": segment}
    terms = {"rate": 10**9, "burst": 10_000, "deadline": 2 * 10**9, "to": ["a1", "b1", "c1"]}
    return {**found, "addresses": [], **terms, **rest}


VNICS = {"h1": ("a1", 1), "h2": ("b1", 2), "h3": ("c1", 3)}


def announcement(host: str, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
    """What a host announces: an uplink and a vNIC, unless the test says otherwise."""
    name, number = VNICS.get(host, (f"v{host}", int(host[1:])))
    n = int(host[1:])
    uplink = {
        "name": "up",
        "address": f"10.0.{n >> 8}.{n & 255}",
        "port": 4789,
        "arrival_budget": 100_000,
    }
    return {"run": "r1", "uplinks": [uplink], "vnics": [vnic(name, number)], "arrivals": [], **rest}


def wanted(source: int = 1, target: int = 2, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
    """A request for a path."""
    key = {
        "source": f"10.0.0.{source}",
        "target": f"10.0.0.{target}",
        "source_port": 50_001,
        "target_port": 4789,
    }
    found = {
        "vnic": VNICS[f"h{source}"][0],
        "remote": VNICS[f"h{target}"][0],
        "source": f"h{source}",
        "target": f"h{target}",
        "key": key,
        "dscp": 40,
        "rate": 1_000_000,
        "burst": 4000,
        "smallest_frame": 110,
        "largest_frame": 1000,
        "budget": 10**9,
    }
    return {**found, **rest}
