"""The events of the log: which are passed on, and what becomes of the early ones."""

from typing import Any

import pytest

from car_base.host.event_log import EventLog, Level


@pytest.mark.parametrize(("least", "events"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_events_below_the_level_are_left_out(least: Level, events: int) -> None:
    written: list[str] = []
    log = EventLog()
    log.configure(least, lambda _level, event, _facts: written.append(event))
    for write in (log.debug, log.info, log.warning, log.error):
        write("x")
    assert len(written) == events


def test_early_events_are_passed_on_in_order_with_the_time_at_which_they_came() -> None:
    log = EventLog()
    assert not log.is_configured
    log.debug("first")
    log.info("second", model="m")
    log.error("third")
    passed: list[tuple[str, dict[str, Any]]] = []
    log.configure("info", lambda _level, event, facts: passed.append((event, facts)))
    assert [event for event, _ in passed] == ["second", "third"]
    assert passed[0][1]["model"] == "m"
    assert passed[0][1]["timestamp"] <= passed[1][1]["timestamp"]
    log.info("later")
    assert passed[-1] == ("later", {})


def test_of_many_early_events_the_last_ones_are_kept() -> None:
    log = EventLog()
    for number in range(1001):
        log.info("x", number=number)
    passed: list[object] = []
    log.configure("debug", lambda _level, _event, facts: passed.append(facts["number"]))
    assert passed == list(range(1, 1001))
