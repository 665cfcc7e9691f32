"""Pictures on a screen of their own, each over the one before."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live

from car_client.carctl.picture import console


class Screen:
    """The terminal while it shows pictures."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def width(self) -> int:
        """Columns now."""
        return self._live.console.width

    @property
    def height(self) -> int:
        """Lines now."""
        return self._live.console.height

    def show(self, picture: RenderableType) -> None:
        """Draw a picture."""
        self._live.update(picture, refresh=True)


@contextmanager
def screen() -> Iterator[Screen]:
    """Yield the screen; what was on the terminal is there again afterwards."""
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        yield Screen(live)
