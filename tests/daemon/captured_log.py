"""The daemon's log as a list, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from car_base.host.event_log import Level, log


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Yield a list to which every event within the block is added, with its level as `log_level`."""
    entries: list[dict[str, Any]] = []

    def keep(level: Level, event: str, facts: dict[str, object]) -> None:
        entries.append({**facts, "event": event, "log_level": level})

    before = log.configure("debug", lambda *_: None)  # events of earlier tests, kept while there was no sink, end here
    log.configure("debug", keep)
    try:
        yield entries
    finally:
        log.configure(*before)
