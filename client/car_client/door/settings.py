"""The settings of the door and its addresses: flags over the table `[http]` of the user's card.toml over defaults."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from car_client.door.keys import keys_path
from car_client.errors import CardError
from car_protocol.meta import note
from car_protocol.sockets import FORMS, MAX_PATH_BYTES, Loopback, Port, fits, read_loopback, read_port, socket_path

SOCKET_NAME = "http.sock"
CERTIFICATE_NAME = "http-certificate.pem"
PRIVATE_KEY_NAME = "http-private-key.pem"
_TLS = "https://"
_FORMS = f"{FORMS}; https://ADDRESS:PORT for other machines"


class TlsPort(Port, frozen=True):
    """A port that other machines may reach, by TLS."""

    @property
    def url(self) -> str:
        """The URL that clients are configured with, without a path."""
        return f"{_TLS}{self}"


Address = Path | Loopback | TlsPort


def default_socket(env: Mapping[str, str] = os.environ) -> Path:
    """Return the door's own socket, beside the socket of this user's daemon."""
    others = {name: value for name, value in env.items() if name != "CAR_SOCKET"}
    return socket_path(env=others).with_name(SOCKET_NAME)


def read_address(text: str) -> Address:
    """Parse an address; raises ValueError with the accepted forms."""
    if text.startswith(_TLS):
        port = read_port(text.removeprefix(_TLS), _FORMS)
        return TlsPort(port.host, port.port)
    address = read_loopback(text, "other machines are served by TLS alone", _FORMS)
    if isinstance(address, Path) and not fits(address):
        raise ValueError(f"the path {address} is longer than {MAX_PATH_BYTES} bytes: choose a shorter one")
    return address


_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_HOST_NAME = r"\A(?!.{254})[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?\Z"
HostName = Annotated[str, Meta(pattern=_HOST_NAME)]
FilePath = Annotated[str, Meta(pattern=r"\A[^\x00]+\Z")]
Origin = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9+.-]*://[^\s/*]+\Z")]

# A promise: `low` thinks for at most a minute at 17 tokens a second, and `minimal` for a quarter of that.
EFFORTS = {"minimal": 256, "low": 1024}


class SettingsError(CardError):
    """The settings cannot be used; the message names the key and says what to do."""


class HttpTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[http]`; `listen` adds addresses to the Unix socket, `keys` is the path of the file of keys."""

    listen: Annotated[
        str | list[str],
        note(
            "addresses beside the Unix socket: `127.0.0.1:PORT`, `[::1]:PORT`, `unix:PATH`, or a list; "
            "`https://ADDRESS:PORT` for other machines"
        ),
    ] = []
    hosts: Annotated[list[HostName], note("names of this machine that requests may carry, beside localhost")] = []
    origins: Annotated[list[Origin], note("web origins whose pages may send requests")] = []
    keys: Annotated[FilePath | None, note("the file of keys")] = None
    certificate: Annotated[
        FilePath | None, note("the PEM file of the certificate of `https://` addresses, with its chain")
    ] = None
    private_key: Annotated[FilePath | None, note("the PEM file of its private key")] = None
    no_key: Annotated[
        bool, note("true serves the ports without a key: every user and program of this machine may use them")
    ] = False
    efforts: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        note("the most tokens of thoughts by effort (`reasoning_effort`, `think`, ...); other efforts have no bound"),
    ] = msgspec.field(default_factory=lambda: dict(EFFORTS))
    any_model: Annotated[
        bool | None,
        note("true: the default model answers for names that no model has; false: the only chat model does not either"),
    ] = None


class Settings(Struct, frozen=True, kw_only=True):
    """The settings in force; `no_key` serves the loopback ports without a key."""

    addresses: tuple[Address, ...]
    hosts: frozenset[str]
    origins: frozenset[str]
    config: Path
    keys: Path
    certificate: Path
    private_key: Path
    no_key: bool
    efforts: Mapping[str, int] = msgspec.field(default_factory=lambda: EFFORTS)
    any_model: bool | None = None

    @property
    def ports(self) -> tuple[Loopback, ...]:
        """The loopback ports among the addresses."""
        return tuple(each for each in self.addresses if isinstance(each, Loopback))

    @property
    def paths(self) -> tuple[Path, ...]:
        """The Unix sockets among the addresses."""
        return tuple(each for each in self.addresses if isinstance(each, Path))

    @property
    def network(self) -> tuple[TlsPort, ...]:
        """The ports among the addresses that other machines may reach."""
        return tuple(each for each in self.addresses if isinstance(each, TlsPort))

    @property
    def owns_certificate(self) -> bool:
        """Whether the user has a certificate of their own, in place of the one that carctl makes."""
        return self.certificate != self.keys.with_name(CERTIFICATE_NAME)

    @property
    def socket(self) -> Path:
        """The first Unix socket among the addresses."""
        return self.paths[0]


def is_host_name(text: str) -> bool:
    """Return whether a text can be one of `hosts`."""
    return re.match(_HOST_NAME, text) is not None


def host_name(text: str) -> str:
    """Return a name of `hosts` as requests are compared with it."""
    return text.lower().removesuffix(".")


def config_path(env: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's card.toml, which need not exist."""
    return Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "car" / "card.toml"


def load_settings(
    listen: Sequence[str] = (), *, config: Path | None = None, no_key: bool = False, env: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings; `listen` and `no_key` are the flags. Raises SettingsError."""
    path = config or config_path(env)
    table = _read_table(path, must_exist=config is not None)
    configured = [table.listen] if isinstance(table.listen, str) else table.listen
    addresses = [_address(text, "--listen") for text in listen]
    addresses = addresses or [_address(text, f"{path}: http.listen") for text in configured]
    if not any(isinstance(each, Path) for each in addresses):
        addresses.insert(0, default_socket(env))
    if (no_key or table.no_key) and any(isinstance(each, TlsPort) for each in addresses):
        raise SettingsError("http.no_key: other machines need keys: remove no_key, or the addresses with https://")
    keys = _file(table.keys, keys_path(env))
    return Settings(
        addresses=tuple(dict.fromkeys(addresses)),
        hosts=frozenset(map(host_name, table.hosts)),
        origins=frozenset(table.origins),
        config=path,
        keys=keys,
        certificate=_file(table.certificate, keys.with_name(CERTIFICATE_NAME)),
        private_key=_file(table.private_key, keys.with_name(PRIVATE_KEY_NAME)),
        no_key=no_key or table.no_key,
        efforts=table.efforts,
        any_model=table.any_model,
    )


def _file(named: str | None, usual: Path) -> Path:
    return Path(named).expanduser() if named else usual


def _address(text: str, place: str) -> Address:
    try:
        return read_address(text)
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from error


def _read_table(path: Path, *, must_exist: bool) -> HttpTable:
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError as error:
        if must_exist:
            raise SettingsError(f"there is no file {path}: give --config another one") from error
        return HttpTable()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}; give --config another file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    return _converted(data.get("http", {}), path)


def _converted(table: Any, path: Path) -> HttpTable:
    try:
        return msgspec.convert(table, HttpTable)
    except msgspec.ValidationError as error:
        found = _PATH.search(str(error))
        key = ".".join(filter(None, ("http", found[1] if found else "")))
        known = ", ".join(HttpTable.__struct_fields__)
        raise SettingsError(f"{path}: {key}: {_PATH.sub('', str(error))}; [http] has {known}") from error
