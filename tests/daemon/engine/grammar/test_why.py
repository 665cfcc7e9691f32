"""What who wrote a schema is told of it: what is wrong, and nothing of what it says."""

from typing import Any

import pytest

from car_daemon.engine.grammar.constraint import ConstraintError
from car_daemon.engine.grammar.schema import as_lark
from car_daemon.engine.grammar.why import why_refused
from tests.daemon.engine.grammar.schemas import constraints

SECRET = "secret"
CONSTRAINTS = constraints()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "uniqueItems": True}, "not supported: uniqueItems"),
        ({SECRET: 1, "not": {"const": SECRET}, "contains": {}}, "not supported: not, contains"),
        ({"properties": {SECRET: {"propertyNames": {"const": SECRET}}}}, "not supported: propertyNames"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf is taken only"),
        ({"properties": {SECRET: {}}, "maxProperties": 2}, "minProperties and maxProperties are taken only"),
        ({"type": "object", "required": [SECRET], "additionalProperties": False}, "no value is valid under it"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no value is valid under it"),
        ({"$ref": f"#/{SECRET}"}, "a $ref leads nowhere"),
        ({"$ref": f"https://{SECRET}/"}, "a $ref leads out of the schema"),
        ({"pattern": f"(?={SECRET})"}, "a pattern is no regular expression"),
        ({"type": SECRET}, "a type is none of JSON's"),
        ({"format": SECRET}, "a format is unknown"),
        ({"items": 3}, "it cannot be compiled"),
        ({"multipleOf": 99_999_989}, "multipleOf has too many remainders"),
    ],
)
def test_a_schema_that_is_refused_is_told_why_without_its_own_words(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        CONSTRAINTS.compile(as_lark(schema))
    assert str(refused.value).startswith(why)
    assert SECRET not in str(refused.value)


def test_words_of_a_library_that_nobody_knows_are_not_passed_on() -> None:
    assert why_refused(f'failed to compile JSON schema: Unimplemented keys: ["{SECRET}"]') == "it cannot be compiled"
    assert why_refused(f"parse error at {SECRET}") == "it cannot be compiled"
