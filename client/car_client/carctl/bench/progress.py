"""A bar on a terminal while a load runs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from car_client.carctl.terminal.text import is_terminal

_UPDATES_PER_S = 4


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Yield a callback that advances a bar; without rich or a terminal there is no bar. It is removed at the end."""
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
    with Progress(console=console, transient=True, refresh_per_second=_UPDATES_PER_S) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def _nothing() -> None:
    """Advance no bar."""
