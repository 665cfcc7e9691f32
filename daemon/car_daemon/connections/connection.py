"""One connected client: its transport, and the flow of frames in and out."""

import asyncio
import contextlib
import select
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

from msgspec import Struct

from car_base.host import defects
from car_base.host.event_log import log
from car_daemon.connections.call import RpcCall
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.connections.in_flight import RequestsInFlight
from car_daemon.connections.inbound import InboundBuffer
from car_daemon.connections.memory_share import ClientMemoryLimit, MemoryShare
from car_daemon.connections.outbound import OutboundBuffer
from car_daemon.people.identity import Identity
from car_daemon.sockets.peer import Peer
from car_protocol.envelope import Call, Failure, Notification, decode_frame, encode_message
from car_protocol.errors import RpcError
from car_protocol.limits import Limits


class HangupWatcher:
    """Calls back when a peer that closed its writing side closes the reading side too.

    On Linux an epoll with an empty event mask reports the hang-up alone; elsewhere a failed write reveals it.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._watched: dict[int, Callable[[], None]] = {}  # callbacks by descriptor

    def start(self) -> None:
        """Watch from the running event loop."""
        if self._epoll is not None:
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._wake)

    def watch(self, descriptor: int, hung_up: Callable[[], None]) -> None:
        """Call `hung_up` at the full close of this descriptor's peer."""
        if self._epoll is not None:
            self._epoll.register(descriptor, 0)
            self._watched[descriptor] = hung_up

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        if self._epoll is not None and self._watched.pop(descriptor, None) is not None:
            # A closed descriptor has left the epoll already.
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Stop watching all descriptors."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _wake(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            hung_up = self._watched.get(descriptor)
            self.forget(descriptor)
            if hung_up is not None:
                hung_up()


class Subscriptions:
    """The models whose capacity changes are sent to a client, and the end of the status that is sent at intervals."""

    def __init__(self) -> None:
        self.models: set[str | None] = set()  # None is the default model, which a reload may change
        self.end_status: Callable[[], None] = lambda: None  # set by the subscription

    def watch_capacity(self, model: str | None) -> None:
        """Begin the notifications of a model's capacity, or of the default one's."""
        self.models.add(model)

    def end_capacity(self, model: str, *, default: bool) -> None:
        """End the notifications of a model's capacity, however they began."""
        self.models -= {model, None} if default else {model}


