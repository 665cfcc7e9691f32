"""Schemas that nobody can wait for, or that would end the engine, are refused before they are compiled."""

from typing import Any

import pytest

from car_base.ipc.frames import Prepare, Reading
from car_base.ipc.refusal import Refusal
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
