"""Text in pieces: it ends before a stop string, and nothing of one goes out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from car_engine.output.reader import StopSearch
from tests.engine.output.pieces import PLACES, cut, every


def search(pieces: list[str], stops: list[str]) -> tuple[str, str | None, list[str]]:
    """Return all text, the stop string that was hit, and what each piece released."""
    text = StopSearch(stops)
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


def test_text_without_stop_strings_goes_out_at_once() -> None:
    assert search(["one", " two"], [])[2] == ["one", " two", ""]


def test_text_ends_before_a_stop_string() -> None:
    assert search(["one END two"], ["END"])[:2] == ("one ", "END")


def test_the_earliest_match_wins() -> None:
    assert search(["a second, first"], ["first", "second"])[:2] == ("a ", "second")


def test_at_equal_start_the_longest_match_wins() -> None:
    assert search(["one STOPPED"], ["STOP", "STOPPED"])[:2] == ("one ", "STOPPED")
    assert search(["one ST", "OP", "PED"], ["STOP", "STOPPED"])[:2] == ("one ", "STOPPED")


def test_the_shorter_of_two_wins_where_the_longer_does_not_come() -> None:
    assert search(["one STOP", "PER"], ["STOP", "STOPPED"])[:2] == ("one ", "STOP")
    assert search(["one STOPP"], ["STOP", "STOPPED"])[:2] == ("one ", "STOP")


def test_a_stop_string_is_found_across_pieces() -> None:
    assert search(["one E", "N", "D two"], ["END"])[:2] == ("one ", "END")


def test_what_could_begin_a_stop_string_is_held_back_and_released_when_it_does_not() -> None:
    assert search(["one E", "N", "Try"], ["END"])[2] == ["one ", "", "ENTry", ""]


def test_what_is_held_back_comes_at_the_end() -> None:
    assert search(["one EN"], ["END"]) == ("one EN", None, ["one ", "EN"])


def test_an_earlier_possible_match_holds_back_a_later_certain_one() -> None:
    assert search(["abc", "X"], ["abcX", "bc"])[:2] == ("", "abcX")
    assert search(["abc", "d"], ["abcX", "bc"])[:2] == ("a", "bc")


def test_nothing_comes_after_a_stop_string() -> None:
    text = StopSearch(["END"])
    text.push("one END")
    assert [text.push(" two"), text.finish()] == ["", ""]


def test_a_stop_string_is_plain_text() -> None:
    assert search(["a.b|c*"], ["|c*", ".*"])[:2] == ("a.b", "|c*")


def test_long_text_is_searched_once() -> None:
    text = "ab" * 500_000
    assert search([text], ["abc", "aba "])[:2] == (text, None)
    assert search(every(text, 50), ["abc", "aba "])[:2] == (text, None)


ALPHABET = "ab€"
TEXTS = st.text(ALPHABET, max_size=20)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)


@settings(max_examples=300)
@given(TEXTS, STOPS, PLACES)
def test_any_cutting_gives_the_same_as_the_whole_text(text: str, stops: list[str], places: list[int]) -> None:
    assert search(cut(text, places), stops)[:2] == reference(text, stops)


@settings(max_examples=300)
@given(TEXTS, STOPS, PLACES)
def test_what_was_released_is_never_part_of_a_stop_string(text: str, stops: list[str], places: list[int]) -> None:
    expected = reference(text, stops)[0]
    sent = ""
    for released in search(cut(text, places), stops)[2]:
        sent += released
        assert expected.startswith(sent)
    assert sent == expected
