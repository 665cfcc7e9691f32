"""Pictures kept as text files: what a terminal of a given size shows of frozen data."""

import os
from io import StringIO
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType

from car_client.results import Status
from tests.client.samples import busy_status

FOLDER = Path(__file__).parent / "pictures"
# Set it to write the pictures anew, and look at what changed.
REWRITE = "CARD_REWRITE_PICTURES"


def busy() -> Status:
    """Return the frozen status of a busy daemon."""
    return msgspec.convert(busy_status(), Status)


def drawn(picture: RenderableType, width: int) -> str:
    """Return what a terminal of this width shows."""
    screen = Console(file=StringIO(), width=width, _environ={})
    screen.print(picture)
    assert isinstance(screen.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in screen.file.getvalue().splitlines())


def kept(name: str, shown: str) -> str:
    """Return the kept picture of this name."""
    file = FOLDER / f"{name}.txt"
    if REWRITE in os.environ:
        FOLDER.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    return file.read_text(encoding="utf-8")
