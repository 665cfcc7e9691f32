"""Texts of a schema's refusal: the fault, without words of the schema."""

from typing import Any

import pytest

from car_engine.grammar.constraint import ConstraintError, explain
from car_engine.grammar.schema import as_lark
from tests.engine.grammar.schemas import constraints

SECRET = "secret"
CONSTRAINTS = constraints()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "uniqueItems": True}, "not supported: uniqueItems"),
        ({SECRET: 1, "not": {"const": SECRET}, "contains": {}}, "not supported: not, contains"),
        ({"properties": {SECRET: {"propertyNames": {"const": SECRET}}}}, "not supported: propertyNames"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf is supported only"),
        ({"properties": {SECRET: {}}, "maxProperties": 2}, "minProperties and maxProperties are supported only"),
        ({"type": "object", "required": [SECRET], "additionalProperties": False}, "no value is valid under it"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no value is valid under it"),
        ({"$ref": f"#/{SECRET}"}, "a $ref names a schema that does not exist"),
        ({"$ref": f"https://{SECRET}/"}, "a $ref points outside the schema"),
        ({"pattern": f"(?={SECRET})"}, "a pattern is not a regular expression"),
        ({"type": SECRET}, "a type is not one of JSON's"),
        ({"format": SECRET}, "a format is not supported"),
        ({"items": 3}, "it cannot be compiled"),
        ({"multipleOf": 99_999_989}, "multipleOf has too many remainders"),
    ],
)
def test_the_refusal_of_a_schema_has_a_reason_without_its_own_words(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        CONSTRAINTS.compile(0, as_lark(schema))
    assert str(refused.value).startswith(why)
    assert SECRET not in str(refused.value)


def test_unknown_texts_of_a_library_are_not_passed_on() -> None:
    assert explain(f'failed to compile JSON schema: Unimplemented keys: ["{SECRET}"]') == "it cannot be compiled"
    assert explain(f"parse error at {SECRET}") == "it cannot be compiled"
