"""The little of HTTP/1.1 that a reader of metrics needs: one request's head in, one whole response out."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

_REQUEST_LINE = re.compile(rb"([A-Z]+) ([\x21-\x7e]+) HTTP/1\.[01]")
_PATH = "/metrics"
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    500: "Internal Server Error",
}


def respond(head: bytes, metrics: Callable[[], tuple[str, str]]) -> bytes:
    """Return the response to a request's head; `metrics` gives content type and text."""
    line = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
    path = None if line is None else _path(line[2].decode("ascii"))
    if line is None or path is None:
        return refusal(400)
    if path != _PATH:
        return refusal(404)
    if line[1] != b"GET":
        return refusal(405)
    kind, text = metrics()
    return _response(200, kind, text)


def refusal(status: int) -> bytes:
    """Return the response that says only that."""
    return _response(status, "text/plain; charset=utf-8", f"{status} {_PHRASES[status]}: GET {_PATH} is served here\n")


def _path(target: str) -> str | None:
    """Return the path of a request's target, None where it is none."""
    try:
        return urlsplit(target).path
    except ValueError:
        return None


def _response(status: int, kind: str, text: str) -> bytes:
    body = text.encode()
    allow = "Allow: GET\r\n" if status == 405 else ""
    head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {kind}\r\n{allow}"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
