"""Markers where a family does not write them cost no call and no text, and are not shown, however an answer is cut."""

import json
from functools import reduce
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import Tags, ToolStyle
from car_engine.output.families import FAMILIES
from car_engine.output.literals import kinds_of
from car_engine.output.reader import OutputReader, ReasoningSplit, Released
from car_engine.output.tool_calls import ToolCallReader
from car_protocol.answer import joined_calls
from car_protocol.conversation import Function, Invalid
from tests.engine.output.calls import said
from tests.engine.output.pieces import PLACES, cut
from tests.engine.output.written import Call, written

Found = tuple[str, list[tuple[str, str, Invalid | None]]]
GET = Function("get", "", {"properties": {"t": {"type": "string"}, "n": {"type": "integer"}}})
ALL = Function("get_all", "", {"properties": {}})
HARMONY = "<|start|>assistant"


def read_in(style: ToolStyle, pieces: list[str], functions: list[Function], *, bound: bool = False) -> Found:
    """Return the text and the calls of an answer in pieces, perhaps cut by its bound."""
    header = FAMILIES[style].header
    numbers = count()
    kinds = kinds_of(functions)
    begun = header.start if header is not None else ""
    reader = ToolCallReader(style, lambda: f"id{next(numbers)}", kinds, begun=begun)
    text, _, calls = said([part for piece in pieces for part in reader.push(piece)] + reader.finish(cut=bound))
    return text, [(call.function.name, call.function.arguments, call.invalid or None) for call in calls]


def cuts(text: str) -> list[list[str]]:
    """Return a text whole, in letters, and cut in two at each place."""
    return [[text], list(text), *([text[:place], text[place:]] for place in range(1, len(text)))]


def found(style: ToolStyle, text: str, functions: list[Function] | None = None) -> Found:
    """Return the text and the calls of an answer; all its cuts give the same."""
    whole, *others = [read_in(style, pieces, functions or [GET, ALL]) for pieces in cuts(text)]
    assert others == [whole] * len(others)
    return whole


@st.composite
def soups(draw: st.DrawFn) -> tuple[ToolStyle, str]:
    """Return a style, and an answer of its markers and of pieces of calls in any order."""
    style = draw(st.sampled_from(list(FAMILIES)))
    family = FAMILIES[style]
    call = written(family, [Call(GET, {"t": "é"})])
    pieces = [
        *family.markers,
        call,
        call[: call.index("é")],
        call[call.index("é") :],
        " ",
        "\n",
        "a",
        "get",
        "{",
        "}",
        "1",
    ]
    return style, "".join(draw(st.lists(st.sampled_from(pieces), max_size=10)))


@settings(max_examples=600)
@given(soups(), PLACES, st.booleans())
def test_any_cutting_of_any_soup_of_markers_gives_the_same(
    soup: tuple[ToolStyle, str], places: list[int], bound: bool
) -> None:
    style, text = soup
    whole = read_in(style, [text], [GET, ALL], bound=bound)
    assert read_in(style, cut(text, places), [GET, ALL], bound=bound) == whole
    assert read_in(style, list(text), [GET, ALL], bound=bound) == whole


SECTIONS = [style for style, family in FAMILIES.items() if family.sections]


def section(style: ToolStyle, before: str, between: str, after: str) -> str:
    """Return a section of two calls with texts in it."""
    family = FAMILIES[style]
    one, two = (
        written(family, [made]).removeprefix(family.open).removesuffix(family.close)
        for made in (Call(GET, {"t": "é"}), Call(ALL, {}))
    )
    return f"So.{family.open}{before}{one}{between}{two}{after}{family.close}Done."


@pytest.mark.parametrize("style", SECTIONS)
def test_text_in_a_section_of_calls_is_text_and_the_calls_are_calls(style: ToolStyle) -> None:
    calls = [("get", '{"t": "é"}', None), ("get_all", "{}", None)]
    for texts in (("Now, ", "", ""), ("", "then, ", ""), ("", "", "so "), ("Now, ", "then, ", "so ")):
        text, made = found(style, section(style, *texts))
        # Whitespace beside markers goes with them.
        assert ("".join(text.split()), made) == ("So." + "".join(texts).replace(" ", "") + "Done.", calls)


