"""Reasoning and answer come apart, wherever the pieces are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.types import Tags
from car_engine.output.reader import ReasoningSplit, Split
from tests.engine.output.pieces import PLACES, cut, every

THINK = Tags("<think>", "</think>")


def split(pieces: list[str], *, inside: bool = False, tags: Tags = THINK) -> Split:
    """Return all reasoning and all text."""
    reader = ReasoningSplit(tags, inside=inside)
    splits = [*(reader.push(piece) for piece in pieces), reader.finish()]
    return Split("".join(one.reasoning for one in splits), "".join(one.text for one in splits))


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nWell, \n so.\n</think>\n\nYes.\n", "Well, \n so.", "Yes.\n"),
        ("\n <think>a</think>b", "a", "b"),
        ("<think></think>b", "", "b"),
        ("<think>\n\n</think>\n\nb", "", "b"),
        ("<think>a <b> </thin</think>b", "a <b> </thin", "b"),
        ("<think>a</think>", "a", ""),
        ("<think>a</think> \n", "a", ""),
        ("<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
        ("<think>a<think>b</think>c", "a<think>b", "c"),
        ("  b\n", "", "  b\n"),
        ("  b <think>c</think>", "", "  b <think>c</think>"),
        ("<thing>", "", "<thing>"),
        (" <thi", "", " <thi"),
        (" ", "", " "),
        ("", "", ""),
        ("<think>a </th", "a </th", ""),
        ("<think>a\n", "a\n", ""),
    ],
)
def test_reasoning_is_what_the_answer_begins_with(text: str, reasoning: str, answer: str) -> None:
    assert split([text]) == (reasoning, answer)
    assert split(list(text)) == (reasoning, answer)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("\nWell.\n</think>\n\nYes.", "Well.", "Yes."),
        ("</think>Yes.", "", "Yes."),
        ("a <think> b</think>c", "a <think> b", "c"),
        ("no end", "no end", ""),
        ("", "", ""),
    ],
)
def test_a_prompt_may_have_opened_the_reasoning(text: str, reasoning: str, answer: str) -> None:
    assert split([text], inside=True) == (reasoning, answer)
    assert split(list(text), inside=True) == (reasoning, answer)


@pytest.mark.parametrize("tags", [Tags("[THINK]", "[/THINK]"), Tags("<|START_THINKING|>", "<|END_THINKING|>")])
def test_other_tags_are_read_as_well(tags: Tags) -> None:
    assert split([f"{tags.open}[a] <b>{tags.close} c"], tags=tags) == ("[a] <b>", "c")


def test_only_what_could_become_a_tag_or_whitespace_before_one_is_held_back() -> None:
    reader = ReasoningSplit(THINK, inside=False)
    pieces = ["<thi", "nk>", "\n", "one", " ", "two <", "b", " </", "think", ">", "\n", "x", " ", "<think>"]
    assert [tuple(reader.push(piece)) for piece in pieces] == [
        ("", ""),
        ("", ""),
        ("", ""),
        ("one", ""),
        ("", ""),
        (" two", ""),
        (" <b", ""),
        ("", ""),
        ("", ""),
        ("", ""),
        ("", ""),
        ("", "x"),
        ("", " "),
        ("", "<think>"),
    ]


def test_thinking_lasts_from_tag_to_tag() -> None:
    reader = ReasoningSplit(THINK, inside=False)
    pieces = ["<thi", "nk>", "a", "</think", ">", "b"]
    seen = [reader.push(piece) and reader.thinking for piece in pieces]
    assert seen == [False, True, True, True, False, False]


def test_thinking_is_on_at_once_where_the_prompt_opened_it() -> None:
    reader = ReasoningSplit(THINK, inside=True)
    assert reader.thinking
    reader.push("a</think>")
    assert not reader.thinking


SOUP = st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "é", "b c"])).map("".join)


@settings(max_examples=300)
@given(SOUP, PLACES, st.booleans())
def test_any_cutting_gives_the_same(text: str, places: list[int], inside: bool) -> None:
    assert split(cut(text, places), inside=inside) == split([text], inside=inside)


@settings(max_examples=300)
@given(SOUP, PLACES, st.booleans())
def test_nothing_is_lost_but_tags_and_whitespace(text: str, places: list[int], inside: bool) -> None:
    kept = "".join(split(cut(text, places), inside=inside))
    expected = text
    if not inside and text.lstrip().startswith("<think>"):
        inside, expected = True, text.replace("<think>", "", 1)
    if inside:
        expected = expected.replace("</think>", "", 1)
    assert "".join(kept.split()) == "".join(expected.split())


def test_long_whitespace_and_many_brackets_are_read_in_one_go() -> None:
    text = "<think>" + "a" + " " * 50_000 + "<" * 50_000 + "</think>b"
    assert split(every(text, 3)) == (text[7:-9], "b")
    assert split([text]) == (text[7:-9], "b")
