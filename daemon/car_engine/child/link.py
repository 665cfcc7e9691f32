"""Frames over a socket, by blocking calls."""

import socket
from collections.abc import Callable

from car_base.ipc.codec import LENGTH_BYTES, MAX_FRAME_BYTES


class LinkClosed(Exception):
    """The other end closed the socket, or sent no frame."""


def receive(link: socket.socket, wait: Callable[[], None] = lambda: None) -> bytearray:
    """Return the body of the next frame; `wait` returns before each read, or raises. Raises LinkClosed."""
    length = int.from_bytes(exactly(link, LENGTH_BYTES, wait), "little")
    if length > MAX_FRAME_BYTES:
        raise LinkClosed
    return exactly(link, length, wait)


def exactly(link: socket.socket, count: int, wait: Callable[[], None] = lambda: None) -> bytearray:
    """Return so many bytes; raises LinkClosed."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        wait()
        received = link.recv_into(view)
        if not received:
            raise LinkClosed
        view = view[received:]
    return data
