"""No answer of any family makes its reader fail, lose text or take more than linear time."""

import json
import time
from collections.abc import Callable
from itertools import count

import pytest

from car_base.ipc.types import ToolStyle
from car_engine.output.families import FAMILIES, Family
from car_engine.output.literals import kinds_of
from car_engine.output.tool_calls import Part, ToolCallReader
from car_protocol.conversation import Function
from tests.engine.output.calls import said
from tests.engine.output.pieces import every
from tests.engine.output.written import Call, written

STYLES = list(FAMILIES)
TEXT = Function("f", "", {"properties": {"t": {"type": "string"}, "a": {"type": "array"}}})
EMPTY = Function("g", "", {"properties": {}})


def begun(family: Family) -> str:
    return family.header.start if family.header is not None else ""


def parts_of(style: ToolStyle, text: str, length: int) -> list[Part]:
    """Return all that is read of an answer in pieces of a length."""
    numbers = count()
    kinds = kinds_of([TEXT, EMPTY])
    reader = ToolCallReader(style, lambda: f"id{next(numbers)}", kinds, begun=begun(FAMILIES[style]))
    parts = [part for piece in every(text, length) for part in reader.push(piece)]
    return parts + reader.finish()


def answer_of(style: ToolStyle, calls: list[Call]) -> str:
    """Return an answer of these calls, each in a message of its own where the family has such."""
    family = FAMILIES[style]
    if not family.forces_one or family.header is None:
        return written(family, calls)
    return (family.header.ends[0] + family.header.start).join(written(family, [call]) for call in calls)


def opening(family: Family) -> str:
    """Return the text of a call up to its arguments."""
    whole = written(family, [Call(TEXT, {"t": "VALUE"})])
    return whole[: whole.index("VALUE")]


def markers(family: Family) -> str:
    return "".join(family.markers) or "[{"


HOSTILE: dict[str, Callable[[Family], str]] = {
    "half markers": lambda family: "".join(marker[: len(marker) // 2 + 1] for marker in family.markers) + "a",
    "markers": markers,
    "markers the other way round": lambda family: "".join(reversed(family.markers)) or "{[",
    "beginnings of calls": opening,
    "beginnings of calls and ends": lambda family: opening(family) + markers(family),
    "brackets": lambda family: (family.open or "") + '[{"[{"',
    "whitespace and markers": lambda family: " \n" * 8 + family.markers[0] if family.markers else " \n",
}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_hostile_answers_are_read_in_linear_time(style: ToolStyle) -> None:
    for name, make in HOSTILE.items():
        unit = make(FAMILIES[style])
        for prefix in ("", opening(FAMILIES[style])):
            short, long = (prefix + unit * (size // len(unit)) for size in (2_000, 8_000))
            quick = min(taken(style, short) for _ in range(2))
            # Four times the text takes four times as long, sixteen times where time is quadratic.
            assert any(taken(style, long) < 9 * quick + 0.005 for _ in range(3)), (name, prefix)


def taken(style: ToolStyle, text: str) -> float:
    """Return the CPU seconds of reading an answer in small pieces."""
    started = time.thread_time()
    parts_of(style, text, 5)
    return time.thread_time() - started


@pytest.mark.parametrize("style", STYLES)
def test_hostile_answers_are_read_alike_in_all_pieces(style: ToolStyle) -> None:
    for make in HOSTILE.values():
        for prefix in ("", opening(FAMILIES[style])):
            text = prefix + make(FAMILIES[style]) * 3
            whole = said(parts_of(style, text, len(text)))
            for length in (1, 3, 7):
                assert said(parts_of(style, text, length)) == whole


@pytest.mark.parametrize("style", STYLES)
def test_arguments_of_a_hundred_kilobytes_are_read(style: ToolStyle) -> None:
    arguments = {"t": 'a "b" {c} <d>\n' * 8_000}
    text, _, calls = said(parts_of(style, answer_of(style, [Call(TEXT, arguments)]), 4096))
    assert (text, [json.loads(call.function.arguments) for call in calls]) == ("", [arguments])


VALUES = {
    "deeper than the interpreter reads": "[" * 2_000,
    "half of a surrogate pair": "['\\ud800']",
    "more digits than the interpreter reads": "9" * 5_000,
    "such digits in a tag": f"]<]minimax[>[<item>{'9' * 5_000}]<]minimax[>[</item>",
    "a deep value in a tag": f"]<]minimax[>[<item>{'[' * 900}{']' * 900}]<]minimax[>[</item>",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("style", STYLES)
def test_a_value_that_no_json_has_is_read_as_some_text(style: ToolStyle, value: str) -> None:
    whole = written(FAMILIES[style], [Call(TEXT, {"a": ["VALUE"]})])
    text = whole.replace('["VALUE"]' if '["VALUE"]' in whole else "VALUE", value)
    shown, reasoning, calls = said(parts_of(style, text, 7))
    assert "".join([shown, reasoning, *(call.function.arguments for call in calls)]).encode()


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_six_hundred_calls_are_read(style: ToolStyle) -> None:
    made = [Call(TEXT, {"a": [1]}), Call(EMPTY, {})] * 300
    text, _, calls = said(parts_of(style, answer_of(style, made), 16))
    assert (text, len(calls)) == ("", len(made))
    assert {(call.function.name, call.function.arguments, call.invalid) for call in calls} == {
        ("f", '{"a": [1]}', calls[0].invalid),
        ("g", "{}", calls[0].invalid),
    }
    assert not calls[0].invalid
