"""The service files as they are installed: templates with the absolute paths of one installation filled in."""

import plistlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from car_client.carctl.steps import ServiceError

LAUNCHD_LABEL = "io.card.daemon"
_CARD = "@CARD@"


def unit(name: str, card: Path) -> bytes:
    """Return a file below systemd/, for the command at `card`."""
    text = _templates().joinpath("systemd", name).read_text(encoding="utf-8")
    return text.replace(_CARD, _quoted(str(card))).encode()


def agent(paths: Mapping[str, Path]) -> bytes:
    """Return the LaunchAgent; `paths` are the values of its placeholders CARD, SOCKET and LOG."""
    template = plistlib.loads(_templates().joinpath("launchd", f"{LAUNCHD_LABEL}.plist").read_bytes())
    return plistlib.dumps(_filled(template, {f"@{name}@": str(path) for name, path in paths.items()}), sort_keys=False)


def _templates() -> Traversable:
    """Return the folder of the templates: in the wheel beside the code, in a checkout at its top."""
    packaged = files("car_client").joinpath("units")
    return packaged if packaged.is_dir() else Path(__file__).parents[3]


def _quoted(path: str) -> str:
    """Return a path as systemd reads it back from a command line; some it takes in no form."""
    if not path.isprintable() or set(path) & set("\"'\\"):
        raise ServiceError(f"systemd runs no command whose path has quotes or backslashes in it: {path}")
    return '"' + path.replace("%", "%%") + '"'


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return values.get(value, value) if isinstance(value, str) else value
