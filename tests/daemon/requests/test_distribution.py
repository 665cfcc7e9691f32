"""The figures of a decision: distributions sum to 1, and confidences stay between chance and certainty."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_daemon.requests.distribution import averaged, choice_confidence, mass, mean, mode, score_confidence, softmax

logits = st.lists(st.floats(-200, 200), min_size=2, max_size=255)
temperatures = st.floats(0.05, 20)


@given(logits, temperatures)
def test_probabilities_sum_to_one_and_keep_the_order_of_the_logits(
    given_logits: list[float], temperature: float
) -> None:
    found = softmax(given_logits, temperature)
    assert math.isclose(math.fsum(found), 1, abs_tol=1e-9)
    assert found[mode(given_logits)] == max(found)


@given(logits, st.floats(-100, 100))
def test_a_constant_added_to_all_logits_changes_no_probability(given_logits: list[float], more: float) -> None:
    moved = softmax([logit + more for logit in given_logits])
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(softmax(given_logits), moved, strict=True))


@given(logits, temperatures)
def test_the_mean_of_two_orders_is_a_distribution_and_equal_orders_change_nothing(
    given_logits: list[float], temperature: float
) -> None:
    one, other = softmax(given_logits, temperature), softmax(given_logits[::-1], temperature)
    assert math.isclose(math.fsum(averaged([one, other])), 1, abs_tol=1e-9)
    assert averaged([one, one]) == one


@given(logits, temperatures)
def test_confidence_is_between_chance_and_certainty(given_logits: list[float], temperature: float) -> None:
    found = softmax(given_logits, temperature)
    assert 0 <= choice_confidence(found) <= 1 + 1e-9
    assert 0 <= score_confidence(found) <= 1 + 1e-9
    assert 0 <= mean(found) <= len(found) - 1 + 1e-9


@pytest.mark.parametrize("count", [2, 3, 10, 255])
def test_chance_has_no_confidence_and_certainty_has_all(count: int) -> None:
    certain = [1.0] + [0.0] * (count - 1)
    assert choice_confidence([1 / count] * count) == pytest.approx(0, abs=1e-12)
    assert (choice_confidence(certain), score_confidence(certain), mean(certain)) == (1, 1, 0)


def test_the_published_score_confidence() -> None:
    found = [0.22084525950571615, 0.2399331668243915, 0.27318905660078996, 0.26603251706910247]
    assert score_confidence(found) == pytest.approx(0.05234379709507375)
    assert mean(found) == pytest.approx(1.584408831233279)


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=100), st.integers(1, 3))
def test_the_mass_of_labels_is_a_part_of_the_whole(weights: list[float], count: int) -> None:
    total = math.log(math.fsum(map(math.exp, weights)))
    assert 0 <= mass(weights[:count], total) <= 1
    assert mass(weights, total) == pytest.approx(1)
