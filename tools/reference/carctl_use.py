"""The tables of the page about carctl: its extras, the commands of a chat, the apps of `bench --house`."""

import re
from collections.abc import Iterator
from pathlib import Path

from car_client.carctl.bench.house_apps import APPS, App
from car_client.carctl.chat.command import COMMANDS
from tools.reference.protocol import table

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def extras() -> str:
    """Return the extras of the package with the comments above them."""
    text = _PROJECT.read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    found = re.findall(r"((?:^# .*\n)+)^(\w+) = ", text, re.MULTILINE)
    return table(("extra", "for"), [(f"`{name}`", " ".join(said.replace("# ", "").split())) for said, name in found])


def chat() -> str:
    """Return the commands of a chat."""
    rows = [(f"`/{name} {each.argument}".rstrip() + "`", each.summary) for name, each in COMMANDS.items()]
    return table(("in `carctl chat`", "effect"), rows)


def house() -> str:
    """Return the apps of `carctl bench --house`, each with what its lanes say that they do."""
    rows = [(f"`{name}`", each.waits_for, "; ".join(_told(each))) for name, each in APPS.items()]
    return table(("app", "waits for", "what it does"), rows)


def _told(app: App) -> Iterator[str]:
    """Yield what an app's lanes do, how many there are, and how often a request is sent."""
    yield from dict.fromkeys((lane.__doc__ or "").strip().rstrip(".") for lane in app.lanes)
    if len(app.lanes) > 1:
        yield f"{len(app.lanes)} at once"
    if app.every_s:
        yield f"a request each {app.every_s:g} s, which ends the request before"


TABLES = {"extras": extras, "chat": chat, "house": house}
