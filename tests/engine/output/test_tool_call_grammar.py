"""Forced tool calls: a grammar allows nothing else, and what it allows is read back as those calls."""

import json
import os
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from car_base.ipc.types import ToolStyle
from car_engine.grammar.schema import embedded
from car_engine.output.tool_call_grammar import tool_call_grammar
from car_protocol.conversation import Function, ToolCall
from tests.engine.output.calls import read
from tests.engine.output.vocabulary import CONTROL, Vocabulary

MODE = {"enum": ["a", 'quote " } # // %', "é"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"$ref": "#/$defs/small"}, "mode": MODE, "in": {"type": "array", "items": MODE, "maxItems": 2}},
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 20}},
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = [Function("get", "", SCHEMA), Function("get_all", "", EMPTY), Function("get.all-2")]
SCHEMAS = {"get": SCHEMA, "get_all": EMPTY}

TEXT, HERMES, ARRAYS, NAMED = (Vocabulary(CONTROL[:control]) for control in (0, 2, 3, 4))
STYLES: list[tuple[ToolStyle, Vocabulary]] = [
    ("hermes", TEXT),
    ("hermes", HERMES),
    ("llama3", TEXT),
    ("mistral", TEXT),
    ("mistral", ARRAYS),
    ("mistral", NAMED),
]
# What may follow the last of several calls.
LAST: dict[ToolStyle, str] = {"hermes": "\n", "llama3": "; ", "mistral": ", "}
CASES: list[list[tuple[str, str]]] = [
    [("get", '{"n": 7}')],
    [("get_all", "{}")],
    [("get.all-2", "{}")],
    [("get.all-2", r'{"any": ["thing", {"a":null}, 1.5e3, "</tool> \" } é"]}')],
    [("get", '{"n":20, "mode": "quote \\" } # // %", "in":["é","a"]}'), ("get_all", "{}"), ("get", '{"n": 0}')],
]


def written(style: ToolStyle, vocabulary: Vocabulary, calls: list[tuple[str, str]]) -> str:
    """Write calls as a model does."""
    key = "parameters" if style == "llama3" else "arguments"
    objects = [f'{{"name": "{name}", "{key}": {arguments}}}' for name, arguments in calls]
    if style == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
    if style == "llama3":
        return "; ".join(objects)
    if vocabulary is NAMED:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    return f"[TOOL_CALLS][{', '.join(objects)}]"


def found(style: ToolStyle, text: str) -> list[tuple[str, str]]:
    """Read calls back; nothing else may be there."""
    calls = [part for part in read(style, [text]) if isinstance(part, ToolCall)]
    assert len(calls) == len(read(style, [text]))
    return [(call.function.name, call.function.arguments) for call in calls]


@pytest.mark.parametrize("calls", CASES)
@pytest.mark.parametrize(("style", "vocabulary"), STYLES)
def test_calls_are_allowed_and_read_back(
    style: ToolStyle, vocabulary: Vocabulary, calls: list[tuple[str, str]]
) -> None:
    text = written(style, vocabulary, calls)
    one, many = (tool_call_grammar(style, FUNCTIONS, one=one, token_of=vocabulary.token_of) for one in (True, False))
    assert vocabulary.accepts(many, text)
    assert vocabulary.accepts(one, text) == (len(calls) == 1)
    assert found(style, text) == calls


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("other", "{}"),
        ("get_", "{}"),
        ("get", "{}"),
        ("get", '{"n": 21}'),
        ("get", '{"n": "7"}'),
        ("get", '{"n": 7, "x": 1}'),
        ("get", '{"n":  7}'),
        ("get", '{\n"n": 7}'),
        ("get_all", '{"n": 7}'),
        ("get.all-2", "[]"),
        ("get.all-2", "null"),
    ],
)
@pytest.mark.parametrize(("style", "vocabulary"), STYLES)
def test_other_calls_are_not_allowed(style: ToolStyle, vocabulary: Vocabulary, name: str, arguments: str) -> None:
    grammar = tool_call_grammar(style, FUNCTIONS, one=False, token_of=vocabulary.token_of)
    assert not vocabulary.accepts(grammar, written(style, vocabulary, [(name, arguments)]))


