"""The division of the machine's cores between the engines that compute on them."""

from car_base.ipc.frames import SetThreads, SpareMemory
from car_daemon.engines.registry import EngineRegistry, ThreadDivision
from tests.daemon.links import Link, ready_of


def division_of(*threads: int, cores: int = 8) -> ThreadDivision:
    division = ThreadDivision(cores)
    for engine, count in enumerate(threads, start=1):
        division.add(engine, count)
    return division


def test_engines_that_are_busy_together_divide_the_threads() -> None:
    assert division_of(8, 8).divide([1, 2]) == {1: 4, 2: 4}


def test_remaining_cores_go_to_the_first_engines_and_each_has_at_least_one() -> None:
    assert division_of(8, 8, 8).divide([1, 2, 3]) == {1: 3, 2: 3, 3: 2}
    assert division_of(2, 2, 2).divide([1, 2, 3]) == {1: 1, 2: 1, 3: 1}


def test_an_engine_that_is_alone_again_gets_its_threads_back() -> None:
    division = division_of(8, 6)
    assert division.divide([1, 2]) == {1: 4, 2: 3}
    assert division.divide([1, 2]) == {}
    assert division.divide([2]) == {2: 6}
    assert division.divide([]) == {}
    assert division.divide([1]) == {1: 8}


def test_an_engine_of_one_thread_keeps_it() -> None:
    assert division_of(1, 2).divide([1, 2]) == {2: 1}


def test_the_only_engine_on_a_quiet_machine_gets_no_frame() -> None:
    division = division_of(8, 8)
    division.remove(2)
    assert division.divide([1]) == {}


def test_an_engine_whose_neighbour_died_gets_its_threads_back() -> None:
    division = division_of(8, 8)
    division.divide([1, 2])
    division.remove(2)
    assert division.divide([1]) == {1: 8}


def test_an_engine_leaves_the_cores_to_other_programs_that_they_take() -> None:
    division = division_of(8)
    division.foreign = 3
    assert division.divide([1]) == {1: 5}
    division.foreign = 20
    assert division.divide([1]) == {1: 1}
    division.foreign = 0
    assert division.divide([1]) == {1: 8}


def test_an_engine_of_few_threads_needs_not_leave_any_where_there_are_cores_enough() -> None:
    division = division_of(4, cores=16)
    division.foreign = 12
    assert division.divide([1]) == {}


def test_more_threads_than_cores_are_kept_where_they_were_asked_for() -> None:
    assert division_of(8, cores=2).divide([1]) == {}


def test_engines_divide_what_others_leave() -> None:
    division = division_of(8, 8)
    division.foreign = 3
    assert division.divide([1, 2]) == {1: 3, 2: 2}


def test_engines_on_a_gpu_take_no_part() -> None:
    registry, links = EngineRegistry(8), [Link(), Link(), Link()]
    for number, (link, device) in enumerate(zip(links, ("cpu", "gpu", "cpu"), strict=True), start=1):
        ready = ready_of(device=device, threads=4)
        registry.joined(number, link, ready)
    registry.divide_cores([1, 2, 3])
    assert [link.sent for link in links] == [[SetThreads(2)], [], [SetThreads(2)]]


def test_an_engine_is_notified_at_once_of_cores_in_use_and_of_free_ones() -> None:
    registry, link = EngineRegistry(2), Link()
    ready = ready_of(threads=2)
    registry.joined(1, link, ready)
    registry.leave_cores(1, [1])
    registry.leave_cores(0, [])
    registry.divide_cores([1])
    assert link.sent == [SetThreads(1), SetThreads(2)]


def test_the_same_busy_engines_in_another_order_keep_their_threads() -> None:
    registry, links = EngineRegistry(3), [Link(), Link()]
    for number, link in enumerate(links, start=1):
        registry.joined(number, link, ready_of(threads=3))
    for busy in ([1, 2], [2, 1], [1, 2]):
        registry.divide_cores(busy)
    assert [link.sent for link in links] == [[SetThreads(2)], [SetThreads(1)]]


def test_cores_are_divided_again_after_an_engine_joined_though_the_busy_ones_are_the_same() -> None:
    registry, first, second = EngineRegistry(4), Link(), Link()
    registry.joined(1, first, ready_of(threads=4))
    registry.divide_cores([1, 2])
    registry.joined(2, second, ready_of(threads=4))
    registry.divide_cores([1, 2])
    assert (first.sent, second.sent) == ([SetThreads(2)], [SetThreads(2)])


def test_an_engine_that_is_gone_is_sent_nothing() -> None:
    registry, link = EngineRegistry(8), Link()
    registry.joined(
        1,
        link,
        ready_of(),
    )
    registry.left(1)
    registry.send(1, SetThreads(1))
    registry.send(None, SetThreads(1))
    assert link.sent == []


def test_the_engines_of_a_machine_that_is_short_of_memory_give_it_back_once_and_have_it_again() -> None:
    registry, here, away = EngineRegistry(8), Link(), Link()
    away.host = "10.0.0.2"
    for number, link in enumerate((here, away), start=1):
        registry.joined(number, link, ready_of(device="gpu"))
    for short in ([None], [None], ["10.0.0.2"], []):
        registry.spare_memory(short)
    assert here.sent == [SpareMemory(True), SpareMemory(False)]
    assert away.sent == [SpareMemory(True), SpareMemory(False)]


def test_an_engine_that_joins_a_machine_that_is_short_of_memory_gives_it_back_too() -> None:
    registry, link = EngineRegistry(8), Link()
    registry.spare_memory([None])
    registry.joined(1, link, ready_of(device="gpu"))
    registry.spare_memory([None])
    registry.left(1)
    registry.joined(1, link, ready_of(device="gpu"))
    registry.spare_memory([None])
    assert link.sent == [SpareMemory(True), SpareMemory(True)]