@pytest.mark.parametrize("style", SECTIONS)
def test_a_section_without_calls_is_not_shown(style: ToolStyle) -> None:
    family = FAMILIES[style]
    for inside in ("", "\n"):
        text, calls = found(style, f"So.{family.open}{inside}{family.close}Done.")
        assert (text.replace("\n", ""), calls) == ("So.Done.", [])


TAGGED = [style for style, family in FAMILIES.items() if family.notation == "parameters"]


@pytest.mark.parametrize("style", TAGGED)
def test_the_end_of_a_parameter_within_its_text_is_a_part_of_it(style: ToolStyle) -> None:
    parameter = FAMILIES[style].parameter
    assert parameter is not None
    value = f"a{parameter.close.format(key='t')} b {parameter.close.format(key='t')}\nc"
    text, calls = found(style, written(FAMILIES[style], [Call(GET, {"t": value, "n": 3})]))
    arguments = f'{{"t": {json.dumps(value, ensure_ascii=False)}, "n": 3}}'
    assert (text, calls) == ("", [("get", arguments, None)])


def test_names_of_kimi_k3_are_written_as_attributes() -> None:
    function = Function("get", "", {"properties": {'a"b&c|d': {"type": "string"}}})
    text = written(FAMILIES["kimi_k3"], [Call(function, {'a"b&c|d': "&quot;"})])
    assert 'key="a&quot;b&amp;c|d"' in text
    assert found("kimi_k3", text, [function]) == ("", [("get", r'{"a\"b&c|d": "&quot;"}', None)])


KIMI3 = Tags("<|open|>think<|sep|>", "<|close|>think<|sep|>")
ANSWER = "<|open|>response<|sep|>Well.<|close|>response<|sep|>"


@pytest.mark.parametrize(
    ("text", "reasoning", "answer", "called"),
    [
        (f"{ANSWER}<|close|>message<|sep|>", "", "Well.", []),
        (f"Hm.<|close|>think<|sep|>{ANSWER}<|close|>message<|sep|>", "Hm.", "Well.", []),
        (written(FAMILIES["kimi_k3"], [Call(ALL, {})]), "", "", ["get_all"]),
        (f"Hm. {ANSWER}", f"Hm. {ANSWER}", "", []),
    ],
)
def test_an_answer_that_begins_with_its_channel_is_not_a_thought(
    text: str, reasoning: str, answer: str, called: list[str]
) -> None:
    for pieces in cuts(text):
        split = ReasoningSplit(KIMI3, inside=True, answer=FAMILIES["kimi_k3"].begins_answer)
        reader = OutputReader([], split, ToolCallReader("kimi_k3", lambda: "id", kinds_of([ALL])))
        whole = reduce(Released.joined, [*(reader.push(piece.encode()) for piece in pieces), reader.finish()])
        made = joined_calls(piece for piece in whole.calls if isinstance(piece, CallDelta))
        assert (whole.reasoning, whole.text, [call.function.name for call in made]) == (reasoning, answer, called)


CALL = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>"
MARKERS = ["<|channel|>", "<|start|>assistant", "<|end|>", "<|call|>", "<|return|>", "<|message|>"]
ARGUMENTS = '{"t": "a", "n": 3}'


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_within_arguments_of_gpt_oss_leaves_a_call_with_its_arguments(marker: str) -> None:
    for place in range(len(ARGUMENTS)):
        broken = ARGUMENTS[:place] + marker + ARGUMENTS[place:]
        in_text = ARGUMENTS[:place].count('"') % 2 == 1
        for after in ("", f"{HARMONY}<|channel|>final<|message|>Done."):
            text, calls = found("gpt_oss", f"{CALL}{broken}<|call|>{after}")
            assert (text, calls) == ("Done." if after else "", [("get", broken, None if in_text else "arguments")])


