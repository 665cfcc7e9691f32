"""Calls of every family are read as its models write them, however their answers are cut into pieces."""

import json
from itertools import count

import pytest

from car_daemon.engine.output.families import FAMILIES
from car_daemon.engine.output.parameters import kinds_of
from car_daemon.engine.output.tool_calls import CallDelta, Part, Thought, ToolCallReader
from car_protocol.conversation import ToolCall
from tests.daemon.engine.output.pieces import every
from tests.daemon.engine.output.recorded import ARGUMENTS, FUNCTIONS, RECORDED, Recorded

KINDS = kinds_of(FUNCTIONS)
STYLES = list(FAMILIES)


def parts_of(recorded: Recorded, pieces: list[str], *, cut: bool = False) -> list[Part]:
    """Return all that a reader makes of an answer's pieces."""
    numbers = count()
    reader = ToolCallReader(recorded.style, lambda: f"id{next(numbers)}", KINDS, begun=recorded.begun)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return parts + reader.finish(cut=cut)


def said(parts: list[Part]) -> tuple[str, str, list[ToolCall]]:
    """Return the text, the thoughts and the calls."""
    text = "".join(part for part in parts if isinstance(part, str))
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    return text, thoughts, [part for part in parts if isinstance(part, ToolCall)]


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
def test_the_pieces_of_a_call_are_the_call(recorded: Recorded) -> None:
    parts = parts_of(recorded, every(recorded.text, 2))
    for call in said(parts)[2]:
        deltas = [part for part in parts if isinstance(part, CallDelta) and part.id == call.id]
        assert [delta.name for delta in deltas if delta.name] == [call.function.name]
        assert deltas[0].name
        assert "".join(delta.arguments for delta in deltas) == call.function.arguments


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
