"""The part of devices that loads use: less after a failure, more again, and never a failure at each load."""

from hypothesis import given
from hypothesis import strategies as st

from car_base.capacity.kept_file import DeviceParts, LoadOutcome

GIB = 1 << 30


def loaded(parts: DeviceParts, free: int, fits: float) -> tuple[DeviceParts, list[float]]:
    """Load where up to a part of the free memory works; return the kept parts, and those that were tried."""
    tried = [parts.first(free)]
    if tried[0] > fits:
        tried.append(parts.second(free, tried[0]))
    return (parts.after(free, tried) if tried[-1] <= fits else parts), tried


def test_loads_without_a_failure_use_all_and_keep_nothing() -> None:
    assert loaded(DeviceParts(), 8 * GIB, 1.0) == (DeviceParts(), [1.0])


@given(st.floats(0.8, 1.0))
def test_a_part_that_works_is_found_with_few_failures_and_none_follow(fits: float) -> None:
    parts, tries = DeviceParts(), []
    for _ in range(10):
        parts, tried = loaded(parts, 8 * GIB, fits)
        tries.append(tried)
    assert all(len(each) <= 2 and each[-1] <= fits for each in tries)
    assert sum(len(each) == 2 for each in tries) <= 3
    assert all(len(each) == 1 for each in tries[4:])
    assert tries[-1][0] > fits - 0.06


@given(st.lists(st.tuples(st.sampled_from([2, 5, 8]), st.floats(0.81, 1.0)), max_size=20))
def test_models_that_come_and_go_beside_it_have_outcomes_of_their_own(loads: list[tuple[int, float]]) -> None:
    worst: dict[int, float] = {}
    for gib, fits in loads:
        worst[gib] = min(fits, worst.get(gib, 1.0))
    parts, failures = DeviceParts(), 0
    for gib, _ in loads * 3:
        parts, tried = loaded(parts, gib * GIB, worst[gib])
        failures += len(tried) - 1
    assert failures <= 3 * len(worst)
    assert len({each.free for each in parts.outcomes}) == len(parts.outcomes)


def test_other_free_memory_begins_with_all_of_it_and_about_the_same_does_not() -> None:
    parts = DeviceParts([LoadOutcome(8 * GIB, 0.8, 0.85)])
    assert [parts.first(int(each * GIB)) for each in (7.1, 8.9, 6, 10)] == [0.8, 0.8, 1.0, 1.0]


def test_the_outcomes_are_bounded_and_the_oldest_one_goes() -> None:
    parts = DeviceParts()
    for gib in (1, 2, 4, 8, 16):
        parts, _ = loaded(parts, gib * GIB, 0.9)
    assert [each.free // GIB for each in parts.outcomes] == [16, 8, 4, 2]


def test_a_part_that_fails_later_is_left_too() -> None:
    parts = DeviceParts([LoadOutcome(8 * GIB, 0.8, 0.85)])
    parts, tried = loaded(parts, 8 * GIB, 0.7)
    assert [round(each, 6) for each in tried] == [0.8, 0.64]
    assert parts.first(8 * GIB) == (0.64 + 0.8) / 2 or abs(parts.first(8 * GIB) - 0.72) < 1e-9
