"""The configuration: flags over environment over file over defaults."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from car_daemon import guide, logs
from car_daemon.config_tables import GUIDE, ConfigError, ConfigFile, ModelTable
from car_daemon.devices import CPU
from car_daemon.metrics_socket import MetricsAddress, read_address
from car_daemon.model_files import Located, NotLocated, expanded, given_table, located
from car_daemon.models.entry import ModelSettings
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.pressure import PressureLimits
from car_protocol.capacity import Policy
from car_protocol.limits import Limits
from car_protocol.socket_path import socket_path

LIMIT_VARIABLE = "CAR_INFERENCE_MAX_CONCURRENT"

_MOST_DIGITS = 10


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line gave; None where it gave nothing."""

    socket: str | None = None
    model: str | None = None
    config: str | None = None
    capacity: int | None = None
    context_tokens: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    log_level: logs.Level | None = None
    log_format: logs.Format | None = None
    exit_idle: float | None = None


class Config(Struct, frozen=True, kw_only=True):
    """What the daemon runs with; `warnings` are for its log."""

    socket: Path
    log_level: logs.Level
    log_format: logs.Format
    allow_uids: list[int]
    admin_uids: list[int]
    drain_timeout_s: float
    exit_idle_s: float | None
    limits: Limits
    queue: QueueBounds
    age_after_s: float
    pressure: PressureLimits
    machine_limit: int | None
    budget_bytes: int | None
    metrics: MetricsAddress | None
    models: dict[str, ModelSettings]
    default_model: str
    warnings: list[str]


def load_config(flags: Flags, env: Mapping[str, str] = os.environ) -> Config:
    """Decide everything; raises ConfigError."""
    file = _read(_config_path(flags, env))
    warnings: list[str] = []
    limit, source = _machine_limit(flags, env, file, warnings)
    models, default = _models(flags, env, file, limit, source)
    daemon = file.daemon
    return Config(
        socket=socket_path(flags.socket or (None if env.get("CAR_SOCKET") else daemon.socket), env),
        log_level=flags.log_level or daemon.log_level,
        log_format=flags.log_format or daemon.log_format,
        allow_uids=[*daemon.allow_uids, *daemon.admin_uids],
        admin_uids=list(daemon.admin_uids),
        drain_timeout_s=daemon.drain_timeout_s,
        exit_idle_s=flags.exit_idle,
        limits=Limits(
            max_connections=daemon.max_connections,
            max_connections_per_uid=daemon.max_connections_per_uid,
            queue_limit=file.queue.limit,
            queue_max_bytes=file.queue.max_bytes,
        ),
        queue=QueueBounds(file.queue.limit, file.queue.max_bytes, file.queue.overflow),
        age_after_s=file.scheduler.age_after_s,
        pressure=file.pressure,
        machine_limit=limit,
        budget_bytes=file.memory.budget_bytes,
        metrics=_metrics_address(file.metrics.listen),
        models=models,
        default_model=default,
        warnings=warnings,
    )


def _config_path(flags: Flags, env: Mapping[str, str]) -> Path | None:
    if flags.config is not None:
        return Path(flags.config)
    home = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    candidates = (home / "car" / "card.toml", Path("/etc/car/card.toml"))
    return next((path for path in candidates if os.path.isfile(path)), None)


def _read(path: Path | None) -> ConfigFile:
    if path is None:
        return ConfigFile()
    # Most machines have no file, and what reads one takes 4 ms of a start.
    from car_daemon.config_file import read_config_file

    return read_config_file(path)


def _machine_limit(
    flags: Flags, env: Mapping[str, str], file: ConfigFile, warnings: list[str]
) -> tuple[int | None, Policy | None]:
    """Return the machine's limit and what gave it: environment over flag over file."""
    given = env.get(LIMIT_VARIABLE)
    if given is not None:
        text = given.strip()
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0:
            return int(text), "env"
        warnings.append(f"{LIMIT_VARIABLE} is not a positive integer and is ignored")
    if flags.capacity is not None:
        return _at_least_one(flags.capacity, warnings), "flag"
    if file.capacity.sequences is not None:
        return _at_least_one(file.capacity.sequences, warnings), "config"
    return None, None


def _at_least_one(limit: int, warnings: list[str]) -> int:
    if limit < 1:
        warnings.append("a capacity of 0 is raised to 1")
    return max(1, limit)


def _metrics_address(listen: str | None) -> MetricsAddress | None:
    try:
        return None if listen is None else read_address(listen)
    except ValueError as error:
        raise ConfigError(f"metrics.listen: {error}", "metrics.listen") from error


