"""Bytes into text: whole characters, and nothing of a stop string."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.engine.text_stream import TextStream


def stream(pieces: list[bytes], stops: list[str]) -> tuple[str, str | None, list[str]]:
    """Return all text, the stop string that was hit, and what each piece released."""
    text = TextStream(stops)
    released = []
    for piece in pieces:
        released.append(text.push(piece))
        if text.stopped_by is not None:
            break
    released.append(text.finish())
    return "".join(released), text.stopped_by, released


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Return the same of the whole text at once: the earliest match, of those the longest."""
    for start in range(len(text)):
        found = [stop for stop in stops if text.startswith(stop, start)]
        if found:
            return text[:start], max(found, key=len)
    return text, None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at some places."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def test_text_without_stop_strings_goes_out_at_once() -> None:
    assert stream([b"one", b" two"], [])[2] == ["one", " two", ""]


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_waits_for_its_last_byte(character: str) -> None:
    data = character.encode()
    released = stream([bytes([byte]) for byte in data], [])[2]
    assert released == [""] * (len(data) - 1) + [character, ""]


def test_a_character_that_never_ends_comes_out_as_a_replacement() -> None:
    assert stream([b"a", "€".encode()[:2]], [])[0] == "a\ufffd"


def test_bytes_that_are_no_text_come_out_as_replacements() -> None:
    assert stream([b"a\xffb"], [])[0] == "a\ufffdb"


def test_text_ends_before_a_stop_string() -> None:
    assert stream([b"one END two"], ["END"])[:2] == ("one ", "END")


def test_the_earliest_match_wins() -> None:
    assert stream([b"a second, first"], ["first", "second"])[:2] == ("a ", "second")


def test_at_equal_start_the_longest_match_wins() -> None:
    assert stream([b"one STOPPED"], ["STOP", "STOPPED"])[:2] == ("one ", "STOPPED")
    assert stream([b"one ST", b"OP", b"PED"], ["STOP", "STOPPED"])[:2] == ("one ", "STOPPED")


def test_the_shorter_of_two_wins_where_the_longer_does_not_come() -> None:
    assert stream([b"one STOP", b"PER"], ["STOP", "STOPPED"])[:2] == ("one ", "STOP")
    assert stream([b"one STOPP"], ["STOP", "STOPPED"])[:2] == ("one ", "STOP")


def test_a_stop_string_is_found_across_pieces() -> None:
    assert stream([b"one E", b"N", b"D two"], ["END"])[:2] == ("one ", "END")


def test_what_could_begin_a_stop_string_is_held_back_and_released_when_it_does_not() -> None:
    assert stream([b"one E", b"N", b"Try"], ["END"])[2] == ["one ", "", "ENTry", ""]


def test_what_is_held_back_comes_at_the_end() -> None:
    assert stream([b"one EN"], ["END"]) == ("one EN", None, ["one ", "EN"])


def test_an_earlier_possible_match_holds_back_a_later_certain_one() -> None:
    assert stream([b"abc", b"X"], ["abcX", "bc"])[:2] == ("", "abcX")
    assert stream([b"abc", b"d"], ["abcX", "bc"])[:2] == ("a", "bc")


def test_nothing_comes_after_a_stop_string() -> None:
    text = TextStream(["END"])
    text.push(b"one END")
    assert [text.push(b" two"), text.finish()] == ["", ""]


ALPHABET = "ab€"
TEXTS = st.text(ALPHABET, max_size=20)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=12))
def test_any_cutting_gives_the_same_as_the_whole_text(text: str, stops: list[str], places: list[int]) -> None:
    assert stream(cut(text.encode(), places), stops)[:2] == reference(text, stops)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=12))
def test_what_was_released_is_never_part_of_a_stop_string(text: str, stops: list[str], places: list[int]) -> None:
    expected = reference(text, stops)[0]
    sent = ""
    for released in stream(cut(text.encode(), places), stops)[2]:
        sent += released
        assert expected.startswith(sent)
    assert sent == expected
