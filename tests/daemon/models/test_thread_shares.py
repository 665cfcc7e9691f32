"""The threads of the machine between the engines that compute on it."""

from car_daemon.engine.frames import Share
from car_daemon.models.fleet import Fleet
from car_daemon.models.thread_shares import ThreadShares
from tests.daemon.links import Link, ready_of


def shares_of(*threads: int, cores: int = 8) -> ThreadShares:
    shares = ThreadShares(cores)
    for engine, count in enumerate(threads, start=1):
        shares.joined(engine, count)
    return shares


def test_engines_that_are_busy_together_divide_the_threads() -> None:
    assert shares_of(8, 8).divide([1, 2]) == {1: 4, 2: 4}


def test_what_is_left_over_goes_to_the_first_ones_and_everybody_has_one() -> None:
    assert shares_of(8, 8, 8).divide([1, 2, 3]) == {1: 3, 2: 3, 3: 2}
    assert shares_of(2, 2, 2).divide([1, 2, 3]) == {1: 1, 2: 1, 3: 1}


def test_an_engine_that_is_alone_again_gets_its_threads_back() -> None:
    shares = shares_of(8, 6)
    assert shares.divide([1, 2]) == {1: 4, 2: 3}
    assert shares.divide([1, 2]) == {}
    assert shares.divide([2]) == {2: 6}
    assert shares.divide([]) == {}
    assert shares.divide([1]) == {1: 8}


def test_an_engine_of_one_thread_keeps_it() -> None:
    assert shares_of(1, 2).divide([1, 2]) == {2: 1}


def test_the_only_engine_on_a_quiet_machine_is_never_told_anything() -> None:
    shares = shares_of(8, 8)
    shares.left(2)
    assert shares.divide([1]) == {}


def test_an_engine_whose_neighbour_died_gets_its_threads_back() -> None:
    shares = shares_of(8, 8)
    shares.divide([1, 2])
    shares.left(2)
    assert shares.divide([1]) == {1: 8}


def test_an_engine_leaves_the_cores_to_other_programs_that_they_take() -> None:
    shares = shares_of(8)
    shares.taken = 3
    assert shares.divide([1]) == {1: 5}
    shares.taken = 20
    assert shares.divide([1]) == {1: 1}
    shares.taken = 0
    assert shares.divide([1]) == {1: 8}


def test_an_engine_of_few_threads_needs_not_leave_any_where_there_are_cores_enough() -> None:
    shares = shares_of(4, cores=16)
    shares.taken = 12
    assert shares.divide([1]) == {}


def test_more_threads_than_cores_are_kept_where_they_were_asked_for() -> None:
    assert shares_of(8, cores=2).divide([1]) == {}


def test_engines_divide_what_others_leave() -> None:
    shares = shares_of(8, 8)
    shares.taken = 3
    assert shares.divide([1, 2]) == {1: 3, 2: 2}


def test_engines_on_a_gpu_take_no_part() -> None:
    fleet, links = Fleet(8), [Link(), Link(), Link()]
    for number, (link, device) in enumerate(zip(links, ("cpu", "gpu", "cpu"), strict=True), start=1):
        ready = ready_of(device=device, threads=4)
        fleet.joined(number, link, ready)
    fleet.divide_cores([1, 2, 3])
    assert [link.sent for link in links] == [[Share(2)], [], [Share(2)]]


def test_an_engine_hears_at_once_of_cores_that_are_taken_and_of_those_that_are_free_again() -> None:
    fleet, link = Fleet(2), Link()
    ready = ready_of(threads=2)
    fleet.joined(1, link, ready)
    fleet.cores_taken(1, [1])
    fleet.cores_taken(0, [])
    fleet.divide_cores([1])
    assert link.sent == [Share(1), Share(2)]


def test_an_engine_that_is_gone_is_sent_nothing() -> None:
    fleet, link = Fleet(8), Link()
    fleet.joined(
        1,
        link,
        ready_of(),
    )
    fleet.left(1)
    fleet.send(1, Share(1))
    fleet.send(None, Share(1))
    assert link.sent == []
