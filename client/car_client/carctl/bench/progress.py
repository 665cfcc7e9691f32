"""A bar on a terminal while a load runs, else a line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from car_client.carctl.terminal.text import is_terminal, visible

if TYPE_CHECKING:
    from rich.progress import Progress

_UPDATES_PER_S = 4


@contextmanager
def progress(label: str, total: int | None, *, lines: bool = False) -> Iterator[Callable[[], None]]:
    """Yield a callback that advances a bar, which is removed at the end.

    Without rich or a terminal there is no bar; then `lines` has the label written as a line.
    """
    bar = _bar()
    if bar is None:
        if lines:
            print(visible(label), file=sys.stderr, flush=True)
        yield _nothing
        return
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def _bar() -> "Progress | None":
    """Return a bar for standard error; None without rich or a terminal."""
    if not is_terminal(sys.stderr):
        return None
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True, markup=False, highlight=False)
    return Progress(console=console, transient=True, refresh_per_second=_UPDATES_PER_S)


def _nothing() -> None:
    """Advance no bar."""
