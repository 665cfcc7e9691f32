"""The states of a request and the moves between them."""

import pytest

from car_daemon.scheduler.request import MOVES, IllegalMove, Request, RequestSpec, State

LEGAL = [
    (State.ACCEPTED, State.PREPARING),
    (State.ACCEPTED, State.ENDED),
    (State.PREPARING, State.WAITING),
    (State.PREPARING, State.ACCEPTED),
    (State.PREPARING, State.ENDED),
    (State.WAITING, State.RUNNING),
    (State.WAITING, State.ACCEPTED),
    (State.WAITING, State.ENDED),
    (State.RUNNING, State.WAITING),
    (State.RUNNING, State.PARKED),
    (State.RUNNING, State.ENDED),
    (State.PARKED, State.RUNNING),
    (State.PARKED, State.WAITING),
    (State.PARKED, State.ENDED),
]
ILLEGAL = [(before, after) for before in State for after in State if (before, after) not in LEGAL]


def request_in(state: State, **limits: float) -> Request:
    request = Request(RequestSpec(key=1, model="m", arrived=10.0, **limits))  # type: ignore[arg-type]  # only timeouts are passed on
    request.state = state
    return request


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_a_legal_move_changes_the_state(before: State, after: State) -> None:
    request = request_in(before)
    request.move(after)
    assert request.state is after


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_an_illegal_move_is_an_error_that_names_both_states_and_changes_nothing(before: State, after: State) -> None:
    request = request_in(before)
    with pytest.raises(IllegalMove, match=rf"{before.value}> cannot become {after.value}"):
        request.move(after)
    assert request.state is before


def test_every_state_but_the_end_may_end_and_nothing_leaves_the_end() -> None:
    assert all(State.ENDED in MOVES[state] for state in State if state is not State.ENDED)
    assert not MOVES[State.ENDED]


def test_a_request_is_accepted_first_and_has_no_lease() -> None:
    request = Request(RequestSpec(key=1, model="m", arrived=0.0))
    assert request.state is State.ACCEPTED
    assert (request.engine, request.leased_at, request.produced, request.sent) == (None, None, 0, False)


def test_a_request_without_timeouts_never_expires() -> None:
    assert all(request_in(state).expires_at is None for state in State)


def test_timeouts_count_from_arrival() -> None:
    request = request_in(State.WAITING, timeout=5.0, queue_timeout=2.0)
    assert request.expires_at == 12.0
    request.leased_at = 11.0
    assert request.expires_at == 15.0


@pytest.mark.parametrize("state", [State.ACCEPTED, State.PREPARING, State.WAITING])
def test_before_its_lease_the_earlier_deadline_of_a_request_counts(state: State) -> None:
    assert request_in(state, timeout=5.0, queue_timeout=2.0).expires_at == 12.0
    assert request_in(state, timeout=1.0, queue_timeout=2.0).expires_at == 11.0
    assert request_in(state, queue_timeout=2.0).expires_at == 12.0


@pytest.mark.parametrize("state", [State.RUNNING, State.PARKED, State.WAITING])
def test_a_request_that_had_a_lease_has_left_the_queue_timeout_behind(state: State) -> None:
    for timeout, expected in ((None, None), (5.0, 15.0)):
        request = Request(RequestSpec(key=1, model="m", arrived=10.0, timeout=timeout, queue_timeout=2.0))
        request.state, request.leased_at = state, 11.0
        assert request.expires_at == expected


def test_the_limit_that_ends_a_started_request_is_not_the_one_of_the_queue() -> None:
    request = request_in(State.WAITING, timeout=5.0, queue_timeout=2.0)
    assert request.limit == 2.0
    request.leased_at = 11.0
    assert request.limit == 5.0


def test_a_request_that_starts_over_forgets_what_was_done() -> None:
    request = request_in(State.RUNNING)
    request.produced, request.prompt_done, request.parking.requested = 3, 10, True
    request.start_over()
    assert (request.produced, request.prompt_done, request.retried) == (0, 0, True)
    assert not request.parking.requested


def test_a_request_shows_what_a_log_needs() -> None:
    assert repr(request_in(State.WAITING)) == "<Request 1 m latency_critical waiting>"
