"""A client that sends one short request after another beside a flood of longer ones, step by step."""

import pytest

from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.request import Request, State
from tests.daemon.scheduler.fakes import PROMPT_TOKENS, World

SEQUENCES = 8
LONG, SHORT = 60, 8  # tokens of an answer
POLITE, FLOOD = (7, 70, "polite"), (7, 70, "flood")
OTHER_USER = (8, 80, "flood")


class Steps:
    """An engine whose steps give each running request a token and then carry out the parkings."""

    def __init__(self, flood: tuple[int, int, str], weights: dict[int, float] | None = None) -> None:
        self.world = World(bounds=QueueBounds(limit=1000))
        self.world.scheduler.set_weights(weights or {})
        self.engine = self.world.start_engine(sequences=SEQUENCES)
        self.lengths: dict[int, int] = {}
        self.floods = [self.submit(flood, LONG) for _ in range(64)]

    def submit(self, sibling: tuple[int, int, str], tokens: int, *, decides: bool = False) -> Request:
        uid, process, label = sibling
        request = self.world.submit(client=(uid, label), process=process, decides=decides)
        self.lengths[request.key] = tokens
        self.world.prepare(self.engine, request.key)
        return request

    def step(self) -> None:
        for key in sorted(self.engine.running):
            self.world.advance(key)
            if self.world.requests[key].produced == self.lengths[key]:
                self.world.end(self.engine, key)
        self.world.pass_step()
        for key in sorted(self.engine.to_park):
            self.world.set_aside(self.engine, key)

    def wait_of(self, request: Request) -> int:
        """Return the steps until a request runs, which then runs to its end."""
        waited = 0
        while request.state is State.WAITING:
            self.step()
            waited += 1
        while request.state is not State.ENDED:
            self.step()
        return waited

    def served(self, request: Request) -> int:
        return PROMPT_TOKENS + request.produced if request.leased_at is not None else 0

    @property
    def flood_ended(self) -> bool:
        return self.floods[-1].state is State.ENDED


@pytest.mark.parametrize("flood", [FLOOD, (7, 71, "flood"), OTHER_USER])
def test_no_short_request_of_a_client_waits_longer_than_a_parking_beside_a_flood(flood: tuple[int, int, str]) -> None:
    steps = Steps(flood)
    waits = []
    while not steps.flood_ended:
        waits.append(steps.wait_of(steps.submit(POLITE, SHORT)))
    assert len(waits) > 40
    assert max(waits) <= 2, waits


def test_a_decision_waits_for_no_answer_of_its_own_label() -> None:
    steps = Steps(FLOOD)
    waits = []
    while not steps.flood_ended:
        waits.append(steps.wait_of(steps.submit(FLOOD, SHORT, decides=True)))
    assert len(waits) > 40
    assert max(waits) <= 2, waits


def test_parkings_give_a_client_no_more_than_its_weight() -> None:
    weight = 50.0
    steps = Steps(OTHER_USER, {OTHER_USER[0]: weight})
    polite = []
    # Later leases take nothing from the flood.
    while any(each.state is State.WAITING for each in steps.floods):
        polite.append(steps.submit(POLITE, SHORT))
        steps.wait_of(polite[-1])
    short, long = (sum(map(steps.served, each)) for each in (polite, steps.floods))
    most = max(map(steps.served, steps.floods))
    assert short - long / weight <= (SEQUENCES + 1) * most / weight + PROMPT_TOKENS + SHORT + TURN
