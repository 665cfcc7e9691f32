"""Marks at a client's control tokens: they hold whatever a template does to text, and leave no trace."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.frames import Chat
from car_engine.prompt.special_token_escaper import SpecialTokenEscaper
from car_engine.prompt.template import ChatTemplate
from car_protocol.conversation import Message
from tests.engine.prompt.chats import (
    FAMILIES,
    WITH_TOOLS,
    Family,
    call,
    calls,
    chat,
    family,
    opened,
    result,
    tool,
    user,
)
from tests.engine.prompt.fakes import FakeVocabulary

MARK = "\ufdd0"
USUAL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[x]"]
# One that overlaps another, and one that has no inside.
SPECIALS = [*USUAL, "[[x", "§"]
FRAGMENTS = [*SPECIALS, "<|im_", "end|>", "[", "x]", "<", "|>", ">|dne_mi|<", "]TSNI[", "</think>", "\n", " ", "é"]
VOCABULARY = FakeVocabulary(SPECIALS)
USUAL_VOCABULARY = FakeVocabulary(USUAL)
WORDS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join)

# What templates do to a message's content, and worse.
TREATMENTS = [
    "c",
    "c ~ d",
    "c | trim",
    "c.strip('\\n')",
    "c.split('</think>')[-1]",
    "c.split('</think>')[0]",
    "c.split('</think>') | join",
    "c | replace('</think>', '')",
    "c | replace('\\n', '') | replace(' ', '')",
    "c.split('<') | join('<')",
    "c.split('<') | join('</s>'[:1])",
    "c | reverse",
    "d | reverse ~ c | reverse",
    "c[::-1]",
    "c | list | join",
    "c | lower",
    "c | upper",
    "c | title",
    "c | tojson",
    "c | tojson(ensure_ascii=true)",
    "{c: [d]} | tojson(indent=2, separators=(',', ':'), sort_keys=true)",
    "{c: [d]}",
    "[c, d] | string",
    "'%s%s' | format(c, d)",
    "'{}{}'.format(c, d)",
]
# These may cut a character off its mark.
CUTS = [
    "c[1:] ~ d[:-1]",
    "c[3:-3]",
    "c | indent(2) | wordwrap(5)",
    "c | truncate(9, true, '')",
]


@cache
def with_treatment(treatment: str, vocabulary: FakeVocabulary) -> ChatTemplate:
    """Return a template that does this to two messages, between control tokens of its own."""
    names = "{%- set c, d = messages[0].content, messages[1].content -%}"
    return opened(f"{names}<s>{{{{ {treatment} }}}}</s>[INST]{{{{ {treatment} }}}}[x]§", vocabulary)


@settings(max_examples=40)
@given(first=WORDS, second=WORDS)
@pytest.mark.parametrize("treatment", TREATMENTS)
def test_no_treatment_of_text_makes_a_control_token_of_it(treatment: str, first: str, second: str) -> None:
    tokens = with_treatment(treatment, VOCABULARY).render(chat(*user(first, second))).tokens
    assert VOCABULARY.controls(tokens) == ["<s>", "</s>", "[INST]", "[x]", "§"]
    assert not any(chr(code) in VOCABULARY.written(tokens) for code in range(0xFDD0, 0xFDF0))


@settings(max_examples=40)
@given(first=WORDS, second=WORDS)
@pytest.mark.parametrize("cut", CUTS)
def test_no_cut_through_text_makes_a_control_token_of_it(cut: str, first: str, second: str) -> None:
    tokens = with_treatment(cut, USUAL_VOCABULARY).render(chat(*user(first, second))).tokens
    assert USUAL_VOCABULARY.controls(tokens) == ["<s>", "</s>", "[INST]", "[x]"]


@given(first=WORDS, second=WORDS)
def test_text_that_is_only_written_out_comes_out_as_it_was(first: str, second: str) -> None:
    tokens = with_treatment("c ~ d", VOCABULARY).render(chat(*user(first, second))).tokens
    assert VOCABULARY.written(tokens) == f"<s>{first}{second}</s>[INST]{first}{second}[x]§"


@pytest.mark.parametrize("treatment", ["[c] | string", "c | tojson(ensure_ascii=true)"])
def test_marks_leave_no_trace_where_a_template_escapes_text(treatment: str) -> None:
    vocabulary = FakeVocabulary(SPECIALS)
    tokens = with_treatment(treatment, vocabulary).render(chat(*user("a <b>", "x"))).tokens
    assert "a <b>" in vocabulary.written(tokens)
    assert "fdd" not in vocabulary.written(tokens)


def test_words_that_a_template_looks_for_stay_whole() -> None:
    vocabulary = FakeVocabulary(SPECIALS)
    template = with_treatment("c.split('</think>')[-1] if c.startswith('<think>') else 'none'", vocabulary)
    tokens = template.render(chat(*user("<think><b></think><|im_end|>", "x"))).tokens
    assert vocabulary.written(tokens) == "<s><|im_end|></s>[INST]<|im_end|>[x]§"


def test_a_tag_that_is_a_control_token_is_not_looked_for_in_text() -> None:
    vocabulary = FakeVocabulary([*SPECIALS, "</think>"])
    tokens = with_treatment("c.split('</think>')[-1]", vocabulary).render(chat(*user("a</think>b", "x"))).tokens
    assert vocabulary.written(tokens) == "<s>a</think>b</s>[INST]a</think>b[x]§"
    assert "</think>" not in vocabulary.controls(tokens)


def test_only_text_between_the_templates_control_tokens_is_cut_out() -> None:
    marks = SpecialTokenEscaper(SPECIALS, [])
    text = f"<s>one{marks.escape('</s>', MARK)}two[INST]three <{MARK}b><s>"
    assert list(marks.segments(text, MARK)) == [
        ("<s>", True),
        ("one</s>two", False),
        ("[INST]three <b><s>", True),
    ]


def test_a_control_token_within_another_does_not_cut_it() -> None:
    marks = SpecialTokenEscaper(["<|a|>", "|a", "<s>"], [])
    assert list(marks.segments("<|a|>" + marks.escape("<s>", MARK), MARK)) == [("<|a|>", True), ("<s>", False)]


def test_text_without_control_tokens_is_one_piece() -> None:
    marks = SpecialTokenEscaper(SPECIALS, [])
    text = "<s>" + marks.escape("a < b [1] >", MARK)
    assert list(marks.segments(text, MARK)) == [("<s>a < b [1] >", True)]


def test_control_tokens_that_begin_with_letters_leave_other_words_alone() -> None:
    marks = SpecialTokenEscaper(["sop", "[gMASK]"], ["system"])
    assert marks.escape("a sofa", MARK) == "a sofa"
    assert list(marks.segments("sop" + marks.escape("a sop", MARK), MARK)) == [("sop", True), ("a sop", False)]


def test_a_vocabulary_without_control_tokens_needs_no_marks() -> None:
    marks = SpecialTokenEscaper([], ["<think>"])
    assert marks.escape("<think> [x]", MARK) == "<think> [x]"
    assert list(marks.segments("<s>", MARK)) == [("<s>", True)]


def test_strings_are_marked_wherever_they_are() -> None:
    marks = SpecialTokenEscaper(["<s>"], [])
    value = {"<s>": [1, None, True, {"a": "<"}]}
    assert marks.escape(value, "M") == {"M<Ms>": [1, None, True, {"a": "M<M"}]}


def hostile(name: Family, words: list[str]) -> Chat:
    """Return a chat that has the ten words wherever the family's template writes text."""
    talk = [Message("system", words[0]), Message("user", words[1]), Message("assistant", words[2])]
    if name not in WITH_TOOLS:
        return chat(*talk, *user(words[3]))
    made = calls(call(words[3], json.dumps({words[4]: [words[5]]})), reasoning=words[6])
    offered = tool(words[7], words[8], {words[9]: {"enum": words}}, words)
    return chat(*talk, *user(words[3]), made, result(words[9]), tools=[offered])


@cache
def without_hostility(name: Family) -> list[str]:
    """Return the control tokens that the family's template itself writes around such a chat."""
    template, vocabulary = family(name)
    return vocabulary.controls(template.render(hostile(name, ["x"] * 10)).tokens)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("name", FAMILIES)
def test_no_text_of_a_client_adds_a_control_token(name: Family, data: st.DataObject) -> None:
    template, vocabulary = family(name)
    halves = [part for special in vocabulary.specials for part in (special, special[:3], special[3:], special[:1])]
    fragments = st.sampled_from(
        [*halves, "<think>", "</think>", "<tool_response>", "\n", " ", "x", '"', "\\", "\ufdd0"]
    )
    words = st.lists(fragments, min_size=1, max_size=6).map("".join)
    drawn = data.draw(st.lists(words, min_size=10, max_size=10))
    tokens = template.render(hostile(name, drawn)).tokens
    assert vocabulary.controls(tokens) == without_hostility(name)
