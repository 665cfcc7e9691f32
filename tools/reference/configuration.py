"""The tables of the configuration's page: every key with its values, its default and its meaning."""

from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from car_client.door.settings import HttpTable
from car_daemon.config.tables import ConfigTables, ModelTable
from tools.reference.protocol import request_rows, table

_HEADING = ("key", "values", "default", "meaning")
# Tables that another program reads, or that stand once for each name.
_OWN: dict[str, type[Struct]] = {"http": HttpTable, "models": ModelTable}
# Keys with values that have a table on another page.
_SHOWN = {"`tool_style`": "[a style](../howto/tool-calls.md)"}
_NAMES = [field.encode_name for field in fields(ConfigTables) if field.encode_name != "default_model"]


def keys(kind: type[Struct]) -> str:
    """Return the keys of one table of the file."""
    rows = request_rows(kind)
    return table(_HEADING, [(name, _SHOWN.get(name, words), *rest) for name, words, *rest in rows])


def tables() -> str:
    """Return the tables of the file with their subjects."""
    notes = {field.encode_name: _note(field.type) for field in fields(ConfigTables)}
    named = [(f"[`[{name}]`](#{name})", notes[name]) for name in _NAMES]
    return table(("table", "subject"), [("`default_model`", notes["default_model"]), *named])


def _kinds() -> dict[str, type[Struct]]:
    """Return the Struct of each table that the daemon reads; of an optional table too."""
    found = {name: _struct(hint) for name, hint in get_type_hints(ConfigTables).items()}
    return {name: kind for name, kind in found.items() if kind is not None} | _OWN


def _struct(hint: Any) -> type[Struct] | None:
    kinds = [hint] if get_origin(hint) is None else list(get_args(hint))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)), None)


def _note(hint: Any) -> str:
    return str(next(meta.description for meta in hint.__metadata__))


def _writer(kind: type[Struct]) -> Callable[[], str]:
    return lambda: keys(kind)


TABLES: dict[str, Callable[[], str]] = {
    "configuration": tables,
    **{f"config {name}": _writer(kind) for name, kind in _kinds().items()},
}
