"""`carctl http`: enable and disable the door, show its state, print and remove keys."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from car_client.carctl.config.card_toml import CardToml, config_path
from car_client.carctl.failure import Reported, WrongUse
from car_client.carctl.http.service import health, manager_of
from car_client.carctl.service.command import installed_command
from car_client.carctl.service.steps import Steps
from car_client.client import Client
from car_client.door.keys import DEFAULT_NAME, add_key, ensure_keys, read_keys, remove_key
from car_client.door.settings import Address, Settings, default_socket, load_settings
from car_protocol.sockets import Loopback

DEFAULT_PORT = 8321
_MOST_PORT = 65_535
_CHAT = '{"messages": [{"role": "user", "content": "What is card?"}]}'


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("status", help="show where the door listens, whether it answers, its keys' names")
    key = actions.add_parser("key", help="print a key, made where it is missing", allow_abbrev=False)
    key.add_argument("name", nargs="?", default=DEFAULT_NAME, metavar="NAME", help="(default: %(default)s)")
    key.add_argument("--remove", action="store_true", help="remove the key: its holder is refused at once")
    enable = actions.add_parser("enable", help="listen on a loopback port, as a service", allow_abbrev=False)
    enable.add_argument("--port", type=_port, metavar="N", help=f"(default: the configured one, else {DEFAULT_PORT})")
    actions.add_parser("disable", help="end the service and remove its files; keys and card.toml stay")


def run(_client: Client, options: Namespace) -> None:
    """Run an action; raises SettingsError, KeysError and ServiceError."""
    _ACTIONS[options.action](options)


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _MOST_PORT:
        return int(text[:6])
    raise ArgumentTypeError(f"{text[:10]!r} is not a port: give 1 to {_MOST_PORT}")


def _status(_options: Namespace) -> None:
    """Print a line for each address, and the keys' names; raises Reported if an address does not answer."""
    settings = load_settings()
    states = [(each, *health(each)) for each in settings.addresses]
    for address, _, state in states:
        print(f"{_shown(address)}: {state}")
    print(f"keys: {_names(settings)}")
    if not all(well for _, well, _ in states):
        print("carctl http enable installs the service; card-http runs the door by hand")
        raise Reported("an address does not answer")


def _shown(address: Address) -> str:
    return address.url if isinstance(address, Loopback) else str(address)


def _names(settings: Settings) -> str:
    if settings.no_key:
        return "not needed: [http] no_key is set, and every user of this machine can send requests as you"
    return ", ".join(key.name for key in read_keys(settings.keys)) or "none; carctl http key makes one"


def _key(options: Namespace) -> None:
    path = load_settings().keys
    if not options.remove:
        print(add_key(path, options.name).secret)
    elif remove_key(path, options.name):
        print(f"removed {options.name}")
    else:
        names = ", ".join(key.name for key in read_keys(path)) or "none"
        raise WrongUse(f"there is no key {options.name!r}; the keys are: {names}")


def _enable(options: Namespace) -> None:
    """Configure a port, make the key, start the service, and print the commands that try it."""
    steps = Steps()
    command = installed_command("card-http", "http")
    before = load_settings()
    if options.port is not None or not before.ports:
        _configure(_with_port(before, options.port or DEFAULT_PORT))
    settings = load_settings()
    name = DEFAULT_NAME if settings.no_key else ensure_keys(settings.keys)[0].name
    manager = manager_of(steps)
    if manager is None:
        print(f"There is no service manager of this user here. Start the door by hand: {quote(str(command))} &")
    else:
        manager.enable(command, settings.addresses)
    print("\nTry it, with the key from its file:" if not settings.no_key else "\nTry it:")
    print(*curl_lines(settings, name), sep="\n")


def _with_port(settings: Settings, port: int) -> list[str]:
    """Return the texts of [http] listen with one loopback port; the usual Unix socket needs none."""
    paths = [f"unix:{each}" for each in settings.addresses if isinstance(each, Path) and each != default_socket()]
    return [*paths, f"127.0.0.1:{port}"]


def _configure(addresses: Sequence[str]) -> None:
    with CardToml(config_path()) as config:
        config.listen_http(addresses)
        config.save()
        print(f"write {config.path}: [http] listen {', '.join(addresses)}")


def curl_lines(settings: Settings, name: str) -> Iterator[str]:
    """Yield three commands; `curl` reads the key from its input, because other users see arguments of processes."""
    url = settings.ports[0].url
    header = f'awk \'$1 == "{name}" {{print "Authorization: Bearer " $2}}\' {quote(str(settings.keys))} | '
    with_key, from_input = ("", "") if settings.no_key else (header, " -H @-")
    yield f"{with_key}curl{from_input} {url}/v1/models"
    yield f"{with_key}curl{from_input} {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{_CHAT}'"
    yield f"curl --unix-socket {quote(str(settings.socket))} http://localhost/v1/models"


def _disable(_options: Namespace) -> None:
    manager = manager_of(Steps())
    if manager is None:
        print("There is no service manager of this user here: end card-http by hand")
    else:
        manager.disable()


_ACTIONS = {"status": _status, "key": _key, "enable": _enable, "disable": _disable}
