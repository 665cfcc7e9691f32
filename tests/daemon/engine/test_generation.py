"""When a generation ends, and what it says then."""

import pytest

from car_daemon.engine.frames import Extra, Fault
from car_daemon.engine.generation import Generation
from tests.daemon.engine.fakes import END_TOKEN, FakeSampler, FakeVocabulary, run_command


def generation(max_tokens: int = 8, *, stop: list[str] | None = None, return_tokens: bool = False) -> Generation:
    run = run_command(1, [5, 6], max_tokens, stop=stop, return_tokens=return_tokens)
    return Generation(run, FakeSampler(), FakeVocabulary(), prompt_tokens=2, now=10.0)


def take(generated: Generation, letters: str) -> str:
    """Let tokens of some letters come and return the text that they release."""
    return "".join(generated.take(ord(letter) - 96, 11.0).text for letter in letters)


def test_tokens_become_text() -> None:
    generated = generation()
    assert take(generated, "abc") == "abc"
    assert (generated.produced, generated.finish_reason) == (3, None)


def test_the_last_token_ends_it_by_length() -> None:
    generated = generation(3)
    assert take(generated, "abc") == "abc"
    assert generated.finish_reason == "length"


def test_an_end_token_counts_but_has_no_text() -> None:
    generated = generation()
    take(generated, "ab")
    assert generated.take(END_TOKEN, 12.0).text == ""
    assert (generated.finish_reason, generated.produced) == ("stop", 3)


def test_a_stop_string_ends_it_and_is_named() -> None:
    generated = generation(stop=["bc"])
    assert take(generated, "abc") == "a"
    end = generated.end(12.0)
    assert (end.reason, end.stop, end.usage.completion_tokens) == ("stop", "bc", 3)


def test_an_end_token_releases_what_was_held_back() -> None:
    generated = generation(stop=["bcd"])
    assert take(generated, "abc") == "a"
    assert generated.take(END_TOKEN, 12.0).text == "bc"
    assert generated.end(12.0).stop is None


def test_at_the_last_token_what_was_held_back_is_released() -> None:
    assert take(generation(3, stop=["bcd"]), "abc") == "abc"


def test_a_stop_string_that_waited_for_a_longer_one_counts_at_the_end() -> None:
    generated = generation(3, stop=["bc", "bcd"])
    assert take(generated, "abc") == "a"
    assert (generated.finish_reason, generated.end(12.0).stop) == ("stop", "bc")


def test_a_deadline_releases_what_was_held_back() -> None:
    generated = generation(stop=["bcd"])
    take(generated, "abc")
    assert generated.finish("deadline").text == "bc"
    assert generated.end(12.0).reason == "deadline"


@pytest.mark.parametrize("fault", [None, "decode", "constraint"])
def test_without_a_reason_it_was_cancelled_or_failed(fault: Fault | None) -> None:
    end = generation().end(12.0, fault=fault)
    assert (end.reason, end.fault) == (None, fault)


def test_tokens_are_kept_where_they_were_asked_for() -> None:
    asked, other = generation(return_tokens=True), generation()
    assert asked.beside(asked.take(2, 11.0), 2) == Extra([2])
    assert other.beside(other.take(2, 11.0), 2) is None


def test_prefill_lasts_to_the_first_token_and_decode_from_it() -> None:
    generated = generation()
    generated.take(1, 11.5)
    generated.take(1, 12.0)
    end = generated.end(14.0)
    assert (end.prefill_ms, end.decode_ms) == (1500.0, 2500.0)


def test_without_a_token_all_time_was_prefill() -> None:
    end = generation().end(14.0)
    assert (end.prefill_ms, end.decode_ms) == (4000.0, 0.0)