class ConnectionContext(Struct, frozen=True):
    """The objects that all connections of a daemon use; `lost` is called with a connection that ended.

    `call` carries out a request, and `refused` counts a request that the connection itself refused.
    """

    call: Callable[["Connection", Call, RpcCall], None]
    refused: Callable[["Connection", Call], None]
    limits: Limits
    fair_queue: FairQueue
    hangups: HangupWatcher
    memory_limit: ClientMemoryLimit
    lost: Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """Carries out frames in order, in fair turns with other connections; answers of a turn are written together."""

    def __init__(self, number: int, peer: Peer, context: ConnectionContext) -> None:
        def share(measure: Callable[[], int]) -> MemoryShare:
            return MemoryShare(context.memory_limit, lambda: (self.identity.number, peer.pid), measure, self._drop)

        self.number = number
        self.peer = peer
        self.user = self.identity = Identity(peer.uid)  # the identity is that of its last call
        self.label: str | None = None  # the client's own name for itself
        self.tenant = ""  # of the process, that a request was for last
        self._context = context
        self._limits = context.limits
        self._inbound = InboundBuffer(
            self._limits, partial(self._end, "frame_timeout_ms", self._limits.frame_timeout_ms), share
        )
        self._outbound = OutboundBuffer(self._limits, share)
        self.subscriptions = Subscriptions()
        call, refused = partial(context.call, self), partial(context.refused, self)
        self.requests = RequestsInFlight(call, refused, self._limits.max_in_flight, self._outbound, share, self.user)
        self._transport: asyncio.Transport | None = None  # None before it is made and once it is lost
        self._descriptor = -1
        self._paused = False  # whether reading waits for frames to be carried out
        self._awaits_reader = False  # whether frames wait for the client to read its answers
        self._half_closed = False  # whether the client closed its writing side

    def __repr__(self) -> str:
        return (
            f"<Connection {self.number} uid={self.peer.uid} pid={self.peer.pid} in_flight={len(self.requests)}"
            f" {self._inbound!r} {self._outbound!r}>"
        )

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not a subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._outbound.open(transport)

    def data_received(self, data: bytes) -> None:
        """Cut frames; the first is carried out at once if it is short, the others in turn."""
        inbound, waited = self._inbound, bool(self._inbound.frames)
        self._awaits_reader = self._awaits_reader or (self._outbound.blocked and self._outbound.full)
        first = inbound.feed(data, in_turn=self._awaits_reader)
        if inbound.full and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if first is not None or (inbound.overflowed and not inbound.frames):
            # An answer that is given at once is written at once, not at the end of this turn of the loop.
            self._outbound.corked = True
            if self.work(first):
                self._context.fair_queue.join(self.work, self.peer.uid)
            self._outbound.flush()
        elif inbound.frames and not waited and not self._awaits_reader:
            self._context.fair_queue.join(self.work, self.peer.uid)

    def eof_received(self) -> bool:
        """Finish what is in flight after a half-close; a full close after it cancels."""
        self._half_closed = True
        self._inbound.pause()
        self.requests.on_answer = self._close_if_done
        if self._inbound.frames or self.requests:
            self._context.hangups.watch(self._descriptor, self.abort)
        else:
            self.close()
        return True

    def pause_writing(self) -> None:
        """Defer output: the client does not read as fast as it is written to."""
        self._outbound.block()

    def resume_writing(self) -> None:
        """Send the deferred output, and carry out the frames that waited for it: the client has read."""
        self._outbound.unblock()
        if self._awaits_reader and not self._outbound.full:
            self._awaits_reader = False
            if self.work():
                self._context.fair_queue.join(self.work, self.peer.uid)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all requests of the client."""
        self._transport = None
        self.subscriptions.end_status()
        self._drop_buffers()
        self._context.hangups.forget(self._descriptor)
        self.requests.cancel_all()
        self._context.lost(self)

    # Called by the daemon.

    def speak_as(self, identity: Identity) -> None:
        """Let calls be of another identity from now on; what the one before said of itself is not said of this one."""
        self.identity = identity
        self.label, self.tenant = None, ""
        self.requests.speak_as(identity)

    def work(self, first: bytes | None = None) -> bool:
        """Carry out `first` or the next frame; return True if more wait. After the last one read on, or end."""
        inbound = self._inbound
        if first is None and inbound.frames and self._outbound.full:
            # Its answers would add to the answers that the client does not read.
            self._awaits_reader = True
            return False
        frame = inbound.next_frame() if first is None else first
        if frame is not None:
            try:
                self.requests.receive(decode_frame(frame))
            except RpcError as error:
                self.requests.refuse(error)
            except Exception as error:  # noqa: BLE001 - a defect ends this connection, not the others
                defects.report("connection.failed", error)
                self.abort()
        if self._transport is None or self._transport.is_closing():
            inbound.drop()
        elif inbound.frames:
            return True
        elif inbound.overflowed:
            self._end("max_frame_bytes", self._limits.max_frame_bytes)
        elif self._half_closed:
            self._close_if_done()
        elif self._paused:
            self._paused = False
            self._transport.resume_reading()
            inbound.resume()
        return False

    def notify(self, method: str, params: Struct) -> None:
        """Send a notification."""
        self._outbound.send(encode_message(Notification(method, params)))

    def push(self, frame: bytes) -> None:
        """Write an encoded notification now; one to a client that does not read is dropped."""
        if not self._outbound.blocked:
            self._outbound.send(frame)
            self._outbound.flush()

    def close(self) -> None:
        """Write the remaining output, then close."""
        self._outbound.close()
        if self._transport is not None:
            self._inbound.drop()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; the remaining output is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def _close_if_done(self) -> None:
        if not self.requests and not self._inbound.frames and not self._inbound.overflowed:
            self.close()

    def _end(self, limit: str, value: int) -> None:
        """Cancel all requests, send one last error and close: frames after this point cannot be answered."""
        self.requests.cancel_all()
        error = RpcError("limit", limit=limit, value=value)
        self._outbound.send(encode_message(Failure(None, error.as_object())))
        self.close()

    def _drop(self) -> None:
        """End a connection whose buffers use too much memory."""
        log.warning("connection.dropped", uid=self.peer.uid, pid=self.peer.pid)
        self._drop_buffers()
        self.abort()

    def _drop_buffers(self) -> None:
        self._inbound.drop()
        self._outbound.discard()
        self.requests.drop_batches()
