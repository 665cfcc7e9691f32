"""The end of a generation, and its text."""

import pytest

from car_base.ipc.frames import Extra, Fault
from car_engine.batching.reuse.read_prompts import Parting
from car_engine.runner.generation import Generation
from tests.engine.fakes import END_TOKEN, LETTERS, FakeSampler, run_command


def generation(
    max_tokens: int = 8, *, stop: list[str] | None = None, return_tokens: bool = False, room: int = 100
) -> Generation:
    run = run_command(1, [5, 6], max_tokens, stop=stop, return_tokens=return_tokens)
    return Generation(run, FakeSampler(), LETTERS, prompt_tokens=2, now=10.0, room=room)


def push(generated: Generation, letters: str) -> str:
    """Push tokens of some letters and return the text that they complete."""
    return "".join(generated.push(ord(letter) - 96, 11.0).text for letter in letters)


def test_tokens_become_text() -> None:
    generated = generation()
    assert push(generated, "abc") == "abc"
    assert (len(generated.history), generated.finish_reason) == (3, None)


def test_an_answer_ends_where_its_sequence_does() -> None:
    generated = generation(8, room=2)
    assert push(generated, "ab") == "ab"
    assert generated.finish_reason == "length"


def test_the_last_token_ends_it_by_length() -> None:
    generated = generation(3)
    assert push(generated, "abc") == "abc"
    assert generated.finish_reason == "length"


def test_an_end_token_counts_but_has_no_text() -> None:
    generated = generation()
    push(generated, "ab")
    assert generated.push(END_TOKEN, 12.0).text == ""
    assert (generated.finish_reason, len(generated.history)) == ("stop", 3)


def test_an_image_or_a_sound_has_words_of_its_own_where_prompts_part() -> None:
    generated = generation()
    generated.explain(Parting("message", at=2, tokens=9, message=1, known=[-7, -8, 3]), [1, 2, -3, -4, -5, 3])
    parted = generated.end(12.0).usage.parted
    assert parted is not None
    assert (parted.was, parted.now) == ("ab[image or sound]c", "ab[image or sound]c")


def test_a_stop_string_ends_it_and_is_named() -> None:
    generated = generation(stop=["bc"])
    assert push(generated, "abc") == "a"
    end = generated.end(12.0)
    assert (end.reason, end.stop, end.usage.completion_tokens) == ("stop", "bc", 3)


def test_an_end_token_completes_the_withheld_text() -> None:
    generated = generation(stop=["bcd"])
    assert push(generated, "abc") == "a"
    assert generated.push(END_TOKEN, 12.0).text == "bc"
    assert generated.end(12.0).stop is None


def test_the_last_token_completes_the_withheld_text() -> None:
    assert push(generation(3, stop=["bcd"]), "abc") == "abc"


def test_a_stop_string_that_waited_for_a_longer_one_counts_at_the_end() -> None:
    generated = generation(3, stop=["bc", "bcd"])
    assert push(generated, "abc") == "a"
    assert (generated.finish_reason, generated.end(12.0).stop) == ("stop", "bc")


def test_a_deadline_completes_the_withheld_text() -> None:
    generated = generation(stop=["bcd"])
    push(generated, "abc")
    assert generated.finish("deadline").text == "bc"
    assert generated.end(12.0).reason == "deadline"


@pytest.mark.parametrize("fault", [None, "decode", "constraint"])
def test_without_a_reason_it_was_cancelled_or_failed(fault: Fault | None) -> None:
    end = generation().end(12.0, fault=fault)
    assert (end.reason, end.fault) == (None, fault)


def test_tokens_are_returned_if_the_request_has_that_option() -> None:
    with_tokens, other = generation(return_tokens=True), generation()
    assert with_tokens.extras(with_tokens.push(2, 11.0), 2) == Extra([2])
    assert other.extras(other.push(2, 11.0), 2) is None


def test_prefill_lasts_to_the_first_token_and_decode_from_it() -> None:
    generated = generation()
    generated.push(1, 11.5)
    generated.push(1, 12.0)
    end = generated.end(14.0)
    assert (end.prefill_ms, end.decode_ms) == (1500.0, 2500.0)


def test_without_a_token_all_time_was_prefill() -> None:
    end = generation().end(14.0)
    assert (end.prefill_ms, end.decode_ms) == (4000.0, 0.0)
