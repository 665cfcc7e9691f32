"""The daemon's protocol, as far as a load needs it."""

from typing import Any

import msgspec
from msgspec import Struct

from car_client.carctl.load.codec import End, LoadError, Received
from car_client.carctl.load.request import Request
from car_protocol.answer import Timings, Usage
from car_protocol.errors import ErrorObject
from car_protocol.framing import LineFramer

# Notifications are recognised by their first bytes and only responses are decoded, so that the load stays cheap.
_CHUNK = b'"method":"infer_stream/chunk"'
_NOTIFICATION = b'"method":'
_HEAD_BYTES = 48


class _Done(Struct, frozen=True):
    usage: Usage
    timings: Timings


class _Response(Struct, frozen=True):
    result: _Done | None = None
    error: ErrorObject | None = None


_decode = msgspec.json.Decoder(_Response).decode
_encode = msgspec.json.Encoder().encode


class CardCodec:
    """Streams over the daemon's socket; `options` are members of every request."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._framer = LineFramer()
        self.keeps_open = True

    def encode(self, request: Request) -> bytes:
        """Return the request as a line."""
        kind = "prompt" if isinstance(request.prompt, str) else "tokens"
        params = {kind: request.prompt, "max_tokens": request.max_tokens, **self._options}
        call = {"jsonrpc": "2.0", "id": request.number, "method": "infer_stream", "params": params}
        return _encode(call) + b"\n"

    def receive(self, data: bytes) -> Received:
        """Count chunks; the response ends the answer."""
        pieces, end = 0, None
        for line in self._framer.feed(data):
            head = bytes(line[:_HEAD_BYTES])
            if _CHUNK in head:
                pieces += 1
            elif _NOTIFICATION not in head:
                end = _end(line)
        return Received(pieces, end)

    def closed(self) -> None:
        """Return None: an answer ends with its response."""


def _end(line: bytes) -> End:
    response = _decode(line)
    if response.error is not None:
        raise LoadError(f"the daemon answered with an error: {response.error.message}")
    if response.result is None:
        raise LoadError("the daemon sent a response without result and error")
    usage, timings = response.result.usage, response.result.timings
    return End(usage.completion_tokens, usage.prompt_tokens, timings.queue_ms)
