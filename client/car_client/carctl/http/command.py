"""`carctl http`: enable and disable the door, show its state, print and remove keys."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote

from msgspec import structs

from car_client.carctl.config.card_toml import SYSTEM_CONFIG, CardToml, config_path
from car_client.carctl.failure import Reported, WrongUse
from car_client.carctl.http.machine import EVERYWHERE, addresses_of, own_addresses, own_names
from car_client.carctl.http.service import health, manager_of
from car_client.carctl.service.installed import installed_command
from car_client.carctl.service.steps import Steps
from car_client.client import Client
from car_client.door.certificate import Trust, check_pair, fingerprint, refusal, trusted_by
from car_client.door.keys import DEFAULT_NAME, add_key, own_key, read_keys, remove_key
from car_client.door.settings import (
    PRIVATE_KEY_NAME,
    Settings,
    TlsPort,
    default_socket,
    host_name,
    is_host_name,
    load_settings,
)
from car_protocol.sockets import MOST_PORT, Loopback, read_port

DEFAULT_PORT = 8321
# Where the user of the machine's door has its keys.
DOOR_HOME = Path("/var/lib/card-http")
_INSTALLS_FOR_PEOPLE = "sudo carctl --system service install --people installs it"
_NO_CERTIFICATE = "your own private key needs your own certificate: give --certificate with --private-key"
DEFAULT_NETWORK = TlsPort("0.0.0.0", 8322)  # noqa: S104 - what --lan is for
_ROOT = "ROOT.pem"
_COPIES = {
    Trust.COPY: "Copy {} to them, which is no secret; its SHA-256 is",
    Trust.SYSTEM: "Other machines trust {} without a copy; its SHA-256 is",
    Trust.AUTHORITY: f"Copy the root certificate of who signed {{}} to them as {_ROOT}; the SHA-256 of yours is",
}
_PYTHON = "from openai import OpenAI; print(OpenAI().models.list())"
_NODE = 'import OpenAI from "openai"; console.log((await new OpenAI().models.list()).data)'
_CHAT = '{"messages": [{"role": "user", "content": "What is card?"}]}'


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("status", help="show the addresses of the door, whether it answers, its keys' names")
    key = actions.add_parser("key", help="print a key, and make it if it is missing", allow_abbrev=False)
    key.add_argument("name", nargs="?", default=DEFAULT_NAME, metavar="NAME", help="(default: %(default)s)")
    key.add_argument("--remove", action="store_true", help="remove the key: its holder is refused at once")
    enable = actions.add_parser("enable", help="listen on a loopback port, as a service", allow_abbrev=False)
    enable.add_argument(
        "--port", type=port_number, metavar="N", help=f"(default: the configured one, else {DEFAULT_PORT})"
    )
    network = enable.add_mutually_exclusive_group()
    network.add_argument(
        "--lan",
        nargs="?",
        const=DEFAULT_NETWORK,
        type=network_address,
        metavar="ADDRESS:PORT",
        help=f"serve other machines too, by TLS, with keys (default: the configured address, else {DEFAULT_NETWORK})",
    )
    network.add_argument("--no-lan", action="store_true", help="serve this machine alone")
    enable.add_argument(
        "--name", action="append", type=_name, help="with --lan: a name of this machine there; repeatable"
    )
    enable.add_argument("--certificate", metavar="FILE", help="with --lan: your own certificate, with its chain")
    enable.add_argument("--private-key", metavar="FILE", help="its private key")
    actions.add_parser("disable", help="end the service and remove its files; keys and card.toml stay")


def run(_client: Client, options: Namespace) -> None:
    """Run an action; raises SettingsError, KeysError, ServiceError, and WrongUse for the machine's door."""
    if options.system and options.action != "status":
        raise WrongUse(
            "use `carctl --system service` for the machine's door, and `carctl --system people` for its keys"
        )
    _ACTIONS[options.action](options)


