"""A forced answer of any family: its grammar allows calls of random tools, and what it allows is read as such calls."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

import json
import re
from functools import cache
from itertools import count
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.types import ToolStyle
from car_engine.output.families import FAMILIES, Family
from car_engine.output.literals import kinds_of
from car_engine.output.tool_call_grammar import tool_call_grammar
from car_engine.output.tool_calls import ToolCallReader
from car_protocol.conversation import Function
from tests.engine.output.calls import said
from tests.engine.output.pieces import every
from tests.engine.output.vocabulary import Vocabulary
from tests.engine.output.written import Call, written

STYLES = list(FAMILIES)
KEYS = st.sampled_from(["a", "b_2", "path", "x-y", "é", "in", "name", "arguments", "type"])
# Of the markers of families, and what bounds values.
TEXTS = st.lists(
    st.sampled_from(
        ["a", "é", "日", " ", "\n", '"', "\\", "'", "{", "}", "]", ",", "<", ">", "</", "<b>", "|", ":", "=", "1"]
    ),
    max_size=6,
).map("".join)
_CONTROL = re.compile(r"<[^<>=]+>|\[[A-Z_]+\]|\]<\]minimax\[>\[|｜DSML｜")
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "integer": st.integers(-(10**6), 10**6),
    "number": st.integers(-999, 999).map(lambda n: n / 4),
    "boolean": st.booleans(),
}


@st.composite
def properties(draw: st.DrawFn) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    """Return a property's schema, and its values."""
    kind = draw(st.sampled_from([*SCALARS, "enum", "array", "object"]))
    if kind == "enum":
        values = draw(
            st.lists(
                st.sampled_from(
                    ["on", "off", "é b", 'q"'],
                ),
                min_size=1,
                max_size=3,
                unique=True,
            )
        )
        return {"enum": values}, st.sampled_from(values)
    if kind == "array":
        item = draw(st.sampled_from(list(SCALARS)))
        return {"type": "array", "items": {"type": item}}, st.lists(SCALARS[item], max_size=3)
    if kind == "object":
        inner = draw(st.sampled_from(list(SCALARS)))
        schema = {"type": "object", "properties": {"k": {"type": inner}}, "required": ["k"]}
        return schema, SCALARS[inner].map(lambda value: {"k": value})
    return {"type": kind}, SCALARS[kind]


@st.composite
def functions(draw: st.DrawFn, name: str) -> tuple[Function, st.SearchStrategy[dict[str, Any]]]:
    """Return a random tool, and its valid arguments; optional ones follow those that are required."""
    keys = draw(st.lists(KEYS, max_size=4, unique=True))
    found = {key: draw(properties()) for key in keys}
    required = keys[: draw(st.integers(0, len(keys)))]
    schema = {"type": "object", "properties": {key: found[key][0] for key in keys}, "required": required}
    members = {key: found[key][1] for key in keys}

    @st.composite
    def arguments(draw: st.DrawFn) -> dict[str, Any]:
        given_keys = [key for key in keys if key in required or draw(st.booleans())]
        return {key: draw(members[key]) for key in given_keys}

    return Function(name, "", schema), arguments()


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Function], list[Call]]:
    """Return tools, and calls of them."""
    tools = [draw(functions(name)) for name in ("get", "get_all")]
    chosen = draw(st.lists(st.sampled_from(tools), min_size=1, max_size=3))
    return [function for function, _ in tools], [Call(function, draw(arguments)) for function, arguments in chosen]


@cache
def vocabulary(style: ToolStyle, *, control: bool) -> Vocabulary:
    """Return a vocabulary with the family's markers as control tokens, or without any."""
    return Vocabulary(list(filter(_CONTROL.fullmatch, FAMILIES[style].markers)) if control else [])


def written_family(style: ToolStyle, words: Vocabulary) -> Family:
    """Return the family whose form a vocabulary writes."""
    family = FAMILIES[style]
    older = family.older is not None and words.token_of(family.needs) is None
    return FAMILIES[family.older] if older and family.older is not None else family