def _models(
    flags: Flags, env: Mapping[str, str], file: ConfigFile, limit: int | None, source: Policy | None
) -> tuple[dict[str, ModelSettings], str]:
    """Return all entries and the default one's name; flags apply to the default one."""
    tables = {GUIDE: ModelTable(), **file.models}
    tables[GUIDE] = _with_own_file(tables[GUIDE])
    default = file.default_model
    if flags.model is not None:
        default = flags.model if flags.model in tables else Path(flags.model).stem
        if flags.model not in tables:
            tables[default] = given_table(flags.model)
    if default not in tables:
        raise ConfigError(f"default_model: there is no model named {default}", "default_model")
    entries = {name: _settings(name, table, env, file, limit, source) for name, table in tables.items()}
    entries[default] = _with_flags(entries[default], flags)
    return entries, default


def _with_own_file(table: ModelTable) -> ModelTable:
    """Return the table of the built-in model, whose file need not be named."""
    if table.path is None and table.hf is None:
        return structs.replace(table, path=str(guide.PATH))
    return table


def _settings(
    name: str,
    table: ModelTable,
    env: Mapping[str, str],
    file: ConfigFile,
    limit: int | None,
    source: Policy | None,
) -> ModelSettings:
    sequences = limit if limit is not None else table.sequences
    policy: Policy = "config" if sequences is not None else file.capacity.policy
    key = f"models.{name}"
    devices, gpu_layers = _devices(table, key)
    located = _located(key, table, env)
    return ModelSettings(
        path=located.path,
        pull=located.pull,
        context_tokens=table.context_tokens,
        sequences=sequences,
        policy=source or policy,
        max_itl_ms=file.capacity.max_itl_ms,
        reserve_bytes=file.capacity.reserve_bytes,
        saved_bytes=file.scheduler.saved_bytes,
        step_target_ms=file.scheduler.step_target_ms,
        curves=_cache_folder(env) / "curves",
        threads=table.threads,
        gpu_layers=gpu_layers,
        devices=devices,
        replicas=table.replicas,
        adapters={each: _expanded(path, f"{key}.adapters.{each}") for each, path in table.adapters.items()},
        projector=None if table.projector is None else _expanded(table.projector, f"{key}.projector"),
        chat_template=None if table.chat_template is None else _expanded(table.chat_template, f"{key}.chat_template"),
        speculative=table.speculative,
        keep_alive_s=table.keep_alive_s,
        pinned=table.pinned,
    )


def _devices(table: ModelTable, key: str) -> tuple[tuple[str, ...], int]:
    """Return the devices that are named, and the layers on a GPU: all of them where only a GPU is named."""
    devices = (table.device,) if isinstance(table.device, str) else tuple(table.device)
    if table.gpu_layers is None:
        return devices, -1 if _on_gpu(devices) else 0
    _check_layers(devices, table.gpu_layers, f"gpu_layers = {table.gpu_layers}", f"{key}.gpu_layers")
    return devices, table.gpu_layers


def _on_gpu(devices: tuple[str, ...]) -> bool:
    return any(device != CPU for device in devices)


def _check_layers(devices: tuple[str, ...], gpu_layers: int, given: str, key: str) -> None:
    """Raise ConfigError where devices are named and the layers on a GPU say otherwise."""
    if devices and _on_gpu(devices) == (gpu_layers == 0):
        raise ConfigError(f"{given} contradicts device: leave one of them out", key)


def _located(model: str, table: ModelTable, env: Mapping[str, str]) -> Located:
    try:
        return located(table, env)
    except NotLocated as error:
        key = f"{model}.{error.key}"
        raise ConfigError(f"{key}: {error}", key) from error


def _expanded(path: str, key: str) -> Path:
    try:
        return expanded(path)
    except NotLocated as error:
        raise ConfigError(f"{key}: {error}", key) from error


def _cache_folder(env: Mapping[str, str]) -> Path:
    """Return where measurements are kept: the service manager's folder, else the user's."""
    if given := env.get("CACHE_DIRECTORY"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "car"
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "car"


def _with_flags(settings: ModelSettings, flags: Flags) -> ModelSettings:
    if flags.gpu_layers is not None:
        _check_layers(settings.devices, flags.gpu_layers, f"--gpu-layers {flags.gpu_layers}", "gpu_layers")
    return structs.replace(
        settings,
        context_tokens=flags.context_tokens or settings.context_tokens,
        threads=flags.threads or settings.threads,
        gpu_layers=settings.gpu_layers if flags.gpu_layers is None else flags.gpu_layers,
    )
