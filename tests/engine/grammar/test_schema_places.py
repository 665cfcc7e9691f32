"""Places in schemas: of faults, of keywords left out; and schemas as the library reads them."""

from typing import Any

import pytest

from car_engine.grammar.schema import inexact, left_out, normalized, place_of

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a/b": {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "color"}},
        "not": {"enum": [{"not": 1}]},
        "c": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": -1}]},
        "d": {"pattern": "(?=a)b"},
        "e": {"$ref": "#/$defs/none"},
        "f": {"minLength": -1, "format": ""},
        "g": {"format": []},
    },
}


@pytest.mark.parametrize(
    ("error", "place"),
    [
        ('Unimplemented keys: ["uniqueItems"]', "/properties/a~1b"),
        ("Unknown format: color", "/properties/a~1b/items"),
        ("Unknown format: ", "/properties/f"),
        ("oneOf constraints are not supported", "/properties/c"),
        ("regex parse error:\n    (?=a)b\n", "/properties/d"),
        ("Pointer '/$defs/none' does not exist", "/properties/e"),
        ("Expected positive integer for 'minLength', got -1", "/properties/f"),
        ('Unimplemented keys: ["not"]', None),
        ("anything else", "/properties/f/minLength"),
    ],
)
def test_an_error_is_about_a_place(error: str, place: str | None) -> None:
    assert place_of(f"failed to compile JSON schema: {error}", NESTED) == place


def test_what_is_left_out_is_named_by_its_places() -> None:
    warnings = ['Unimplemented keys: ["uniqueItems"]', "Unknown format: color", "oneOf not fully supported, ..."]
    places = ["/properties/a~1b/uniqueItems", "/properties/a~1b/items/format", "/properties/c/oneOf"]
    assert left_out(warnings, NESTED) == places


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("required", "a"),
        ("required", [1]),
        ("minimum", "3"),
        ("minimum", None),
        ("enum", "a"),
        ("enum", []),
        ("type", 1),
        ("type", ["string", 2]),
        ("multipleOf", 0),
        ("properties", []),
        ("pattern", 1),
    ],
)
def test_a_value_that_no_schema_has_is_the_place_of_an_error_without_one(keyword: str, value: Any) -> None:
    sound = {"type": "object", "required": ["a"], "minimum": 1.5, "exclusiveMinimum": True, "maxItems": 2.0}
    schema = {**sound, "properties": {"a": {"items": [sound, {keyword: value}]}}}
    assert place_of("an error without words", schema) == f"/properties/a/items/1/{keyword}"
    assert place_of("an error without words", sound) is None


LAST = 2**53 - 1


def test_bounds_that_no_exact_number_reaches_are_the_last_exact_number() -> None:
    wide = {"minimum": -(2**63), "maximum": 2**63 - 1}
    assert normalized(wide) == {"minimum": -LAST, "maximum": LAST}
    assert normalized({"exclusiveMinimum": -1e300, "exclusiveMaximum": 1e20}) == {
        "exclusiveMinimum": -LAST,
        "exclusiveMaximum": LAST,
    }
    for within in ({"minimum": -LAST, "maximum": LAST}, {"minimum": True}, {"const": -(2**53)}):
        assert normalized(within) == within
    assert inexact(normalized(wide)) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 2**53},
        {"exclusiveMinimum": 1e20},
        {"maximum": -(2**53)},
        {"minimum": -(2**63), "exclusiveMaximum": -(2**63)},
        {"const": {"a": [2**64 + 1]}},
        {"enum": ["a", -(2**53)]},
    ],
)
def test_a_number_that_answers_cannot_have_exactly_has_a_place_and_a_remedy(schema: dict[str, Any]) -> None:
    found = inexact(normalized({"properties": {"n": schema}}))
    assert found is not None
    place, why = found
    assert place == f"/properties/n/{list(schema)[-1]}"
    assert "9,007,199,254,740,991" in why
    assert inexact({"properties": {"n": {"const": str(schema)}, "minimum": {"default": 2**60}}}) is None


def test_counts_are_integers_and_other_numbers_stay() -> None:
    schema = {"maxItems": 2.0, "items": {"const": 2.0, "maximum": 2.0}, "properties": {"maxItems": {"minItems": 1.5}}}
    assert normalized(schema) == {**schema, "maxItems": 2}
    assert isinstance(normalized(schema)["maxItems"], int)


def test_a_dynamic_reference_to_one_anchor_is_a_plain_one() -> None:
    schema = {"$dynamicRef": "#node", "$defs": {"n": {"$dynamicAnchor": "node", "type": "integer"}}}
    assert normalized(schema) == {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    twice = {**schema, "$defs": {**schema["$defs"], "m": {"$dynamicAnchor": "node"}}}  # type: ignore[dict-item]  # plain data
    assert normalized(twice) == twice
