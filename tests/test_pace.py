"""Costs in tests are those of what they test."""

import gc

from tests.pace import calls


class Knot:
    """Garbage that only the collector finds, whose end is two calls."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        len("")


def test_garbage_that_was_there_before_adds_no_calls() -> None:
    def work() -> None:
        [[] for _ in range(1000)]  # enough for the collector to run

    expected = calls(work)
    before = gc.get_threshold()
    try:
        gc.collect()
        for _ in range(50):
            Knot()
        gc.set_threshold(500)
        assert calls(work) == expected
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()
