"""Schemas that nobody can wait for, or that would end the engine, are refused before they are compiled."""

from typing import Any, Literal

import jsonschema
import msgspec
import pytest

from car_base.ipc.frames import Prepare, Reading
from car_base.ipc.refusal import Refusal
from car_base.ipc.types import ToolStyle
from car_engine.grammar.constraint import ConstraintError
from car_engine.prompt.constraints import OutputConstraints
from car_protocol.conversation import Function, Message, Tool
from car_protocol.infer import PromptParams

WIDE: dict[str, Any] = {"patternProperties": {f"^(a|b){{{number}}}c*$": {} for number in range(200)}}


def job(*, json_schema: dict[str, Any] | None = None, tools: list[Tool] | None = None) -> Prepare:
    if tools is None:
        return Prepare(1, 1000, PromptParams(prompt="", json_schema=json_schema))
    return Prepare(1, 1000, PromptParams(messages=[Message("user", "hi")], tools=tools, tool_choice="required"))


@pytest.mark.parametrize(
    ("param", "wide"),
    [
        ("json_schema", job(json_schema=WIDE)),
        ("tools", job(tools=[Tool("function", Function(name, parameters=WIDE)) for name in "fg"])),
    ],
)
def test_a_schema_that_takes_minutes_is_never_compiled(param: str, wide: Prepare) -> None:
    compiled: list[str] = []
    with pytest.raises(Refusal) as refusal:
        OutputConstraints(lambda _, text: compiled.append(text), lambda _: None).of(wide, Reading(tools="hermes"))
    assert refusal.value.data["param"] == param
    assert str(refusal.value.data["why"]).startswith("the schema is too large: the limits are 3,000 properties")
    assert not compiled


LOWEST = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}


@pytest.mark.parametrize(
    ("inexact", "param", "place"),
    [
        (job(json_schema={"items": LOWEST}), "json_schema", "/items/maximum"),
        (
            job(tools=[Tool("function", Function(name, parameters={"properties": {name: LOWEST}})) for name in "f"]),
            "tools",
            "/0/function/parameters/properties/f/maximum",
        ),
    ],
)
def test_bounds_that_end_the_librarys_process_are_never_compiled(inexact: Prepare, param: str, place: str) -> None:
    compiled: list[str] = []
    with pytest.raises(Refusal) as refusal:
        OutputConstraints(lambda _, text: compiled.append(text), lambda _: None).of(inexact, Reading(tools="hermes"))
    assert (refusal.value.data["param"], refusal.value.data["place"]) == (param, place)
    assert not compiled


@pytest.mark.parametrize(
    ("choice", "style", "calls"),
    [("auto", "hermes", True), ("none", "hermes", False), ("auto", "gpt_oss", False), ("auto", "llama3", False)],
)
def test_a_model_may_call_a_tool_before_it_answers_by_a_schema(
    choice: Literal["auto", "none"], style: ToolStyle | None, calls: bool
) -> None:
    tools = [Tool("function", Function("look_up"))]
    messages = [Message("user", "hi")]
    params = PromptParams(messages=messages, tools=tools, tool_choice=choice, json_schema={"const": 1})
    grammar = OutputConstraints(lambda *_: None, lambda _: None).of(Prepare(1, 1000, params), Reading(tools=style))
    assert ("look_up" in grammar, '"const":1' in grammar) == (calls, True)


def test_a_schema_beside_tools_is_blamed_for_its_own_faults() -> None:
    def compile_grammar(_: int, grammar: str) -> None:
        if ("look_up" in grammar) == (faulty == "tools"):
            raise ConstraintError("failed to compile JSON schema: Invalid type: x")

    params = PromptParams(
        messages=[Message("user", "hi")], tools=[Tool("function", Function("look_up"))], json_schema={"type": "x"}
    )
    for faulty in ("json_schema", "tools"):
        with pytest.raises(Refusal) as refusal:
            OutputConstraints(compile_grammar, lambda _: None).of(Prepare(1, 1000, params), Reading(tools="hermes"))
        assert refusal.value.data["param"] == faulty


DEFINED = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "takes"), [({"type": "integer"}, True), (DEFINED, True), ({"properties": {"a": {"$ref": "#"}}}, False)]
)
def test_an_answer_by_a_schema_may_be_a_call_without_tags(schema: dict[str, Any], takes: bool) -> None:
    params = PromptParams(
        messages=[Message("user", "hi")], tools=[Tool("function", Function("look_up"))], json_schema=schema
    )
    grammar = OutputConstraints(lambda *_: None, lambda _: None).of(Prepare(1, 1000, params), Reading(tools="hermes"))
    (answer,) = (line for line in grammar.splitlines() if line.startswith("answer:"))
    assert ("look_up" in answer) is takes
    found = msgspec.json.decode(answer.partition("%json ")[2])
    assert found.get("$defs") == schema.get("$defs")
    jsonschema.Draft202012Validator.check_schema(found)
    if takes:
        for value in (7, {"name": "look_up", "arguments": {"a": 1}}):
            jsonschema.validate(value, found)
