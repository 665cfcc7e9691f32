"""The tables of the HTTP endpoints' page, from the door's own table and its errors."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import fields

from car_http.endpoints.context import Endpoint
from car_http.endpoints.table import ENDPOINTS
from car_http.problems import STATUSES
from tools.reference.protocol import table

_PREFIX = "/v1"


def endpoints() -> str:
    """Return every endpoint with the members of its body that are read; a path with and without `/v1` is one row."""
    rows = [(f"`{each.method} {path}`", _members(each)) for path, each in _paths()]
    return table(("endpoint", "members that are read"), rows)


def statuses() -> str:
    """Return the statuses of errors."""
    return table(("status", "when"), [(str(status), when) for status, when in sorted(STATUSES.items())])


def _paths() -> Iterator[tuple[str, Endpoint]]:
    paths = {each.path for each in ENDPOINTS}
    for each in ENDPOINTS:
        if each.path.removeprefix(_PREFIX) in paths and each.path.startswith(_PREFIX):
            yield f"[{_PREFIX}]{each.path.removeprefix(_PREFIX)}".replace(":path", ""), each
        elif _PREFIX + each.path not in paths:
            yield each.path.replace(":path", ""), each


def _members(endpoint: Endpoint) -> str:
    body: type[Struct] | None = endpoint.body
    names = [field.encode_name for field in fields(body)] if body else list(endpoint.queries)
    return ", ".join(f"`{name}`" for name in names)


TABLES = {"endpoints": endpoints, "endpoint errors": statuses}
