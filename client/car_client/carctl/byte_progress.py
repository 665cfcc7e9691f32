"""How much of a file is there: a bar on a terminal, lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from car_client.carctl.figures import bytes_text
from car_client.carctl.terminal import is_terminal, one_line

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_STEP_PERCENT = 10


class Progress(Protocol):
    """What is told of files, one after the other."""

    def begin(self, name: str, done: int, size: int) -> None:
        """A file of so many bytes begins, or goes on."""
        ...

    def reached(self, done: int) -> None:
        """So many of its bytes are there."""
        ...

    def say(self, line: str) -> None:
        """Something else is worth a line."""
        ...


class Lines:
    """A line when a file begins, and for each tenth of it."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        # Mutable state: the file, its size, and the percentage that was told last.
        self._name = ""
        self._size = 0
        self._told = 0

    def begin(self, name: str, done: int, size: int) -> None:
        """Say what begins."""
        self._name, self._size, self._told = name, size, self._percent(done, size)
        already = f", {bytes_text(done)} of it here already" if done else ""
        self.say(f"{name}: {bytes_text(size)}{already}")

    def reached(self, done: int) -> None:
        """Say how far it is, where that is a tenth more."""
        percent = self._percent(done, self._size)
        if percent != self._told:
            self._told = percent
            self.say(f"{self._name}: {percent}%")

    def say(self, line: str) -> None:
        """Say it at once."""
        print(one_line(line), file=self._output, flush=True)

    def _percent(self, done: int, size: int) -> int:
        return 100 * done // max(1, size) // _STEP_PERCENT * _STEP_PERCENT


class Bars:
    """A bar for each file, with its speed and the time that it still takes."""

    def __init__(self, rich: "RichProgress") -> None:
        self._rich = rich
        # Mutable state: the bar that grows.
        self._bar: TaskID | None = None

    def begin(self, name: str, done: int, size: int) -> None:
        """Draw one more bar."""
        self._bar = self._rich.add_task(one_line(name), total=size, completed=done)

    def reached(self, done: int) -> None:
        """Draw how far it is."""
        assert self._bar is not None
        self._rich.update(self._bar, completed=done)

    def say(self, line: str) -> None:
        """Print it above the bars."""
        self._rich.console.print(one_line(line))


@contextmanager
def progress_on(output: TextIO) -> Iterator[Progress]:
    """Yield what tells it: bars where the output is a terminal and rich is installed, else lines."""
    if not is_terminal(output):
        yield Lines(output)
        return
    try:
        rich = _rich(output)
    except ModuleNotFoundError:
        yield Lines(output)
        return
    with rich:
        yield Bars(rich)


def _rich(output: TextIO) -> "RichProgress":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=output, markup=False, highlight=False, emoji=False),
    )
