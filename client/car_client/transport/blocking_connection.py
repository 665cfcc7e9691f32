"""A session over a blocking socket, and the connection again after a loss."""

import contextlib
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from car_client.calls import CallSpec
from car_client.errors import ProtocolError, RequestTimeout
from car_client.paths import connect
from car_client.retry import NEVER, Deadline
from car_client.transport.protocol_session import PendingCall, ProtocolSession

_READ_BYTES = 256 * 1024
# A daemon that reads nothing for this long gets no cancellation: the connection ends, which cancels too.
_CANCEL_TIMEOUT_S = 1.0


class BlockingConnection:
    """One connection to the daemon, used by one thread."""

    def __init__(self, connected: socket.socket) -> None:
        # All waiting is done by poll, which has a timeout and no state that a signal could leave behind.
        connected.setblocking(False)
        self._socket = connected
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self.session = ProtocolSession()
        self.open = True  # false once an end was noticed
        self._unsent: list[bytes] = []
        self._sending = False
        self.session.greet()
        self.send(self.session.due())

    def send(self, frame: bytes, deadline: Deadline = NEVER) -> None:
        """Send a frame; raises RequestTimeout. After the daemon's end nothing happens: its last words can be read."""
        self._unsent.append(frame)
        # A signal may come anywhere here and send a frame of its own, which follows the one that is being sent.
        while self._unsent and not self._sending:
            self._sending = True
            try:
                self._send_whole(self._unsent.pop(0), deadline)
            except ConnectionError:
                self._unsent.clear()
            except BaseException:
                # A part of the frame may be out: nothing that follows could be read.
                self.close()
                raise
            finally:
                self._sending = False

    def cancel(self, call: PendingCall) -> None:
        """Cancel a call at the daemon, unless it has ended."""
        if self.open and (frame := self.session.cancel(call)):
            with contextlib.suppress(RequestTimeout):
                self.send(frame, Deadline(_CANCEL_TIMEOUT_S))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something came."""
        return self._socket.fileno()

    def wait(self, call: PendingCall, deadline: Deadline = NEVER) -> None:
        """Read until the call has a chunk or an end; raises RequestTimeout."""
        while call.idle:
            if self.open and not self._readable.poll(deadline.remaining_ms):
                raise deadline.error()
            self._receive()
            self.send(self.session.due(), deadline)

    def drain(self) -> None:
        """Read what has come already, without waiting."""
        while self.open and self._receive():
            pass

    def close(self) -> None:
        """End the connection; the daemon cancels what is in flight."""
        self.open = False
        self._unsent.clear()
        self._socket.close()
        self.session.lose()

    def _send_whole(self, frame: bytes, deadline: Deadline) -> None:
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._socket, select.POLLOUT)
                if not writable.poll(deadline.remaining_ms):
                    raise deadline.error() from None

    def _receive(self) -> bool:
        """Read once; return False if nothing has come."""
        try:
            data = self._socket.recv(_READ_BYTES)
            self.session.receive(data)
        except BlockingIOError:
            return False
        except ConnectionError:
            self._lose(None)
        except ProtocolError as error:
            self._lose(error)
        except BaseException:
            # An interrupt: what came with it is lost, frames of other requests too.
            self.close()
            raise
        else:
            if not data:
                self._lose(None)
        return True

    def _lose(self, error: ProtocolError | None) -> None:
        self.open = False
        self.session.lose(error)


class BlockingReply:
    """A call with the connection that carries it."""

    def __init__(self, connection: BlockingConnection, spec: CallSpec[Any]) -> None:
        self._connection = connection
        self.call = connection.session.begin(spec.method, spec.params, on_progress=spec.on_progress)

    def send(self, deadline: Deadline) -> None:
        """Send the request, or what is before it; raises RequestTimeout."""
        self._connection.send(self._connection.session.due(), deadline)

    def wait(self, deadline: Deadline) -> None:
        """Wait until the call has a chunk or an end; raises RequestTimeout."""
        self._connection.wait(self.call, deadline)

    def cancel(self) -> None:
        """Cancel the call at the daemon, unless it has ended."""
        self._connection.cancel(self.call)


Pause = Callable[[float], None]


class BlockingReconnector:
    """Makes connections to the first of `paths` that answers; `pause` waits between two attempts of a call."""

    def __init__(self, paths: list[Path], pause: Pause) -> None:
        self._paths = paths
        self.pause = pause
        self._connection: BlockingConnection | None = None  # None before the first call

    @property
    def connection(self) -> BlockingConnection | None:
        """The open connection, once what has come on it is read; None if there is none."""
        if self._connection is not None and self._connection.open:
            self._connection.drain()
        return self._connection if self._connection is not None and self._connection.open else None

    def ready(self, timeout_s: float) -> BlockingConnection:
        """Return the open connection, or a new one that is tried for `timeout_s`; raises ConnectTimeout."""
        if (connection := self.connection) is None:
            self.close()
            self._connection = connection = BlockingConnection(connect(self._paths, timeout_s, self.pause))
        return connection

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
