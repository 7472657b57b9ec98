"""The HTTP server of the API, in the loop of the runtime.

```text
 connection ─▶ who? ─▶ tokens of its account ─▶ may it? ─▶ body: size, time ─▶ as the file says? ─▶ Operations
                └──────── Problem: 401, 429, 403, 400 ───────────┴──────────────────────┘              │
 JSON ◀────────────────────────────────────────────────────────────────────────────────────────────────┘
```

Nothing of a body is read before its sender is known and has tokens for it. Connections are bounded; one on
which nothing is asked, or whose answers are not read, is closed.
"""

import asyncio
import json
import logging
import math
import resource
import ssl
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tidegate_controller.api import buckets
from tidegate_controller.api.buckets import Account, Limits
from tidegate_controller.api.contract import Operation, operations
from tidegate_controller.api.identity import Identities, Identity, Kind, Known, check
from tidegate_controller.api.metrics import Metrics
from tidegate_controller.api.operations import Call, Handler, Operations, Text
from tidegate_controller.api.problem import Code, Problem, crowd
from tidegate_controller.api.schema import Invalid, parse
from tidegate_controller.api.service import Service
from tidegate_controller.config import Config, ConfigError
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime

MOST_CONNECTIONS = 4096
"""At one time; less where the process may have fewer open files."""
MOST_IDLE = 64
"""Connections of one address on which nothing was asked for longer than `FRESH`."""
FRESH = 5.0
IDLE = 30.0
"""s after which such a connection is closed."""
BODY = 10.0
"""s for a whole body."""
HANDSHAKE = 10.0
COSTS = {"request": 2.0}
"""Tokens; one for all others. A request takes the arithmetic of all routes."""
ANSWERS = 0.25
"""The part of an answer's bytes that counts: writing costs less than reading and checking."""
CLOSING = 2.0
"""s for requests that are under way at the end."""

log = logging.getLogger(__name__)


