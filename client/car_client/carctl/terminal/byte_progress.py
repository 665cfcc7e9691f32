"""Progress in bytes: a bar on a terminal, lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from car_client.carctl.terminal.text import bytes_text, is_terminal, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_STEP_PERCENT = 10


class ProgressLines:
    """Prints a line for each file, one after the other, and for each tenth of it."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._name = ""
        self._size = 0
        self._shown = 0  # the last percentage that was printed

    def begin(self, name: str, done: int, size: int) -> None:
        """Print the name and the size."""
        self._name, self._size, self._shown = name, size, self._percent(done, size)
        already = f", {bytes_text(done)} of it here already" if done else ""
        self.note(f"{name}: {bytes_text(size)}{already}")

    def update(self, done: int) -> None:
        """Print the percentage when another tenth is there."""
        percent = self._percent(done, self._size)
        if percent != self._shown:
            self._shown = percent
            self.note(f"{self._name}: {percent}%")

    def note(self, line: str) -> None:
        """Print a line at once."""
        print(one_line(line), file=self._output, flush=True)

    def _percent(self, done: int, size: int) -> int:
        return 100 * done // max(1, size) // _STEP_PERCENT * _STEP_PERCENT


class Bars:
    """Draws a bar for each file, with the remaining time."""

    def __init__(self, rich: "Progress") -> None:
        self._rich = rich
        self._bar: TaskID | None = None  # of the current file

    def begin(self, name: str, done: int, size: int) -> None:
        """Draw another bar."""
        self._bar = self._rich.add_task(one_line(name), total=size, completed=done)

    def update(self, done: int) -> None:
        """Move the bar."""
        assert self._bar is not None
        self._rich.update(self._bar, completed=done)

    def note(self, line: str) -> None:
        """Print a line above the bars."""
        self._rich.console.print(one_line(line))


# Shows the progress of files: `done` bytes of `size` are there.
ByteProgress = ProgressLines | Bars


@contextmanager
def progress_on(output: TextIO, *, speed: bool = True) -> Iterator[ByteProgress]:
    """Yield bars if the output is a terminal and rich is installed, else lines; a load has no speed of a transfer."""
    if not is_terminal(output):
        yield ProgressLines(output)
        return
    try:
        rich = _rich(output, speed=speed)
    except ModuleNotFoundError:
        yield ProgressLines(output)
        return
    with rich:
        yield Bars(rich)


def _rich(output: TextIO, *, speed: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        *([TransferSpeedColumn()] if speed else []),
        TimeRemainingColumn(),
        console=Console(file=output, markup=False, highlight=False, emoji=False),
    )
