"""The order of waiting requests."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.scheduler.account import LaneTarget, charge
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.order import Charging, WaitingRequests
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Request, RequestSpec, State
from car_protocol.infer import Priority

AGE_AFTER = 30.0
ANYWHERE = LaneTarget("m", None, None)


def request(
    key: int, priority: Priority = "latency_critical", client: str = "", user: int = 0, process: int = 0
) -> Request:
    spec = RequestSpec(
        key=key, model="m", arrived=float(key), priority=priority, client=(user, client), process=process
    )
    made = Request(spec)
    made.state = State.WAITING
    return made


def waiting_with(requests: Iterable[Request]) -> WaitingRequests:
    waiting = WaitingRequests(Charging(), AGE_AFTER)
    for entry in requests:
        waiting.add(entry, 0.0)
    return waiting


def served(waiting: WaitingRequests, now: float = 10.0) -> list[int]:
    """Return the keys in the order in which free sequences are leased, each lease charged 64 tokens."""
    gate = Gate()
    gate.declare(1, EngineOffer("m", 1000))
    keys = []
    for entry, _ in waiting.leases(gate, now):
        keys.append(entry.key)
        assert entry.label is not None
        charge(64.0, entry.label)
    return keys


def test_nothing_waits_at_first() -> None:
    waiting = waiting_with([])
    assert not waiting.requests
    assert served(waiting) == []


def test_requests_of_one_client_wait_in_order_of_arrival() -> None:
    assert served(waiting_with(request(key) for key in (2, 3, 1))) == [1, 2, 3]


def test_clients_take_turns() -> None:
    assert served(waiting_with(request(key, client="ab"[key > 3]) for key in (1, 2, 3, 4, 5, 6))) == [1, 4, 2, 5, 3, 6]


def test_latency_critical_requests_go_before_throughput() -> None:
    assert served(waiting_with([request(1, "throughput"), request(2)])) == [2, 1]


def test_throughput_that_waited_long_ranks_as_latency_critical() -> None:
    assert served(waiting_with([request(1, "throughput"), request(2)]), now=30.9) == [2, 1]
    assert served(waiting_with([request(1, "throughput"), request(2)]), now=31.0) == [1, 2]


def test_a_class_counts_for_more_than_fairness() -> None:
    waiting = waiting_with([request(1, client="busy"), request(2, client="busy"), request(3, "throughput")])
    assert served(waiting) == [1, 2, 3]


def test_requests_of_a_full_model_hold_up_no_others() -> None:
    other = Request(RequestSpec(key=2, model="other", arrived=0.0))
    waiting = waiting_with([request(1), other])
    gate = Gate()
    gate.declare(1, EngineOffer("other", 1))
    assert [entry.key for entry, _ in waiting.leases(gate, 0.0)] == [2]
    assert list(waiting.requests) == [1]


def test_a_removed_request_does_not_wait() -> None:
    first, second = request(1), request(2)
    waiting = waiting_with([first, second])
    waiting.remove(first)
    assert first not in waiting
    assert second in waiting
    assert served(waiting) == [2]


ENTRIES = st.lists(st.tuples(st.integers(1, 50), st.sampled_from("abc")), unique_by=lambda entry: entry[0])


@given(ENTRIES, st.sampled_from(["latency_critical", "throughput"]), st.sampled_from([0.0, 90.0]))
def test_requests_are_served_in_the_order_that_is_foretold(
    entries: list[tuple[int, str]], priority: Priority, now: float
) -> None:
    waiting = waiting_with(request(key, priority, client) for key, client in entries)
    waiting.age(now)
    foretold = [entry.key for entry in waiting.order(ANYWHERE)]
    assert foretold == served(waiting, now)
    assert len(foretold) == len(entries)


WAITS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from("abc"))


@given(st.lists(st.tuples(WAITS, st.integers(0, 300), st.booleans())))
def test_of_each_process_the_label_without_a_lease_looks_that_was_served_least(
    waits: list[tuple[tuple[int, int, str], int, bool]],
) -> None:
    requests = [
        request(key, client=label, user=user, process=process)
        for key, ((user, process, label), _, _) in enumerate(waits)
    ]
    waiting, expected = waiting_with(requests), dict[object, Request]()
    for entry, (_, tokens, holds) in zip(requests, waits, strict=True):
        assert entry.label is not None
        charge(tokens, entry.label)
        entry.label.hold(int(holds))
    for entry in requests:
        label = entry.label
        assert label is not None
        first = expected.setdefault(label.parent, entry)
        assert first.label is not None
        if first.label.held or (not label.held and label.rank < first.label.rank):
            expected[label.parent] = entry
    lacking = [entry for entry in expected.values() if entry.label is not None and not entry.label.held]
    assert sorted(each.key for each in waiting.seekers(new=False)) == sorted(each.key for each in lacking)


def test_of_thousands_of_labels_64_look_at_once_and_of_each_user_one() -> None:
    flood = [request(key, client="", process=key) for key in range(3000)]
    few = [request(3000 + user, user=user) for user in (1, 2)]
    waiting = waiting_with([*flood, *few])
    for entry in few:
        assert entry.label is not None
        charge(100.0, entry.label)
    looking = list(waiting.seekers(new=False))
    assert len(looking) == 64
    assert set(few) < set(looking)
