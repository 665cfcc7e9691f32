"""The service files: templates, filled with the absolute paths of this installation."""

import plistlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from car_client.carctl.service.steps import ServiceError

LAUNCHD_LABEL = "io.card.daemon"
_CARD = "@CARD@"
_LISTEN = "@LISTEN@"


def unit(name: str, card: Path) -> bytes:
    """Return a file of systemd/ for the command at `card`; raises ServiceError for a path that systemd cannot take."""
    path = str(card)
    if not path.isprintable() or set(path) & set("\"'\\"):
        raise ServiceError(f"systemd cannot run a path with quotes or backslashes: install card elsewhere than {path}")
    text = _templates().joinpath("systemd", name).read_text(encoding="utf-8")
    quoted = '"' + path.replace("%", "%%") + '"'
    return text.replace(_CARD, quoted).encode()


def listening(name: str, streams: Sequence[str]) -> bytes:
    """Return a socket unit of systemd/ that listens on `streams`, in systemd's notation."""
    text = _templates().joinpath("systemd", name).read_text(encoding="utf-8")
    return text.replace(_LISTEN, "\n".join(f"ListenStream={each}" for each in streams)).encode()


def agent(paths: Mapping[str, Path], label: str) -> bytes:
    """Return a LaunchAgent, with `paths` in place of its placeholders, as CARD, SOCKET and LOG."""
    template = plistlib.loads(_templates().joinpath("launchd", f"{label}.plist").read_bytes())
    return plistlib.dumps(_filled(template, {f"@{name}@": str(path) for name, path in paths.items()}), sort_keys=False)


def _templates() -> Traversable:
    """Return the folder of the templates: `units` in the wheel, the root in a checkout."""
    packaged = files("car_client").joinpath("units")
    return packaged if packaged.is_dir() else Path(__file__).parents[4]


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return values.get(value, value) if isinstance(value, str) else value
