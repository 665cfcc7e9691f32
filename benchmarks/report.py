"""A benchmark's output: a line a figure as they come, and all of them in a record at the end."""

from typing import Any

from benchmarks.record import this_machine, write_record


class Report:
    """The figures of one run of a benchmark."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._machine = this_machine()
        self._said: dict[str, list[float]] = {}

    def say(self, what: str, value: float, *more: float) -> None:
        """Print one line: what, its figure, and its worst case if there is one."""
        extra = "".join(f"  ({one:.1f})" for one in more)
        print(f"{what:75} {value:9.2f}{extra}", flush=True)
        self._said[what] = [value, *more]

    def close(self, **more: Any) -> None:
        """Write the record."""
        busy = self._machine.load_average[0]
        path = write_record(self._name, self._machine, {**self._said, **more})
        print(f"load average at the begin: {busy:.2f}; {path}", flush=True)
