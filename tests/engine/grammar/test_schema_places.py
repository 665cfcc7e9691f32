"""Places in schemas: of faults, of keywords left out; and schemas as the library reads them."""

from typing import Any

import pytest

from car_engine.grammar.schema import left_out, normalized, place_of

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a/b": {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "color"}},
        "not": {"enum": [{"not": 1}]},
        "c": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": -1}]},
        "d": {"pattern": "(?=a)b"},
        "e": {"$ref": "#/$defs/none"},
        "f": {"minLength": -1},
    },
}


@pytest.mark.parametrize(
    ("error", "place"),
    [
        ('Unimplemented keys: ["uniqueItems"]', "/properties/a~1b"),
        ("Unknown format: color", "/properties/a~1b/items"),
        ("oneOf constraints are not supported", "/properties/c"),
        ("regex parse error:\n    (?=a)b\n", "/properties/d"),
        ("Pointer '/$defs/none' does not exist", "/properties/e"),
        ("Expected positive integer for 'minLength', got -1", "/properties/f"),
        ('Unimplemented keys: ["not"]', None),
        ("anything else", None),
    ],
)
def test_an_error_is_about_a_place(error: str, place: str | None) -> None:
    assert place_of(f"failed to compile JSON schema: {error}", NESTED) == place


def test_what_is_left_out_is_named_by_its_places() -> None:
    warnings = ['Unimplemented keys: ["uniqueItems"]', "Unknown format: color", "oneOf not fully supported, ..."]
    places = ["/properties/a~1b/uniqueItems", "/properties/a~1b/items/format", "/properties/c/oneOf"]
    assert left_out(warnings, NESTED) == places


def test_counts_are_integers_and_other_numbers_stay() -> None:
    schema = {"maxItems": 2.0, "items": {"const": 2.0, "maximum": 2.0}, "properties": {"maxItems": {"minItems": 1.5}}}
    assert normalized(schema) == {**schema, "maxItems": 2}
    assert isinstance(normalized(schema)["maxItems"], int)


def test_a_dynamic_reference_to_one_anchor_is_a_plain_one() -> None:
    schema = {"$dynamicRef": "#node", "$defs": {"n": {"$dynamicAnchor": "node", "type": "integer"}}}
    assert normalized(schema) == {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    twice = {**schema, "$defs": {**schema["$defs"], "m": {"$dynamicAnchor": "node"}}}  # type: ignore[dict-item]  # plain data
    assert normalized(twice) == twice
