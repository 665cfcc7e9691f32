"""Calls of every family are read as its models write them, however their answers are cut into pieces."""

import json
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.engine.output.families import FAMILIES
from car_daemon.engine.output.parameters import kinds_of
from car_daemon.engine.output.tool_calls import Part, ToolCallReader
from car_daemon.ipc.frames import CallDelta
from car_daemon.ipc.types import ToolStyle
from car_protocol.conversation import Function
from car_protocol.tool_calls import joined_calls
from tests.daemon.engine.output.calls import said
from tests.daemon.engine.output.pieces import PLACES, cut, every
from tests.daemon.engine.output.recorded import ARGUMENTS, FUNCTIONS, RECORDED, Recorded
from tests.daemon.engine.output.written import Call, written

STYLES = list(FAMILIES)


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


SPLITS = settings(derandomize=True, deadline=None, max_examples=400)


@SPLITS
@given(st.sampled_from(RECORDED), st.integers(0, 2000), PLACES, st.booleans())
def test_any_split_of_any_beginning_of_an_answer_gives_the_same_calls(
    recorded: Recorded, end: int, places: list[int], cut_off: bool
) -> None:
    text = recorded.text[: end % (len(recorded.text) + 1)]
    whole = said(parts_of(recorded, [text], cut=cut_off))
    assert said(parts_of(recorded, cut(text, places), cut=cut_off)) == whole
    assert said(parts_of(recorded, list(text), cut=cut_off)) == whole


def test_every_style_is_on_the_page_for_operators() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [style for style in STYLES if f"`{style}`" not in page] == []


def test_every_family_is_recorded() -> None:
    assert {recorded.style for recorded in RECORDED} == set(STYLES)


@pytest.mark.parametrize("recorded", RECORDED, ids=named)
def test_a_cut_answer_shows_no_markers_and_as_much_of_a_call_as_came(recorded: Recorded) -> None:
    for end in range(len(recorded.text)):
        text, _, calls = said(parts_of(recorded, [recorded.text[:end]], cut=True))
        assert recorded.said.startswith(text.strip()), recorded.text[:end]
        assert all(call.function.name in ("look_up", "list_all") for call in calls)
        for call in calls[:-1]:
            assert not call.invalid
        if calls:
            assert calls[-1].function.arguments == "" or calls[-1].function.arguments.startswith("{")


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
