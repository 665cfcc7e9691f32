"""Capacity objects: the figures follow engines, leases, memory pressure and limits."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from car_daemon.methods.model_report import CapacityReport
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_protocol.capacity import Capacity
from car_protocol.limits import Limits
from tests.daemon.links import ready_of
from tests.daemon.scheduler.fakes import World

MODELS = ("m", "n")
ROOT = Path(__file__).parents[3]


class Reported:
    """A daemon's facts with their owners, and the report of them."""

    def __init__(self) -> None:
        self.world = World()
        settings = {name: ModelSettings(Path(name)) for name in MODELS}
        self.pool = ModelPool(settings, "m", on_change=lambda _: None)
        self.report = CapacityReport(self.world.scheduler, self.pool, Limits())

    def capacity(self, model: str = "m") -> Capacity:
        """Return what is reported of a model."""
        return self.report.of(self.pool.named(model))

    def load(self, model: str) -> None:
        """Start one more engine of a model."""
        self.pool.named(model).replicas[0].become("ready", ready=ready_of(sequences=2))
        self.world.start_engine(model)

    def lose(self, model: str) -> None:
        """Kill an engine of a model."""
        self.pool.named(model).replicas[0].become("loading")
        self.world.lose_engine(self.world.engines_of(model)[0])

    def press(self, model: str) -> None:
        """Let memory get short."""
        self.world.gate.pressure = "some"
        self.pool.capacity_changed()

    def limit(self, model: str) -> None:
        """Change the limits of the machine and of the queue."""
        self.world.gate.machine_limit = 1
        self.report.limits = structs.replace(self.report.limits, queue_limit=self.report.limits.queue_limit + 1)
        self.pool.capacity_changed()


@pytest.fixture
def reported() -> Reported:
    """A model that is served, and one that is not."""
    reported = Reported()
    reported.load("m")
    return reported


@pytest.mark.parametrize("happens", [Reported.load, Reported.lose, Reported.press, Reported.limit])
def test_an_event_changes_the_capacity(reported: Reported, happens: Callable[[Reported, str], None]) -> None:
    before = reported.capacity()
    happens(reported, "m")
    assert reported.capacity() != before


def test_pressure_leaves_part_of_the_declared_sequences(reported: Reported) -> None:
    reported.press("m")
    capacity = reported.capacity()
    assert (capacity.declared, capacity.capacity, capacity.pressure) == (2, 1, "some")


def test_an_engine_counts_once_the_gate_has_it() -> None:
    reported = Reported()
    reported.pool.default.replicas[0].become("ready", ready=ready_of(sequences=2))
    assert reported.capacity().declared is None
    reported.world.start_engine("m")
    assert reported.capacity().declared == 2


def test_leases_count_and_come_back(reported: Reported) -> None:
    idle = reported.capacity()
    reported.world.submit("m")
    assert reported.capacity().queued == 1
    engine = reported.world.engines_of("m")[0]
    reported.world.prepare_all(engine)
    assert (reported.capacity().in_use, reported.capacity().available) == (1, 1)
    assert (reported.capacity("n").in_use, reported.capacity("n").machine.in_use) == (0, 1)
    for key in list(engine.may_end):
        reported.world.end(engine, key)
    assert reported.capacity() == idle
