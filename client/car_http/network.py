"""Connections of other machines: by TLS alone, counted by address before the first byte costs anything."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from functools import partial

from car_http.crowds import Strangers, Visitors
from car_http.protocol import DoorProtocol, Visit

# A client that is a second away sends what a handshake takes in four.
HANDSHAKE_S = 10.0
# A handshake costs about a millisecond of the loop that writes the others' answers: they keep four fifths of it.
PACE_S = 0.005
# How long TLS waits for the last words of a client; its descriptor is taken meanwhile.
_GOODBYE_S = 1.0
# No descriptor is free, or the client left before it was accepted.
_PAUSE_S = 0.1
_NEIGHBOURHOOD = 64  # bits of an IPv6 network, in which a machine takes any addresses

MakeProtocol = Callable[[Visit], DoorProtocol]


def plain_address(host: str) -> str:
    """Return an address without its zone, and one of IPv4 as such."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def counted_as(host: str, reached: str) -> str:
    """Return under which address a client counts that reached one of ours: its own, or its network's elsewhere.

    A machine has as many addresses of its IPv6 network as it likes. Machines of our own network share ours, so each
    counts by itself there.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address) or address.is_link_local or _network(reached) == _network(host):
        return host
    return _network(host)


def _network(host: str) -> str:
    return str(ipaddress.ip_network((host, _NEIGHBOURHOOD), strict=False)) if ":" in host else host


class Arrival:
    """A connection before its handshake is done; `greeting` is the handshake."""

    def __init__(self, accepted: socket.socket, visit: Visit) -> None:
        self.accepted = accepted
        self.visit = visit
        self.greeting: asyncio.Task[None] | None = None


class TlsListener:
    """Accepts connections on a socket; a handshake begins each `pace_s`, addresses in turn."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make_protocol: MakeProtocol,
        strangers: Strangers,
        visitors: Visitors,
        pace_s: float = PACE_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._listener = listener
        self._context = context
        self._make_protocol = make_protocol
        self._strangers = strangers
        self._visitors = visitors
        self._pace_s = pace_s
        self._handshake_s = handshake_s
        self._waiting: dict[str, dict[Arrival, None]] = {}  # by address, the next address first
        self._some_wait = asyncio.Event()
        self._greetings: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<TlsListener {len(self._waiting)} addresses wait, {len(self._greetings)} handshakes>"

    def start(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._greet_in_turn())]

    def close(self) -> None:
        """Accept no more, and drop what is not greeted yet."""
        for task in (*self._tasks, *self._greetings):
            task.cancel()
        for arrivals in list(self._waiting.values()):
            for arrival in list(arrivals):
                self._drop(arrival)

    async def wait_closed(self) -> None:
        """Wait until everything has ended that `close` ends."""
        await asyncio.gather(*self._tasks, *self._greetings, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            reached = plain_address(accepted.getsockname()[0])
            self._arrive(accepted, counted_as(plain_address(peer[0]), reached), reached)
            await asyncio.sleep(0)  # a thousand that came at once are accepted between other events

    def _arrive(self, accepted: socket.socket, address: str, reached: str) -> None:
        if not self._visitors.enter(address):
            accepted.close()
            return
        arrival = Arrival(accepted, Visit(address, reached, partial(self._visitors.leave, address)))
        self._waiting.setdefault(address, {})[arrival] = None
        self._some_wait.set()
        self._strangers.add(arrival, partial(self._drop, arrival), address)

    async def _greet_in_turn(self) -> None:
        while True:
            await self._some_wait.wait()
            arrival = self._next()
            arrival.greeting = asyncio.create_task(self._greet(arrival))
            self._greetings.add(arrival.greeting)
            arrival.greeting.add_done_callback(self._greetings.discard)
            await asyncio.sleep(self._pace_s)

    def _next(self) -> Arrival:
        """Take the oldest arrival of the address whose turn it is."""
        address = next(iter(self._waiting))
        arrivals = self._waiting[address]
        arrival = next(iter(arrivals))
        self._unlist(arrival)
        if arrivals:
            self._waiting[address] = self._waiting.pop(address)
        return arrival

    def _unlist(self, arrival: Arrival) -> None:
        address = arrival.visit.address
        arrivals = self._waiting[address]
        del arrivals[arrival]
        if not arrivals:
            del self._waiting[address]
        if not self._waiting:
            self._some_wait.clear()

    async def _greet(self, arrival: Arrival) -> None:
        """Shake hands; the protocol takes the connection over. A failure ends it."""
        loop = asyncio.get_running_loop()
        protocol = self._make_protocol(arrival.visit)
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                arrival.accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
        except OSError:
            pass  # no TLS, too late, or gone: each is the client's own affair
        finally:
            self._strangers.discard(arrival)
            if protocol.transport is None:
                arrival.accepted.close()
                arrival.visit.ended()

    def _drop(self, arrival: Arrival) -> None:
        """End a connection that gives way."""
        if arrival.greeting is not None:
            arrival.greeting.cancel()
            return
        self._unlist(arrival)
        arrival.accepted.close()
        arrival.visit.ended()
