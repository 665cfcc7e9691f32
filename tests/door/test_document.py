"""The OpenAPI document: valid, whole, and true to what is accepted."""

import json
import re
import urllib.error
import urllib.request
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from car_http.dialects.common import decode
from car_http.dialects.errors import dialect_of
from car_http.endpoints.document import document
from car_http.endpoints.table import ENDPOINTS
from car_http.problems import STATUSES, Problem
from tests.door.support import DoorProcess, Json, OfflineDoor
from tests.door.test_fuzz import BODIES, KINDS, VALUES
from tools.reference.http_endpoints import codes_of_statuses

DOCUMENT = document(ENDPOINTS, keyed=True)
SCHEMAS = DOCUMENT["components"]["schemas"]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a reference names."""
    return dict(SCHEMAS[schema["$ref"].rpartition("/")[2]])


def body_schema(path: str) -> dict[str, Any]:
    """Return the schema of the bodies of an endpoint, with those that it refers to."""
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return {**content["schema"], "components": DOCUMENT["components"]}


def decodes(body: bytes, kind: type[Struct]) -> bool:
    """Return whether an endpoint with such bodies reads this one."""
    try:
        decode(body, kind)
    except Problem:
        return False
    return True


def has_whole_float(value: object) -> bool:
    """Return whether a value has a number such as 1.0: an integer to JSON Schema, but not to the decoder."""
    if isinstance(value, dict):
        return any(map(has_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(has_whole_float, value))
    return isinstance(value, float) and value.is_integer()


CHANGES = VALUES.filter(lambda value: not has_whole_float(value))
VALIDATORS = {path: jsonschema.Draft202012Validator(body_schema(path)) for path in BODIES}


@pytest.mark.parametrize("keyed", [True, False])
def test_the_document_is_valid_openapi(*, keyed: bool) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.OpenAPIV31SpecValidator(document(ENDPOINTS, keyed=keyed)).validate()


def test_every_endpoint_is_described_with_its_body_and_its_errors() -> None:
    for each in ENDPOINTS:
        operation = DOCUMENT["paths"][re.sub(r":\w+", "", each.path)][each.method.lower()]
        assert ("requestBody" in operation) == (each.body is not None)
        if each.body is not None:
            ((kind, content),) = operation["requestBody"]["content"].items()
            assert kind == ("multipart/form-data" if each.file else "application/json")
            schema = content["schema"]["allOf"][0] if each.file else content["schema"]
            assert set(resolved(schema)["properties"]) == set(each.body.__struct_encode_fields__)
        errors = {status: found for status, found in operation["responses"].items() if status != "200"}
        assert {"403", "500"} <= set(errors)
        for found in errors.values():
            schema = found["content"]["application/json"]["schema"]
            assert schema["$ref"].endswith(dialect_of(each.path).kind.__name__)
    assert sum(len(methods) for methods in DOCUMENT["paths"].values()) == len(ENDPOINTS)


def test_every_status_of_an_error_is_explained() -> None:
    assert set(codes_of_statuses()) == set(STATUSES)
    assert "529" in DOCUMENT["paths"]["/v1/messages"]["post"]["responses"]
    assert "429" in DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]


async def test_the_document_of_the_socket_needs_no_key(offline: OfflineDoor) -> None:
    by_socket = (await offline.get("/openapi.json")).json
    assert by_socket["security"] == []
    assert "401" not in by_socket["paths"]["/v1/models"]["get"]["responses"]


def test_the_document_of_a_port_needs_its_key_and_says_so(scripted_door: DoorProcess) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{scripted_door.url}/openapi.json")
    keyed = urllib.request.Request(f"{scripted_door.url}/openapi.json", headers={"x-api-key": scripted_door.key})
    with urllib.request.urlopen(keyed) as answer:
        by_port = json.load(answer)
    assert by_port["security"] == [{"bearer": []}, {"x-api-key": []}, {"api-key": []}]
    assert by_port["paths"]["/health"]["get"]["security"] == []


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_served_is_valid_by_the_document(path: str) -> None:
    jsonschema.validate(BODIES[path], body_schema(path))


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, IMAGE]}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
NAMESPACE = {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "f", "format": {"type": "text"}}]}
BLOCKS = [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}]}]
MESSAGES: dict[str, Any] = {"max_tokens": 1, "messages": [{"role": "user", "content": BLOCKS}]}
ITEMS = [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}]


@pytest.mark.parametrize(
    ("path", "served", "refused"),
    [
        ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}),
        ("/v1/chat/completions", CHAT | {"tools": [TOOL]}, CHAT | {"tools": [{"function": {"name": 1}}]}),
        (
            "/v1/chat/completions",
            CHAT | {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            CHAT | {"tool_choice": 1},
        ),
        ("/v1/chat/completions", CHAT | {"card": {"lora": [{"name": "a"}]}}, CHAT | {"card": {"speed": 1}}),
        ("/v1/messages", MESSAGES, {**MESSAGES, "messages": [{"role": "user", "content": [{"type": 1}]}]}),
        (
            "/v1/messages",
            {**MESSAGES, "tools": [{"name": "f", "input_schema": {}}]},
            {**MESSAGES, "tools": [{"name": 1}]},
        ),
        ("/v1/chat/completions", CHAT | {"response_format": FORM}, CHAT | {"response_format": {"type": 1}}),
        (
            "/v1/responses",
            {"input": "Hi", "text": {"format": {"type": "json_schema", "schema": {}}}},
            {"input": "Hi", "text": {"format": {"type": "json_schema", "schema": "s"}}},
        ),
        ("/v1/responses", {"input": "Hi", "tools": [NAMESPACE]}, {"input": "Hi", "tools": [{"name": {}}]}),
        (
            "/v1/responses",
            {"input": "Hi", "tool_choice": {"type": "custom", "name": "f"}},
            {"input": "Hi", "tool_choice": 1},
        ),
        ("/v1/messages", MESSAGES | {"output_config": {"format": FORM}}, MESSAGES | {"output_config": {"format": "f"}}),
        ("/v1/responses", {"input": ITEMS}, {"input": [{"type": "function_call_output", "call_id": 1}]}),
        ("/api/chat", {"model": "m", "tools": [TOOL]}, {"model": "m", "tools": ["f"]}),
        ("/api/generate", {"model": "m", "card": {"wait": False}}, {"model": "m", "card": {"timeout_ms": 0}}),
    ],
)
def test_parts_tools_and_members_of_card_are_described(path: str, served: Json, refused: Json) -> None:
    for body, allowed in ((served, True), (refused, False)):
        assert VALIDATORS[path].is_valid(body) == allowed
        assert decodes(json.dumps(body).encode(), KINDS[path]) == allowed


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=20)
@given(data=st.data())
def test_a_body_is_decoded_just_where_the_document_allows_it(path: str, data: st.DataObject) -> None:
    kind = KINDS[path]
    changed = BODIES[path] | data.draw(
        st.dictionaries(st.sampled_from(kind.__struct_encode_fields__), CHANGES, max_size=3)
    )
    assert VALIDATORS[path].is_valid(changed) == decodes(json.dumps(changed).encode(), kind)
