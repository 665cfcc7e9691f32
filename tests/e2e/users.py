"""Several users of one daemon: real ones where the tests run as root, else users that the clients' sockets name.

Run as a program this is a `card` whose peers are read from these names.
"""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import uvloop

from car_daemon.config.settings import Flags, load_config
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon as InProcessDaemon
from car_daemon.sockets.own_socket import OwnSocket
from car_daemon.sockets.peer import Peer, peer_of
from tests.e2e.support import BIN, ROOT, Daemon, RawClient

ALICE, BOB = 61_001, 61_002
ARE_REAL = os.geteuid() == 0
_PROGRAM = (str(BIN / "card"),) if ARE_REAL else (sys.executable, "-m", "tests.e2e.users")
_HOLDERS = (sys.executable, "-m", "tests.e2e.holders")
_numbers = count(1)


@contextmanager
def shared_daemon(folder: Path, config: str) -> Iterator[Daemon]:
    """Run a daemon that lets Alice and Bob in, under a configuration without a table `daemon`, from when it serves."""
    file = folder / "card.toml"
    file.write_text(f"{config}\n[daemon]\nallow_uids = [{ALICE}, {BOB}]\n")
    folder.chmod(0o711)
    daemon = Daemon(folder, "--config", str(file), program=_PROGRAM, PYTHONPATH=str(ROOT))
    try:
        yield daemon.ready()
    finally:
        daemon.stop()


def connect_as(uid: int, path: Path) -> RawClient:
    """Return a connection of a user; without root it is named after the user and this process."""
    if not ARE_REAL:
        return RawClient(path, str(path.parent / f"{uid}.{os.getpid()}.{next(_numbers)}"))
    os.seteuid(uid)
    try:
        return RawClient(path)
    finally:
        os.seteuid(0)


@contextmanager
def many_processes(uid: int, path: Path, processes: int, size: int) -> Iterator[None]:
    """Have processes of a user that each sent `size` bytes of a frame and do not end it."""
    arguments = [*_HOLDERS, str(uid), str(path), str(processes), str(size)]
    holders = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holders.stdin is not None
    assert holders.stdout is not None
    with holders:
        assert len(holders.stdout.read(processes)) == processes
        yield
        holders.stdin.close()


def _named_peer(accepted: socket.socket) -> Peer:
    name = accepted.getpeername()
    if not name:
        return peer_of(accepted)
    uid, pid, _ = Path(name).name.split(".")
    return Peer(int(uid), int(pid))


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket")
    parser.add_argument("--config")
    config = load_config(Flags(**vars(parser.parse_args())))
    daemon = InProcessDaemon(config, Sockets(OwnSocket(config.socket)), Seams(read_peer=_named_peer))
    uvloop.run(daemon.run())


if __name__ == "__main__":
    _main()
