"""Workloads: lengths, arrivals, prompts."""

from itertools import islice, pairwise
from random import Random
from statistics import fmean

import pytest

from car_client.carctl.bench.workload import Lengths, Workload, parse_lengths


@pytest.mark.parametrize(("text", "lengths"), [("64", Lengths(64, 64)), ("15-105", Lengths(15, 105))])
def test_lengths_are_read_as_they_are_written(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text) == lengths
    assert str(lengths) == text


@pytest.mark.parametrize("wrong", ["0", "-3", "9-3", "x", "3-", ""])
def test_what_is_no_length_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        parse_lengths(wrong)


def test_every_length_between_the_bounds_is_drawn() -> None:
    chance = Random(3)
    assert {Lengths(15, 18).draw(chance) for _ in range(200)} == {15, 16, 17, 18}


def test_arrivals_have_the_rate_and_no_rhythm() -> None:
    moments = list(islice(Workload(rate=50.0, seed=6).arrivals(), 5000))
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    # Of independent arrivals a share of 1/e waits longer than the mean.
    assert sum(gap > 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


def test_a_workload_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    def asked(seed: int) -> list[object]:
        return list(Workload(requests=20, prompts=Lengths(3, 30), answers=Lengths(15, 105), seed=seed).all_requests())

    assert asked(1) == asked(1) != asked(2)


def test_requests_have_the_lengths_that_were_asked_for_and_prompts_of_their_own() -> None:
    requests = list(Workload(requests=50, prompts=Lengths(12, 20), answers=Lengths(15, 105)).all_requests())
    assert all(12 <= len(each.prompt) <= 20 and 15 <= each.max_tokens <= 105 for each in requests)
    assert len({tuple(each.prompt) for each in requests}) == 50


def test_a_shared_prefix_begins_every_prompt() -> None:
    first, second = Workload(requests=2, prompts=Lengths(5, 5), shared_prefix=100).all_requests()
    assert len(first.prompt) == 105
    assert first.prompt[:100] == second.prompt[:100]
    assert first.prompt != second.prompt


def test_prompts_of_words_have_about_as_many_tokens() -> None:
    (request,) = Workload(requests=1, prompts=Lengths(60, 60), tokens_per_word=1.5, shared_prefix=30).all_requests()
    assert isinstance(request.prompt, str)
    assert len(request.prompt.split()) == 20 + 40


def test_without_a_number_of_requests_there_is_always_another() -> None:
    assert len(list(islice(Workload(seconds=1).all_requests(), 1000))) == 1000


def test_another_rate_asks_the_same() -> None:
    slow, fast = Workload(rate=1, requests=5), Workload(rate=9, requests=5)
    assert list(slow.all_requests()) == list(fast.all_requests())
    assert list(islice(slow.arrivals(), 5)) == pytest.approx([9 * moment for moment in islice(fast.arrivals(), 5)])
