"""The configuration file as it lies on disk: TOML to tables, every complaint by the name of its key."""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from car_daemon.config_tables import (
    CapacityTable,
    ConfigError,
    ConfigFile,
    DaemonTable,
    MemoryTable,
    MetricsTable,
    ModelTable,
    QueueTable,
    SchedulerTable,
)
from car_daemon.regular_file import read_regular
from car_daemon.scheduler.pressure import PressureLimits

T = TypeVar("T")
# Where msgspec's messages name the key; what is wrong with no key in particular is wrong with the file.
_PATH = re.compile(r" - at `\$\.([^`]+)`$")
_FILE = "config"


def read_config_file(path: Path) -> ConfigFile:
    """Return what the file says; raises ConfigError."""
    try:
        data = tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", _FILE) from error
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid TOML: it nests too deeply", _FILE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", _FILE) from error
    _check_keys(data, path)
    for name, table in _models(data).items():
        # Of tables by name msgspec would not say which it is.
        _converted(table, ModelTable, path, f"models.{name}")
    return _converted(data, ConfigFile, path, "")


def _converted(data: object, kind: type[T], path: Path, place: str) -> T:
    """Return a table as its struct; raises ConfigError with the full name of the key."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        at = _PATH.search(str(error))
        key = ".".join(filter(None, (place, at[1] if at else ""))) or _FILE
        what = _PATH.sub("", str(error))
        raise ConfigError(f"{path}: {key}: {what}", key) from error


def _models(data: dict[str, Any]) -> dict[str, Any]:
    models = data.get("models")
    return models if isinstance(models, dict) else {}


def _check_keys(data: dict[str, Any], path: Path) -> None:
    """Refuse unknown keys by their full name, with the nearest that exists."""
    tables = {"": (data, ConfigFile), "daemon.": (data.get("daemon"), DaemonTable)}
    tables["capacity."] = (data.get("capacity"), CapacityTable)
    tables["queue."] = (data.get("queue"), QueueTable)
    tables["scheduler."] = (data.get("scheduler"), SchedulerTable)
    tables["memory."] = (data.get("memory"), MemoryTable)
    tables["metrics."] = (data.get("metrics"), MetricsTable)
    tables["pressure."] = (data.get("pressure"), PressureLimits)
    for name, table in _models(data).items():
        tables[f"models.{name}."] = (table, ModelTable)
    for prefix, (table, kind) in tables.items():
        known = kind.__struct_fields__
        for key in table if isinstance(table, dict) else ():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
                message = f"{path}: unknown key {prefix}{key}; the nearest known one is {prefix}{near}"
                raise ConfigError(message, prefix + key)
