"""Checks that the socket's path still leads to this daemon, and binds it again where it does not."""

import os
import socket
from collections.abc import Callable

from car_base.host.event_log import log
from car_base.host.timers import Periodic
from car_daemon.sockets.directory import BadAddress
from car_daemon.sockets.own_socket import AddressInUse, OwnSocket

PERIOD_S = 10.0


class SocketWatch:
    """Checks every `period` seconds, and passes a new socket to `listen`; open connections stay."""

    def __init__(
        self, own_socket: OwnSocket, listen: Callable[[socket.socket], None], period: float = PERIOD_S
    ) -> None:
        self._socket = own_socket
        self._listen = listen
        self._checks = Periodic(period, self._check)
        self._lost = False  # whether the last attempt to bind again failed

    def start(self) -> None:
        """Check from now on, in the running event loop."""
        self._checks.start()

    def stop(self) -> None:
        """Stop checking."""
        self._checks.stop()

    def _check(self) -> None:
        if self._socket.is_ours():
            return
        path = str(self._socket.path)
        try:
            self._socket.renew(self._listen)
        except (BadAddress, AddressInUse, OSError) as error:
            if not self._lost:
                # The text of an OSError may contain a path; strerror has none.
                why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
                log.warning("socket.lost", socket=path, why=why)
            self._lost = True
            return
        self._lost = False
        log.warning("socket.bound_again", socket=path, why="the path led elsewhere")
