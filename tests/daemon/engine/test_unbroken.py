"""Texts that go on without a break."""

import time

import pytest

from car_daemon.engine.refusal import Refusal
from car_daemon.engine.unbroken import MOST_SQUARE, MOST_UNBROKEN, check_unbroken

KINDS = ["a", "A", " ", "\n", "7", "!", "\U0001f600", "\u6f22", "a ", "\u00e9 ", "a\x1c", "a\u0301 ", " \n\t", "a!7"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["", "Hi, 1\n"])
def test_a_run_of_twice_the_bound_is_refused_wherever_it_begins(kind: str, before: str) -> None:
    run = kind * (2 * MOST_UNBROKEN // len(kind))
    for text in (before + run, before + run + before):
        with pytest.raises(Refusal) as refused:
            check_unbroken(text)
        assert refused.value.reason == "limit"
        assert refused.value.data == {"limit": "max_unbroken_characters", "value": MOST_UNBROKEN}


@pytest.mark.parametrize("kind", KINDS)
def test_no_run_within_the_bound_is_refused(kind: str) -> None:
    run = kind * ((MOST_UNBROKEN - 10) // len(kind))
    check_unbroken(run)
    # Runs that are next to each other, with a break between them of every kind.
    check_unbroken(f"{run}.\n1. x{run}.\n1. x{run}")


@pytest.mark.parametrize(("pre", "kind"), [("superbpe", "7"), ("jais-2", " ")])
def test_what_takes_the_square_of_its_length_is_refused_earlier_where_it_does(pre: str, kind: str) -> None:
    check_unbroken(kind * (MOST_SQUARE - 1), pre)
    check_unbroken(kind * 2 * MOST_SQUARE, "gpt-2")
    check_unbroken("x" * 2 * MOST_SQUARE, pre)
    with pytest.raises(Refusal) as refused:
        check_unbroken("Hi." + kind * 2 * MOST_SQUARE, pre)
    assert refused.value.data["value"] == MOST_SQUARE


def test_prose_of_eight_megabytes_is_looked_at_in_no_time() -> None:
    prose = "It was the best of times, it was the worst of times.\n" * 150_000
    started = time.process_time()
    check_unbroken(prose)
    assert time.process_time() - started < 0.2
