"""Ten thousand people: what they cost in memory, and an event among them in calls."""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from car_client.door.keys import KeyRing
from car_daemon.config.settings import Flags, load_config
from car_daemon.ledger.sums import Sums
from car_daemon.people.people import People, PersonTable
from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.backlog import QueueBounds
from tests.daemon.scheduler.fakes import World
from tests.pace import calls

MANY = 10_000
DOOR = 70_001


def table(number: int) -> PersonTable:
    return PersonTable(weight=2.0, tokens_per_day=1000, in_flight=4, key=sha256(str(number).encode()).hexdigest())


def test_a_person_of_ten_thousand_takes_a_kibibyte_of_the_daemon_with_two_apps_today(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    tables = (f"[people.person-{number}]\nweight = 2.0\nkey = '{table(number).key}'\n" for number in range(MANY))
    file.write_text("".join(tables))
    load_config(Flags(config=str(file)), {"HOME": str(tmp_path)})  # what is imported on first use is no person's
    gc.collect()
    tracemalloc.start()
    try:
        config = load_config(Flags(config=str(file)), {"HOME": str(tmp_path)})
        people, sums = People([DOOR], config.people), Sums(739_000)
        weights = people.weights()
        for number in range(MANY):
            name = people.identity(DOOR, f"person-{number}").name
            for app in ("editor", "chat"):
                sums.row(name, app, "a model").completed += 1
            sums.spend(name, 1000)
        sums.take()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(weights) >= MANY
    assert taken / MANY <= 1024


def cost(people: int) -> float:
    """Return the calls of the events of a request's life while each person has one that waits."""
    rounds = 60
    world = World(bounds=QueueBounds(limit=100_000))
    engine = world.start_engine(sequences=4)

    def submit(number: int) -> None:
        world.submit(client=(2**32 + number % people, "app"), process=1)
        world.prepare_all(engine)

    def live() -> None:
        for number in range(rounds):
            key = min(engine.running)
            world.advance(key, TURN)
            world.end(engine, key)
            submit(number)

    for number in range(people):
        submit(number)
    live()
    return calls(live) / rounds


def test_an_event_costs_the_logarithm_of_the_people_that_wait() -> None:
    few, many = cost(500), cost(MANY)
    # The logarithm grows to 1.5 times.
    assert many <= few * 1.6, (few, many)


def same(few: Callable[[], None], many: Callable[[], None]) -> bool:
    return calls(few) == calls(many)


def test_a_request_is_matched_with_its_person_in_as_many_calls_among_any_number(tmp_path: Path) -> None:
    crowds = [
        People([DOOR], {f"person-{number}": table(number) for number in range(number)}, spent=lambda _: 0)
        for number in (10, MANY)
    ]
    few, many = (_asking(people) for people in crowds)
    assert same(few, many)
    rings = []
    for number in (10, MANY):
        config = tmp_path / f"{number}.toml"
        config.write_text("".join(f"[people.p{each}]\nkey = '{table(each).key}'\n" for each in range(number)))
        (tmp_path / "keys").touch(mode=0o600)
        rings.append(KeyRing(tmp_path / "keys", config))
        assert len(rings[-1].keys()) == number

    def asked(ring: KeyRing) -> Callable[[], None]:
        def ask() -> None:
            found = ring.known().holder("7")
            assert found is not None
            assert found.person == "p7"

        ask()
        return ask

    assert same(*map(asked, rings))


def _asking(people: People) -> Callable[[], None]:
    def ask() -> None:
        people.identity(DOOR, "person-7")
        people.begin("person-7")
        people.is_background("person-7")
        people.end("person-7")

    ask()
    return ask


def test_sums_of_ten_thousand_people_are_added_to_in_as_many_calls_as_those_of_ten() -> None:
    crowds = [Sums(739_000), Sums(739_000)]
    for sums, number in zip(crowds, (10, MANY), strict=True):
        for each in range(number):
            sums.row(f"@{each}", "app", "m")
    few, many = ((lambda sums=sums: sums.row("@7", "app", "m")) for sums in crowds)
    assert same(few, many)
    assert sys.getprofile() is None
