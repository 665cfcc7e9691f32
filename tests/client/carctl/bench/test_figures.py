"""The figures of a load: percentiles, and the requests that count."""

import pytest

from car_client.carctl.bench.figures import Spread, TimedAnswer, percentile, spread, summary


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 3), (25, 2), (90, 4.6), (99, 4.96), (100, 5)])
def test_percentiles_lie_between_the_values_next_to_them(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4, 5], percent) == pytest.approx(value)


def test_of_one_value_every_percentile_is_that_value_and_of_none_it_is_nothing() -> None:
    assert spread([7.0]) == Spread(7, 7, 7, 7)
    assert spread([]) == Spread(0, 0, 0, 0)


def test_values_may_come_in_any_order() -> None:
    assert spread([3, 1, 2]).p50 == 2
    assert spread([3, 1, 2]).max == 3


def test_an_answer_knows_its_times() -> None:
    answer = TimedAnswer(10.0, [10.1, 10.2, 10.4], 3)
    assert answer.first_ms == pytest.approx(100)
    assert answer.gaps_ms == pytest.approx([100, 200])
    assert answer.seconds == pytest.approx(0.4)


def test_pieces_that_hold_several_tokens_count_for_as_many() -> None:
    assert TimedAnswer(0.0, [1.0, 2.0], 10).tokens_within(1.5, 9.0) == 5


def test_only_what_came_in_the_measured_time_counts() -> None:
    before = TimedAnswer(0.0, [0.5, 1.5], 2)
    within = TimedAnswer(1.5, [1.6, 1.9], 2, prompt_tokens=9)
    beyond = TimedAnswer(2.5, [2.9, 3.5], 2, prompt_tokens=11)
    found = summary([before, within, beyond], 1.0, 3.0, own_cpu=0.25)
    assert found.tokens_per_s == pytest.approx(2.0)
    assert found.requests == 2
    assert found.prompt_tokens == 10
    assert found.ttft_ms.p50 == pytest.approx(250)
    assert found.itl_ms.max == pytest.approx(600)
    assert found.own_cpu == 0.25


def test_answers_that_do_not_say_how_long_their_prompts_are_leave_it_open() -> None:
    assert summary([TimedAnswer(0.0, [1.0], 1)], 0.0, 1.0, own_cpu=0).prompt_tokens is None