def calls_in(style: ToolStyle, tools: list[Function], text: str, length: int = 0) -> list[tuple[str, Any]]:
    """Return the calls of an answer, which has nothing else, read at once or in pieces of a length."""
    numbers = count()
    header = FAMILIES[style].header
    begun = header.start if header is not None else ""
    reader = ToolCallReader(style, lambda: f"id{next(numbers)}", kinds_of(tools), begun=begun)
    parts = [part for piece in every(text, length or len(text)) for part in reader.push(piece)]
    others, _, calls = said(parts + reader.finish())
    assert not others, text
    assert not [call for call in calls if call.invalid], text
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=8)
@given(answers())
def test_calls_of_random_tools_are_allowed_and_read_back(
    style: ToolStyle, control: bool, made: tuple[list[Function], list[Call]]
) -> None:
    tools, calls = made
    words = vocabulary(style, control=control)
    family = written_family(style, words)
    calls = calls[:1] if family.forces_one else calls
    text = written(family, calls)
    grammar = tool_call_grammar(style, tools, one=len(calls) == 1, token_of=words.token_of)
    assert words.accepts(grammar, text), (text, grammar)
    assert calls_in(style, tools, text) == [(call.function.name, call.arguments) for call in calls]


def separators(family: Family) -> list[str]:
    """Return what a model may write after its last call: what it writes between calls, a line break in a list."""
    if family.forces_one or family.header is not None:
        return []
    return [text for text in dict.fromkeys((family.between, "\n" if family.listed and not family.each else "")) if text]


@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("style", [style for style in STYLES if separators(FAMILIES[style])])
def test_the_separator_of_calls_may_stand_before_the_end(style: ToolStyle, control: bool) -> None:
    words = vocabulary(style, control=control)
    family = written_family(style, words)
    tool = Function("get", "", {"type": "object", "properties": {"a": {"type": "string"}}})
    grammar = tool_call_grammar(style, [tool], one=False, token_of=words.token_of)
    for made in ([Call(tool, {"a": "x"})], [Call(tool, {"a": "x"}), Call(tool, {})]):
        for last in separators(family):
            text = written(family, made, last)
            assert words.accepts(grammar, text), (text, grammar)
            assert calls_in(style, [tool], text) == [("get", call.arguments) for call in made]
            assert calls_in(style, [tool], text, length=1) == [("get", call.arguments) for call in made]


@pytest.mark.parametrize("style", [style for style in STYLES if separators(FAMILIES[style])])
def test_a_model_that_ends_its_call_as_it_separates_calls_writes_one_call(style: ToolStyle) -> None:
    words = vocabulary(style, control=False)
    family = written_family(style, words)
    tool = Function("get", "", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    grammar = tool_call_grammar(style, [tool], one=False, token_of=words.token_of)
    for last in separators(family):
        wish = written(family, [Call(tool, {"a": "x"})], last)
        assert words.follow(grammar, wish, most=4 * len(wish)) == (wish, True)


@pytest.mark.parametrize("odd", [5, True, 1.5, {"a": 1}, "a", [5]])
@pytest.mark.parametrize("style", STYLES)
def test_keywords_with_values_that_no_schema_has_say_nothing(style: ToolStyle, odd: object) -> None:
    places = [{"type": odd}, {"anyOf": odd}, {"oneOf": odd}, {"enum": odd}, {"type": "object", "required": odd}]
    properties: dict[str, object] = {f"p{number}": each for number, each in enumerate(places)}
    properties["inner"] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": odd}
    tool = Function("get", "", {"type": "object", "properties": properties, "required": odd})
    words = vocabulary(style, control=False)
    assert set(kinds_of([tool])["get"]) == set(properties)
    assert tool_call_grammar(style, [tool], one=True, token_of=words.token_of)


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=10)
@given(answers(), st.integers(0, 1000))
def test_whatever_a_grammar_allows_is_read_as_calls_of_the_tools(
    style: ToolStyle, control: bool, made: tuple[list[Function], list[Call]], seed: int
) -> None:
    tools, _ = made
    words = vocabulary(style, control=control)
    grammar = tool_call_grammar(style, tools, one=False, token_of=words.token_of)
    text = words.wander(grammar, seed, hints=written_family(style, words).markers)
    if text is None:
        return
    schemas = {tool.name: tool.parameters for tool in tools}
    calls = calls_in(style, tools, text)
    assert calls
    for name, arguments in calls:
        jsonschema.validate(arguments, schemas[name])