def port_number(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MOST_PORT:
        return int(text[:6])
    raise ArgumentTypeError(f"{text[:10]!r} is not a port: give 1 to {MOST_PORT}")


def network_address(text: str) -> TlsPort:
    """Parse the value of `--lan`; raises ArgumentTypeError."""
    try:
        port = read_port(text, f"give an address of this machine with a port, such as {DEFAULT_NETWORK}")
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return TlsPort(port.host, port.port)


def _name(text: str) -> str:
    if is_host_name(text):
        return host_name(text)
    raise ArgumentTypeError(f"{text[:20]!r} is not a name of a machine")


def _status(options: Namespace) -> None:
    """Print a line for each address, and the keys' names; raises Reported if an address does not answer."""
    settings = system_settings() if options.system else load_settings()
    states = [(each, *health(each, settings.certificate)) for each in settings.addresses]
    for address, _, state in states:
        print(f"{address if isinstance(address, Path) else address.url}: {state}")
    if settings.network:
        print(f"certificate: {settings.certificate}, SHA-256 {fingerprint(settings.certificate)}")
    print("keys: see carctl --system people list" if options.system else f"keys: {_names(settings)}")
    if not all(well for _, well, _ in states):
        how = "carctl http enable installs the service; card-http runs the door by hand"
        print(_INSTALLS_FOR_PEOPLE if options.system else how)
        raise Reported("an address does not answer")


def system_settings() -> Settings:
    """Return the settings of the machine's door, which listens on ports alone; raises SettingsError and WrongUse."""
    if SYSTEM_CONFIG.exists():
        settings = load_settings(config=SYSTEM_CONFIG, env={"XDG_CONFIG_HOME": str(DOOR_HOME)})
        if ports := (*settings.ports, *settings.network):
            return structs.replace(settings, addresses=ports)
    raise WrongUse(f"the machine's service has no door: {_INSTALLS_FOR_PEOPLE}")


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
    """Configure the addresses, make the key, start the service, and print the commands that try it."""
    steps = Steps()
    command = installed_command("card-http", "http")
    before = load_settings()
    if values := changes(before, options):
        _configure(values)
    settings = load_settings()
    renewed = (bool(settings.network) and _certify(settings)) or bool(values)
    name = DEFAULT_NAME if settings.no_key else own_key(settings.keys).name
    manager = manager_of(steps)
    if manager is None:
        print(f"There is no service manager of this user here. Start the door by hand: {quote(str(command))} &")
    else:
        manager.enable(command, settings.addresses, renewed=renewed)
    if settings.network:
        print(*lan_lines(settings), sep="\n")
    print("\nTry it, with the key from its file:" if not settings.no_key else "\nTry it:")
    print(*curl_lines(settings, name), sep="\n")


def changes(before: Settings, options: Namespace) -> dict[str, str | list[str]]:
    """Return the keys of [http] that `enable` sets, none if all is as it was asked for."""
    network = () if options.no_lan else before.network
    if options.lan and not (options.lan is DEFAULT_NETWORK and network):
        network = (options.lan,)
    ports = (Loopback("127.0.0.1", options.port or DEFAULT_PORT),) if options.port or not before.ports else before.ports
    # The usual Unix socket needs no mention.
    paths = [f"unix:{each}" for each in before.addresses if isinstance(each, Path) and each != default_socket()]
    taken = {(host, each.port) for each in ports for host in (*EVERYWHERE, each.host)}
    if clash := next((each for each in network if (each.host, each.port) in taken), None):
        host = str(clash).removesuffix(f":{clash.port}")
        raise WrongUse(f"port {clash.port} is the port of this machine's own apps: give --lan {host}:ANOTHER")
    values: dict[str, str | list[str]] = {}
    if (ports, network) != (before.ports, before.network):
        listen = [*paths, *map(str, ports), *(each.url for each in network)]
        values["listen"] = listen[0] if len(listen) == 1 else listen
    if options.private_key and not (options.certificate or before.owns_certificate):
        raise WrongUse(_NO_CERTIFICATE)
    given = {"certificate": options.certificate, "private_key": options.private_key}
    values |= {name: str(Path(file).absolute()) for name, file in given.items() if file}
    names = before.hosts.union(options.name or ([] if before.hosts else own_names()))
    if network and names != before.hosts:
        values["hosts"] = sorted(names)
    return values


def _configure(values: Mapping[str, str | list[str]]) -> None:
    """Write keys of [http], and what they need; raises as `_certify` and SettingsError, with the file as it was."""
    with CardToml(config_path()) as config:
        config.set_http(values)
        config.save()
        settings = load_settings()
        if settings.network:
            _certify(settings)
    for name, value in values.items():
        print(f"write {config.path}: [http] {name} {value if isinstance(value, str) else ', '.join(value)}")


def _certify(settings: Settings) -> bool:
    """Make a certificate, or check the user's own; return whether a new one was made.

    Raises CertificateError, and WrongUse without the package.
    """
    if settings.owns_certificate:
        check_pair(settings.certificate, settings.private_key)
        return False
    try:
        from car_client.carctl.http.self_signed import ensure_certificate
    except ModuleNotFoundError as error:
        raise WrongUse("--lan needs `pip install 'card-daemon[lan]'`, or --certificate and --private-key") from error
    if settings.private_key != settings.keys.with_name(PRIVATE_KEY_NAME):
        raise WrongUse(_NO_CERTIFICATE)
    hosts = certified_hosts(settings)
    made = ensure_certificate(settings.certificate, settings.private_key, hosts, list(own_addresses()))
    if made:
        print(f"write {settings.certificate}: a new certificate of {', '.join(hosts)}")
    return made


def certified_hosts(settings: Settings) -> list[str]:
    """Return what a certificate has to be of: the names of this machine, and the addresses chosen for its ports."""
    return [*sorted(settings.hosts), *(each.host for each in settings.network if each.host not in EVERYWHERE)]


def lan_lines(settings: Settings) -> Iterator[str]:
    """Yield what people at other machines need: addresses, the fingerprint, and lines for curl, Python and Node."""
    address = settings.network[0]
    hosts = [*addresses_of(address.host), *sorted(settings.hosts)]
    reached = {each: TlsPort(each, address.port).url for each in hosts}
    why = {each: refusal(settings.certificate, settings.private_key, each) for each in reached}
    urls = [url for each, url in reached.items() if not why[each]] or list(reached.values())
    trust = trusted_by(settings.certificate, settings.private_key)
    file = quote(str(settings.certificate))
    yield f"\nOther machines reach the door by {', '.join(urls)}."
    for each, url in reached.items():
        if why[each]:
            remedy = "get one that has it" if settings.owns_certificate else f"remove {file}, and run this again"
            yield f"They refuse the certificate at {url} ({why[each]}): {remedy}."
    yield "Each person needs a key: `carctl people add NAME`; an app of yours: `carctl http key NAME`."
    yield _COPIES[trust].format(file)
    yield f"  {fingerprint(settings.certificate)}"
    yield "There, with the key in KEY:"
    base = f"OPENAI_BASE_URL={urls[0]}/v1 OPENAI_API_KEY=$KEY"
    curl, python, node = ("", "", "") if trust is Trust.SYSTEM else (f"{each} " for each in _trusting(trust, file))
    yield f'curl {curl}{urls[0]}/v1/models -H "Authorization: Bearer $KEY"'
    yield f"{python}{base} python -c '{_PYTHON}'"
    yield f"{node}{base} node --input-type=module -e '{_NODE}'"


def _trusting(trust: Trust, file: str) -> tuple[str, str, str]:
    """Return what has curl, Python and Node trust a file."""
    file = file if trust is Trust.COPY else _ROOT
    return f"--cacert {file}", f"SSL_CERT_FILE={file}", f"NODE_EXTRA_CA_CERTS={file}"


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
