"""Reports to a service manager, and the conditions under which the watchdog's ping is left out."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from car_base.host.timers import Periodic
from car_daemon.lifecycle.readiness import Notifier, Readiness, ServiceReport
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import ReplicaState
from car_daemon.models.settings import ModelSettings
from tests.daemon.links import ready_of
from tests.pace import HANG_S

READY = ready_of(sequences=4, kv_bytes=1)


def entry() -> ModelEntry:
    """Return a model that is not loaded yet."""
    return ModelEntry("guide", ModelSettings(Path("guide.gguf")), default=True, on_change=lambda _: None)


class Heard(Notifier):
    """Keeps the messages that it would send."""

    def __init__(self, watchdog_s: float | None = None) -> None:
        super().__init__(None, watchdog_s)
        self.messages: list[str] = []

    def _send(self, *fields: str) -> None:
        self.messages.append("\n".join(fields))


@contextmanager
def reporting(report: ServiceReport) -> Iterator[None]:
    """Report for the length of a block."""
    report.start()
    try:
        yield
    finally:
        report.stop()


async def test_a_model_that_loads_gets_more_time_and_ready_comes_once_it_decodes() -> None:
    heard, model = Heard(), entry()
    report = ServiceReport(heard, only(model), lambda: None)
    model.replicas[0].become("loading")
    model.replicas[0].advance(0.5)
    with reporting(report):
        assert heard.messages == ["STATUS=loading guide: 50%", "EXTEND_TIMEOUT_USEC=60000000", "WATCHDOG=1"]
        heard.messages.clear()
        model.replicas[0].become("ready", ready=READY)
        report.changed()
        report.changed()
        assert heard.messages == ["READY=1", "STATUS=serving guide on cpu, 4 at once"]


async def test_a_restarted_engine_sends_no_second_ready() -> None:
    heard, model = Heard(), entry()
    report = ServiceReport(heard, only(model), lambda: None)
    for ready in (READY, None, READY):
        model.replicas[0].become("loading" if ready is None else "ready", ready=ready)
        report.changed()
    assert heard.messages.count("READY=1") == 1


async def test_the_end_of_a_reload_is_reported_even_if_it_fails() -> None:
    heard, model = Heard(), entry()
    report = ServiceReport(heard, only(model), lambda: None)
    with report.reloading():
        pass
    assert heard.messages == []
    model.replicas[0].become("ready", ready=READY)
    report.changed()
    heard.messages.clear()
    with pytest.raises(KeyError), report.reloading():
        raise KeyError
    assert [message.split("\n")[0] for message in heard.messages] == ["RELOADING=1", "READY=1"]


async def test_a_drain_extends_the_timeout_by_its_length_and_is_the_last_report() -> None:
    heard, model = Heard(), entry()
    report = ServiceReport(heard, only(model), lambda: None)
    report.draining(31)
    model.replicas[0].become("ready", ready=READY)
    report.changed()
    assert heard.messages == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=31000000", "STATUS=draining"]


async def test_four_pings_fall_into_the_watchdogs_timeout() -> None:
    pings, quarters = 0, 0
    enough = asyncio.Event()

    def well() -> None:
        nonlocal pings
        pings += 1
        if pings == 9:
            enough.set()

    def quarter() -> None:
        nonlocal quarters
        quarters += 1

    beside = Periodic(0.2 / 4, quarter)
    beside.start()
    with reporting(ServiceReport(Heard(watchdog_s=0.2), only(entry()), well)):
        await asyncio.wait_for(enough.wait(), HANG_S)
    beside.stop()
    assert 7 <= quarters <= 11


async def test_a_daemon_that_does_not_work_sends_no_ping() -> None:
    heard = Heard()
    with reporting(ServiceReport(heard, only(entry()), lambda: "the event loop is late")):
        assert "WATCHDOG=1" not in heard.messages


def only(model: ModelEntry) -> Callable[[], ModelEntry]:
    """Return the source of the default model."""
    return lambda: model


def health(model: ModelEntry, lag_ms: float = 0.0, now: float = 100.0) -> Readiness:
    """Return the health of a daemon at a time."""
    return Readiness(only(model), lambda: lag_ms, lambda: now)


Age = Callable[[ModelEntry], None]


@pytest.mark.parametrize(
    ("state", "heard_at", "lag_ms", "expected"),
    [
        ("ready", 99.0, 999.0, None),
        ("ready", 99.0, 1000.0, "the event loop is late"),
        ("ready", 89.0, 0.0, "no heartbeat of the engine"),
        ("loading", 89.0, 0.0, None),
        ("failed", 0.0, 0.0, None),
    ],
)
def test_the_daemon_is_healthy_while_its_loop_is_on_time_and_its_engine_sends_heartbeats(
    state: ReplicaState, heard_at: float, lag_ms: float, expected: str | None
) -> None:
    model = entry()
    replica = model.replicas[0]
    replica.become(state, ready=READY if state == "ready" else None)
    replica.counters.update(heard_at, {})
    assert health(model, lag_ms).fault() == expected


def test_an_engine_that_has_just_become_ready_is_not_missed() -> None:
    model = entry()
    model.replicas[0].become("ready", ready=READY)
    assert health(model).fault() is None


def test_a_notifier_without_an_address_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise AssertionError

    monkeypatch.setattr(socket, "socket", refuse)
    Notifier(None).ready()
