"""A session over a blocking socket."""

import select
import socket
from pathlib import Path

from car_client.errors import ContractBroken
from car_client.paths import unavailable
from car_client.session import Exchange, Session

_READ_BYTES = 256 * 1024


class Wire:
    """One connection to the daemon, used by one thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.session = Session()
        # Mutable state: whether the daemon may still be there, frames that are to be sent, and whether one is.
        self.open = True
        self._unsent: list[bytes] = []
        self._sending = False
        self.send(self.session.greet().frame)

    def send(self, frame: bytes) -> None:
        """Send a frame; where the daemon has left, reading tells what it said before."""
        self._unsent.append(frame)
        # A signal may come anywhere here and send a frame of its own: while another one is being sent it follows that.
        while self._unsent and not self._sending:
            self._sending = True
            try:
                self._socket.sendall(self._unsent.pop(0))
            except ConnectionError:
                self._unsent.clear()
            except BaseException:
                # A part of the frame may be out: nothing that follows could be read.
                self.close()
                raise
            finally:
                self._sending = False

    def cancel(self, exchange: Exchange) -> None:
        """Ask the daemon to end a request, unless it has ended."""
        if self.open and (frame := self.session.cancel(exchange)):
            self.send(frame)

    def fileno(self) -> int:
        """Return the descriptor that can be read when something came."""
        return self._socket.fileno()

    def wait(self, exchange: Exchange) -> None:
        """Read until there is something to take."""
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while exchange.idle:
            if self.open:
                readable.poll()
            self._receive()

    def drain(self) -> None:
        """Take in what has come already, without waiting."""
        self._socket.setblocking(False)
        try:
            while self.open:
                self._receive()
        except BlockingIOError:
            pass
        finally:
            self._socket.setblocking(True)

    def close(self) -> None:
        """End the connection; the daemon cancels what is in flight."""
        self.open = False
        self._unsent.clear()
        self._socket.close()
        self.session.lose()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
            self.session.receive(data)
        except BlockingIOError:
            raise
        except ConnectionError:
            self._lose(None)
        except ContractBroken as error:
            self._lose(error)
        except BaseException:
            # An interrupt: what came with it is lost, frames of other requests too.
            self.close()
            raise
        else:
            if not data:
                self._lose(None)

    def _lose(self, error: ContractBroken | None) -> None:
        self.open = False
        self.session.lose(error)


def open_wire(paths: list[Path]) -> Wire:
    """Connect to the first path that answers; raises DaemonUnavailable."""
    failures = {}
    for path in paths:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.connect(str(path))
        except OSError as error:
            connecting.close()
            failures[path] = error
        else:
            return Wire(connecting)
    raise unavailable(paths, failures)
