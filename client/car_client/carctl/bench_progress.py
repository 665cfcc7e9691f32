"""A bar of what a round has done, on a terminal with rich; elsewhere nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from car_client.carctl.terminal import is_terminal

_A_SECOND = 4


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Yield what is called with every answer; the bar is gone at the end."""
    if not is_terminal(sys.stderr):
        yield _nothing
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield _nothing
        return
    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(console=console, transient=True, refresh_per_second=_A_SECOND) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _nothing() -> None:
    """There is no bar."""
