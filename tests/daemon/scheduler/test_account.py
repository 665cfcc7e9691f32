"""The accounts of service, and the clocks of their levels."""

from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.scheduler.account import Kind, LaneTarget, charge
from car_daemon.scheduler.lane import Lane
from car_daemon.scheduler.order import Charging

KIND = Kind(0, LaneTarget("m", None, None))
STEPS = st.lists(st.tuples(st.sampled_from("wwslec"), st.integers(0, 5), st.integers(1, 500)), max_size=80)


@settings(deadline=None)
@given(STEPS, st.dictionaries(st.integers(0, 5), st.sampled_from((0.001, 0.1, 0.3, 0.5, 1.3, 4.0, 1000.0))))
def test_a_clock_is_never_ahead_of_the_mean_of_the_accounts_that_it_counts(
    steps: list[tuple[str, int, int]], weights: dict[int, float]
) -> None:
    charging = Charging()
    charging.set_weights(weights)
    lane = charging.lane("m")
    waiting, running = dict[int, int](), list[int]()
    labels = {}
    for key, (step, user, tokens) in enumerate(steps):
        if step == "w":
            labels[key] = lane.add(key, (user, 1, "", str(user)), KIND)
            waiting[key] = user
        elif step == "s" and waiting:
            first = lane.first(KIND)
            labels[first] = lane.begin((waiting.pop(first), 1, "", str(lane.waiters[first].label.name)), lease=True)
            lane.remove(first)
            running.append(first)
        elif step == "l" and waiting:
            left = sorted(waiting)[tokens % len(waiting)]
            del waiting[left]
            lane.remove(left)
        elif step == "e" and running:
            lane.end(labels[running.pop(tokens % len(running))], lease=True)
        elif step == "c" and running:
            charge(tokens, labels[running[tokens % len(running)]])
        counted = [each for each in lane.root.children.values() if each.counted]
        assert sum(each.weight * (each.time - lane.root.clock) for each in counted) >= -1e-6 * (1 + lane.root.clock)
        assert lane.root.weights == sum(each.weight for each in counted)
        assert all(each.counted for each in lane.root.children.values() if each.waiting)
        assert {user for user in lane.root.children if user in waiting.values()} == set(waiting.values())
    for key in list(waiting):
        lane.remove(key)
    for key in running:
        lane.end(labels[key], lease=True)
    assert not lane.root.children
    assert lane.root.working == 0


def test_users_that_come_and_go_do_not_set_those_back_that_come_after_them() -> None:
    lane = Lane({})
    busy = [(user, 1, "", "busy") for user in (1, 2)]
    keys = iter(range(1_000_000))
    leases = [lane.begin(path, lease=True) for path in busy]
    for path in busy:
        lane.add(next(keys), path, KIND)
    for user in range(1000):
        visitor = lane.begin((100 + user, 1, "", ""), lease=True)
        lane.add(next(keys), (100 + user, 1, "", ""), KIND)
        charge(100.0, visitor)
        lane.remove(max(lane.waiters))
        lane.end(visitor, lease=True)
        for label in leases:
            charge(10.0, label)
    late = lane.add(next(keys), (3, 1, "", ""), KIND).chain[0]
    assert late.time <= max(label.chain[0].time for label in leases) + 300.0, "not by all that the others had"
    assert len(lane.root.children) < 50
