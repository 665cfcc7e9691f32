"""uvicorn's protocol with bounds on the head of a request, and the socket's kind in the state."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import httptools
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from car_http.crowds import Strangers
from car_http.dialects.errors import Dialect, dialect_of, encoded
from car_http.problems import Problem

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
HEAD_TIMEOUT_S = 30.0
# Requests of one connection that wait for the answers before them.
MOST_WAITING = 8
_LONG_HEAD = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
_NOT_HTTP = "the bytes are not a valid HTTP request"
# The code of an error that ends the connection.
REFUSAL = "bad_request"
# Headers of an offer to go on in another protocol; `Connection` lists them.
_OFFER = (b"upgrade", b"http2-settings")
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Visit(Struct, frozen=True):
    """The address of another machine, the own address that it reached, and what its connection's end calls."""

    address: str
    reached: str
    ended: Callable[[], None]


class DoorState(ServerState):
    """The server's state, with the connections that are not admitted yet."""

    def __init__(self, strangers: Strangers) -> None:
        super().__init__()
        self.strangers = strangers


class UnframedBody:
    """An answer to HTTP/1.0, which has no chunks: a body without a length ends with the connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._sized = False  # the head of the answer has the length of the body

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self._sized = any(name == b"content-length" for name, _ in message["headers"])
            if not self._sized:
                self._cycle.chunked_encoding = False
        elif not self._sized:
            # uvicorn compares this figure with the bytes of the body, and at the end with 0.
            self._cycle.expected_content_length = len(message["body"])
        await self._send(message)


class _Refusal(Exception):
    """A request that is refused while it is parsed, with its status and message; nothing behind it is parsed."""


class _Waiting(NamedTuple):
    """The requests that wait on a connection, as they were counted last, their headers and their bytes."""

    requests: int
    headers: int
    size: int

    @property
    def too_many(self) -> bool:
        """Whether they are more than may wait."""
        return self.requests > MOST_WAITING or self.headers > MAX_HEADERS or self.size > MAX_HEAD_BYTES


def _counted(waiting: list[RequestResponseCycle]) -> _Waiting:
    headers = [header for cycle in waiting for header in cycle.scope["headers"]]
    size = sum(len(name) + len(value) for name, value in headers)
    size += sum(len(each.scope["raw_path"] + each.scope["query_string"]) + len(each.body) for each in waiting)
    return _Waiting(len(waiting), len(headers), size)


class DoorProtocol(HttpToolsProtocol):
    """One HTTP connection; a head that is too long, or not whole within `head_timeout_s`, ends it.

    Requests wait here for the answers before them. Reading goes on meanwhile, because the end of a connection is
    noticed by reading alone; so the requests that wait have a bound, beyond which the connection ends.
    """

    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, *arguments: Any, visit: Visit | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.url = b""  # until the head of a request begins
        self._visit = visit  # None on this machine's own sockets

    def connection_made(self, transport: Any) -> None:
        """Note whether the socket is a Unix socket, and expect a head."""
        super().connection_made(transport)
        accepted = transport.get_extra_info("socket")
        unix = accepted is not None and accepted.family == socket.AF_UNIX
        strangers = self._strangers
        address = self._visit.address if self._visit else None
        if not unix:
            strangers.add(self, self._give_way, address)
        admitted = partial(strangers.discard, self)
        self.app_state = {"unix": unix, "admitted": admitted, "address": address}
        if self._visit:
            self.app_state["reached"] = self._visit.reached
        self._answering: RequestResponseCycle | None = None  # the newest request that does not wait
        self._in_head = True  # else a header is a trailer, behind the body
        self._head_bytes = self._header_count = 0
        self._held_bytes = 0  # received since the parser passed something on; it keeps them
        self._waiting = _Waiting(0, 0, 0)
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, drop the requests that wait, and notify the request that is being answered."""
        self._strangers.discard(self)
        if self._visit:
            self._visit.ended()
        self._stop_expecting()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        # uvicorn notifies the newest request alone, which may have waited.
        if self._answering is not None:
            self.cycle = self._answering
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Notify the request that is being answered, because output that the client does not read delays the end."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless the connection was refused."""
        if self.transport.is_closing():
            return
        try:
            while data:
                data = self._parse(data)
        except _Refusal as refusal:
            self.refuse(*refusal.args)

    def pause_writing(self) -> None:
        """Wait until the client reads; a client without a key loses the connection, because it keeps memory."""
        super().pause_writing()
        if self in self._strangers:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Count the head from its first byte; the idle time ends."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._in_head = True
        self._head_bytes = self._header_count = self._held_bytes = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Count the target; raises _Refusal."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, and drop a trailer: what a proxy checks is the head; raises _Refusal."""
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise _Refusal(431, f"a request has at most {MAX_HEADERS} headers")
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request or have it wait, unless it offers another protocol; raises _Refusal."""
        self._stop_expecting()
        self._in_head = False
        if self.parser.should_upgrade():
            return
        self._take_host_of_target()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = UnframedBody(self.cycle).send  # type: ignore[method-assign]  # uvicorn offers no hook
        if self.pipeline:
            self._check_waiting()
            self.flow.resume_reading()  # uvicorn paused it

    def on_body(self, body: bytes) -> None:
        """Pass the body on; raises _Refusal for a long one of a request that waits."""
        self._held_bytes = 0
        super().on_body(body)
        if self.pipeline:
            self._check_waiting(len(body))

    def on_message_complete(self) -> None:
        """Pass the end on, unless the request offers another protocol."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def refuse(self, status: int, message: str) -> None:
        """End the connection, with an error unless an answer is under way; at once if the client does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        answering = self._answering
        if answering is None or answering.response_complete or not answering.response_started:
            body = encoded(self._dialect().shape(Problem(status, REFUSAL, message)))
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _dialect(self) -> Dialect:
        """Return the dialect of the last request whose head began, OpenAI's if none did."""
        path, _, _ = self.url.partition(b"?")
        anthropic = any(name == b"anthropic-version" for name, _ in self.headers or ())
        return dialect_of(path.decode("latin-1"), anthropic=anthropic)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a request, also a request whose head began before the last answer ended: the idle time ends."""
        self._answering = cycle
        self._unset_keepalive_if_required()
        super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> bytes:
        """Parse bytes; return the bytes to parse next, which only an offer leaves. Raises _Refusal."""
        self._held_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            return self._without_offer() + data[offer.args[0] :]
        except httptools.HttpParserError as error:
            refusal = error.__context__
            raise (refusal if isinstance(refusal, _Refusal) else _Refusal(400, _NOT_HTTP)) from None
        if self._held_bytes > MAX_HEAD_BYTES:
            raise _Refusal(431, _LONG_HEAD)
        return b""

    def _without_offer(self) -> bytes:
        """Return the head of a request without its offer of another protocol, for a new parser; raises _Refusal.

        The old parser takes the body for that protocol. Java's client offers HTTP/2 with every request.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise _Refusal(400, _NOT_HTTP)
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % (name, value) for name, value in _not_offering(self.headers)]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _check_waiting(self, body: int = 0) -> None:
        """Refuse requests that wait beyond the bounds: their number, and together the bytes of one head.

        After a piece of a `body` its bytes alone are added, because a body may come in many pieces.
        """
        if body and len(self.pipeline) == self._waiting.requests:
            self._waiting = self._waiting._replace(size=self._waiting.size + body)
        else:
            self._waiting = _counted([cycle for cycle, _ in self.pipeline])
        if self._waiting.too_many:
            limits = f"{MOST_WAITING} requests, with {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes together"
            raise _Refusal(400, f"at most {limits}, wait on a connection: read an answer before the next request")

    def _take_host_of_target(self) -> None:
        """Put the host of a target that is a whole URL in the place of `Host`, as HTTP has it."""
        scheme, mark, place = self.url.partition(b"://")
        if mark and b"/" not in scheme:
            self.headers[:] = [header for header in self.headers if header[0] != b"host"]
            self.headers.append((b"host", place.partition(b"/")[0]))

    @property
    def _strangers(self) -> Strangers:
        assert isinstance(self.server_state, DoorState)
        return self.server_state.strangers

    def _give_way(self) -> None:
        if self._visit:  # TLS waits for a client's last words
            self.transport.abort()
            return
        self.refuse(503, "too many connections are open without a key: send the request at once")

    def _count(self, more: int) -> None:
        self._head_bytes += more
        self._held_bytes = 0
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _Refusal(431, _LONG_HEAD)

    def _expect_head(self) -> None:
        self._stop_expecting()
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self.refuse(408, f"the head of the request took longer than {self.head_timeout_s:g} s")


def _not_offering(headers: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Return headers without an offer of another protocol, and without its names in `Connection`."""
    for name, value in headers:
        if name == b"connection":
            kept = [each for each in value.split(b",") if each.strip().lower() not in _OFFER]
            if kept:
                yield name, b",".join(kept)
        elif name not in _OFFER:
            yield name, value
