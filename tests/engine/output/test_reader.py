"""Tokens' bytes become reasoning, text up to a stop string, and tool calls."""

from itertools import chain
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import Tags
from car_engine.output.reader import NOTHING, OutputReader, ReasoningSplit, Released
from car_protocol.answer import joined_calls
from car_protocol.conversation import ToolCall
from tests.engine.output.calls import call, reader
from tests.engine.output.pieces import PLACES, cut

F = '<tool_call>\n{"name": "f", "arguments": {"a": "END"}}\n</tool_call>'
CALL_F = call(0, "f", '{"a": "END"}')


class Said(NamedTuple):
    """All of an answer."""

    text: str
    reasoning: str
    calls: list[ToolCall]


def output(
    pieces: list[bytes], stops: list[str], *, inside: bool = False, keep: bool = False
) -> tuple[Said, str | None]:
    """Return all that an answer of a thinking model with tools says, and the stop string that ended it."""
    thinking = ReasoningSplit(Tags("<think>", "</think>"), inside=inside)
    answer = OutputReader(stops, thinking, reader("hermes"), keep=keep)
    said = [*(answer.push(piece) for piece in pieces), answer.finish()]
    parts = list(chain.from_iterable([one.text, *one.calls] for one in said))
    text = "".join(part for part in parts if isinstance(part, str))
    calls = joined_calls(part for part in parts if isinstance(part, CallDelta))
    return Said(text, "".join(one.reasoning for one in said), calls), answer.stopped_by


def both_ways(text: str, stops: list[str], *, keep: bool = False) -> tuple[Said, str | None]:
    """Read a text at once and byte by byte."""
    whole = output([text.encode()], stops, keep=keep)
    assert output([bytes([byte]) for byte in text.encode()], stops, keep=keep) == whole
    return whole


def test_plain_text_goes_through() -> None:
    answer = OutputReader([], None, None)
    assert [answer.push(b"one "), answer.push(b"<think>"), answer.finish()] == [
        Released("one ", "", []),
        Released("<think>", "", []),
        NOTHING,
    ]


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_waits_for_its_last_byte(character: str) -> None:
    answer = OutputReader([], None, None)
    data = character.encode()
    assert [answer.push(bytes([byte])).text for byte in data] == [""] * (len(data) - 1) + [character]


def test_a_character_that_never_ends_comes_out_as_a_replacement() -> None:
    answer = OutputReader(["END"], None, None)
    assert answer.push(b"a\xe2\x82").text + answer.finish().text == "a\ufffd"


@pytest.mark.parametrize("stops", [[], ["END"]])
def test_a_character_that_the_bound_cut_off_is_dropped(stops: list[str]) -> None:
    answer = OutputReader(stops, None, None)
    assert answer.push(b"a\xe2\x82").text + answer.finish(cut=True).text == "a"


def test_bytes_that_are_no_text_come_out_as_replacements() -> None:
    assert OutputReader([], None, None).push(b"a\xffb").text == "a\ufffdb"


@pytest.mark.parametrize(
    ("text", "expected"), [("<thi", ("", "")), ("<think>Hm </thi", ("", "Hm")), ("<think>Hm</think>a", ("a", "Hm"))]
)
def test_the_beginning_of_a_tag_that_the_bound_cut_off_is_dropped(text: str, expected: tuple[str, str]) -> None:
    answer = OutputReader([], ReasoningSplit(Tags("<think>", "</think>"), inside=False), None)
    output = answer.push(text.encode()).joined(answer.finish(cut=True))
    assert (output.text, output.reasoning) == expected


def test_reasoning_text_and_calls_come_apart() -> None:
    text = f"<think>\nHm.\n</think>\n\nSo:\n{F}\nDone."
    assert both_ways(text, []) == (("So:Done.", "Hm.", [CALL_F]), None)


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    assert output([b"Hm.</think>So."], [], inside=True) == (("So.", "Hm.", []), None)


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        (f" <think>\nHm. {F}\n</think>\n\nSo:\n", f" <think>\nHm. {F}\n</think>\n\nSo:\n", []),
        (f"<think>Hm.</think>\n{F}", "<think>Hm.</think>\n", [CALL_F]),
        (f"{F}<think>", "<think>", [CALL_F]),
        ("<th", "<th", []),
        ("<think>Hm.</think>\n\n", "<think>Hm.</think>\n\n", []),
    ],
)
def test_reasoning_that_is_kept_stays_where_it_was_and_calls_nothing(
    text: str, said: str, calls: list[ToolCall]
) -> None:
    assert both_ways(text, [], keep=True) == ((said, "", calls), None)


