"""The OpenAPI document, made of the table of endpoints and of the definitions that decode their bodies."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from car_http.dialects.errors import dialect_of
from car_http.endpoints.context import DoorContext, Endpoint, Handler
from car_http.exchange import JSON, Exchange
from car_http.guard import FORM, OPEN_PATHS
from car_http.problems import STATUSES
from car_protocol import __version__

_MEMBER = re.compile(r"\{(\w+)(?::\w+)?\}")
_SCHEMAS = "#/components/schemas/{name}"
_KEYS: dict[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_AT_ANY = {401, 403, 500}
_OF_BODIES = {413, 415}
_OF_NO_ENDPOINT = {405, 431}
_KEYLESS = {401}
_PARAMETER = {"schema": {"type": "string"}}
Shape = dict[str, Any]
Schemas = Mapping[type[Struct], Shape]


def serving(endpoints: Sequence[Endpoint]) -> Handler[None]:
    """Return the handler that serves the document of a table, which may grow until the first request."""

    @cache
    def text(*, keyed: bool) -> bytes:
        return msgspec.json.encode(document(endpoints, keyed=keyed))

    async def serve(door: DoorContext, exchange: Exchange, nothing: None) -> None:
        await exchange.respond(text(keyed=exchange.key is not None))

    return serve


def document(endpoints: Sequence[Endpoint], *, keyed: bool) -> Shape:
    """Return the document as it is for requests with a key, or for requests that need no key."""
    kinds = {each.body for each in endpoints if each.body} | {dialect_of(each.path).kind for each in endpoints}
    ordered = sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__))
    references, schemas = msgspec.json.schema_components(ordered, ref_template=_SCHEMAS)
    schema_of = dict(zip(ordered, references, strict=True))
    paths: Shape = {}
    for each in endpoints:
        paths.setdefault(_path(each), {})[each.method.lower()] = _operation(each, schema_of, keyed=keyed)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "card's HTTP door",
            "version": __version__,
            "description": "OpenAI's, Anthropic's, Ollama's and llama-server's dialects of the daemon's methods. "
            "Members of bodies that no schema names are dropped.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _KEYS if keyed else {}},
        "security": [{name: []} for name in _KEYS] if keyed else [],
    }


def _path(endpoint: Endpoint) -> str:
    return _MEMBER.sub(r"{\1}", endpoint.path)


def _operation(endpoint: Endpoint, schema_of: Schemas, *, keyed: bool) -> Shape:
    open_to_all = endpoint.path in OPEN_PATHS
    operation: Shape = {"responses": _responses(endpoint, schema_of, keyed=keyed and not open_to_all)}
    if open_to_all:
        operation["security"] = []
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.body:
        operation["requestBody"] = {"required": True, "content": _content(endpoint, schema_of[endpoint.body])}
    return operation


def _content(endpoint: Endpoint, members: Shape) -> Shape:
    """Return the body: JSON, or a form with a file beside the members."""
    if not endpoint.file:
        return {JSON: {"schema": members}}
    file = {"properties": {endpoint.file: {"type": "string", "format": "binary"}}, "required": [endpoint.file]}
    return {FORM: {"schema": {"allOf": [members, file]}}}


def _parameters(endpoint: Endpoint) -> list[Shape]:
    in_path = [{"name": name, "in": "path", "required": True, **_PARAMETER} for name in _MEMBER.findall(endpoint.path)]
    return in_path + [{"name": name, "in": "query", **_PARAMETER} for name in endpoint.queries]


def _responses(endpoint: Endpoint, schema_of: Schemas, *, keyed: bool) -> Shape:
    responses: Shape = {"200": {"description": "the answer", "content": {kind: {} for kind in endpoint.kinds}}}
    dialect = dialect_of(endpoint.path)
    content = {JSON: {"schema": schema_of[dialect.kind]}}
    for status in sorted(_statuses(endpoint) - (set() if keyed else _KEYLESS)):
        for own in sorted(dialect.possible(status)):
            responses[str(own)] = {"description": STATUSES[status], "content": content}
    return responses


def _statuses(endpoint: Endpoint) -> set[int]:
    """Return the statuses of the endpoint's errors."""
    return _AT_ANY if endpoint.local else set(STATUSES) - _OF_NO_ENDPOINT - (set() if endpoint.body else _OF_BODIES)