class _Full(asyncio.Protocol):
    """Closes a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Api:
    """The API of one controller: `start`, `stop`."""

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        kept: Kept,
        ssl_context: ssl.SSLContext | None = None,
        handlers: Mapping[str, Handler] | None = None,
        limits: Mapping[Kind, Limits] | None = None,
        identities: Known | None = None,
    ) -> None:
        """See `create`."""
        if config.api.needs_tls and ssl_context is None:
            raise ConfigError(f"api.listen: {config.api.listen} needs TLS, or `plain = true`")
        self._config, self._ssl = config, ssl_context
        self.service = Service(config, runtime)
        self.metrics = Metrics()
        self.metrics.watch(self.service, kept)
        found = {**Operations(self.service, kept, self.metrics.text).handlers(), **(handlers or {})}
        self._operations = operations()
        names = {one.name for one in self._operations}
        if names != found.keys():
            raise ValueError(
                f"operations without a handler, or the other way: {sorted(names ^ found.keys())}"
            )
        self._handlers = found
        usual = Identities(config.api.allowed, config.api.tokens, config.api.operator)
        self._identities: Known = identities or usual
        self._limits = {
            Kind.HOST: buckets.HOST,
            Kind.OPERATOR: buckets.OPERATOR,
            Kind.UNKNOWN: buckets.UNKNOWN,
            **(limits or {}),
        }
        self._accounts: dict[Identity, Account] = {}
        self._busy: set[object] = set()
        self._since: dict[object, float] = {}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    def take(self, config: Config) -> None:
        """Takes hosts and tokens of a configuration that is read again; all else stays."""
        self._config = config
        self._identities.take(config.api)
        self.service.take(config)

    def application(self) -> web.Application:
        """The routes of the file."""
        application = web.Application(middlewares=[self._answered])
        for one in self._operations:
            application.router.add_route(one.method, one.route, self._route(one), name=one.name)
        return application

    async def start(self) -> None:
        """Listens where the configuration says. `OSError` if the address is taken."""
        if self._config.api.listen is None:
            return
        host, port = self._config.api.listen
        self._runner = web.AppRunner(
            self.application(),
            handler_cancellation=True,
            auto_decompress=False,
            keepalive_timeout=IDLE,
            lingering_time=CLOSING,
            shutdown_timeout=CLOSING,
            access_log=None,
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        handshake = HANDSHAKE if self._ssl is not None else None
        self._server = await loop.create_server(
            self._protocol, host, port, ssl=self._ssl, ssl_handshake_timeout=handshake, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._tasks = [loop.create_task(self.service.run()), loop.create_task(self._sweep())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        scheme = "https" if self._ssl is not None else "http"
        log.info("the API is served at %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, self.port)

    async def stop(self) -> None:
        """Answers what is under way for a short time, and closes."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            self._server.close()
        await self.service.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a fault of the controller's API", exc_info=fault)
            self.service.runtime.fail(fault)

    # Connections.

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner is not None
        server = self._runner.server
        assert server is not None
        return server() if len(server.connections) < self._most else _Full()

    async def _sweep(self) -> None:
        """Closes connections on which nothing is asked, each second."""
        assert self._runner is not None
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None
        while True:
            await asyncio.sleep(1.0)
            now, idle = loop.time(), dict[str, int]()
            there = server.connections
            self._since = {one: self._since.get(one, now) for one in there}
            for one in sorted(there, key=lambda one: -self._since[one]):
                if one in self._busy or one.transport is None:
                    continue
                if now - self._since[one] < FRESH:
                    continue
                peer = one.transport.get_extra_info("peername")
                address = str(peer[0]) if peer else ""
                idle[address] = idle.get(address, 0) + 1
                if now - self._since[one] > IDLE or idle[address] > MOST_IDLE:
                    one.transport.abort()

    # Requests.

    @web.middleware
    async def _answered(self, request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401
        """Turns what a request ends with into an answer, and counts it."""
        loop = asyncio.get_running_loop()
        began, connection = loop.time(), request.protocol
        self._busy.add(connection)
        route = request.match_info.route.name or "none"
        status = 499
        try:
            response = await self._answer(request, handler)
            status = response.status
            return response
        finally:
            self._busy.discard(connection)
            self._since[connection] = loop.time()
            self.metrics.answered(route, status, loop.time() - began)

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except Problem as problem:
            return _problem(problem)
        except Invalid as invalid:
            return _problem(Problem(Code.INVALID, str(invalid)))
        except web.HTTPException as found:
            return _problem(
                Problem(Code.NOT_FOUND, f"{request.method[:20]} of this: {found.reason}", status=found.status)
            )
        except Exception:
            log.exception("a fault of the controller at %s", request.match_info.route.name)
            return _problem(Problem(Code.BUSY, "a fault of the controller; its log has it", status=500))

    def _route(self, operation: Operation) -> Any:  # noqa: ANN401
        async def served(request: web.Request) -> web.Response:
            return await self._serve(operation, request)

        return served

    async def _serve(self, operation: Operation, request: web.Request) -> web.Response:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        authorization = request.headers.get("Authorization")
        who = self._identities.of(certificate, authorization)
        account = self._account(who)
        self._charge(account, COSTS.get(operation.name, 1.0))
        account.open += 1
        try:
            check(who, operation.schemes, self._ssl is not None, request.match_info.get("host"))
            parameters = operation.take(request.match_info, request.query.items())
            body = await self._body(operation, request, account)
            found = await self._handlers[operation.name](Call(who, parameters, body))
        finally:
            account.open -= 1
        if found is None:
            return web.Response(status=204)
        if isinstance(found, Text):
            return web.Response(body=found.text.encode(), headers={"Content-Type": found.kind})
        data = json.dumps(found).encode()
        account.bytes.owe(ANSWERS * len(data), asyncio.get_running_loop().time())
        return web.Response(body=data, content_type="application/json")

    def _account(self, who: Identity) -> Account:
        account = self._accounts.get(who)
        if account is None:
            account = self._accounts[who] = Account(self._limits[who.kind])
        return account

    def _charge(self, account: Account, cost: float) -> None:
        limits = account.limits
        now = asyncio.get_running_loop().time()
        if wait := account.requests.take(cost, now):
            raise crowd(f"more than {limits.rate:g} requests/s; ask again in {wait:.1f} s", wait)
        if wait := account.bytes.take(0, now):
            raise crowd(f"more than {limits.bytes:g} bytes/s; ask again in {wait:.1f} s", wait)
        if account.open >= limits.open:
            raise crowd(f"{account.open} requests are open; at most {limits.open} are served", 1.0)

    async def _body(self, operation: Operation, request: web.Request, account: Account) -> Any:  # noqa: ANN401
        length = request.content_length
        if "Transfer-Encoding" in request.headers or "Content-Encoding" in request.headers:
            raise Invalid("a body with Content-Length, neither chunked nor compressed, was expected")
        if operation.body is None:
            if length:
                raise Invalid(f"{operation.name} takes no body")
            return None
        if not length:
            raise Invalid(f"{operation.name} needs a body")
        if length > operation.largest:
            raise Invalid(f"the body has {length} bytes; at most {operation.largest} are read")
        if wait := account.bytes.take(length, asyncio.get_running_loop().time()):
            raise crowd(f"more than {account.limits.bytes:g} bytes/s; ask again in {wait:.1f} s", wait)
        try:
            async with asyncio.timeout(BODY):
                data = await request.content.readexactly(length)
        except TimeoutError:
            raise Invalid(f"the body did not come within {BODY:g} s") from None
        except asyncio.IncompleteReadError:
            raise Invalid("the body is not whole") from None
        value = parse(data)
        operation.body(value, "body")
        return value


def _problem(problem: Problem) -> web.Response:
    headers = {}
    if problem.retry is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry)))
    body = json.dumps(problem.body()).encode()
    return web.Response(status=problem.status, body=body, content_type="application/json", headers=headers)


def create(
    config: Config,
    runtime: Runtime,
    kept: Kept,
    ssl_context: ssl.SSLContext | None = None,
    handlers: Mapping[str, Handler] | None = None,
    limits: Mapping[Kind, Limits] | None = None,
    identities: Known | None = None,
) -> Api:
    """Makes the API of a runtime. Raises `ConfigError` if tokens would cross a network in plain text.

    `kept` has the decisions. With `ssl_context`, clients are known by the common name of a certificate that
    it has checked. `handlers` take the place of operations, such as `enrol` and `keys`. `limits` are those of
    one client of a kind. `identities` tells who clients are, if the configuration alone does not. The runtime
    is to tell `service.told` what changes at paths.
    """
    return Api(config, runtime, kept, ssl_context, handlers, limits, identities)
