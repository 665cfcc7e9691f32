"""What the daemon says of its capacity: one answer serves an idle model until something changes."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from car_daemon.inference import Inference
from car_daemon.memory import read_memory
from car_daemon.models.entry import ModelSettings
from car_daemon.models.pool import ModelPool
from car_daemon.reports import Reports
from car_protocol.capacity import Capacity
from car_protocol.limits import Limits
from tests.daemon.links import ready_of
from tests.daemon.scheduler.fakes import World

MODELS = ("m", "n")


class Told:
    """A daemon's facts with their owners, and two who report them: one for all its life, one without a past."""

    def __init__(self) -> None:
        self.world = World()
        settings = {name: ModelSettings(Path(name)) for name in MODELS}
        self.pool = ModelPool(settings, "m", on_change=lambda _: None)
        self.reports = self.new_reports(Limits())

    def new_reports(self, limits: Limits) -> Reports:
        """Return one who has reported nothing so far."""
        scheduler = self.world.scheduler
        inference = Inference(scheduler, self.pool, clock=lambda: 0.0, arrived=lambda _: None, left=lambda _: None)
        return Reports(
            scheduler,
            self.pool,
            inference,
            limits,
            clients=list,
            loop_lag_ms=lambda: 0.0,
            socket="",
            read_memory=read_memory,
            clock=lambda: 0.0,
        )

    def capacity(self, model: str = "m") -> Capacity:
        """Return what is reported of a model, which has to be what is true now."""
        entry = self.pool.named(model)
        reported = self.reports.capacity(entry)
        assert reported == self.new_reports(self.reports.limits).capacity(entry)
        return reported

    # What happens to it.

    def load(self, model: str) -> None:
        """Have another engine of a model come up."""
        self.pool.named(model).replicas[0].become("ready", ready=ready_of(sequences=2))
        self.world.start_engine(model)

    def lose(self, model: str) -> None:
        """Have an engine of a model die."""
        if engine := self.world.engine_of(model):
            self.pool.named(model).replicas[0].become("loading")
            self.world.lose_engine(engine)

    def submit(self, model: str) -> None:
        """Have somebody ask it."""
        self.world.submit(model)

    def prepare(self, model: str) -> None:
        """Have its prompts prepared, and what can start."""
        for engine in self.world.engines_of(model):
            self.world.prepare_all(engine)

    def end(self, model: str) -> None:
        """Have its requests end that run."""
        for engine in self.world.engines_of(model):
            for key in engine.may_end:
                self.world.end(engine, key)

    def press(self, model: str) -> None:
        """Have memory get short, or free again."""
        gate = self.world.gate
        gate.pressure = "none" if gate.pressure == "some" else "some"
        self.pool.capacity_changed()

    def limit(self, model: str) -> None:
        """Have the machine and the queue limited otherwise."""
        self.world.gate.machine_limit = 1 if self.world.gate.machine_limit is None else None
        limits = self.reports.limits
        self.reports.limits = structs.replace(limits, queue_limit=limits.queue_limit + 1)
        self.pool.capacity_changed()


@pytest.fixture
def told() -> Told:
    """A model that is served, and one that is not."""
    told = Told()
    told.load("m")
    return told


def test_an_idle_model_is_described_once(told: Told) -> None:
    assert told.capacity() is told.capacity()


@pytest.mark.parametrize("happens", [Told.load, Told.lose, Told.press, Told.limit])
def test_what_changes_an_idle_model_changes_its_capacity(told: Told, happens: Callable[[Told, str], None]) -> None:
    before = told.capacity()
    happens(told, "m")
    assert told.capacity() != before


def test_an_engine_that_the_gate_hears_of_later_changes_it_once_more() -> None:
    told = Told()
    told.pool.default.replicas[0].become("ready", ready=ready_of(sequences=2))
    assert told.capacity().declared is None
    told.world.start_engine("m")
    assert told.capacity().declared == 2


def test_leases_count_and_come_back(told: Told) -> None:
    idle = told.capacity()
    told.submit("m")
    assert told.capacity().queued == 1
    told.prepare("m")
    assert (told.capacity().in_use, told.capacity("n").machine.in_use) == (1, 1)
    told.end("m")
    assert told.capacity() == idle


@pytest.mark.parametrize("seed", range(20))
def test_what_is_reported_is_true_whatever_happens(told: Told, seed: int) -> None:
    random = Random(seed)
    events = [told.load, told.lose, told.submit, told.submit, told.prepare, told.end, told.end, told.press, told.limit]
    for _ in range(100):
        random.choice(events)(random.choice(MODELS))
        for model in MODELS:
            told.capacity(model)