@pytest.mark.parametrize(("style", "vocabulary"), STYLES)
def test_an_answer_without_a_call_is_not_allowed(style: ToolStyle, vocabulary: Vocabulary) -> None:
    grammar = tool_call_grammar(style, FUNCTIONS, one=False, token_of=vocabulary.token_of)
    for text in ("", "a", "{}", "[]", "\n"):
        assert not vocabulary.accepts(grammar, text)


@pytest.mark.parametrize(("style", "vocabulary"), [each for each in STYLES if each[0] != "llama3"])
def test_a_model_may_choose_the_answer_in_place_of_calls(style: ToolStyle, vocabulary: Vocabulary) -> None:
    answer = embedded({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    grammar = tool_call_grammar(style, FUNCTIONS, one=True, token_of=vocabulary.token_of, answer=answer)
    assert vocabulary.accepts(grammar, '{"city":"Bern"}')
    assert vocabulary.accepts(grammar, written(style, vocabulary, CASES[0]))
    for text in ("", "Bern", '{"town":"Bern"}', written(style, vocabulary, [("other", "{}")])):
        assert not vocabulary.accepts(grammar, text)


@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize(("style", "vocabulary"), STYLES)
def test_a_random_model_writes_calls(style: ToolStyle, vocabulary: Vocabulary, one: bool) -> None:
    grammar = tool_call_grammar(style, FUNCTIONS[:2], one=one, token_of=vocabulary.token_of)
    for seed in range(8):
        text = vocabulary.wander(grammar, seed)
        assert text is not None
        calls = found(style, text)
        assert len(calls) == 1 if one else calls
        last = "" if one else LAST.get(style, "")
        whole = written(style, vocabulary, calls)
        assert text in (whole, whole + last, f"{whole[:-1]}{last}]", f"{whole[:-1]}\n]")
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": ["object", "null"]},
        {"properties": {"n": {"type": "integer"}}, "additionalProperties": True},
        {"additionalProperties": True, "properties": {"n": {"type": "string", "format": "unheard-of"}}, "not": {}},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "x-guidance": {"whitespace_flexible": True}},
    ],
)
def test_arguments_are_an_object_under_loose_schemas(parameters: dict[str, Any]) -> None:
    grammar = tool_call_grammar("llama3", [Function("f", "", parameters)], one=True, token_of=TEXT.token_of)
    assert TEXT.accepts(grammar, '{"name": "f", "parameters": {"a": 1, "b": 2}}')
    assert not TEXT.accepts(grammar, '{"name": "f", "parameters": null}')
    assert not TEXT.accepts(grammar, '{"name": "f", "parameters": {"a":  1}}')


def test_a_model_does_not_invent_arguments() -> None:
    parameters = {"properties": {"n": {"type": "integer"}}}
    grammar = tool_call_grammar("llama3", [Function("f", "", parameters)], one=True, token_of=TEXT.token_of)
    assert TEXT.accepts(grammar, '{"name": "f", "parameters": {"n": 1}}')
    assert not TEXT.accepts(grammar, '{"name": "f", "parameters": {"n": 1, "b": 2}}')


def test_a_grammar_is_the_same_in_every_process() -> None:
    # Compiled grammars are cached by their texts.
    program = (
        "from car_engine.output.tool_call_grammar import tool_call_grammar as grammar\n"
        "from car_protocol.conversation import Function\n"
        "texts = {'properties': {key: {'type': 'string'} for key in 'abc'}}\n"
        "for style in ('qwen3_coder', 'minimax_m3'):\n"
        "    print(grammar(style, [Function('f', '', texts)], one=True, token_of=lambda _: None))\n"
    )
    written = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert written[0] == written[1] != ""


def test_many_functions_make_a_sound_grammar() -> None:
    functions = [Function(f"function_{number}", "", SCHEMA) for number in range(128)]
    grammar = tool_call_grammar("hermes", functions, one=False, token_of=HERMES.token_of)
    calls = [("function_127", '{"n": 1}'), ("function_12", '{"n": 2}')]
    assert HERMES.accepts(grammar, written("hermes", HERMES, calls))
