"""The fork server of an engine: what its children do, and their confinement."""

import socket
from collections.abc import Callable, Sequence

from car_engine.child.fork_server import Work, fork_server


def start_child_server(descriptors: Sequence[int]) -> socket.socket:
    """Fork the server before the engine has threads; return the socket for its orders.

    The server closes `descriptors`, which are the engine's sockets to the daemon.
    """
    return fork_server(_opened, descriptors)


def _opened() -> tuple[Work, Callable[[], None]]:
    # Imported in the server: an engine needs no jinja2.
    from car_engine.confinement import confine_child
    from car_engine.prompt.rendering.renderer import Preparation

    return Preparation().answer, confine_child
