"""Draw docs/pictures anew: a daemon on its built-in model, apps that use it, and what carctl shows of that."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from car_client import AsyncClient, Client
from car_client.carctl.top.state import TopState
from car_client.carctl.top.view import view
from car_client.carctl.view.picture import picture
from car_client.results import Status
from tools.pictures import page, recording
from tools.pictures.first_minutes import first_minutes
from tools.pictures.svg import drawn

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH, HEIGHT = 96, 24
_BIN = Path(sys.executable).parent
# By then every app is at work, and some have answers behind them.
_SETTLED_S = 10
_READY_S = 60.0


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder, _daemon(folder), _apps(folder):
        before, after = _statuses(f"{folder}/card.sock")
        page.draw(FOLDER, f"{folder}/card.sock", folder)
    top = TopState()
    top.update(before, 0.0)
    top.update(after, 1.0)
    _write("carctl status", picture(after, WIDTH, HEIGHT))
    _write("carctl top", view(top, after, WIDTH, HEIGHT))
    for name, text in first_minutes():
        _write(name, Text.from_ansi(text.rstrip()), recording.WIDTH)


def _statuses(socket: str) -> tuple[Status, Status]:
    """Return two readings a second apart, once the apps have settled."""
    with Client(socket) as client:
        *_, before, after = islice(client.watch_status(1.0), _SETTLED_S)
    return before, after


@contextmanager
def _daemon(folder: str) -> Iterator[None]:
    """Run a daemon whose socket is short to read."""
    command: list[str | Path] = [_BIN / "card", "--socket", "card.sock", "--threads", "1", "--log-level", "error"]
    with _running(command, folder):
        asyncio.run(_ready(f"{folder}/card.sock"))
        yield


async def _ready(socket: str) -> None:
    """Return once the daemon answers."""
    async with AsyncClient(socket, connect_timeout=_READY_S) as client:
        await client.infer("Hi", max_tokens=1)


@contextmanager
def _apps(folder: str) -> Iterator[None]:
    with _running([sys.executable, "-m", "tools.pictures.load", f"{folder}/card.sock"], ".", end=signal.SIGKILL):
        yield


@contextmanager
def _running(command: list[str | Path], folder: str, end: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=folder)
    try:
        yield
    finally:
        process.send_signal(end)
        process.wait()


def _write(name: str, shown: RenderableType, width: int = WIDTH) -> None:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name.replace(' ', '-')}.svg"
    path.write_text(drawn(shown, name, width, HEIGHT), encoding="utf-8")


main()
