"""Server-sent events: data lines, and comments that show progress."""

from typing import Any

import msgspec

from car_protocol.answer import Progress

ALIVE = b": waiting\n\n"
encode = msgspec.json.Encoder().encode


def data(value: Any) -> bytes:
    """Return an event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """Return an event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


def comment(progress: Progress) -> bytes:
    """Return the comment that shows a place in the queue, or how much of the prompt was read."""
    if progress.phase == "prefill":
        return f": prefill {progress.done}/{progress.total}\n\n".encode()
    position = "" if progress.position is None else f" position={progress.position}"
    eta = f" eta_ms={progress.eta_ms}" if isinstance(progress.eta_ms, int) else ""
    return f": queued{position}{eta}\n\n".encode()
