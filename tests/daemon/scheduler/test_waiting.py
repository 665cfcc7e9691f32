"""The order of those that wait."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.scheduler.fairness import Fairness
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.waiting import Waiting
from car_protocol.infer import Priority

AGE_AFTER = 30.0


def request(
    key: int, priority: Priority = "latency_critical", client: str = "", state: State = State.WAITING
) -> Request:
    made = Request(key, "m", arrived=float(key), priority=priority, client=(0, client))
    made.state = state
    return made


def waiting_with(requests: Iterable[Request], fairness: Fairness | None = None) -> Waiting:
    waiting = Waiting(fairness or Fairness(), AGE_AFTER)
    for entry in requests:
        waiting.add(entry, 0.0)
    return waiting


def keys(waiting: Waiting, now: float = 10.0) -> list[int]:
    return [entry.key for entry in waiting.ordered(now)]


def test_nothing_waits_at_first() -> None:
    waiting = waiting_with([])
    assert len(waiting) == 0
    assert waiting.next(0.0) is None


def test_requests_of_one_client_wait_in_order_of_arrival() -> None:
    assert keys(waiting_with(request(key) for key in (2, 3, 1))) == [1, 2, 3]


def test_latency_critical_requests_go_before_throughput() -> None:
    waiting = waiting_with([request(1, "throughput"), request(2)])
    assert keys(waiting) == [2, 1]


def test_throughput_that_waited_long_ranks_as_latency_critical() -> None:
    waiting = waiting_with([request(1, "throughput"), request(2)])
    assert keys(waiting, now=30.9) == [2, 1]
    assert keys(waiting, now=31.0) == [1, 2]


def test_the_client_that_was_served_least_goes_first() -> None:
    fairness = Fairness()
    fairness.charge((0, "busy"), 100.0, now=10.0)
    fairness.charge((0, "less"), 10.0, now=10.0)
    requests = [request(1, client="busy"), request(2, client="less"), request(3, client="new")]
    assert keys(waiting_with(requests, fairness)) == [3, 2, 1]


def test_a_class_counts_for_more_than_fairness() -> None:
    fairness = Fairness()
    fairness.charge((0, "busy"), 100.0, now=10.0)
    assert keys(waiting_with([request(1, "throughput"), request(2, client="busy")], fairness)) == [2, 1]


def test_a_parked_request_is_the_first_of_its_class() -> None:
    parked = request(3, "throughput", state=State.PARKED)
    waiting = waiting_with([request(1), request(2, "throughput"), parked])
    assert keys(waiting) == [1, 3, 2]


def test_requests_of_blocked_models_are_left_out() -> None:
    other = Request(2, "other", arrived=0.0)
    waiting = waiting_with([request(1), other])
    assert waiting.next(10.0, {("m", None, None)}) is other
    assert waiting.next(10.0, {("m", None, None), ("other", None, None)}) is None


def test_a_removed_request_does_not_wait() -> None:
    first, second = request(1), request(2)
    waiting = waiting_with([first, second])
    waiting.remove(first)
    assert first not in waiting
    assert second in waiting
    assert keys(waiting) == [2]


ENTRIES = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from(["latency_critical", "throughput"]), st.sampled_from("abc")),
    unique_by=lambda entry: entry[0],
)


@settings(derandomize=True, deadline=None)
@given(ENTRIES, st.floats(0.0, 90.0), st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 1000.0)))
def test_the_next_is_always_the_first_in_order(
    entries: list[tuple[int, Priority, str]], now: float, served: dict[str, float]
) -> None:
    fairness = Fairness()
    for client, tokens in served.items():
        fairness.charge((0, client), tokens, 0.0)
    waiting = waiting_with((request(*entry) for entry in entries), fairness)
    order = []
    while (following := waiting.next(now)) is not None:
        waiting.remove(following)
        order.append(following)
    assert order == waiting_with(order, fairness).ordered(now)
    assert len(order) == len(entries)
