"""Schemas that nobody can wait for are refused before they are compiled."""

from typing import Any

import pytest

from car_base.ipc.frames import Chat, Prepare, Reading
from car_base.ipc.refusal import Refusal
from car_engine.prompt.constraints import OutputConstraints
from car_protocol.conversation import Function, Message, Tool
from car_protocol.sampling import Sampling

WIDE: dict[str, Any] = {"patternProperties": {f"^(a|b){{{number}}}c*$": {} for number in range(200)}}


def job(*, json_schema: dict[str, Any] | None = None, tools: list[Tool] | None = None) -> Prepare:
    chat = Chat(messages=[Message("user", "hi")], tools=tools or [], tool_choice="required") if tools else None
    return Prepare(
        key=1,
        owner=1000,
        prompt=None,
        tokens=None,
        chat=chat,
        parse_special=False,
        max_tokens=None,
        sampling=Sampling(),
        grammar=None,
        json_schema=json_schema,
    )


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
