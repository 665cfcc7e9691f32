"""Calls of every family are read as its models write them, however their answers are cut into pieces."""

import json
import re
from functools import reduce
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import Tags, ToolStyle
from car_engine.output.families import FAMILIES
from car_engine.output.literals import kinds_of
from car_engine.output.reader import OutputReader, ReasoningSplit, Released
from car_engine.output.tool_calls import Part, ToolCallReader
from car_protocol.answer import joined_calls
from car_protocol.conversation import Function, ToolCall
from tests.engine.output.calls import said
from tests.engine.output.pieces import PLACES, cut, every
from tests.engine.output.recorded import ARGUMENTS, FUNCTIONS, RECORDED, Recorded
from tests.engine.output.written import Call, written

STYLES = list(FAMILIES)
TAGS = Tags("<think>", "</think>")


def parts_of(
    recorded: Recorded, pieces: list[str], *, cut: bool = False, functions: list[Function] = FUNCTIONS
) -> list[Part]:
    """Return all that a reader makes of an answer's pieces."""
    numbers = count()
    reader = ToolCallReader(recorded.style, lambda: f"id{next(numbers)}", kinds_of(functions), begun=recorded.begun)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return parts + reader.finish(cut=cut)


def named(recorded: Recorded) -> str:
    return recorded.style


@pytest.mark.parametrize("length", [1, 3, 7, 100_000])
@pytest.mark.parametrize("recorded", RECORDED, ids=named)
def test_an_answer_of_a_family_is_read(recorded: Recorded, length: int) -> None:
    text, thoughts, calls = said(parts_of(recorded, every(recorded.text, length)))
    assert [(call.function.name, json.loads(call.function.arguments), call.invalid) for call in calls] == [
        ("look_up", ARGUMENTS, calls[0].invalid),
        ("list_all", {}, calls[0].invalid),
    ]
    assert not calls[0].invalid
    assert (text.strip(), thoughts) == (recorded.said, recorded.thought)


@pytest.mark.parametrize("recorded", RECORDED, ids=named)
def test_a_call_begins_with_its_name_and_ends_once(recorded: Recorded) -> None:
    deltas = [part for part in parts_of(recorded, every(recorded.text, 2)) if isinstance(part, CallDelta)]
    for index, call in enumerate(joined_calls(deltas)):
        first, *others = [delta for delta in deltas if delta.index == index]
        assert (first.id, first.name) == (call.id, call.function.name)
        assert [(delta.id, delta.name) for delta in others] == [("", "")] * len(others)
        assert [delta.ended for delta in others] == [False] * (len(others) - 1) + [True]


SPLITS = settings(max_examples=400)


@SPLITS
@given(st.sampled_from(RECORDED), st.integers(0, 2000), PLACES, st.booleans())
def test_any_split_of_any_beginning_of_an_answer_gives_the_same_calls(
    recorded: Recorded, end: int, places: list[int], cut_off: bool
) -> None:
    text = recorded.text[: end % (len(recorded.text) + 1)]
    whole = said(parts_of(recorded, [text], cut=cut_off))
    assert said(parts_of(recorded, cut(text, places), cut=cut_off)) == whole
    assert said(parts_of(recorded, list(text), cut=cut_off)) == whole


def test_every_style_is_on_the_page_about_tool_calls() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "tool-calls.md").read_text(encoding="utf-8")
    assert [style for style in STYLES if f"`{style}`" not in page] == []


def test_every_family_is_recorded() -> None:
    assert {recorded.style for recorded in RECORDED} == set(STYLES)


@pytest.mark.parametrize("recorded", RECORDED, ids=named)
def test_a_cut_answer_shows_no_markers_and_as_much_of_a_call_as_came(recorded: Recorded) -> None:
    for end in range(len(recorded.text)):
        text, thoughts, calls = said(parts_of(recorded, [recorded.text[:end]], cut=True))
        assert recorded.thought.startswith(thoughts)
        assert recorded.said.startswith(text.strip()), recorded.text[:end]
        assert all(call.function.name in ("look_up", "list_all") for call in calls)
        for call in calls[:-1]:
            assert not call.invalid
        if calls:
            assert calls[-1].function.arguments == "" or calls[-1].function.arguments.startswith("{")


