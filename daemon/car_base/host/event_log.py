"""The events of the daemon's log on their way to structlog, and what of a text or an exception may be logged.

structlog is imported while the daemon already serves: with rich, which it imports if that is installed, it would take
the most time of every start. Events before that are kept and rendered then.
"""

import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]
Sink = Callable[[Level, str, dict[str, object]], object]

_SEVERITY: dict[Level, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_MOST_KEPT = 1000


class _Event(NamedTuple):
    level: Level
    event: str
    facts: dict[str, object]


class EventLog:
    """Passes events of at least one level to a sink; keeps the last 1,000 while there is none."""

    def __init__(self) -> None:
        self._least = _SEVERITY["debug"]  # of the levels that are passed on
        self._sink: Sink | None = None
        self._kept: deque[_Event] = deque(maxlen=_MOST_KEPT)  # with their time, while there is no sink

    @property
    def is_configured(self) -> bool:
        """Events have a sink."""
        return self._sink is not None

    def configure(self, level: Level, sink: Sink | None) -> tuple[Level, Sink | None]:
        """Pass events of this level and above to a sink, kept events first; return the level and the sink before."""
        before = next(name for name, severity in _SEVERITY.items() if severity == self._least), self._sink
        self._least, self._sink = _SEVERITY[level], sink
        while sink is not None and self._kept:
            self._write(*self._kept.popleft())
        return before

    def debug(self, event: str, **facts: object) -> None:
        """Log a decision."""
        self._write("debug", event, facts)

    def info(self, event: str, **facts: object) -> None:
        """Log a change that is part of normal work."""
        self._write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Log a trouble that the daemon handled."""
        self._write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Log a failure."""
        self._write("error", event, facts)

    def _write(self, level: Level, event: str, facts: dict[str, object]) -> None:
        if self._sink is None:
            self._kept.append(_Event(level, event, facts | {"timestamp": timestamp()}))
        elif _SEVERITY[level] >= self._least:
            self._sink(level, event, facts)


log = EventLog()


def timestamp() -> str:
    """Return the time in UTC (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def printable(text: str) -> str:
    """Return a text without control characters: each becomes its escape, so that no line is forged."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def place_of(error: BaseException) -> str:
    """Return the module and line that raised an exception; `unknown` if it was never raised."""
    last = None
    for last in traceback.walk_tb(error.__traceback__):  # noqa: B007 - only the last frame is used
        pass
    return "unknown" if last is None else f"{last[0].f_globals.get('__name__')}:{last[1]}"


def named(error: BaseException) -> str:
    """Return the type of an exception and its place."""
    return f"{type(error).__name__} at {place_of(error)}"
