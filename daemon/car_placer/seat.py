"""A seat on a node: checks the model's files, listens for the daemon, and runs the relay and its engine."""

import asyncio
import contextlib
import fcntl
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from car_base import guide
from car_base.host.files import NotReadable, content_of, with_parts
from car_base.host.private_folder import cache_folder
from car_base.ipc.placing import BUILT_IN, FromSeat, Place, Placed, Unplaced, Waiting, context_of, schema_hash
from car_base.ipc.spawning import passed_on, spawn_engine
from car_placer.relay import Relay, Spawn
from car_protocol import __version__
from car_protocol.hub import HubFile, hub_file, models_folder

# A seat that no placer opens, because that ended meanwhile, gives its resources back.
_OPEN_S = 30.0
_ANSWER_S = 1.0
_PROGRESS_S = 2.0
_HUB_VARIABLES = ("HF_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_")
PULL = (sys.executable, "-P", "-m", "car_client.carctl", "models", "pull")


class Where(Struct, frozen=True, array_like=True):
    """The node of a seat, and the card that is installed there."""

    node: str
    address: str
    version: str
    schema: str


class SeatOrder(Struct, frozen=True):
    """The order that a seat is opened with, its node, and the key pair of its connection."""

    place: Place
    where: Where
    pair: bytes


class SeatRefused(Exception):
    """The node cannot run this engine; the message says why and what to do."""


class Seat:
    """One engine's place on a node; the process ends with it, by `end`."""

    def __init__(
        self,
        end: Callable[[int], object] = os._exit,
        *,
        open_s: float = _OPEN_S,
        pull: Sequence[str] = PULL,
        spawn: Spawn = spawn_engine,
    ) -> None:
        self._end = end
        self._open_s = open_s
        self._pull = pull
        self._spawn = spawn
        self._outcomes: queue.SimpleQueue[FromSeat] = queue.SimpleQueue()
        self._watch = self._limited()

    def installed(self) -> tuple[str, str]:
        """Return the version and the hash of the frames of the card on this node."""
        return __version__, schema_hash()

    def open(self, order: bytes) -> None:
        """Begin to open the seat by an encoded SeatOrder; `outcome` returns how that goes on."""
        self._watch.cancel()
        decoded = msgspec.msgpack.decode(order, type=SeatOrder)
        threading.Thread(target=self._run, args=(decoded,), name="seat", daemon=True).start()

    def outcome(self, wait_s: float = _ANSWER_S) -> bytes:
        """Return the next frame for the daemon, encoded; empty if no client came for so long."""
        try:
            return msgspec.msgpack.encode(self._outcomes.get(timeout=wait_s))
        except queue.Empty:
            return b""

    def _limited(self) -> threading.Timer:
        """Return a running timer that ends the process."""
        timer = threading.Timer(self._open_s, self._end, (0,))
        timer.daemon = True
        timer.start()
        return timer

    def _run(self, order: SeatOrder) -> None:
        try:
            with self._listening(order) as listener:
                context = context_of(order.pair, "server")
                asyncio.run(Relay(context, self._spawn).serve(listener))
        except SeatRefused as refusal:
            self._refuse(order, str(refusal))
        except Exception as error:  # noqa: BLE001 - the daemon would wait for an outcome, and the seat keep its cores
            self._refuse(order, f"its seat failed: {type(error).__name__}: {error}")
        else:
            # At once, because a thread may still read the memory.
            self._end(0)

    def _refuse(self, order: SeatOrder, why: str) -> None:
        """Report why there is no engine; the process ends once that had time to be read."""
        where = order.where
        self._outcomes.put(Unplaced(number=order.place.number, why=f"{where.address}: {why}", node=where.node))
        self._watch = self._limited()

    @contextlib.contextmanager
    def _listening(self, order: SeatOrder) -> Iterator[socket.socket]:
        """Check the files, yield a listening socket and report it; raises Refusal."""
        place, where = order.place, order.where
        path, content = self._checked(place, where)
        try:
            listener = socket.create_server((where.address, 0), family=_family(where.address))
        except OSError as error:
            raise SeatRefused(f"cannot listen there: {error.strerror}") from error
        with listener:
            self._outcomes.put(
                Placed(
                    number=place.number,
                    node=where.node,
                    address=where.address,
                    port=listener.getsockname()[1],
                    pair=order.pair,
                    path=str(path),
                    content=content,
                    curves=str(cache_folder() / "curves"),
                )
            )
            yield listener

    def _checked(self, place: Place, where: Where) -> tuple[Path, str]:
        """Return the model's path on this node and its content, downloaded if it is the hub's; raises Refusal."""
        if place.hf is None:
            path = guide.PATH if place.path == BUILT_IN else Path(place.path)
            return path, _content(path, place)
        file = hub_file(place.hf)
        path = file.under(models_folder())
        with contextlib.suppress(SeatRefused):
            return path, _content(path, place)
        try:
            self._download(file, place, where)
        except OSError as error:
            why = f"cannot download {file} into {models_folder()}: {error.strerror or type(error).__name__}"
            raise SeatRefused(f"{why}: make room there, and let the user of `ray start` write it") from error
        return path, _content(path, place)

    def _download(self, file: HubFile, place: Place, where: Where) -> None:
        """Download a file, one process of the node at a time; raises Refusal."""
        folder = models_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".seats.lock").open("w") as lock, tempfile.TemporaryFile("w+") as errors:
            self._outcomes.put(Waiting(place.number, f"{where.address} downloads {file}"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(SeatRefused):
                # Another seat downloaded it meanwhile.
                _content(file.under(folder), place)
                return
            pull = subprocess.Popen([*self._pull, str(file)], stderr=errors, env=_hub_environment())  # noqa: S603 - carctl with a checked name
            while pull.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pull.wait(_PROGRESS_S)
                mib = _downloaded_bytes(file.under(folder)) >> 20
                self._outcomes.put(Waiting(place.number, f"{where.address} downloads {file}, {mib} MiB so far"))
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no reason was given"])[-1]
        if pull.returncode:
            raise SeatRefused(f"cannot download {file}: {last}")


def _content(path: Path, place: Place) -> str:
    """Return the content of a model's files; raises Refusal if a file is missing or has another content."""
    try:
        content = content_of([*with_parts(path), *map(Path, place.beside)])
    except NotReadable as missing:
        raise SeatRefused(f"the model file is not there: {missing}; copy it to that path") from missing
    if place.content not in (None, content):
        raise SeatRefused(f"{path} is not the file that the daemon or its other engines have: copy it there")
    return content


def _downloaded_bytes(path: Path) -> int:
    """Return the bytes of a file's download that are on disk; a part is hidden until it is whole."""
    parts = [path, *path.parent.glob(f".{path.name}.*.part")]
    return sum(part.stat().st_size for part in parts if part.is_file())


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _hub_environment() -> dict[str, str]:
    hub = {name: value for name, value in os.environ.items() if name.startswith(_HUB_VARIABLES)}
    data = {name: os.environ[name] for name in ("XDG_DATA_HOME",) if name in os.environ}
    return passed_on(os.environ) | hub | data
