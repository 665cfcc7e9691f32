"""Streams of events over HTTP/1.1, on nothing but bytes."""

from typing import Any

import msgspec

from car_client.carctl.load.dialect import Event, body, decode_event
from car_client.carctl.load.http_body import HttpBody
from car_client.carctl.load.request import Request
from car_client.carctl.load.sse import SseReader
from car_client.carctl.load.wire import End, Heard, LoadError

_DONE = b"[DONE]"


class HttpWire:
    """Asks one path of one server."""

    def __init__(self, host: str, path: str, options: dict[str, Any]) -> None:
        self._host = host
        self._path = path
        self._options = options
        # llama-server closes after a stream without having said so.
        self.keeps_open = False
        # Mutable state: the answer that is read, and what its events said of its tokens.
        self._body = HttpBody()
        self._events = SseReader()
        self._tokens: int | None = None
        self._prompt_tokens: int | None = None

    def ask(self, request: Request) -> bytes:
        """Return a POST."""
        self._body, self._events = HttpBody(), SseReader()
        self._tokens = self._prompt_tokens = None
        content = msgspec.json.encode(body(self._path, request, self._options))
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {self._host}\r\naccept: text/event-stream\r\n"
            f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def hear(self, data: bytes) -> Heard:
        """Count events with text; the end of the body is the end."""
        events = [_event(each) for each in self._events.feed(self._body.feed(data)) if each != _DONE]
        for event in events:
            self._tokens = self._tokens if event.tokens is None else event.tokens
            self._prompt_tokens = self._prompt_tokens if event.prompt_tokens is None else event.prompt_tokens
        return Heard(sum(event.has_text for event in events), self._end() if self._body.ended else None)

    def closed(self) -> End | None:
        """A body without chunks ends with the connection."""
        return self._end()

    def _end(self) -> End:
        return End(self._tokens, self._prompt_tokens)


def _event(data: bytes) -> Event:
    try:
        event = decode_event(data)
    except msgspec.DecodeError:
        raise LoadError("the server sent an event that is no completion") from None
    if event.error is not None:
        message = event.error.get("message") if isinstance(event.error, dict) else event.error
        raise LoadError(f"the server answered with an error: {message}")
    return event