def test_a_call_of_gpt_oss_that_a_message_interrupts_is_invalid() -> None:
    for begun in ("", '{"t": '):
        text, calls = found("gpt_oss", f"{CALL}{begun}<|channel|>final<|message|>Done.")
        assert (text, calls) == ("Done.", [("get", begun, "arguments")])


@pytest.mark.parametrize("kind", [{}, {"type": ["string", "integer"]}])
def test_a_marker_of_minimax_in_an_argument_without_a_type_is_text(kind: dict[str, object]) -> None:
    function = Function("get", "", {"properties": {"t": kind}})
    value = "(see ]<]minimax[>[ here)"
    text = written(FAMILIES["minimax_m3"], [Call(function, {"t": value})])
    assert read_in("minimax_m3", [text], [function]) == ("", [("get", json.dumps({"t": value}), None)])


@pytest.mark.parametrize("marker", ["<|channel|>", f"{HARMONY} here"])
def test_a_marker_that_begins_no_message_is_a_part_of_the_answer_of_gpt_oss(marker: str) -> None:
    words = f"Use the {marker} token."
    assert found("gpt_oss", f"<|channel|>final<|message|>{words}") == (words, [])


def test_the_begin_of_a_message_at_the_end_of_an_answer_is_not_shown() -> None:
    assert found("gpt_oss", f"<|channel|>final<|message|>Done.<|end|>{HARMONY}<|return|>") == ("Done.", [])


def test_a_line_break_in_a_header_of_gpt_oss_does_not_show_it() -> None:
    assert found("gpt_oss", "<|channel|>final\n<|message|>Done.") == ("Done.", [])


@pytest.mark.parametrize("name", ["user", "assistant", "user-info", "user.info", "users", "get"])
def test_a_tool_of_gpt_oss_may_have_the_name_of_a_role(name: str) -> None:
    function = Function(name, "", GET.parameters)
    text = f" to=functions.{name}<|channel|>commentary json<|message|>" + '{"t": "x"}<|call|>'
    assert found("gpt_oss", text, [function]) == ("", [(name, '{"t": "x"}', None)])


def test_a_recipient_of_gpt_oss_that_is_no_name_calls_nothing() -> None:
    text = " to=functions.get/all<|channel|>commentary json<|message|>{}<|call|>"
    assert found("gpt_oss", text)[1] == []


ATTRIBUTES: dict[ToolStyle, list[str]] = {
    "deepseek_v3_2": [' string="true"', ' string="false"'],
    "deepseek_v4": [' string="true"', ' string="false"'],
    "deepseek_v4_1": [' string="true"', ' string="false"'],
    "kimi_k3": [' type="string"', ' type="number"', ' index="1"'],
}


@pytest.mark.parametrize("style", ATTRIBUTES)
def test_an_attribute_that_a_model_leaves_out_costs_no_argument(style: ToolStyle) -> None:
    call = written(FAMILIES[style], [Call(GET, {"t": "x", "n": 3})])
    for attribute in ATTRIBUTES[style]:
        assert attribute in call
        assert found(style, call.replace(attribute, "")) == ("", [("get", '{"t": "x", "n": 3}', None)])


@pytest.mark.parametrize("style", [style for style, family in FAMILIES.items() if family.parameter is not None])
def test_a_call_whose_second_parameter_cannot_be_read_is_invalid_wherever_it_is_cut(style: ToolStyle) -> None:
    family = FAMILIES[style]
    assert family.parameter is not None
    first = str(family.parameter.open[0])
    call = written(family, [Call(GET, {"t": "x", "n": 3})])
    place = call.rindex(first, 0, call.rindex("3")) + len(first)
    odd = f"{call[:place]}<odd>{call[place:]}"
    assert [invalid for *_, invalid in found(style, odd)[1]] == ["arguments"]
    for end in range(place + 2, len(odd)):
        text, calls = read_in(style, [odd[:end]], [GET], bound=True)
        assert [invalid for *_, invalid in calls] == ["arguments"], (text, calls)
