"""The `card-http` command: arguments in, exit code out."""

import argparse
import logging
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvicorn
from msgspec.structs import replace

from car_client.client import Client
from car_client.door.certificate import CertificateError, serving
from car_client.door.humans import humans
from car_client.door.keys import KeyRing, KeysError, ensure_keys
from car_client.door.settings import Settings, SettingsError, load_settings
from car_client.errors import BadSocketPath
from car_client.paths import usable_paths
from car_http.app import Door
from car_http.catalogue import Catalogue, DaemonHealth
from car_http.crowds import Strangers, Visitors
from car_http.daemon.pool import DaemonPool
from car_http.endpoints.context import DoorContext
from car_http.feeds import Feeds
from car_http.guard import Rules
from car_http.metrics import DoorMetrics
from car_http.page_view import PageViews
from car_http.protocol import DoorProtocol
from car_http.server import CannotBind, DoorServer, Network, activated, bound, by_tls, describe
from car_http.shelf import Shelf
from car_protocol import __version__
from car_protocol.allocator import return_blocks

# sysexits.h: wrong usage, a bad configuration.
EX_USAGE = 64
EX_CONFIG = 78
KEEP_ALIVE_S = 75
_DESCRIPTORS = 8192
# One in so many of all descriptors is for connections without a key.
_PART_OF_STRANGERS = 4
# Connections of other machines: with the daemon's connection for each, half of the descriptors stay this machine's.
_PART_OF_NETWORK = 4
# An address has at most a quarter of them: 512, room for a person with 320 requests at once.
_PART_OF_ADDRESS = 4 * _PART_OF_NETWORK
_MOST_IDLE_S = 2**31 - 1
# How long accepted requests go on after a signal; systemd's unit of the door waits twice as long. An adopted port keeps
# what its clients were promised by another server: an answer goes on for ten minutes, which is most clients' timeout.
_GRACE_S, _GRACE_OF_ADOPTED_S = 5, 600
_NO_KEY_WARNING = "every program and user of this machine can send requests as you: no key is needed on {}"


def main() -> NoReturn:
    """Run the door."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str], people: Callable[[], Sequence[str]] = humans) -> int:
    """Serve until a signal; return the exit code. `people` returns the names of this machine's people."""
    options = make_parser().parse_args(arguments)
    try:
        settings = _settings(options, people)
        paths = usable_paths(options.socket)
        if options.check_config:
            return 0
        tls = serving(settings.certificate, settings.private_key) if settings.network else None
        given = activated(network=settings.network)
        sockets = given or bound(settings.addresses)
        outward = [each for each in sockets if by_tls(each, settings.network)]
        if any(each.family != socket.AF_UNIX for each in sockets) and not settings.no_key:
            ensure_keys(settings.keys)
    except (SettingsError, CannotBind, KeysError, CertificateError) as error:
        return _complain(EX_CONFIG, str(error))
    except BadSocketPath as error:
        return _complain(EX_USAGE, str(error))
    return_blocks()  # bodies grow beyond it
    descriptors = _raise_descriptor_limit()
    strangers = Strangers(descriptors // _PART_OF_STRANGERS)
    visitors = Visitors(strangers, descriptors // _PART_OF_ADDRESS, descriptors // _PART_OF_NETWORK)
    logging.basicConfig(format="card-http: %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    announce = partial(_announce, settings, [describe(each) for each in sockets])
    pool = DaemonPool(paths)
    context = DoorContext(
        pool,
        Catalogue(pool),
        DoorMetrics(),
        DaemonHealth(pool),
        Feeds(pool),
        PageViews(),
        Shelf(settings.config, lambda: Client(options.socket)),
        efforts=settings.efforts,
        any_model=settings.any_model,
    )
    adopted = options.adopted is not None
    rules = Rules(settings.hosts, settings.origins, settings.no_key, adopted)
    door = Door(context, rules, KeyRing(settings.keys, settings.config))
    config = uvicorn.Config(
        door,
        http=DoorProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_OF_ADOPTED_S if adopted else _GRACE_S,
    )
    network = Network(outward, tls, visitors) if tls and outward else None
    DoorServer(config, strangers, announce, context.feeds.end, options.exit_idle, network).run(sockets=sockets)
    if not given:
        for path in settings.paths:
            path.unlink(missing_ok=True)
    return 0


def _settings(options: argparse.Namespace, people: Callable[[], Sequence[str]]) -> Settings:
    """Return the settings; of an adopted port its address alone, without a key. Raises SettingsError."""
    if options.adopted is None:
        return load_settings(options.listen, config=options.config, no_key=options.no_key)
    settings = load_settings([options.adopted], config=options.config, no_key=True)
    if not settings.ports:
        raise SettingsError("--adopted: give 127.0.0.1:PORT or [::1]:PORT")
    if len(found := people()) > 1:
        raise SettingsError(
            f"--adopted {options.adopted}: a port without keys is for a machine of one person, and here are "
            f"{', '.join(found)}: configure [http] listen, and give programs a key"
        )
    return replace(settings, addresses=settings.ports, any_model=settings.any_model is not False)


def _announce(settings: Settings, places: list[str]) -> None:
    log = logging.getLogger("car_http")
    log.info("listening on %s", ", ".join(places))
    if settings.no_key and settings.ports:
        log.warning(_NO_KEY_WARNING.format(", ".join(str(port) for port in settings.ports)))


def _raise_descriptor_limit() -> int:
    """Allow as many connections as the system does, and return the limit.

    Each request takes one descriptor here and one to the daemon, and a fast stream one more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most if soft == resource.RLIM_INFINITY else max(soft, most)


def _complain(code: int, message: str) -> int:
    sys.stderr.write(f"card-http: {message}\n")
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EX_USAGE, f"card-http: {message}; `card-http --help` lists the options\n")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = _Parser(prog="card-http", description="Serve the daemon to clients of OpenAI, Anthropic and Ollama.")
    parser.add_argument("--version", action="version", version=f"card-http {__version__}")
    parser.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="127.0.0.1:PORT, [::1]:PORT, unix:/PATH or https://ADDRESS:PORT, in place of [http] listen; repeatable",
    )
    parser.add_argument(
        "--adopted",
        metavar="ADDRESS",
        help="serve another server's loopback port alone, without a key, so that its programs go on unchanged",
    )
    parser.add_argument("--socket", metavar="PATH", help="the daemon's socket (default: as carctl finds it)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the TOML file (default: this user's card.toml)")
    parser.add_argument("--no-key", action="store_true", help="serve the loopback ports without a key")
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    parser.add_argument("--exit-idle", type=_seconds, metavar="SECONDS", help="exit after this time without a client")
    return parser


def _seconds(text: str) -> float:
    if text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _MOST_IDLE_S:
        return float(text)
    raise argparse.ArgumentTypeError(f"{text[:10]!r} is not a whole number of seconds, at least 1")
