"""Pictures on the alternate screen of the terminal, each over the one before."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live


def console() -> Console:
    """Return the console on standard output, without markup; colours depend on the terminal and NO_COLOR."""
    return Console(markup=False, highlight=False, emoji=False)


class Screen:
    """The alternate screen."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def width(self) -> int:
        """The terminal's current columns."""
        return self._live.console.width

    @property
    def height(self) -> int:
        """The terminal's current lines."""
        return self._live.console.height

    def show(self, picture: RenderableType) -> None:
        """Draw a picture."""
        self._live.update(picture, refresh=True)


@contextmanager
def screen() -> Iterator[Screen]:
    """Yield the alternate screen; the terminal is restored afterwards."""
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        yield Screen(live)
