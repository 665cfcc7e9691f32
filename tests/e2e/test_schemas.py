"""Schemas through the socket: what is refused by its place, what is taken, and what a lenient request leaves out."""

import json

import jsonschema
import pytest

from tests.e2e.support import CANARY, Json, RawClient

WILD: Json = {"prompt": CANARY, "temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 300, "seed": 1}


def within(schema: Json) -> Json:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "uniqueItems": True, "maxItems": 2, "items": {"type": "boolean"}}, "uniqueItems"),
        ({"type": "string", "format": "color", "maxLength": 3}, "format"),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "oneOf"),
        ({"type": "integer", "not": {"const": 1}, "minimum": 0, "maximum": 9}, "not"),
        ({"type": "boolean", "dependencies": {}}, "dependencies"),
    ],
)
def test_an_unsupported_keyword_is_refused_by_its_place_or_left_out_and_named(
    client: RawClient, schema: Json, why: str
) -> None:
    asked = {**WILD, "json_schema": within(schema)}
    data = client.call("infer", asked)["error"]["data"]
    assert (data["param"], data["place"]) == ("json_schema", "/properties/a")
    assert why in data["why"]
    answer = client.result("infer", {**asked, "lenient": True})
    assert answer["ignored"] == [f"/properties/a/{why}"]
    left = {name: value for name, value in schema.items() if name != why}
    json.loads(answer["text"])["a"]
    jsonschema.validate(json.loads(answer["text"]), within(left))
    _, response = client.stream({**asked, "lenient": True})
    assert response["result"]["ignored"] == answer["ignored"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 1.0, "maxItems": 2.0, "items": {"type": "boolean"}},
        {"$ref": "#kind", "$defs": {"k": {"$anchor": "kind", "type": "boolean"}}},
        {"$dynamicRef": "#kind", "$defs": {"k": {"$dynamicAnchor": "kind", "type": "boolean"}}},
    ],
)
def test_counts_as_decimals_and_references_to_anchors_are_taken(client: RawClient, schema: Json) -> None:
    answer = client.result("infer", {**WILD, "json_schema": schema})
    assert "ignored" not in answer
    found = json.loads(answer["text"])
    assert isinstance(found, bool | list)
    assert not isinstance(found, list) or 1 <= len(found) <= 2


def test_an_empty_prompt_is_answered(client: RawClient) -> None:
    answer = client.result("infer", {"prompt": "", "max_tokens": 3, "ignore_eos": True})
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (1, 3)