@pytest.mark.parametrize("pieces", [["<say>Hello"], ["<", "say", ">", "Hello"], [*"<say>Hello"]])
def test_reasoning_that_is_kept_and_is_the_answer_comes_once(pieces: list[str]) -> None:
    thinking = ReasoningSplit(Tags("<think>", "</think>"), inside=True, answer=["<say>"])
    answer = OutputReader([], thinking, None, keep=True)
    said = [*(answer.push(piece.encode()).text for piece in pieces), answer.finish().text]
    assert "".join(said) == "<say>Hello"


def test_reasoning_that_is_kept_comes_as_it_is_written() -> None:
    thinking = ReasoningSplit(Tags("<think>", "</think>"), inside=False)
    answer = OutputReader([], thinking, reader("hermes"), keep=True)
    pieces = [b"<", b"think>", b"Hm. ", b"</", b"think>", b"\n", b"So"]
    assert [answer.push(piece).text for piece in pieces] == ["", "<think>", "Hm. ", "</", "", "", "think>\nSo"]


@pytest.mark.parametrize(
    ("text", "expected", "stop"),
    [
        (f"<think>END</think>So{F} END {F}", ("So", "END", [CALL_F]), "END"),
        (f"So {F}", ("So", "", [CALL_F]), None),
        (f"So END {F}", ("So ", "", []), "END"),
        (f"So EN{F}D", ("So END", "", [CALL_F]), None),
        (f"So STOP{F}", ("So ", "", []), "STOP"),
        ("<think>a</think>So <tool_call>END", ("So <tool_call>", "a", []), "END"),
        ("So EN", ("So EN", "", []), None),
        ("So STOP", ("So ", "", []), "STOP"),
    ],
)
def test_stop_strings_count_in_the_text_alone(text: str, expected: tuple[object, ...], stop: str | None) -> None:
    assert both_ways(text, ["END", "STOP", "STOPPED"]) == (expected, stop)


def test_nothing_comes_after_a_stop_string() -> None:
    answer = OutputReader(["END"], None, reader("hermes"))
    assert answer.push(b"one END two").text == "one "
    assert [answer.push(F.encode()), answer.finish()] == [NOTHING, NOTHING]


FRAGMENTS = ["<think>", "</think>", F, "<tool_call>", '{"a"', "END", "STOP", "PED", "E", " ", "\n", "é", "😀", "</"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(FRAGMENTS)).map("".join), PLACES, st.booleans(), st.booleans())
def test_any_cutting_gives_the_same(text: str, places: list[int], inside: bool, keep: bool) -> None:
    data = text.encode()
    stops = ["END", "STOP", "STOPPED", "é E"]
    whole = output([data], stops, inside=inside, keep=keep)
    assert output(cut(data, places), stops, inside=inside, keep=keep) == whole


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_output_ends_with_its_only_call(size: int) -> None:
    text = f"so {F}\n{F} and more END"
    answer = OutputReader(["END"], None, reader("hermes"), one_call=True)
    pieces = [text[place : place + size].encode() for place in range(0, len(text), size)]
    said = [*(answer.push(piece) for piece in pieces), answer.finish()]
    deltas = [each for one in said for each in one.calls if isinstance(each, CallDelta)]
    assert "".join(one.text for one in said) == "so"
    assert joined_calls(deltas) == [CALL_F]
    assert (answer.ended, answer.stopped_by) == (True, None)


def test_the_output_goes_on_until_its_only_call_is_complete() -> None:
    answer = OutputReader([], None, reader("hermes"), one_call=True)
    answer.push(F.removesuffix("}\n</tool_call>").encode())
    assert not answer.ended
    cut_off = answer.finish(cut=True)
    assert [each.invalid for each in cut_off.calls if isinstance(each, CallDelta)] == [None]
