"""The configuration file on disk: TOML into tables; every error names the full key and what may be written instead."""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from car_base.host.devices import PATTERN, PATTERN_OR_AUTO
from car_base.host.files import read_regular
from car_daemon.config.tables import ConfigError, ConfigTables, ModelTable
from car_daemon.people.people import PersonTable
from car_protocol.params import in_words

_DEVICES = '"cpu", "gpu" for all GPUs, or "gpu0" to "gpu99" for one of them'
_WORDS = {
    PATTERN: f"write {_DEVICES}",
    PATTERN_OR_AUTO: f'write "auto", {_DEVICES}, or a list of them',
}

T = TypeVar("T")
# The part of msgspec's messages that names the key; an error without a key is one of the whole file.
_PATH = re.compile(r" - at (?:`key` in )?`\$\.([^`]+)`$")
# Ten thousand people with all limits and keys, and the rest.
_MOST_BYTES = 4 * 1024 * 1024
_FILE = "config"


def read_config_file(path: Path) -> ConfigTables:
    """Return the tables of a file; raises ConfigError."""
    try:
        data = tomllib.loads(read_regular(path, _MOST_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give --config another file", _FILE) from error
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid TOML: it nests too deeply; write its tables flat", _FILE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", _FILE) from error
    _check_keys(data, path)
    # Checked one by one because msgspec's message leaves out the key of a dict.
    for name, table in _named(data, "models").items():
        _converted(table, ModelTable, path, f"models.{name}")
    for name, table in _named(data, "people").items():
        _converted(table, PersonTable, path, f"people.{name}")
    tables = _converted(data, ConfigTables, path, "")
    _check_people(tables.people, path)
    return tables


def _check_people(people: dict[str, PersonTable], path: Path) -> None:
    """Raise ConfigError if two people have one key: all requests with it would be one person's."""
    owners: dict[str, str] = {}
    for name, table in people.items():
        if table.key and (other := owners.setdefault(table.key, name)) != name:
            key = f"people.{name}.key"
            raise ConfigError(f"{path}: {key} is that of {other}: leave it out, and run `carctl people add`", key)


def _converted(data: object, kind: type[T], path: Path, place: str) -> T:
    """Return a table as its struct; raises ConfigError with the full name of the key."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        at = _PATH.search(str(error))
        key = ".".join(filter(None, (place, at[1] if at else ""))) or _FILE
        why = in_words(_PATH.sub("", str(error)), kind, at[1] if at else "", _WORDS)
        raise ConfigError(f"{path}: {key}: {why}", key) from error


def _named(data: dict[str, Any], place: str) -> dict[str, Any]:
    tables = data.get(place)
    return tables if isinstance(tables, dict) else {}


def _check_keys(data: dict[str, Any], path: Path) -> None:
    """Refuse unknown keys by their full name; the message suggests the nearest known key."""
    tables: dict[str, tuple[Any, type[msgspec.Struct]]] = {"": (data, ConfigTables)}
    for place, hint in get_type_hints(ConfigTables).items():
        for kind in (hint, *get_args(hint)):
            if not isinstance(kind, type(msgspec.Struct)):
                continue
            if get_origin(hint) is dict:
                tables |= {f"{place}.{name}.": (table, kind) for name, table in _named(data, place).items()}
            else:
                tables[f"{place}."] = data.get(place), kind
    for prefix, (table, kind) in tables.items():
        known = kind.__struct_fields__
        for key in table if isinstance(table, dict) else ():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
                message = f"{path}: unknown key {prefix}{key}: remove it, or write {prefix}{near}"
                raise ConfigError(message, prefix + key)
