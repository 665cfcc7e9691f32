"""Requests with images: they run where the images are encoded, and no sequence waits for the projector."""

from car_daemon.scheduler.request import State
from tests.daemon.scheduler.fakes import FakeEngine, World


def two_engines(world: World) -> tuple[FakeEngine, FakeEngine]:
    """Start two engines of one sequence each; return the one that prepares the next request, and the other."""
    one, two = world.start_engine(sequences=1), world.start_engine(sequences=1)
    key = world.submit().key
    first, second = (one, two) if key in one.preparing else (two, one)
    world.cancel(key)
    first.preparing.remove(key)
    return first, second


def test_of_two_free_engines_the_one_that_encoded_the_images_runs_the_request() -> None:
    world = World()
    one, two = world.start_engine(sequences=2), world.start_engine(sequences=4)
    request = world.submit()
    preparing, other = (one, two) if request.key in one.preparing else (two, one)
    for _ in range(1 if preparing is one else 3):
        # The other engine has more sequences free by now, and would be chosen for a text.
        busy = world.submit()
        world.prepare(one if busy.key in one.preparing else two, busy.key)
    world.prepare(preparing, request.key, images=True)
    assert request.key in preparing.running
    assert request.key not in other.running


def test_a_request_whose_engine_is_full_has_its_images_encoded_by_the_other_before_it_leases_a_sequence() -> None:
    world = World()
    first, second = two_engines(world)
    request = world.submit()
    assert request.key in first.preparing
    text = world.submit()
    world.prepare(first, text.key)
    assert text.key in first.running
    world.prepare(first, request.key, images=True)
    assert world.requests[request.key].state is State.PREPARING
    assert request.key in second.preparing
    assert world.gate.available("m") == 1
    # The free sequence serves others meanwhile.
    other = world.submit()
    world.prepare(first if other.key in first.preparing else second, other.key)
    assert other.key in second.running
    world.prepare(second, request.key, images=True)
    assert world.requests[request.key].state is State.WAITING
    world.end(second, other.key)
    assert request.key in second.running


def test_a_request_moves_once_and_runs_at_its_next_lease_wherever_that_is() -> None:
    world = World()
    first, second = two_engines(world)
    request, text = world.submit(), world.submit()
    world.prepare(first, text.key)
    world.prepare(first, request.key, images=True)
    assert request.key in second.preparing
    other = world.submit()
    world.prepare(first if other.key in first.preparing else second, other.key)
    world.prepare(second, request.key, images=True)
    world.end(first, text.key)
    assert request.key in first.running


def test_a_request_whose_engine_died_has_its_images_encoded_by_the_other_before_it_leases_a_sequence() -> None:
    world = World()
    first, second = two_engines(world)
    request = world.submit()
    world.prepare(first, request.key, images=True)
    assert request.key in first.running
    world.lose_engine(first)
    assert request.key in second.preparing
    assert world.gate.available("m") == 1
    world.prepare(second, request.key, images=True)
    assert request.key in second.running
    world.end(second, request.key)
    assert world.endings[request.key] == ["completed"]


def test_a_request_at_whose_images_a_second_engine_dies_is_not_tried_a_third_time() -> None:
    world = World()
    first, second = two_engines(world)
    request = world.submit()
    world.prepare(first, request.key, images=True)
    world.lose_engine(first)
    assert request.key in second.preparing
    world.start_engine(sequences=1)
    world.lose_engine(second)
    assert world.endings[request.key] == ["engine_lost"]


def test_a_request_that_ends_while_its_images_are_encoded_again_leaves_nothing() -> None:
    world = World()
    first, second = two_engines(world)
    request, text = world.submit(), world.submit()
    world.prepare(first, text.key)
    world.prepare(first, request.key, images=True)
    assert request.key in second.preparing
    world.cancel(request.key)
    world.end(first, text.key)
    assert world.gate.in_use == 0
    assert not world.scheduler.requests
    assert not world.scheduler.waiting.requests
    assert len(world.scheduler.backlog) == 0
