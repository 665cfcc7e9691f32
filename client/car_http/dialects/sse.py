"""Server-sent events: data lines, and comments that show progress."""

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from car_protocol.answer import Progress

ALIVE = b": waiting\n\n"
# Random, because the name of a model is a client's.
_MARK = secrets.token_hex(16)
encode = msgspec.json.Encoder().encode


def data(value: Any) -> bytes:
    """Return an event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """Return an event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


def frame(piece: Callable[[str], bytes]) -> tuple[bytes, bytes]:
    """Return the bytes before and after a text in the events that `piece` returns, within the quotes of its literal."""
    head, tail = piece(_MARK).split(_MARK.encode())
    return head, tail


def of_text(piece: Callable[[str], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that puts a text of JSON, without its quotes, into the events that `piece` returns."""
    head, tail = frame(piece)
    return lambda text: head + text + tail


def comment(progress: Progress) -> bytes:
    """Return the comment that shows a place in the queue, or how much of the prompt was read."""
    if progress.phase == "prefill":
        return f": prefill {progress.done}/{progress.total}\n\n".encode()
    position = "" if progress.position is None else f" position={progress.position}"
    eta = f" eta_ms={progress.eta_ms}" if isinstance(progress.eta_ms, int) else ""
    return f": queued{position}{eta}\n\n".encode()
