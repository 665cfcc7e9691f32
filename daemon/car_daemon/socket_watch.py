"""Looks whether the socket's path still leads to this daemon, and binds it again where it does not."""

import os
import socket
from collections.abc import Callable

import structlog

from car_daemon.directory import BadAddress
from car_daemon.listen import AddressInUse, OwnSocket
from car_daemon.periodic import Periodic

log = structlog.get_logger()
PERIOD_S = 10.0


class SocketWatch:
    """Looks every `period` seconds; `listen` is told of a new socket. Open connections are not touched."""

    def __init__(
        self, own_socket: OwnSocket, listen: Callable[[socket.socket], None], period: float = PERIOD_S
    ) -> None:
        self._socket = own_socket
        self._listen = listen
        self._looks = Periodic(period, self._look)
        # Mutable state: whether the path was lost and could not be bound again yet.
        self._lost = False

    def start(self) -> None:
        """Look from now on, in the running event loop."""
        self._looks.start()

    def stop(self) -> None:
        """Look no more."""
        self._looks.stop()

    def _look(self) -> None:
        if not self._socket.is_ours():
            self._bind_again()

    def _bind_again(self) -> None:
        path = str(self._socket.path)
        try:
            self._socket.renew(self._listen)
        except (BadAddress, AddressInUse, OSError) as error:
            if not self._lost:
                # What the system says of descriptors or a disk has no path in it.
                why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
                log.warning("socket.lost", socket=path, why=why)
            self._lost = True
            return
        self._lost = False
        log.warning("socket.bound_again", socket=path, why="the path led elsewhere")
