"""uvicorn's protocol with bounds on the head of a request, and the socket's kind in the state."""

import asyncio
import json
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from car_http.crowds import Strangers

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
HEAD_TIMEOUT_S = 30.0
_PIECE = b"%x\r\n%b\r\n"
_NOT_HTTP = "the bytes are not a valid HTTP request"
# Headers of an offer to go on in another protocol; `Connection` lists them.
_OFFER = (b"upgrade", b"http2-settings")
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class DoorState(ServerState):
    """The server's state, with the connections that are not admitted yet."""

    def __init__(self, strangers: Strangers) -> None:
        super().__init__()
        self.strangers = strangers


class ChunkedPieces:
    """Writes pieces of a chunked body to the transport; a piece by uvicorn's coroutine costs several times as much."""

    def __init__(self, transport: asyncio.Transport, flow: Any) -> None:
        self._transport = transport
        self._flow = flow

    @property
    def ready(self) -> bool:
        """Whether the client reads."""
        return not (self._flow.write_paused or self._transport.is_closing())

    def write(self, data: bytes) -> None:
        """Send a piece; an empty one would end the body."""
        if data:
            self._transport.write(_PIECE % (len(data), data))

    def offering(self, of_text: Callable[[bytes], bytes]) -> Callable[[bytes], bool]:
        """Return a function that sends a text as a piece where the client reads; it returns whether it does."""
        flow, write, is_closing = self._flow, self._transport.write, self._transport.is_closing

        def offer(text: bytes) -> bool:
            if flow.write_paused or is_closing():
                return False
            data = of_text(text)
            write(_PIECE % (len(data), data))
            return True

        return offer


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


class DoorProtocol(HttpToolsProtocol):
    """One HTTP connection; a head that is too long, or not whole within `head_timeout_s`, ends it."""

    head_timeout_s = HEAD_TIMEOUT_S

    def connection_made(self, transport: Any) -> None:
        """Note whether the socket is a Unix socket, and expect a head."""
        super().connection_made(transport)
        accepted = transport.get_extra_info("socket")
        unix = accepted is not None and accepted.family == socket.AF_UNIX
        strangers = self._strangers
        if not unix:
            strangers.add(self, self._give_way)
        admitted = partial(strangers.discard, self)
        self.app_state = {"unix": unix, "pieces": ChunkedPieces(transport, self.flow), "admitted": admitted}
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop expecting a head."""
        self._strangers.discard(self)
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless the connection was refused."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.refuse(400, _NOT_HTTP)

    def on_message_begin(self) -> None:
        """Count the head from its first byte."""
        super().on_message_begin()
        self._head_bytes = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Count the target."""
        if self._fits(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        if len(self.headers) >= MAX_HEADERS:
            self.refuse(431, f"a request has at most {MAX_HEADERS} headers")
        elif self._fits(len(name) + len(value)):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request, unless it was refused or offers another protocol."""
        self._stop_expecting()
        if self.transport.is_closing() or self.parser.should_upgrade():
            return
        self._take_host_of_target()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.scope["state"]["pieces"] = None
            self.cycle.send = UnframedBody(self.cycle).send  # type: ignore[method-assign]  # uvicorn offers no hook

    def on_body(self, body: bytes) -> None:
        """Pass the body on, unless the request was refused."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass the end on, unless the request was refused or offers another protocol."""
        if not (self.transport.is_closing() or self.parser.should_upgrade()):
            super().on_message_complete()

    def refuse(self, status: int, message: str) -> None:
        """Send an error and end the connection."""
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "bad_request"}
        body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _decline(self, rest: bytes) -> None:
        """Begin a request anew without its offer of another protocol, because the parser takes its body for that one.

        Java's client offers HTTP/2 with every request.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse(400, _NOT_HTTP)
            return
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % header for header in self.headers if not _offers(*header)]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

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
        self.refuse(503, "too many connections are open without a key: send the request at once")

    def _fits(self, more: int) -> bool:
        self._head_bytes += more
        if self.transport.is_closing():
            return False
        if self._head_bytes > MAX_HEAD_BYTES:
            self.refuse(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
            return False
        return True

    def _expect_head(self) -> None:
        self._stop_expecting()
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self.refuse(408, f"the head of the request took longer than {self.head_timeout_s:g} s")


def _offers(name: bytes, value: bytes) -> bool:
    return name in _OFFER or (name == b"connection" and b"upgrade" in value.lower())
