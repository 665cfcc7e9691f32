"""Texts that go on without a break."""

import pytest

from car_base.ipc.refusal import Refusal
from car_engine.llama.tokens import LONGEST_RUN, LONGEST_SLOW_RUN, check_runs
from tests.pace import cpu_time

KINDS = ["a", "A", " ", "\n", "7", "!", "\U0001f600", "\u6f22", "a ", "\u00e9 ", "a\x1c", "a\u0301 ", " \n\t", "a!7"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["", "Hi, 1\n"])
def test_a_run_of_twice_the_bound_is_refused_wherever_it_begins(kind: str, before: str) -> None:
    run = kind * (2 * LONGEST_RUN // len(kind))
    for text in (before + run, before + run + before):
        with pytest.raises(Refusal) as refused:
            check_runs(text)
        assert refused.value.reason == "limit"
        assert refused.value.data == {"limit": "max_unbroken_characters", "value": LONGEST_RUN}


@pytest.mark.parametrize("kind", KINDS)
def test_no_run_within_the_bound_is_refused(kind: str) -> None:
    run = kind * ((LONGEST_RUN - 10) // len(kind))
    check_runs(run)
    # Runs that are next to each other, with a break between them of every kind.
    check_runs(f"{run}.\n1. x{run}.\n1. x{run}")


@pytest.mark.parametrize(("pre", "kind"), [("superbpe", "7"), ("jais-2", " ")])
def test_what_takes_the_square_of_its_length_is_refused_earlier_where_it_does(pre: str, kind: str) -> None:
    check_runs(kind * (LONGEST_SLOW_RUN - 1), pre)
    check_runs(kind * 2 * LONGEST_SLOW_RUN, "gpt-2")
    check_runs("x" * 2 * LONGEST_SLOW_RUN, pre)
    with pytest.raises(Refusal) as refused:
        check_runs("Hi." + kind * 2 * LONGEST_SLOW_RUN, pre)
    assert refused.value.data["value"] == LONGEST_SLOW_RUN


def test_prose_of_eight_megabytes_is_looked_at_in_no_time() -> None:
    prose = "It was the best of times, it was the worst of times.\n" * 150_000
    with cpu_time() as spent:
        check_runs(prose)
    assert spent.seconds < 0.2
