"""Seats in use: the nodes and the content that they leave the next order, and the wave after a mass loss."""

from itertools import count

import pytest

from car_base.ipc.placing import Node, Place, Placed
from car_daemon.cluster.seats import AVOID_S, MASS_LOSS, Seats
from car_daemon.engines.link import NoPlace
from car_daemon.models.settings import Spread

_numbers = count(1)


def order(model: str = "m", content: str | None = None) -> Place:
    return Place(number=0, model=model, path="/m", content=content)


def seat(node: str, content: str = "c") -> Placed:
    return Placed(
        number=next(_numbers), node=node, address=f"10.0.0.{node}", port=1, pair=b"", path="/m", content=content
    )


@pytest.mark.parametrize(
    ("spread", "apart", "first", "last"),
    [(True, [], [], ["1", "2"]), ("strict", ["1", "2"], [], []), (False, [], ["1", "2", "3"], [])],
)
def test_an_engine_goes_anywhere_to_a_node_of_its_own_or_to_one_in_use(
    spread: Spread, apart: list[str], first: list[str], last: list[str]
) -> None:
    seats = Seats()
    for model, node in (("m", "1"), ("m", "2"), ("other", "3")):
        seats.open(model, seat(node), 0.0)
    restricted = seats.restrict(order(), spread, 0.0)
    assert (restricted.apart, restricted.first, restricted.last) == (apart, first, last)
    assert restricted.spread is bool(spread)


def test_a_node_that_was_lost_is_avoided_for_a_minute() -> None:
    seats = Seats()
    seats.open("m", seat("1"), 0.0)
    seats.avoid("1", "its connection was lost", 10.0)
    assert seats.restrict(order(), False, 10.0 + AVOID_S - 1).avoid == ["1"]
    assert seats.restrict(order(), False, 10.0 + AVOID_S - 1).first == []
    assert seats.restrict(order(), False, 10.0 + AVOID_S).avoid == []
    assert seats.avoided(10.0 + AVOID_S) == {}


def test_the_content_of_engines_that_are_up_comes_before_that_of_the_daemon_s_copy() -> None:
    seats = Seats()
    assert seats.restrict(order(content="mine"), True, 0.0).content == "mine"
    up = seat("1", "theirs")
    seats.open("m", up, 0.0)
    assert seats.restrict(order(content="mine"), True, 0.0).content == "theirs"
    assert seats.restrict(order("other"), True, 0.0).content is None
    seats.close(up.number, 0.0)
    assert seats.restrict(order(content="mine"), True, 0.0).content == "mine"


def test_two_engines_that_were_placed_at_once_never_serve_different_files() -> None:
    seats = Seats()
    seats.open("m", seat("1", "a"), 0.0)
    with pytest.raises(NoPlace, match=r"/m on 10\.0\.0\.2 is not the file that 10\.0\.0\.1 has: copy it there"):
        seats.open("m", seat("2", "b"), 0.0)
    assert seats.restrict(order(), True, 0.0).avoid == ["2"]
    assert seats.engines_on(Node("1", "", True, 1.0, 0.0)) == 1
    seats.open("other", seat("2", "b"), 0.0)


def lose(seats: Seats, engines: int, now: float) -> None:
    lost = [seat("1") for _ in range(engines)]
    for each in lost:
        seats.open("m", each, now)
    for each in lost:
        seats.close(each.number, now, lost=True)


def test_after_a_mass_loss_placements_follow_each_other_by_a_second() -> None:
    seats = Seats()
    lose(seats, MASS_LOSS, 100.0)
    assert [seats.pause_s(100.0) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert seats.pause_s(110.0) == 0.0
    assert [seats.pause_s(100.0 + AVOID_S + 1) for _ in range(3)] == [0.0] * 3


def test_fewer_losses_and_engines_that_ended_by_themselves_cost_no_pause() -> None:
    seats = Seats()
    lose(seats, MASS_LOSS - 1, 100.0)
    ended = seat("1")
    seats.open("m", ended, 100.0)
    seats.close(ended.number, 100.0)
    seats.close(ended.number, 100.0, lost=True)
    assert [seats.pause_s(100.0) for _ in range(3)] == [0.0] * 3
