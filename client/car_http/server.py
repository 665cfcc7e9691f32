"""The sockets of the door, and uvicorn's server on them, which a signal ends, or a time without clients.

An idle door never wakes up.
"""

import asyncio
import errno
import os
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn
from msgspec import Struct

from car_client.door.settings import Address, TlsPort
from car_http.crowds import Strangers, Visitors
from car_http.network import TlsListener
from car_http.protocol import DoorProtocol, DoorState, Visit
from car_protocol.sockets import Port, systemd_descriptors

SOCKET_NAME = "http"
_BACKLOG = 1024
_SEND_BUFFER = 128 * 1024
_SOCKET_UMASK = 0o177
_OTHERS_MAY_WRITE = 0o022


class CannotBind(Exception):
    """An address cannot be had; the message names it and says what to do."""


def activated(env: MutableMapping[str, str] = os.environ, network: Collection[TlsPort] = ()) -> list[socket.socket]:
    """Return the sockets that the service manager passed, none if it passed none.

    Raises CannotBind, also for a port that other machines reach without being one of `network`.
    """
    try:
        descriptors = systemd_descriptors(env)
    except ValueError as error:
        raise CannotBind(str(error)) from error
    return [_adopted(descriptor, network) for descriptor in descriptors]


def bound(addresses: Sequence[Address]) -> list[socket.socket]:
    """Return a listening socket for each address; raises CannotBind, with none left open."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(address, addresses)) for address in addresses]
        stack.pop_all()
    return sockets


def _bound(address: Address, beside: Sequence[Address]) -> socket.socket:
    if not isinstance(address, Port):
        return _unix(address)
    ports = [each.port for each in beside if isinstance(each, Port)]
    return _port(address, shared=ports.count(address.port) > 1)


def by_tls(given: socket.socket, network: Collection[TlsPort]) -> bool:
    """Return whether a listening socket is at one of the addresses that are served by TLS."""
    name = given.getsockname()
    return not isinstance(name, str) and TlsPort(name[0], name[1]) in network


def _adopted(descriptor: int, network: Collection[TlsPort]) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        given = socket.socket(fileno=descriptor)
    except OSError as error:
        raise CannotBind(f"descriptor {descriptor} is not a socket: {os.strerror(error.errno or 0)}") from error
    if given.family != socket.AF_UNIX and not _is_loopback(given) and not by_tls(given, network):
        given.close()
        raise CannotBind(
            "the service manager passed a socket that other machines reach: bind it to 127.0.0.1, or run "
            "`carctl http enable --lan`"
        )
    return given


def _is_loopback(given: socket.socket) -> bool:
    host = str(given.getsockname()[0])
    return host == "::1" or host.startswith("127.")


def _port(address: Port, *, shared: bool) -> socket.socket:
    """Listen at an address; `[::]` has IPv4 too unless the port is `shared` with another address."""
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Connections of the previous door that still time out do not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: without it the kernel keeps megabytes for a client that does not read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if address.host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(shared))
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = os.strerror(error.errno or 0)
        raise CannotBind(f"cannot listen on {address}: {why}; choose another port for [http] listen") from error
    return listener


def _unix(path: Path) -> socket.socket:
    _check_folder(path.parent)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_SOCKET_UMASK)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotBind(f"cannot make the socket {path}: {os.strerror(error.errno or 0)}") from error
    finally:
        os.umask(before)
    return listener


def _check_folder(folder: Path) -> None:
    """Make a private folder, and refuse one in which other users may replace the socket."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        raise CannotBind(f"cannot use the directory {folder}: {os.strerror(error.errno or 0)}") from error
    if facts.st_uid not in (os.getuid(), 0):
        raise CannotBind(f"the directory {folder} belongs to another user: choose another --listen unix:/PATH")
    if facts.st_mode & _OTHERS_MAY_WRITE and not facts.st_mode & stat.S_ISVTX:
        raise CannotBind(f"other users may write to {folder}: make it private (chmod 700)")


def _remove_stale(path: Path) -> None:
    """Remove a socket of this user that no program answers on."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.getuid():
        raise CannotBind(f"{path} exists and is not a socket of this user: remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise CannotBind(f"another program answers on {path}: see `carctl http status`")
    path.unlink()


def describe(listener: socket.socket) -> str:
    """Return a socket's address for people."""
    name = listener.getsockname()
    return name if isinstance(name, str) else str(Port(name[0], name[1]))


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Network(Struct, frozen=True):
    """The sockets that other machines reach, their TLS, and the bounds on connections."""

    sockets: list[socket.socket]
    context: ssl.SSLContext
    visitors: Visitors


class DoorServer(uvicorn.Server):
    """The server; `announce` is called once it serves, `exit_idle_s` is None if it stays without clients.

    At its end it accepts nothing more, and `end_streams` ends the streams that have no end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        strangers: Strangers,
        announce: Callable[[], None],
        end_streams: Callable[[], None],
        exit_idle_s: float | None = None,
        network: Network | None = None,
    ) -> None:
        super().__init__(config)
        self._strangers = strangers
        self._network = network
        self.server_state = DoorState(strangers)
        self._announce = announce
        self._end_streams = end_streams
        self._exit_idle_s = exit_idle_s
        self._exit = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the sockets of this machine as they are, and the network's by TLS."""
        network = self._network
        await super().startup([each for each in sockets or () if network is None or each not in network.sockets])
        if network is None:
            return
        for each in network.sockets:
            listener = TlsListener(each, network.context, self._protocol, self._strangers, network.visitors)
            listener.start()
            self.servers.append(listener)  # type: ignore[arg-type]  # it ends as a server of asyncio does

    def _protocol(self, visit: Visit) -> DoorProtocol:
        return DoorProtocol(self.config, self.server_state, self.lifespan.state, visit=visit)

    async def main_loop(self) -> None:
        """Wait for a signal, or for a time in which no client was connected."""
        self._announce()
        answered = -1
        while not self.should_exit:
            try:
                async with asyncio.timeout(self._exit_idle_s):
                    await self._exit.wait()
            except TimeoutError:
                idle = not self.server_state.connections and self.server_state.total_requests == answered
                answered = self.server_state.total_requests
                if idle:
                    return

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the accepted requests, within the time of the configuration."""
        self._end_streams()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End by signals while serving; the exit code stays 0."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.should_exit = True
        self._exit.set()
