"""`carctl page`: a link to the door's page that signs in, opened in a browser."""

import os
import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from html import escape
from pathlib import Path
from urllib.parse import quote

from car_client.carctl.failure import WrongUse
from car_client.carctl.http.command import system_settings
from car_client.carctl.http.machine import addresses_of
from car_client.client import Client
from car_client.door.keys import own_key
from car_client.door.settings import Settings, TlsPort, load_settings

_FILE = "page.html"


def add_arguments(_parser: ArgumentParser) -> None:
    """Declare no arguments."""


def run(_client: Client, options: Namespace) -> None:
    """Print the link, and open it if there is a screen; raises SettingsError, KeysError and WrongUse.

    The link to the machine's door has no key: people sign in there, each with their own.
    """
    if options.system:
        print(f"{machines_url(system_settings())}/")
        return
    settings = load_settings()
    link = link_of(settings)
    print(link)
    if has_screen(os.environ):
        # Other users see the arguments of a browser's process, so it gets a file that leads on to the link.
        webbrowser.open(leading_to(link, settings.socket.parent).as_uri())


def machines_url(settings: Settings) -> str:
    """Return a URL by which people reach the machine's door: of other machines too, if it serves them.

    carctl certifies addresses; a certificate of one's own is rather of a name.
    """
    if not settings.network:
        return settings.ports[0].url
    port = settings.network[0]
    names = sorted(settings.hosts) if settings.owns_certificate else []
    return TlsPort([*names, *addresses_of(port.host)][0], port.port).url


def link_of(settings: Settings) -> str:
    """Return the page's address with the user's own key behind #, which a browser sends to no server."""
    if not settings.ports:
        raise WrongUse("a browser needs a port of the door: run `carctl http enable`")
    key = "" if settings.no_key else f"#key={quote(own_key(settings.keys).secret)}"
    return f"{settings.ports[0].url}/{key}"


def has_screen(env: Mapping[str, str]) -> bool:
    """Return whether a browser would open in a window."""
    return sys.platform == "darwin" or bool(env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))


def leading_to(link: str, folder: Path) -> Path:
    """Write a file that only this user may read and that leads a browser to the link."""
    file = folder / _FILE
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as text:
        text.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}"><title>card</title>\n')
    return file
