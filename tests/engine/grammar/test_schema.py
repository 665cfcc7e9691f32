"""Schemas as grammars: all that can be written under one is JSON and valid."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from car_engine.grammar.constraint import Constraint, ConstraintError, Constraints
from car_engine.grammar.schema import as_lark, is_too_wide, normalized
from tests.engine.grammar.schemas import PIECES, Json, Schemas, answer, constraints, shown

WALKS = 2
STRING = {"type": "string"}


@pytest.fixture(scope="module")
def grammars() -> Constraints:
    """A compiler for the small vocabulary."""
    return constraints()


def takes(grammars: Constraints, schema: dict[str, Any], text: str) -> bool:
    """Say whether a text can be written to its end, byte by byte."""
    constraint = grammars.start(0, as_lark(schema))
    return all(constraint.advance(byte) for byte in text.encode()) and may_end(constraint)


def may_end(constraint: Constraint) -> bool:
    return constraint.complete or any(not PIECES[token] for token in constraint.allowed())


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(block, marks=pytest.mark.slow) for block in range(2, 10))])
def test_what_can_be_written_is_valid(grammars: Constraints, block: int) -> None:
    refused = written = 0
    for seed in range(50 * block, 50 * (block + 1)):
        schema = Schemas(seed).schema()
        Draft202012Validator.check_schema(schema)
        try:
            grammars.compile(0, as_lark(schema))
        except ConstraintError:
            refused += 1
            continue
        answers = [answer(grammars.start(0, as_lark(schema)), Random(WALKS * seed + walk)) for walk in range(WALKS)]
        written += sum(valid(schema, text) for text in answers if text is not None)
    assert refused <= 1
    assert written >= 95, "most walks come to an end"


def valid(schema: Json, text: bytes) -> bool:
    value = json.loads(text)
    assert Draft202012Validator(schema).is_valid(value), shown(schema, text)
    return True


@pytest.mark.parametrize(
    "value", [{}, {"a": "x"}, [], [1, -2.5, 1e3], "é", '\\"\n', None, True, 0, {"a": {"b": [{}, [[]]]}}]
)
def test_an_empty_schema_takes_any_json(grammars: Constraints, value: Any) -> None:
    assert takes(grammars, {}, json.dumps(value, ensure_ascii=False))
    assert takes(grammars, {}, json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    assert takes(grammars, {}, json.dumps(value, ensure_ascii=False, indent=2))


def test_white_space_between_members_has_an_end(grammars: Constraints) -> None:
    assert takes(grammars, {"type": "array"}, "[ ]")
    assert not takes(grammars, {"type": "array"}, "[" + " " * 40 + "]")
    assert not takes(grammars, {"type": "array"}, "[\n\n\n]")


def test_members_that_are_not_listed_are_left_out(grammars: Constraints) -> None:
    schema = {"type": "object", "properties": {"a": STRING}}
    assert takes(grammars, schema, '{"a": "x"}')
    assert takes(grammars, schema, "{}")
    assert not takes(grammars, schema, '{"b": "x"}')


def test_it_holds_in_every_object_within(grammars: Constraints) -> None:
    inner = {"type": "object", "properties": {"a": STRING}, "required": ["a"]}
    for schema, text in (
        ({"type": "array", "items": inner}, "[%s]"),
        ({"type": "object", "properties": {"in": inner}}, '{"in": %s}'),
        ({"anyOf": [inner, {"type": "null"}]}, "%s"),
        ({"$defs": {"d": inner}, "type": "array", "items": {"$ref": "#/$defs/d"}}, "[%s]"),
    ):
        assert takes(grammars, schema, text % '{"a": "x"}')
        assert not takes(grammars, schema, text % '{"a": "x", "b": 1}')


@pytest.mark.parametrize("allowed", [True, {"type": "integer"}])
def test_members_that_are_not_listed_may_come_where_the_schema_says_so(grammars: Constraints, allowed: Json) -> None:
    schema = {"type": "object", "properties": {"a": STRING}, "additionalProperties": allowed}
    assert takes(grammars, schema, '{"a": "x", "b": 1}')


def test_an_object_of_which_nothing_is_said_takes_any_member(grammars: Constraints) -> None:
    assert takes(grammars, {"type": "object"}, '{"b": 1}')
    assert takes(grammars, {"type": "object", "patternProperties": {"^b": {"type": "integer"}}}, '{"b": 1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": STRING}}, {"properties": {"b": STRING}}], "type": "object"},
        {"type": "object", "properties": {"a": STRING}, "anyOf": [{"properties": {"b": STRING}}]},
        {"$defs": {"d": {"properties": {"b": STRING}}}, "$ref": "#/$defs/d", "additionalProperties": STRING},
    ],
)
def test_where_schemas_are_merged_no_part_forbids_what_another_lists(
    grammars: Constraints, schema: dict[str, Any]
) -> None:
    assert takes(grammars, schema, '{"b": "y"}')


def test_what_looks_like_a_schema_in_a_value_stays_as_it_is(grammars: Constraints) -> None:
    value: Json = {"properties": {"a": {}}}
    for schema in ({"const": value}, {"enum": [value]}):
        assert takes(grammars, schema, json.dumps(value))
    named = {"type": "object", "properties": {"properties": {"type": "object", "properties": {"enum": STRING}}}}
    assert takes(grammars, named, '{"properties": {"enum": "x"}}')
    assert not takes(grammars, named, '{"properties": {"other": "x"}}')


def test_a_schema_as_deep_as_the_protocol_allows_is_taken(grammars: Constraints) -> None:
    schema: dict[str, Any] = STRING
    for _ in range(62):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    assert takes(grammars, schema, "[" * 62 + '"x"' + "]" * 62)


@pytest.mark.parametrize("divisor", [1, 7, 0.5, 0.01, 60, 999])
def test_a_usual_divisor_is_no_burden(grammars: Constraints, divisor: float) -> None:
    schema = {"type": "array", "items": {"type": "number", "multipleOf": divisor}}
    assert takes(grammars, schema, f"[{divisor * 3}, 0]")
    assert not takes(grammars, schema, f"[{divisor * 1.5:.3f}]")


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_the_range_of_64_bits_takes_what_it_has_and_json_can_say_exactly(grammars: Constraints, kind: str) -> None:
    schema = normalized({"type": kind, "minimum": -(2**63), "maximum": 2**63 - 1})
    assert all(takes(grammars, schema, str(number)) for number in (0, -7, 2**53 - 1, -(2**53) + 1))
    assert not takes(grammars, schema, str(2**63))


@pytest.mark.parametrize("name", ["default", "const", "enum", "examples", "allOf", "properties", "pattern"])
def test_members_may_be_called_like_keywords(grammars: Constraints, name: str) -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {name: inner}, "required": [name]}
    assert takes(grammars, schema, f'{{"{name}":{{"a":1}}}}')
    assert not takes(grammars, schema, f'{{"{name}":{{"zzz":1}}}}')


INTEGER = {"type": "integer"}
B_IS_REQUIRED = {"properties": {"b": INTEGER}, "required": ["b"]}
BASE_AND_MORE = {
    "branches": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "anyOf": [B_IS_REQUIRED]},
    "branches of branches": {
        "type": "object",
        "properties": {"a": INTEGER},
        "required": ["a"],
        "anyOf": [{"anyOf": [B_IS_REQUIRED]}],
    },
    "a reference": {
        "$ref": "#/$defs/base",
        **B_IS_REQUIRED,
        "$defs": {"base": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}},
    },
}


@pytest.mark.parametrize("schema", BASE_AND_MORE.values(), ids=BASE_AND_MORE)
def test_what_completes_a_list_of_members_does_not_forbid_those_of_the_list(
    grammars: Constraints, schema: dict[str, Any]
) -> None:
    assert takes(grammars, schema, '{"a":1,"b":1}')
    assert not takes(grammars, schema, '{"a":1}')
    assert not takes(grammars, schema, '{"b":1}')


def test_branches_of_what_lists_no_members_are_closed(grammars: Constraints) -> None:
    schema = {"type": "object", "anyOf": [B_IS_REQUIRED, {"properties": {"a": B_IS_REQUIRED}, "required": ["a"]}]}
    assert takes(grammars, schema, '{"b":1}')
    assert takes(grammars, schema, '{"a":{"b":1}}')
    assert not takes(grammars, schema, '{"b":1,"zzz":1}')
    assert not takes(grammars, schema, '{"a":{"b":1,"zzz":1}}')


MERGED: list[Callable[[list[dict[str, Any]]], dict[str, Any]]] = [
    lambda patterns: {"allOf": patterns},
    lambda patterns: {"properties": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}}, "$defs": {"b": {"anyOf": patterns}}},
    lambda patterns: {"$ref": "#/$defs/b", "type": "string", "$defs": {"b": {"anyOf": patterns}}},
]


@pytest.mark.parametrize("merged", MERGED)
def test_more_patterns_than_anybody_can_wait_for_at_once_are_too_wide(
    merged: Callable[[list[dict[str, Any]]], dict[str, Any]],
) -> None:
    patterns: list[dict[str, Any]] = [{"type": "string", "pattern": f"a.{{{number}}}"} for number in range(17)]
    assert not is_too_wide([merged(patterns[:16])])
    assert is_too_wide([merged(patterns)])
    assert not is_too_wide([{"anyOf": patterns}])
    assert not is_too_wide([merged(patterns[:16]), merged(patterns[:16])])


@pytest.mark.parametrize(
    ("keyword", "most", "listed"),
    [
        ("properties", 3000, lambda count: {f"p{number}": {} for number in range(count)}),
        ("required", 3000, lambda count: [f"p{number}" for number in range(count)]),
        ("patternProperties", 64, lambda count: {f"^p{number}": {} for number in range(count)}),
    ],
)
def test_more_members_than_anybody_can_wait_for_are_too_wide(
    keyword: str, most: int, listed: Callable[[int], Any]
) -> None:
    assert not is_too_wide([{"type": "object", keyword: listed(most)}])
    assert is_too_wide([{"type": "object", keyword: listed(most + 1)}])
    halves = [{"items": [{keyword: listed(most // 2)}]}, {"anyOf": [{keyword: listed(most // 2 + 1)}]}]
    assert is_too_wide(halves)
