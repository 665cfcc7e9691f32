"""An answer that is one call without its tags, as Qwen2.5-Coder writes it, is a call."""

from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.frames import Reading
from car_engine.output.tool_calls import ToolCallReader
from car_engine.output.untagged_call import holds
from car_protocol.conversation import ToolCall
from tests.engine.output.calls import call, in_order, push_all, reader
from tests.engine.output.pieces import PLACES, cut, every

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": msgspec.json.encode(WEATHER).decode(), "now": "{}"}
PARIS = '{"city": "Paris"}'
CALL = f'{{"name": "get_weather", "arguments": {PARIS}}}'
CALLED = [call(0, "get_weather", PARIS)]


def untagged(pieces: list[str], *, ended: bool = True) -> list[str | ToolCall]:
    """Return the text and the calls of an answer to a request with tools."""
    numbers = count()
    calls = ToolCallReader(
        "hermes", lambda: f"id{next(numbers)}", {"get_weather": {"city": "text"}, "now": {}}, schemas=SCHEMAS
    )
    return in_order([*(part for piece in pieces for part in calls.push(piece)), *calls.finish(cut=not ended)])


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n  {CALL}\n",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}```\n",
        f"<tools>\n{CALL}\n</tools>",
        f'{{"arguments": {PARIS}, "name": "get_weather"}}',
        f"<tool_call>\n{CALL}\n</tool_call>",
    ],
)
@given(places=PLACES)
def test_a_call_in_any_frame_is_a_call_however_it_is_cut(text: str, places: list[int]) -> None:
    assert untagged([text]) == untagged(cut(text, places)) == CALLED


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "other", "arguments": {}}',
        '{"name": "get_weather", "arguments": {}}',
        '{"name": "get_weather", "arguments": {"city": 1}}',
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": 1.5}}',
        '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}',
        '{"name": "get_weather", "arguments": "Paris"}',
        '{"name": "get_weather"}',
        '{"name": "now", "arguments": {}, "id": 1}',
        '{"name": "now", "name": "now", "arguments": {}}',
        f"{CALL} is the call.",
        f"Here is the call: {CALL}",
        f"```json\n{CALL}\n```\nIt returns the weather.",
        f"```python\n{CALL}\n```",
        f"```json\n{CALL}",
        f"{CALL}\n{CALL}",
        '{"name": ',
        "{}",
        "```",
        " ",
    ],
)
@given(places=PLACES)
def test_any_other_answer_is_text(text: str, places: list[int]) -> None:
    assert untagged([text]) == untagged(cut(text, places)) == [text]


@given(text=st.text(alphabet='`{}":, \nnamejsorgutc<l_>/w', max_size=80), places=PLACES)
def test_a_text_that_is_not_a_call_keeps_its_characters(text: str, places: list[int]) -> None:
    found = in_order(part for parts in push_all(reader("hermes"), [text]) for part in parts)
    assert untagged([text]) == untagged(cut(text, places)) == found


def test_a_call_that_a_limit_cuts_is_text() -> None:
    assert untagged(every(CALL[:-1], 3), ended=False) == [CALL[:-1]]
    assert untagged(every(CALL, 3), ended=False) == [CALL]


def test_other_objects_stream_from_their_first_member_on() -> None:
    calls = ToolCallReader("hermes", str, {"now": {}}, schemas=SCHEMAS)
    assert [calls.push(piece) for piece in ['{"na', 'mes"', ": [", "1, 2]"]] == [[], ['{"names"'], [": ["], ["1, 2]"]]


def test_without_schemas_it_is_text() -> None:
    assert Reading().schemas == {}
    assert in_order(part for parts in push_all(reader("hermes"), [CALL]) for part in parts) == [CALL]


@pytest.mark.parametrize(
    ("schema", "value", "held"),
    [
        ({}, {"a": [1, None]}, True),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, {"a": None}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": True}, False),
        ({"properties": {"a": {"type": "number"}}}, {"a": 2}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 2.0}, True),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "z"}, False),
        ({"properties": {"a": {"const": "x"}}}, {"a": "x"}, True),
        ({"properties": {"a": {"type": "array", "items": {"type": "string"}}}}, {"a": ["x", 1]}, False),
        ({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "null"}}}, {"a": 1}, False),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, {"a": None}, True),
        ({"properties": {"a": {"oneOf": [{"type": "string"}]}}}, {"a": None}, False),
        ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, False),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, False),
        ({"properties": {"a": False}}, {"a": 1}, False),
    ],
)
def test_arguments_hold_by_types_members_and_choices(schema: Any, value: Any, held: bool) -> None:
    assert holds(msgspec.json.encode(value).decode(), msgspec.json.encode(schema).decode()) is held


def test_a_schema_that_refers_to_itself_without_end_holds_for_nothing() -> None:
    endless = msgspec.json.encode({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}).decode()
    assert not holds("{}", endless)
