"""Streams of events over HTTP/1.1."""

from typing import Any

import msgspec

from car_client.carctl.load.codec import End, LoadError, Received
from car_client.carctl.load.http.body import HttpBody
from car_client.carctl.load.http.dialect import Event, body, decode_event
from car_client.carctl.load.http.sse import SseReader
from car_client.carctl.load.request import Request

_DONE = b"[DONE]"


class HttpCodec:
    """Posts to one path of one server."""

    def __init__(self, host: str, path: str, options: dict[str, Any]) -> None:
        self._host = host
        self._path = path
        self._options = options
        # llama-server closes the connection after a stream without announcing it.
        self.keeps_open = False
        self._body = HttpBody()  # of the current answer
        self._events = SseReader()
        self._tokens: int | None = None  # as the last event with usage counts them
        self._prompt_tokens: int | None = None

    def encode(self, request: Request) -> bytes:
        """Return a POST request."""
        self._body, self._events = HttpBody(), SseReader()
        self._tokens = self._prompt_tokens = None
        content = msgspec.json.encode(body(self._path, request, self._options))
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {self._host}\r\naccept: text/event-stream\r\n"
            f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def receive(self, data: bytes) -> Received:
        """Count events with text; the end of the body ends the answer."""
        events = [_event(each) for each in self._events.feed(self._body.feed(data)) if each != _DONE]
        for event in events:
            self._tokens = self._tokens if event.tokens is None else event.tokens
            self._prompt_tokens = self._prompt_tokens if event.prompt_tokens is None else event.prompt_tokens
        return Received(sum(event.has_text for event in events), self._end() if self._body.ended else None)

    def closed(self) -> End | None:
        """Return the end, because a body without chunks ends with the connection."""
        return self._end()

    def _end(self) -> End:
        return End(self._tokens, self._prompt_tokens)


def _event(data: bytes) -> Event:
    try:
        event = decode_event(data)
    except msgspec.DecodeError:
        raise LoadError("the server sent an event that is not a completion: check the path") from None
    if event.error is not None:
        message = event.error.get("message") if isinstance(event.error, dict) else event.error
        raise LoadError(f"the server answered with an error: {message}")
    return event
