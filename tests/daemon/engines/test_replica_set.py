"""A model of several replicas: its state and its devices while its engines come and go."""

from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from car_daemon.engines.supervisor import EngineSupervisor, ReplicaSet
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica
from car_daemon.models.settings import ModelSettings, Place
from tests.daemon.links import ready_of

READY = ready_of(context_tokens=512, kv_bytes=1)
SETTINGS = ModelSettings(Path("m"), devices=("cpu", "gpu0"))


class Supervised:
    """Keeps its calls."""

    def __init__(self, entry: ModelEntry, replica: Replica) -> None:
        self.replica = replica
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def restart(self) -> None:
        self.calls.append("restart")

    async def stop(self) -> None:
        self.calls.append("stop")


class World:
    """One model with a replica on each of two devices."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.entry = ModelEntry(
            "m", SETTINGS, default=False, on_change=lambda entry: self.states.append(entry.state), on_progress=self.note
        )
        self.noted: list[float] = []
        self.supervised: list[Supervised] = []
        self.replica_set = ReplicaSet(self.entry, self.supervise)

    def note(self, entry: ModelEntry) -> None:
        self.noted.append(entry.replicas.progress)

    def supervise(self, entry: ModelEntry, replica: Replica) -> EngineSupervisor:
        self.supervised.append(Supervised(entry, replica))
        return cast(EngineSupervisor, self.supervised[-1])


def state_of(entry: ModelEntry) -> str:
    return entry.state


def test_a_model_is_served_from_its_first_replica_to_its_last() -> None:
    entry = World().entry
    first, second = entry.replicas
    for replica in entry.replicas:
        replica.become("loading")
    assert state_of(entry) == "loading"
    second.become("ready", ready=READY)
    assert state_of(entry) == "ready"
    first.become("ready", ready=READY)
    second.become("loading")
    assert state_of(entry) == "ready"
    first.become("loading")
    assert state_of(entry) == "loading"


def test_a_model_fails_with_its_last_replica_and_says_why() -> None:
    entry = World().entry
    first, second = entry.replicas
    for replica in entry.replicas:
        replica.become("loading")
    second.become("failed", reason="a fixed text")
    assert (entry.state, entry.replicas.devices, entry.replicas.device) == ("loading", ["cpu"], "cpu+gpu0")
    assert (entry.is_on("cpu"), entry.is_on("gpu"), entry.is_on(None)) == (True, False, True)
    first.become("failed", reason="another one")
    assert (entry.state, entry.reason) == ("failed", "another one")
    # A request for it has it tried again, on any of its devices.
    assert (entry.is_on(None), entry.is_on("gpu"), entry.is_on("tpu")) == (True, True, False)


def test_until_it_is_loaded_again_a_model_is_on_the_devices_that_are_configured_now() -> None:
    entry = World().entry
    entry.configured = ModelSettings(Path("m"), devices=("gpu1",))
    assert (entry.is_on("gpu1"), entry.is_on("cpu")) == (True, False)
    entry.replicas[0].become("ready", ready=READY)
    assert (entry.is_on("gpu1"), entry.is_on("cpu")) == (False, True)
    entry.become("draining")
    assert (entry.is_on("gpu1"), entry.is_on("cpu")) == (True, False)


def test_every_replica_that_comes_or_goes_is_a_change_of_the_capacity() -> None:
    world = World()
    for replica in world.entry.replicas:
        before = world.entry.generation
        replica.become("ready", ready=READY)
        assert world.entry.generation == before + 1


def test_a_model_that_drains_stays_so_while_one_of_its_replicas_is_up() -> None:
    entry = World().entry
    first, second = entry.replicas
    for replica in entry.replicas:
        replica.become("ready", ready=READY)
    entry.become("draining")
    first.become("loading")
    assert state_of(entry) == "draining"
    second.become("loading")
    assert state_of(entry) == "loading"


def test_what_is_told_of_a_model_is_what_its_longest_context_holds() -> None:
    entry = World().entry
    first, second = entry.replicas
    assert entry.replicas.ready is None
    first.become("ready", ready=READY)
    second.become("ready", ready=structs.replace(READY, context_tokens=256))
    assert entry.replicas.ready is not None
    assert entry.replicas.ready.context_tokens == READY.context_tokens


def test_the_progress_of_a_load_is_that_of_all_replicas() -> None:
    world = World()
    first, second = world.entry.replicas
    first.advance(0.5)
    second.advance(1.0)
    assert world.noted == [0.25, 0.75]


async def test_all_replicas_are_started_and_stopped_together_and_keep_their_supervisors() -> None:
    world = World()
    for _ in range(2):
        world.replica_set.start()
        await world.replica_set.stop()
    assert [each.calls for each in world.supervised] == [["start", "stop"] * 2] * 2


async def test_other_devices_or_numbers_of_replicas_hold_from_the_next_load_on() -> None:
    world = World()
    world.replica_set.start()
    world.entry.configured = structs.replace(SETTINGS, devices=("cpu",), replicas=3)
    assert world.entry.replicas.device == "cpu+gpu0"
    await world.replica_set.stop()
    world.replica_set.start()
    assert [replica.device for replica in world.entry.replicas] == ["cpu"] * 3
    assert [each.calls for each in world.supervised] == [["start", "stop"]] * 2 + [["start"]] * 3


def test_a_replica_that_begins_another_life_beside_others_keeps_what_it_was_loaded_with() -> None:
    entry = World().entry
    first, second = entry.replicas
    entry.configured = structs.replace(SETTINGS, threads=7)
    second.become("ready", ready=READY)
    entry.refresh(first)
    assert entry.settings.threads is None
    second.become("failed", reason="a fixed text")
    entry.refresh(first)
    assert entry.settings.threads == 7


@pytest.mark.parametrize(
    ("place", "replicas", "further", "grown"),
    [("ray", 5, {}, 3), ("ray", 1, {}, 0), ("ray", 5, {"threads": 2}, 0), ("here", 5, {}, 0)],
)
def test_a_model_on_a_cluster_gets_further_engines_while_it_is_served(
    place: Place, replicas: int, further: dict[str, int], grown: int
) -> None:
    world = World()
    world.entry.configured = before = ModelSettings(Path("m"), place=place, replicas=2)
    world.replica_set.start()
    world.entry.configured = structs.replace(before, replicas=replicas, **further)
    world.replica_set.grow()
    world.replica_set.grow()
    assert [each.calls for each in world.supervised] == [["start"]] * (2 + grown)
    assert (len(world.entry.replicas), world.entry.settings.replicas) == (2 + grown, 2 + grown)
    assert all(replica.placed == (place == "ray") for replica in world.entry.replicas)
