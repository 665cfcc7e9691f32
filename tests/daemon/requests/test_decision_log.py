"""Scheduling decisions in the debug log."""

import pytest

from car_base.host.event_log import Level
from car_daemon.requests.inference import sink_at
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Decisions, Request, RequestSpec
from car_daemon.scheduler.scheduler import Scheduler
from tests.daemon.captured_log import capture_logs


def test_a_decision_is_a_debug_event_with_its_request_and_its_reason_and_nothing_a_client_chose() -> None:
    decisions = Decisions(sink_at("debug"))
    scheduler = Scheduler(Gate(decisions=decisions), decisions=decisions)
    spec = RequestSpec(key=7, model="m", arrived=0.0, wait=False, client=(0, "label"), session=(0, "session"))
    with capture_logs() as logs:
        scheduler.submit(Request(spec), 0.0)
    facts = {"key": 7, "model": "m", "class": "latency_critical", "why": "no free sequence", "engine": None}
    assert logs == [{"event": "schedule.refuse", "log_level": "debug", **facts}]


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_at_other_levels_nothing_is_formatted(level: Level) -> None:
    assert sink_at(level) is None
