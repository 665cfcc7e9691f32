"""A configuration merged into the text of a file: all other members stay."""

import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any

from car_client.carctl.config.card_toml import load_tomlkit


class Unmergeable(ValueError):
    """The file is in a form that cannot be changed without a loss."""


def merged(old: Any, new: Any) -> Any:
    """Return data with new members; raises Unmergeable.

    Entries of lists are the same if their `name` is; a list of texts is replaced.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merged(old[key], value) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return _merged_lists(old, new)
    if isinstance(new, dict | list) and old is not None:
        raise Unmergeable(f"it has a {type(old).__name__} where a {type(new).__name__} belongs")
    return new


def _merged_lists(old: list[Any], new: list[Any]) -> list[Any]:
    if any(isinstance(each, str) for each in new):
        return new
    by_name = {each["name"]: each for each in new}
    kept = [merged(each, by_name.pop(_name(each), each)) for each in old]
    return [*kept, *by_name.values()]


def _name(entry: Any) -> str | None:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None


def merged_text(suffix: str, old: str, new: Any) -> str:
    """Return the text of a file with the new configuration; raises Unmergeable."""
    if isinstance(new, str):
        return _whole(old, new)
    return {".json": _merged_json, ".toml": _merged_toml}[suffix](old, new)


def _whole(old: str, new: str) -> str:
    if old.strip() and old != new:
        raise Unmergeable("it has other content, and carctl writes no YAML into it")
    return new


def _merged_json(old: str, new: Any) -> str:
    try:
        data = json.loads(old, object_pairs_hook=_unique) if old.strip() else type(new)()
    except (ValueError, RecursionError) as error:
        raise Unmergeable(f"it is not plain JSON, as with comments in it ({error})") from error
    changed = merged(data, new)
    if changed == data:
        return old
    found = re.search(r"^([ \t]+)\S", old, re.MULTILINE)
    try:
        text = json.dumps(changed, indent=found[1] if found else 2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except ValueError as error:
        raise Unmergeable(f"it has a value that JSON cannot be written with again ({error})") from error
    return text


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the member {name!r} is there twice")
        members[name] = value
    return members


def _merged_toml(old: str, new: dict[str, Any]) -> str:
    tomlkit = load_tomlkit()
    try:
        expected = merged(tomllib.loads(old), new)
        document = tomlkit.parse(old)
        _set(document, new)
        text = str(tomlkit.dumps(document))
        same = tomllib.loads(text) == expected
    except Unmergeable:
        raise
    except (ValueError, RecursionError, tomlkit.exceptions.TOMLKitError) as error:
        raise Unmergeable(f"it is not valid TOML ({error})") from error
    if not same:
        raise Unmergeable("it is written in a form that cannot be changed safely")
    return text


def _set(table: Any, new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _set(table[key], value)
        else:
            table[key] = value
