"""Frames between the daemon and its placer, the frames that a relay adds, and the connections that carry them."""

import asyncio
import hashlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import Struct

from car_base.ipc.frames import FromEngine, ToEngine
from car_base.ipc.ranges import Count, ExitStatus, Percent

# In place of a path: the model that card itself brings along, wherever it is installed.
BUILT_IN = "built-in"


class Join(Struct, frozen=True, tag=True, kw_only=True):
    """The cluster to place engines on: the first frame that a placer gets."""

    address: str
    daemon: str  # in the names of its seats
    version: str
    schema: str  # the hash of the frames that this daemon sends and reads
    seats: list[int] = []  # in use; other seats of this daemon are left over from an earlier placer
    token: str | None = None  # the path of the cluster's token, None for Ray's own
    place_timeout_s: float = 60.0


class Place(Struct, frozen=True, tag=True, kw_only=True):
    """Open a seat for one engine on a node outside of `apart`, and of `avoid` unless these are all that could take it.

    If a node of `first` has room it is one of these, and one of `last` if no other has room.
    """

    number: int
    model: str
    path: str
    hf: str | None = None  # the hub's name of the file, downloaded if it is missing
    beside: list[str] = []  # further files of it
    content: str | None = None  # what its files must be, None for any content
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0
    labels: dict[str, str] = {}
    resources: dict[str, float] = {}
    spread: bool = True
    avoid: list[str] = []  # lost, or refused an engine
    apart: list[str] = []  # the nodes of the model's other engines, if no two may share a node
    first: list[str] = []
    last: list[str] = []


class EndEngine(Struct, frozen=True, tag=True):
    """Close a seat that the daemon does not connect to."""

    number: int


class Placed(Struct, frozen=True, tag=True, kw_only=True):
    """A seat listens for the holder of `pair`, a certificate with its key in PEM that no other seat takes.

    The engine's model is at `path` there, its measurements in `curves`.
    """

    number: int
    node: str
    address: str
    port: int
    pair: bytes
    path: str
    content: str
    curves: str | None = None


class Unplaced(Struct, frozen=True, tag=True, kw_only=True):
    """No seat could be opened; `node` is set if a node refused it."""

    number: int
    why: str
    node: str | None = None


class Waiting(Struct, frozen=True, tag=True):
    """A placement that takes longer, and what it waits for."""

    number: int
    why: str


class Node(Struct, frozen=True, array_like=True):
    """A node by Ray's id, with all of its resources."""

    node: str
    address: str
    alive: bool
    cpus: float
    gpus: float


class Nodes(Struct, frozen=True, tag=True):
    """The nodes of the cluster: sent once the placer is connected, and after each change."""

    ray: str
    nodes: list[Node]


class Apart(Struct, frozen=True, tag=True):
    """The placer has no connection to the cluster, and ends."""

    why: str


class HostMemory(Struct, frozen=True, tag=True):
    """The memory of an engine's machine, sent every second: bytes, and percent of the time stalled."""

    total: Count
    available: Count
    some_percent: Percent
    full_percent: Percent


class EngineEnded(Struct, frozen=True, tag=True):
    """The engine's exit status, or its signal as a negative number: the last frame of a connection."""

    status: ExitStatus


ToPlacer = Join | Place | EndEngine
FromSeat = Placed | Unplaced | Waiting
FromPlacer = FromSeat | Nodes | Apart
FromRelay = HostMemory | EngineEnded | FromEngine
decode_to_placer = msgspec.msgpack.Decoder(ToPlacer).decode
decode_from_placer = msgspec.msgpack.Decoder(FromPlacer).decode
decode_from_seat = msgspec.msgpack.Decoder(FromSeat).decode


def schema_hash() -> str:
    """Return the hash of the engine's frames: an engine and a daemon with different hashes must not be connected."""
    _, components = msgspec.json.schema_components([ToEngine, FromRelay])
    return hashlib.sha256(msgspec.json.encode(_sorted(components))).hexdigest()[:16]


def _sorted(value: Any) -> Any:
    """Return a schema with its members in one order, because unions have none."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return sorted((_sorted(each) for each in value), key=msgspec.json.encode)
    return value


HANDSHAKE_S = 5.0


def context_of(pair: bytes, side: Literal["client", "server"]) -> ssl.SSLContext:
    """Return the context of one side; `pair` is a certificate with its key in PEM. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side == "server" else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Because the certificate is the peer's identity, whatever address it has.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == "server":
        # A seat takes one connection, so nothing is resumed.
        context.num_tickets = 0
    with _as_file(pair) as path:
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory, because OpenSSL reads keys from files only; its user alone may read it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pair", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name


def limit_silence(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Let the kernel close a connection whose peer acknowledges nothing for so long; Linux alone can."""
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
