"""The cheapest runs of rows of the bare loop."""

import pytest

from benchmarks.targets.bare_loop import packed

# Milliseconds of 1 to 8 rows, as measured: two rows of this quantization cost more than two times one.
Q8_0 = [0, 5.7, 15.5, 20.0, 22.8, 26.6, 29.0, 31.0, 25.0]


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([3], [range(3, 4)]),
        ([0, 1], [range(1), range(1, 2)]),
        (range(8), [range(8)]),
        ([0, 1, 2, 4, 5, 6, 7], [range(8)]),
        ([0, 7], [range(1), range(7, 8)]),
    ],
)
def test_runs_are_those_that_cost_least(numbers: list[int], runs: list[range]) -> None:
    assert packed(numbers, Q8_0.__getitem__) == runs


def test_where_a_row_costs_nothing_more_there_is_one_run() -> None:
    assert packed([0, 5, 7], lambda _rows: 1.0) == [range(8)]


def test_where_padding_costs_as_much_as_a_row_holes_stay_open() -> None:
    assert packed([0, 2, 4], float) == [range(1), range(2, 3), range(4, 5)]