@pytest.mark.parametrize("cut_off", [False, True], ids=["by its end", "by a limit"])
@pytest.mark.parametrize("style", STYLES)
def test_a_call_that_was_cut_in_its_arguments_is_invalid(style: ToolStyle, cut_off: bool) -> None:
    function = Function("get", "", {"properties": {"t": {"type": "string"}}})
    arguments = {"t": "one two"}
    header = FAMILIES[style].header
    text = written(FAMILIES[style], [Call(function, arguments)])
    # A message without a text is a call without arguments.
    begin = text.index("{") + 1 if header is not None and FAMILIES[style].notation == "json" else 0
    for end in range(begin, text.index("two") + 2):
        recorded = Recorded(style, text[:end], begun=header.start if header is not None else "")
        whole = said(parts_of(recorded, [text[:end]], cut=cut_off, functions=[function]))
        assert said(parts_of(recorded, list(text[:end]), cut=cut_off, functions=[function])) == whole
        assert [call.invalid for call in whole[2] if call.function.name == "get"] in ([], ["arguments"]), text[:end]


# Families whose calls are tags with their names in quotes.
QUOTED = [style for style, family in FAMILIES.items() if str(family.head[2:3]).startswith("('\">")]


@pytest.mark.parametrize("end", ["/>", " />", "  />", "\n/>"])
@pytest.mark.parametrize("style", QUOTED)
def test_a_call_whose_tag_closes_itself_is_a_call_without_arguments(style: ToolStyle, end: str) -> None:
    submit, get = Function("submit", ""), Function("get", "", {"properties": {"t": {"type": "string"}}})
    header = FAMILIES[style].header
    made = [Call(submit, {})] if header is not None else [Call(submit, {}), Call(get, {"t": "é"})]
    tail = r"\s*".join(map(re.escape, FAMILIES[style].tail))
    text, replaced = re.subn(rf'submit">\s*{tail}', f'submit"{end}', written(FAMILIES[style], made))
    assert replaced == 1
    recorded = Recorded(style, text, begun=header.start if header is not None else "")
    whole = said(parts_of(recorded, [text], functions=[submit, get]))
    assert said(parts_of(recorded, list(text), functions=[submit, get])) == whole
    found = [(call.function.name, json.loads(call.function.arguments), call.invalid) for call in whole[2]]
    assert (whole[0], found) == ("", [(call.function.name, call.arguments, None) for call in made])


TAGGED = [style for style, family in FAMILIES.items() if family.notation == "parameters"]
LIST = Function("f", "", {"properties": {"a": {"type": "array"}, "t": {"type": "string"}}})


@pytest.mark.parametrize("style", TAGGED)
def test_the_end_of_a_parameter_within_its_json_is_a_part_of_it(style: ToolStyle) -> None:
    parameter = FAMILIES[style].parameter
    assert parameter is not None
    arguments = {"a": ["x", f"{parameter.close.format(key='a')}</b>", "é"], "t": " [1"}
    text = written(FAMILIES[style], [Call(LIST, arguments), Call(LIST, {})])
    header = FAMILIES[style].header
    for length in (1, 3, 100_000):
        recorded = Recorded(style, text, begun=header.start if header is not None else "")
        _, _, calls = said(parts_of(recorded, every(text, length), functions=[LIST]))
        # Each call of some families is a message of its own.
        assert json.loads(calls[0].function.arguments) == arguments


@pytest.mark.parametrize("style", TAGGED)
def test_names_of_parameters_may_have_any_letters(style: ToolStyle) -> None:
    keys = ["a/b", "é ü", "x-y.z", "$ref"]
    function = Function("f", "", {"properties": {key: {"type": "string"} for key in keys}})
    text = written(FAMILIES[style], [Call(function, dict.fromkeys(keys, "v"))])
    header = FAMILIES[style].header
    recorded = Recorded(style, text, begun=header.start if header is not None else "")
    _, _, calls = said(parts_of(recorded, every(text, 2), functions=[function]))
    assert json.loads(calls[0].function.arguments) == dict.fromkeys(keys, "v")


def test_a_text_is_a_cdata_section_only_where_the_family_writes_them() -> None:
    text = Function("f", "", {"properties": {"t": {"type": "string"}}})
    section = "<![CDATA[a</param>b]]>"
    expectations: dict[ToolStyle, str] = {"minicpm5": "a</param>b", "qwen3_coder": section}
    for style, expected in expectations.items():
        answer = written(FAMILIES[style], [Call(text, {"t": section})])
        _, _, calls = said(parts_of(Recorded(style, answer), [answer], functions=[text]))
        assert json.loads(calls[0].function.arguments) == {"t": expected}


