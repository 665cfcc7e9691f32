"""The HTTP door of the machine's service, for people with keys: a user of its own, which the daemon trusts."""

import os
import pwd
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

from car_client.carctl.config.card_toml import SYSTEM_CONFIG, CardToml
from car_client.carctl.failure import WrongUse
from car_client.carctl.http.command import (
    DEFAULT_NETWORK,
    DOOR_HOME,
    certified_hosts,
    changes,
    lan_lines,
    network_address,
)
from car_client.carctl.http.machine import own_addresses
from car_client.carctl.http.service import SERVICE, SOCKET
from car_client.carctl.service import units
from car_client.carctl.service.installed import installed_command
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.service.systemd import SERVICE as DAEMON
from car_client.door.settings import CERTIFICATE_NAME, PRIVATE_KEY_NAME, Settings, load_settings

USER = "card-http"
_GROUP_READS = 0o640


class TeamDoor:
    """The door's user, its table and its units; `root` is the root of the file system.

    `find_user` returns a user's entry by name; it raises KeyError.
    """

    def __init__(
        self, steps: Steps, root: Path = Path("/"), find_user: Callable[[str], pwd.struct_passwd] = pwd.getpwnam
    ) -> None:
        self._steps = steps
        self._find_user = find_user
        self._reconfigured = False
        self._config = root / SYSTEM_CONFIG.relative_to("/")
        self._units = root / "etc" / "systemd" / "system"
        self._certificate = self._config.with_name(CERTIFICATE_NAME)
        self._private_key = self._config.with_name(PRIVATE_KEY_NAME)
        self._user = root / "etc" / "sysusers.d" / "card-http.conf"

    @property
    def installed(self) -> bool:
        """Whether the units are there."""
        return (self._units / SOCKET).is_file()

    def configure(self, lan: str | None, names: list[str] | None) -> Settings:
        """Make the door's user, and configure the daemon to take its word and the door to listen; return the settings.

        `lan` is an address for other machines, empty for the usual one. Raises ServiceError and WrongUse.
        """
        try:
            network = None if lan is None else network_address(lan) if lan else DEFAULT_NETWORK
        except ArgumentTypeError as error:
            raise WrongUse(f"--lan: {error}") from error
        options = Namespace(lan=network, no_lan=False, port=None, name=names, certificate=None, private_key=None)
        command = installed_command("card-http", "http")
        self._steps.write(self._user, units.unit("sysusers.d/card-http.conf", command))
        self._steps.run("systemd-sysusers", str(self._user))
        before = load_settings(config=self._config if self._config.exists() else None, env={"XDG_CONFIG_HOME": "/"})
        values = changes(before, options)
        if (before.network or network) and not before.owns_certificate:
            values |= {"certificate": str(self._certificate), "private_key": str(self._private_key)}
        uid = self._uid()
        with CardToml(self._config) as config:
            if uid is not None:
                config.add_delegate(uid)
            config.set_http(values)
            self._reconfigured = config.changed
            if self._reconfigured:
                self._steps.announce(f"write {self._config}: the door's user among delegates, its addresses")
                if not self._steps.dry_run:
                    config.save()
                elif "certificate" in values and not self._certificate.exists():
                    self._steps.announce(f"write {self._certificate} and its private key")
        settings = (
            load_settings(config=self._config, env={"XDG_CONFIG_HOME": str(DOOR_HOME)}) if uid is not None else before
        )
        if settings.network and settings.certificate == self._certificate and not self._steps.dry_run:
            self._certify(settings)
        return settings

    def install(self, settings: Settings) -> None:
        """Install the units for the door's addresses, and start them."""
        command = installed_command("card-http", "http")
        streams = [str(each) for each in (*settings.ports, *settings.network)]
        contents = {
            SOCKET: units.listening(f"system/{SOCKET}", streams),
            SERVICE: units.unit(f"system/{SERVICE}", command),
        }
        changed = [name for name, content in contents.items() if self._steps.write(self._units / name, content)]
        if changed:
            self._steps.run("systemctl", "daemon-reload")
            # A socket unit takes new addresses only while its service is stopped.
            self._steps.run("systemctl", "stop", SERVICE, SOCKET)
        self._steps.run("systemctl", "enable", "--now", SOCKET)
        if self._reconfigured:
            self._steps.run("systemctl", "try-reload-or-restart", DAEMON)
        if settings.network and not self._steps.dry_run:
            print(*lan_lines(settings), sep="\n")
        print("\nGive each person a key: sudo carctl --system people add NAME")

    def uninstall(self) -> None:
        """Stop and remove the units; keys, certificate, user and card.toml stay."""
        if self.installed:
            self._steps.attempt("systemctl", "disable", "--now", SERVICE, SOCKET, otherwise="the door may still run")
            for name in (SERVICE, SOCKET):
                self._steps.remove(self._units / name)
            self._steps.run("systemctl", "daemon-reload")
        self._steps.remove(self._user)

    def _uid(self) -> int | None:
        """Return the number of the door's user; None in a dry run before it exists. Raises ServiceError."""
        try:
            return self._find_user(USER).pw_uid
        except KeyError:
            if self._steps.dry_run:
                return None
            raise ServiceError(f"systemd-sysusers made no user {USER}") from None

    def _certify(self, settings: Settings) -> None:
        """Make the certificate unless it is there, with a key that the door's user reads."""
        try:
            from car_client.carctl.http.self_signed import ensure_certificate
        except ModuleNotFoundError as error:
            raise WrongUse("--lan needs `pip install 'card-daemon[lan]'`") from error
        certificate, private_key = settings.certificate, settings.private_key
        hosts = certified_hosts(settings)
        if ensure_certificate(certificate, private_key, hosts, list(own_addresses())):
            self._steps.announce(f"write {certificate}: a new certificate of {', '.join(hosts)}")
            certificate.chmod(0o644)
            os.chown(private_key, os.geteuid(), self._find_user(USER).pw_gid)
            private_key.chmod(_GROUP_READS)
