"""The real daemon, put together on scripted engines."""

from functools import partial
from pathlib import Path

from car_daemon.config.settings import Flags, load_config
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon
from car_daemon.sockets.own_socket import OwnSocket
from tools.scripted.engine import Pace, launch_scripted


def scripted_daemon(socket: Path, pace: Pace) -> tuple[Daemon, OwnSocket]:
    """Return a daemon that listens on `socket`, and its socket, which the caller closes."""
    config = load_config(Flags(socket=str(socket), config="/dev/null"))
    own = OwnSocket(config.socket)
    return Daemon(config, Sockets(own), Seams(launcher=partial(launch_scripted, pace=pace))), own
