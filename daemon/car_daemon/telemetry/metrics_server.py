"""Serves the metrics over HTTP/1.1: one request a connection, few connections at a time.

Over TCP only requests to an address, `localhost` or the configured name are answered, because a page of another site
can have a browser send requests to this machine under a name of its own (DNS rebinding).
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from car_base.host import defects
from car_daemon.sockets.peer import Acceptor, Peer, peer_of

MAX_SCRAPES = 16
# Fewer than all, so that one user's silent readers leave slots to others.
MAX_SCRAPES_OF_UID = 8
MAX_HEAD_BYTES = 8 * 1024
HEAD_TIMEOUT_S = 1.0
RESPONSE_TIMEOUT_S = 5.0
_END_OF_HEAD = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([\x21-\x7e]+) HTTP/1\.[01]")
_HOST_LINE = re.compile(rb"host:[ \t]*([\x21-\x7e]*)[ \t]*", re.IGNORECASE)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_LOCALHOST = "localhost"
_PATH = "/metrics"
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    421: "Misdirected Request",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_REMEDIES = {
    421: f"the Host must be {_LOCALHOST}, an address or the configured `[metrics] name`",
    503: f"the limit is {MAX_SCRAPES_OF_UID} open requests of a user",
}


class MetricsServer:
    """Answers each scrape and closes its connection; `metrics` returns content type and text.

    `name` is one more name that requests over TCP may be sent to; a request has `head_timeout_s` to arrive.
    """

    def __init__(
        self,
        metrics: Callable[[], tuple[str, str]],
        *,
        name: str | None = None,
        read_peer: Callable[[socket.socket], Peer] = peer_of,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        response_timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> None:
        self._metrics = metrics
        self._names = frozenset({_LOCALHOST} if name is None else {_LOCALHOST, name.lower()})
        self._read_peer = read_peer
        self._head_timeout_s = head_timeout_s
        self._response_timeout_s = response_timeout_s
        self._acceptor = Acceptor(self._accept)
        self._scrapes: dict[asyncio.Task[None], int | None] = {}  # with the uid, None over TCP
        self._listener: socket.socket | None = None  # None once closed

    def __repr__(self) -> str:
        return f"<MetricsServer {len(self._scrapes)} scrapes>"

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from this socket from now on, and from no other."""
        self._listener = listener
        self._acceptor.start(listener)

    async def close(self) -> None:
        """Stop accepting, and drop the open connections."""
        self._listener = None
        self._acceptor.stop()
        for scrape in self._scrapes:
            scrape.cancel()
        await asyncio.gather(*self._scrapes, return_exceptions=True)

    def _accept(self, accepted: socket.socket) -> None:
        uid = None
        if accepted.family == socket.AF_UNIX:
            with contextlib.suppress(OSError):
                uid = self._read_peer(accepted).uid
            if list(self._scrapes.values()).count(uid) >= MAX_SCRAPES_OF_UID:
                with contextlib.suppress(OSError), accepted:
                    accepted.send(refusal(503))
                return
        task = asyncio.get_running_loop().create_task(self._serve(accepted))
        self._scrapes[task] = uid
        task.add_done_callback(self._served)
        if len(self._scrapes) >= MAX_SCRAPES:
            # Further connections wait in the kernel's queue; a silent connection ends by its timeout.
            self._acceptor.stop()

    def _served(self, task: asyncio.Task[None]) -> None:
        del self._scrapes[task]
        if self._listener is not None:
            self._acceptor.start(self._listener)

    async def _serve(self, accepted: socket.socket) -> None:
        """Answer one scrape; a peer that is gone or does not read is dropped."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._head_timeout_s + self._response_timeout_s):
                await self._exchange(accepted)

    async def _exchange(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
        except BaseException:
            accepted.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            writer.write(await self._response(reader, is_tcp=accepted.family != socket.AF_UNIX))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        finally:
            transport.abort()

    async def _response(self, reader: asyncio.StreamReader, *, is_tcp: bool) -> bytes:
        try:
            async with asyncio.timeout(self._head_timeout_s):
                head = await reader.readuntil(_END_OF_HEAD)
        except TimeoutError:
            return refusal(408)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return refusal(400)
        try:
            return respond(head, self._metrics, self._names if is_tcp else None)
        except Exception as error:  # noqa: BLE001 - a defect in the metrics must not end the daemon
            defects.report("metrics.failed", error)
            return refusal(500)


def respond(head: bytes, metrics: Callable[[], tuple[str, str]], names: frozenset[str] | None = None) -> bytes:
    """Return the response to a request's head; `metrics` returns content type and text.

    With `names` the request's host has to be a listed name or an address.
    """
    line = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
    if line is None:
        return refusal(400)
    try:
        path = urlsplit(line[2].decode("ascii")).path
    except ValueError:
        return refusal(400)
    if names is not None and not _is_local(head, names):
        return refusal(421)
    if path != _PATH:
        return refusal(404)
    if line[1] != b"GET":
        return refusal(405)
    kind, text = metrics()
    return _response(200, kind, text)


def _is_local(head: bytes, names: frozenset[str]) -> bool:
    """Return whether a request has exactly one host, which is an address or one of the names."""
    lines = [line for line in head.split(b"\r\n")[1:] if line[:5].lower() == b"host:"]
    found = _HOST_LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    host = _HOST.fullmatch(found[1].decode("ascii")) if found is not None else None
    if host is None:
        return False
    try:
        ipaddress.ip_address(host[1] or host[2])
    except ValueError:
        return host[2] is not None and host[2].lower() in names
    return True


def refusal(status: int) -> bytes:
    """Return a response without metrics."""
    remedy = _REMEDIES.get(status, f"GET {_PATH} is served here")
    return _response(status, "text/plain; charset=utf-8", f"{status} {_PHRASES[status]}: {remedy}\n")


def _response(status: int, kind: str, text: str) -> bytes:
    body = text.encode()
    allow = "Allow: GET\r\n" if status == 405 else ""
    head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {kind}\r\n{allow}"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
