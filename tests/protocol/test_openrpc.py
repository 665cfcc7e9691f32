"""The OpenRPC document: well-formed, complete, and generated from what decodes the requests."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from car_protocol.errors import REASONS
from car_protocol.examples import EXAMPLES
from car_protocol.methods import METHODS, NOTIFICATIONS, describe

DOCUMENT = describe()
BY_NAME = {method["name"]: method for method in DOCUMENT["methods"]}


def references(value: Any) -> Iterator[str]:
    """Yield every `$ref` of the document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of the document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(each)


def test_it_says_what_it_is() -> None:
    assert DOCUMENT["openrpc"] == "1.2.6"
    assert DOCUMENT["info"] == {"title": "card", "version": "1"}


def test_it_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DOCUMENT)) == DOCUMENT


def test_it_covers_every_method_once() -> None:
    assert list(BY_NAME) == list(METHODS)
    assert len(DOCUMENT["methods"]) == len(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_lists_its_params_by_name(name: str) -> None:
    method = BY_NAME[name]
    assert method["paramStructure"] == "by-name"
    assert method["summary"]
    fields = msgspec.structs.fields(METHODS[name].params)
    assert [param["name"] for param in method["params"]] == [field.encode_name for field in fields]
    assert {param["name"] for param in method["params"] if param["required"]} == {
        field.encode_name for field in fields if field.required
    }
    assert method["result"]["schema"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_an_example_that_holds_to_its_definitions(name: str) -> None:
    (example,) = BY_NAME[name]["examples"]
    params = {each["name"]: each["value"] for each in example["params"]}
    msgspec.convert(params, METHODS[name].params)
    msgspec.convert(example["result"]["value"], METHODS[name].result)
    assert list(EXAMPLES) == list(METHODS)


def test_its_schemas_have_no_keyword_that_is_not_json_schemas() -> None:
    assert b'"discriminator"' not in msgspec.json.encode(DOCUMENT)


def test_a_description_of_several_lines_is_one_line() -> None:
    texts = [each["description"] for each in objects(DOCUMENT) if isinstance(each.get("description"), str)]
    assert any(text.startswith("Memory of each replica") for text in texts)
    assert [text for text in texts if text != " ".join(text.split())] == []


def test_its_patterns_have_the_anchors_of_json_schema() -> None:
    patterns = [each["pattern"] for each in objects(DOCUMENT) if isinstance(each.get("pattern"), str)]
    assert patterns
    for pattern in patterns:
        assert (pattern[0], pattern[-1]) == ("^", "$")
        assert r"\A" not in pattern
        assert r"\Z" not in pattern


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    found = set(references(DOCUMENT))
    assert found
    assert found <= {f"#/components/schemas/{name}" for name in schemas}


def test_ranges_are_in_the_schema() -> None:
    params = {param["name"]: param["schema"] for param in BY_NAME["infer"]["params"]}
    assert (params["temperature"]["minimum"], params["temperature"]["maximum"]) == (0, 5)
    assert params["stop"]["maxItems"] == 16


def test_every_error_is_in_it() -> None:
    errors = DOCUMENT["components"]["errors"]
    assert {reason: error["code"] for reason, error in errors.items()} == {
        reason: kind.code for reason, kind in REASONS.items()
    }


def test_only_infer_stream_streams() -> None:
    assert [name for name, method in METHODS.items() if method.streams] == ["infer_stream"]


def test_it_names_each_notification_with_the_schema_of_its_params() -> None:
    named = {each["name"]: each["params"]["$ref"].rpartition("/")[2] for each in DOCUMENT["x-notifications"]}
    assert named == {name: kind.__name__ for name, kind in NOTIFICATIONS.items()}
    assert set(named.values()) <= set(DOCUMENT["components"]["schemas"])
