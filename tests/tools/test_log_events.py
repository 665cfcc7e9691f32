"""The page of log events has every event that the code logs, and no other."""

from tools.reference.log_events import MEANINGS, logged


def test_every_event_of_the_log_has_one_meaning_and_every_meaning_an_event() -> None:
    named = [name for names in MEANINGS for name in names.split(", ")]
    assert sorted(named) == sorted({event for event, _ in logged()})
