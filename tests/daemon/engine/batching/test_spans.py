"""The spans of decodes."""

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.engine.batching.spans import Span, plan_spans

# Milliseconds by rows of a model of 135M dimensions on two cores, in two quantizations.
Q8_0 = [0, 5.7, 15.5, 20.0, 22.8, 26.6, 29.0, 31, 25, 29, 29, 29, 29, 32, 34, 37, 28]
Q4_0 = [0, 3.1, 5.1, 6.9, 5.8, 7.7, 9.2, 11.5, 9.1, 11, 11.5, 12, 12.7, 14, 16, 17.8, 13.1]
COUNT = 16


def spans(numbers: list[int], costs: list[float], *, full: tuple[int, ...] = (), most: int = COUNT) -> list[Span]:
    """Return the spans for sequences 0 to 15, of which the `full` ones have no room for padding."""
    return plan_spans(
        numbers,
        can_pad=lambda number: 0 <= number < COUNT and number not in full,
        cost=lambda rows: costs[rows] if rows < len(costs) else costs[-1] * rows,
        most=most,
    )


def test_two_rows_that_cost_more_than_twice_one_go_one_by_one() -> None:
    assert spans([0, 1], Q8_0) == [(0, 0), (1, 1)]
    assert spans([0, 1], Q4_0) == [(0, 1)]


def test_a_span_is_filled_up_to_the_next_size_that_costs_less() -> None:
    assert spans(list(range(7)), Q8_0) == [(0, 7)]
    assert spans([0, 1, 2], Q4_0) == [(0, 3)]


def test_a_span_at_the_upper_end_is_filled_up_below() -> None:
    assert spans(list(range(9, 16)), Q8_0) == [(8, 15)]


def test_a_hole_is_padded_where_one_span_costs_less() -> None:
    assert spans([0, 1, 2, 4, 5, 6, 7], Q8_0) == [(0, 7)]
    assert spans([0, 15], Q4_0) == [(0, 0), (15, 15)]


def test_nothing_is_padded_that_has_no_room() -> None:
    assert spans([0, 1, 2, 4, 5, 6, 7], Q4_0, full=(3,)) == [(0, 2), (4, 7)]
    assert spans(list(range(7)), Q8_0, full=(7,)) == [(0, 6)]


def test_no_span_is_wider_than_the_batch() -> None:
    assert all(high - low < 4 for low, high in spans(list(range(16)), Q4_0, most=4))


def cheapest(numbers: list[int], costs: list[float], full: set[int]) -> float:
    """Return the lowest cost of all possible cuts."""
    places = range(1, len(numbers))
    cuts = chain.from_iterable(combinations(places, count) for count in range(len(numbers)))
    return min(_price(numbers, [0, *cut, len(numbers)], costs, full) for cut in cuts)


def _price(numbers: list[int], cut: list[int], costs: list[float], full: set[int]) -> float:
    total = 0.0
    for start, end in pairwise(cut):
        low, high = numbers[start], numbers[end - 1]
        if full & (set(range(low, high)) - set(numbers)):
            return float("inf")
        total += costs[high - low + 1]
    return total


@given(
    st.sets(st.integers(0, 15), min_size=1, max_size=8),
    st.sets(st.integers(0, 15), max_size=3),
    st.lists(st.floats(0.1, 10), min_size=16, max_size=16),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_no_other_way_to_cut_is_cheaper(chosen: set[int], full: set[int], prices: list[float]) -> None:
    numbers, costs = sorted(chosen), [0.0, *prices]
    full -= chosen
    found = spans(numbers, costs, full=tuple(full))
    covered = [number for low, high in found for number in range(low, high + 1)]
    assert [number for number in covered if number in chosen] == numbers
    assert not full & set(covered)
    price = sum(costs[high - low + 1] for low, high in found)
    assert price <= cheapest(numbers, costs, full) + 1e-9


@pytest.mark.parametrize("count", [1, 256])
def test_many_sequences_are_planned_too(count: int) -> None:
    found = plan_spans(list(range(count)), can_pad=lambda _: False, cost=lambda rows: 1 + rows / 100, most=512)
    assert found == [(0, count - 1)]
