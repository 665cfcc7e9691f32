"""Server-sent events: data lines, and comments that show progress."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from car_protocol.answer import Progress

ALIVE = b": waiting\n\n"
encode = msgspec.json.Encoder().encode


def data(value: Any) -> bytes:
    """Return an event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """Return an event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


def frame(piece: Callable[[str], bytes]) -> tuple[bytes, bytes]:
    """Return the bytes before and after the JSON literal of a text in the events that `piece` returns."""
    mark = "\0"
    head, tail = piece(mark).split(encode(mark))
    return head, tail


def comment(progress: Progress) -> bytes:
    """Return the comment that shows a place in the queue, or how much of the prompt was read."""
    if progress.phase == "prefill":
        return f": prefill {progress.done}/{progress.total}\n\n".encode()
    position = "" if progress.position is UNSET else f" position={progress.position}"
    eta = f" eta_ms={progress.eta_ms}" if isinstance(progress.eta_ms, int) else ""
    return f": queued{position}{eta}\n\n".encode()
