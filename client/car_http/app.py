"""The ASGI application: admission, routing, and errors in the dialect of the path."""

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from car_client.door.keys import Key, KeyRing, KeysError
from car_client.errors import CardError
from car_http import guard
from car_http.answering import Gone
from car_http.crowds import BodyMemory, WrongKeys
from car_http.dialects.errors import dialect_of, encoded
from car_http.endpoints.context import DoorContext, Endpoint
from car_http.endpoints.table import ENDPOINTS, absence
from car_http.exchange import Disconnected, Exchange, HeadOnly, Message, Receive, Send
from car_http.guard import RequestHead, Rules
from car_http.problems import Problem, defect, problem_of

_LOG = logging.getLogger("car_http")
_EXCHANGE = "card.exchange"
_NOT_FOUND = 404
_OTHER_METHOD = "the endpoint has another method: GET /openapi.json lists them"


class Door:
    """The application; `unix` in the state of a scope says that the request came by the Unix socket."""

    def __init__(self, context: DoorContext, rules: Rules, keys: KeyRing, bodies: BodyMemory | None = None) -> None:
        self._context = context
        self._rules = rules
        self._keys = keys
        self._bodies = bodies or BodyMemory()
        self._wrong_keys = WrongKeys()
        self._fault = ""  # why the keys could not be read, as logged last
        self._router = Router([_route(context, each) for each in ENDPOINTS], redirect_slashes=False)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # URLs of servers are configured with and without a slash at their end.
        scope["path"] = "/" + scope["path"].strip("/")
        head = _head(scope)
        exchange = Exchange(head, receive, send, self._bodies)
        metrics = self._context.metrics
        metrics.in_flight += 1
        try:
            with suppress(HeadOnly):
                await self._answer(scope, exchange)
        except (Gone, Disconnected):
            metrics.disconnects += 1
        except Exception as error:  # noqa: BLE001 - a defect is logged without the text of the request
            await self._report(error, exchange)
        finally:
            exchange.close()
            metrics.in_flight -= 1
            route = scope.get("route")
            metrics.answered("other" if route is None else route.path, exchange.status)

    async def _answer(self, scope: Message, exchange: Exchange) -> None:
        try:
            request_id = secrets.token_hex(8)
            exchange.more_headers = {"x-request-id": request_id, "request-id": request_id}
            guard.check_single([name.decode("latin-1") for name, _ in scope["headers"]])
            guard.check_place(exchange.head, self._rules)
            exchange.more_headers |= guard.cors_headers(exchange.head)
            if guard.is_preflight(exchange.head):
                await exchange.respond(b"", 204)
                return
            self._admit(exchange)
            admitted = scope["state"].get("admitted")
            if admitted is not None and (exchange.key is not None or self._rules.no_key):
                admitted()
            scope.update({"app": self, _EXCHANGE: exchange})
            await self._router(scope, exchange.receive, exchange.send)
        except Problem as problem:
            if exchange.started:
                raise Disconnected from None  # the server ends the connection
            # Its frames keep the body, and the client may take its time.
            await _refuse(exchange, problem.with_traceback(None))
        except HTTPException as missing:
            if missing.status_code == _NOT_FOUND:
                absent = Problem(404, "not_found", absence(exchange.head.path), headers=missing.headers)
            else:
                absent = Problem(405, "not_found", _OTHER_METHOD, headers=missing.headers)
            await _refuse(exchange, absent)

    def _admit(self, exchange: Exchange) -> None:
        """Check the key and the content type; raises Problem."""
        if guard.needs_key(exchange.head, self._rules):
            try:
                exchange.key = self._key(exchange.head)
                exchange.admitted = partial(self._knows, exchange.key)
            except KeysError as error:
                # Not for the client, who may be anybody: the reason has a path of this machine.
                if self._fault != (why := str(error)):
                    _LOG.error("the door cannot read its keys: %s", why)
                    self._fault = why
                raise Problem(503, "keys_unusable", "the door cannot read its keys: its log has the reason") from error
        guard.check_content_type(exchange.head, self._rules)

    def _knows(self, key: Key) -> bool:
        """Return whether a key that was admitted is still in force."""
        try:
            return self._keys.known().named(key.name) == key
        except KeysError:
            return False

    def _key(self, head: RequestHead) -> Key:
        """Return the key of a request; an address with many wrong keys is slowed. Raises Problem and KeysError."""
        try:
            key = guard.check_key(head, self._keys.known(), time.time())
        except Problem:
            if head.address is not None:
                self._wrong_keys.refuse(head.address, time.monotonic())
            raise
        if head.address is not None:
            self._wrong_keys.admit(head.address, key.name, time.monotonic())
        return key

    async def _report(self, error: Exception, exchange: Exchange) -> None:
        """Log a defect by its place, because its text may quote the request."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        code = place.tb_frame.f_code if place else None
        line = place.tb_lineno if place else 0
        _LOG.error("defect: %s at %s:%d", type(error).__name__, code.co_filename if code else "?", line)
        if not exchange.started:
            await _refuse(exchange, defect())


def _route(context: DoorContext, endpoint: Endpoint) -> Route:
    async def run(scope: Message, receive: Receive, send: Send) -> None:
        try:
            exchange = scope[_EXCHANGE]
            exchange.path = scope["path_params"]
            await endpoint.run(context, exchange)
        except CardError as error:
            raise problem_of(error, {}) from error

    return Route(endpoint.path, endpoint=_AsApp(run), methods=[endpoint.method])


class _AsApp:
    """An ASGI application that the router runs as it is, without a request object of its own."""

    def __init__(self, run: Callable[[Message, Receive, Send], Any]) -> None:
        self._run = run

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._run(scope, receive, send)


async def _refuse(exchange: Exchange, problem: Problem) -> None:
    dialect = dialect_of(exchange.head.path, anthropic=exchange.head.anthropic)
    status = dialect.status(problem)
    await exchange.respond(encoded(dialect.shape(problem)), status, problem.all_headers)


def _head(scope: Message) -> RequestHead:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers[name.decode("latin-1")] = value.decode("latin-1")
    state = scope.get("state", {})
    return RequestHead(
        scope["method"],
        scope["path"],
        headers,
        bool(state.get("unix")),
        scope["query_string"],
        scope.get("scheme") == "https",
        state.get("address"),
        state.get("reached", ""),
    )