def output_of(recorded: Recorded, pieces: list[bytes], *, functions: list[Function]) -> tuple[str, str, list[ToolCall]]:
    """Return the text, the thoughts and the calls of an answer in pieces of bytes, of a model with thinking tags."""
    numbers = count()
    calls = ToolCallReader(recorded.style, lambda: f"id{next(numbers)}", kinds_of(functions), begun=recorded.begun)
    split = None if recorded.begun else ReasoningSplit(TAGS, inside=False)
    reader = OutputReader([], split, calls)
    outputs = [*(reader.push(piece) for piece in pieces), reader.finish()]
    whole = reduce(Released.joined, outputs)
    texts = [piece for piece in whole.calls if isinstance(piece, str)]
    pieces_of_calls = (piece for piece in whole.calls if isinstance(piece, CallDelta))
    return whole.text + "".join(texts), whole.reasoning, joined_calls(pieces_of_calls)


def tokens_of(recorded: Recorded, text: str) -> list[bytes]:
    """Return a text in tokens: the markers of the family as control tokens, and single bytes."""
    markers = sorted((*FAMILIES[recorded.style].markers, *TAGS), key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, markers)) + ")", text)
    control = [[piece.encode()] if piece in markers else [bytes([byte]) for byte in piece.encode()] for piece in pieces]
    return [token for tokens in control for token in tokens]


@pytest.mark.parametrize("recorded", RECORDED, ids=named)
def test_an_answer_is_read_alike_in_bytes_and_in_control_tokens(recorded: Recorded) -> None:
    thought = "" if recorded.begun else f"<think>\nHm, {recorded.text}\n</think>\n"
    text = thought + recorded.text
    data = text.encode()
    cuts = [every(data, length) for length in (1, 3, 7, len(data))]
    found = [output_of(recorded, pieces, functions=FUNCTIONS) for pieces in (*cuts, tokens_of(recorded, text))]
    said_text, reasoning, calls = found[0]
    assert found == [found[0]] * len(found)
    # A call within a thought is not a call.
    assert [call.function.name for call in calls] == ["look_up", "list_all"]
    assert said_text.strip() == recorded.said
    assert reasoning == (recorded.thought if recorded.begun else f"Hm, {recorded.text}".rstrip())


MARKED = "</tool_call>\n<tool_call>{}[TOOL_CALLS]; <|python_tag|><|call|><|end|>é日😀'\"\\</s>"


@pytest.mark.parametrize("style", STYLES)
def test_markers_and_any_letters_within_the_texts_of_arguments_are_parts_of_them(style: ToolStyle) -> None:
    family = FAMILIES[style]
    function = Function("f", "", {"properties": {"t": {"type": "string"}}})
    ends = (family.parameter.close,) if family.parameter is not None else (family.quote,)
    others = "".join(marker for marker in family.markers if not any(end and end in marker for end in ends))
    arguments = {"t": f" {MARKED}{others}<b> "}
    text, _, calls = forced_output(style, [Call(function, arguments)])
    assert (text, [json.loads(call.function.arguments) for call in calls]) == ("", [arguments])


@pytest.mark.parametrize("style", STYLES)
def test_a_call_of_an_unknown_tool_is_a_call_with_a_fault(style: ToolStyle) -> None:
    unknown = Function("other-1.x", "", {"properties": {"t": {"type": "string"}}})
    for arguments in ({}, {"t": "é"}):
        text, _, calls = forced_output(style, [Call(unknown, arguments)], tools=FUNCTIONS)
        found = [(call.function.name, json.loads(call.function.arguments), call.invalid) for call in calls]
        assert (text, found) == ("", [("other-1.x", arguments, "name")])


OBJECTS = [style for style, family in FAMILIES.items() if family.notation in ("object", "keyed", "json")]


@pytest.mark.parametrize("style", OBJECTS)
def test_arguments_that_are_not_json_come_as_they_were_written(style: ToolStyle) -> None:
    whole = written(FAMILIES[style], [Call(LIST, {"t": "VALUE"})])
    broken = whole.replace('"VALUE"', "VALUE é,")
    header = FAMILIES[style].header
    recorded = Recorded(style, broken, begun=header.start if header is not None else "")
    for length in (1, 7, 1000):
        text, _, calls = said(parts_of(recorded, every(broken, length), functions=[LIST]))
        assert text == ""
        assert [(call.function.arguments.rstrip("}] \n"), call.invalid) for call in calls] == [
            ('{"t": VALUE é,', "arguments")
        ]


def forced_output(
    style: ToolStyle, calls: list[Call], tools: list[Function] | None = None
) -> tuple[str, str, list[ToolCall]]:
    """Return what is read of an answer of these calls, letter by letter."""
    header = FAMILIES[style].header
    recorded = Recorded(style, written(FAMILIES[style], calls), begun=header.start if header is not None else "")
    functions = tools if tools is not None else [call.function for call in calls]
    return said(parts_of(recorded, list(recorded.text), functions=functions))
