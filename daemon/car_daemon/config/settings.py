"""The configuration: flags over environment over file over defaults."""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from car_base import guide
from car_base.host import event_log
from car_base.host.devices import AUTO, CPU
from car_base.host.memory import PressureLimits
from car_base.host.private_folder import cache_folder, state_folder
from car_base.ipc.engine_settings import EngineKeys, members_of
from car_base.ipc.types import Sandbox
from car_daemon.config.placing import (
    check_place,
    cluster_of,
    expanded,
    given_table,
    located,
    placed,
    placed_devices,
)
from car_daemon.config.tables import GUIDE, ClusterTable, ConfigError, ConfigTables, ModelTable
from car_daemon.models.settings import ModelSettings
from car_daemon.people.people import PersonTable
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.sockets.loopback import MetricsAddress, read_address
from car_protocol.capacity import Policy
from car_protocol.limits import Limits
from car_protocol.models import Defaults
from car_protocol.sockets import socket_path

LIMIT_VARIABLE = "CAR_INFERENCE_MAX_CONCURRENT"

_MOST_DIGITS = 10


class Flags(Struct, frozen=True, kw_only=True):
    """The options of the command line; None for an option that was not given."""

    socket: str | None = None
    model: str | None = None
    config: str | None = None
    capacity: int | None = None
    context_tokens: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    log_level: event_log.Level | None = None
    log_format: event_log.Format | None = None
    exit_idle: float | None = None


class Config(Struct, frozen=True, kw_only=True):
    """The configuration in force; `warnings` are for the log."""

    socket: Path
    log_level: event_log.Level
    log_format: event_log.Format
    allow_uids: list[int]
    admin_uids: list[int]
    delegates: list[int]
    people: dict[str, PersonTable]
    usage_folder: Path
    usage_days: int
    usage_by_person: bool
    drain_timeout_s: float
    exit_idle_s: float | None
    limits: Limits
    queue: QueueBounds
    age_after_s: float
    weights: dict[int, float]
    pressure: PressureLimits
    machine_limit: int | None
    sandbox: Sandbox
    budget_bytes: int | None
    metrics: MetricsAddress | None
    models: dict[str, ModelSettings]
    default_model: str
    warnings: list[str]
    cluster: ClusterTable | None = None


def load_config(flags: Flags, env: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration; raises ConfigError."""
    file = _read_file(flags, env)
    warnings: list[str] = []
    limit, source = _machine_limit(flags, env, file, warnings)
    models, default = _models(flags, env, file, limit, source)
    daemon = file.daemon
    try:
        metrics = None if file.metrics.listen is None else read_address(file.metrics.listen, file.metrics.name)
    except ValueError as error:
        raise ConfigError(f"metrics.listen: {error}", "metrics.listen") from error
    return Config(
        socket=socket_path(flags.socket or (None if env.get("CAR_SOCKET") else daemon.socket), env),
        log_level=flags.log_level or daemon.log_level,
        log_format=flags.log_format or daemon.log_format,
        allow_uids=[*daemon.allow_uids, *daemon.admin_uids, *daemon.delegates],
        admin_uids=list(daemon.admin_uids),
        delegates=list(daemon.delegates),
        people=file.people,
        usage_folder=state_folder(env) / "usage",
        usage_days=daemon.usage_days,
        usage_by_person=file.metrics.usage_by_person,
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
        weights={int(uid): weight for uid, weight in file.fairness.weights.items()},
        pressure=file.pressure,
        machine_limit=limit,
        sandbox=daemon.sandbox,
        budget_bytes=file.memory.budget_bytes,
        metrics=metrics,
        models=models,
        default_model=default,
        warnings=warnings,
        cluster=cluster_of(file.cluster),
    )


def _read_file(flags: Flags, env: Mapping[str, str]) -> ConfigTables:
    path = None if flags.config is None else Path(flags.config)
    if path is None:
        home = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        usual = (home / "car" / "card.toml", Path("/etc/car/card.toml"))
        path = next((each for each in usual if os.path.isfile(each)), None)
    if path is None:
        return ConfigTables()
    # Imported here because most machines have no file, and the import takes 4 ms of a start.
    from car_daemon.config.file import read_config_file

    return read_config_file(path)


def _machine_limit(
    flags: Flags, env: Mapping[str, str], file: ConfigTables, warnings: list[str]
) -> tuple[int | None, Policy | None]:
    """Return the machine's limit and its source: environment over flag over file."""
    given = env.get(LIMIT_VARIABLE)
    if given is not None:
        text = given.strip()
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0:
            return int(text), "env"
        warnings.append(f"{LIMIT_VARIABLE} is not a positive integer and is ignored: give one of at least 1")
    if flags.capacity is not None:
        return _at_least_one(flags.capacity, warnings), "flag"
    if file.capacity.sequences is not None:
        return _at_least_one(file.capacity.sequences, warnings), "config"
    return None, None


def _at_least_one(limit: int, warnings: list[str]) -> int:
    if limit < 1:
        warnings.append("a capacity of 0 is raised to 1: give at least 1")
    return max(1, limit)


def _models(
    flags: Flags, env: Mapping[str, str], file: ConfigTables, limit: int | None, source: Policy | None
) -> tuple[dict[str, ModelSettings], str]:
    """Return all entries and the default one's name; flags apply to the default one."""
    # The built-in model is too small to gain from a GPU.
    tables = {GUIDE: ModelTable(gpu_layers=0), **file.models}
    if tables[GUIDE].path is None and tables[GUIDE].hf is None:
        # The file of the built-in model need not be named.
        tables[GUIDE] = structs.replace(tables[GUIDE], path=str(guide.PATH))
    default = file.default_model
    if flags.model is not None:
        default = flags.model if flags.model in tables else Path(flags.model).stem
        if flags.model not in tables:
            tables[default] = given_table(flags.model)
    if default not in tables:
        names = ", ".join(tables)
        raise ConfigError(f"default_model: there is no model named {default}; configured are: {names}", "default_model")
    _check_aliases(tables)
    entries = {name: _settings(name, table, env, file, limit, source) for name, table in tables.items()}
    entries[default] = _with_flags(entries[default], flags)
    return entries, default


def _check_aliases(tables: dict[str, ModelTable]) -> None:
    """Raise ConfigError for an alias that is another model's name or alias."""
    owners: dict[str, str] = {}
    for name, table in tables.items():
        for alias in table.aliases:
            other = alias if alias in tables else owners.setdefault(alias, name)
            if other != name:
                key = f"models.{name}.aliases"
                raise ConfigError(f"{key}: {alias} already names the model {other}: give an alias to one model", key)


def _settings(
    name: str,
    table: ModelTable,
    env: Mapping[str, str],
    file: ConfigTables,
    limit: int | None,
    source: Policy | None,
) -> ModelSettings:
    key = f"models.{name}"
    check_place(table, key, clustered=file.cluster is not None)
    if table.place != "here":
        # The machine's limit holds for engines here.
        table, limit, source = placed_devices(table), None, None
    sequences = limit if limit is not None else table.sequences
    policy: Policy = "config" if sequences is not None else file.capacity.policy
    devices, gpu_layers = _devices(table, key)
    path, pull = located(table, env, key)
    settings = ModelSettings(
        **members_of(EngineKeys, table),
        path=path,
        pull=pull,
        sequences=sequences,
        policy=source or policy,
        max_itl_ms=file.capacity.max_itl_ms,
        reserve_bytes=file.capacity.reserve_bytes,
        saved_bytes=file.scheduler.saved_bytes,
        step_target_ms=file.scheduler.step_target_ms,
        curves=cache_folder(env) / "curves",
        cache_dir=_cells_folder(file),
        cache_bytes=file.scheduler.cache_bytes,
        gpu_layers=gpu_layers,
        devices=devices,
        auto=devices == (AUTO,),
        replicas=table.replicas,
        adapters={each: expanded(path, f"{key}.adapters.{each}") for each, path in table.adapters.items()},
        projector=None if table.projector is None else expanded(table.projector, f"{key}.projector"),
        chat_template=None if table.chat_template is None else expanded(table.chat_template, f"{key}.chat_template"),
        keep_alive_s=table.keep_alive_s,
        pinned=table.pinned,
        aliases=tuple(dict.fromkeys(table.aliases)),
        defaults=Defaults(
            max_tokens=table.default_max_tokens,
            temperature=table.temperature,
            top_p=table.top_p,
            reasoning=table.reasoning,
            system=table.system,
        ),
        temperatures={
            kind: value for kind, value in structs.asdict(table.decide.temperature).items() if value is not None
        },
        sandbox=file.daemon.sandbox,
        margin_bytes=None if (margin := file.memory.engine_margin_bytes) == "off" else margin,
    )
    return settings if table.place == "here" else placed(settings, table, name)


def _devices(table: ModelTable, key: str) -> tuple[tuple[str, ...], int]:
    """Return the configured devices and the layers on a GPU: -1, for all, if only a GPU is configured.

    Layers in place of a device name one: the CPU for 0 layers, else all GPUs.
    """
    devices = (table.device,) if isinstance(table.device, str) else tuple(table.device)
    if devices == (AUTO,) and table.gpu_layers is not None:
        return (), table.gpu_layers
    if devices == (AUTO,):
        return devices, 0
    if table.gpu_layers is None:
        return devices, -1 if _on_gpu(devices) else 0
    _check_layers(devices, table.gpu_layers, f"gpu_layers = {table.gpu_layers}", f"{key}.gpu_layers")
    return devices, table.gpu_layers


def _on_gpu(devices: tuple[str, ...]) -> bool:
    return any(device != CPU for device in devices)


def _check_layers(devices: tuple[str, ...], gpu_layers: int, given: str, key: str) -> None:
    """Raise ConfigError if the layers on a GPU contradict the configured devices."""
    if devices and _on_gpu(devices) == (gpu_layers == 0):
        raise ConfigError(f"{given} contradicts device: leave one of them out", key)


def _cells_folder(file: ConfigTables) -> Path | None:
    """Return the folder of stored cells; raises ConfigError if it would depend on the folder of the start."""
    if file.scheduler.cache_dir is None:
        return None
    key = "scheduler.cache_dir"
    folder = expanded(file.scheduler.cache_dir, key)
    if not folder.is_absolute():
        raise ConfigError(f"{key}: {str(folder)!r} is relative: give an absolute path, or one that begins with ~", key)
    return folder


def _with_flags(settings: ModelSettings, flags: Flags) -> ModelSettings:
    if flags.gpu_layers is not None:
        if settings.auto:
            settings = structs.replace(settings, devices=(), auto=False)
        _check_layers(settings.devices, flags.gpu_layers, f"--gpu-layers {flags.gpu_layers}", "gpu_layers")
    return structs.replace(
        settings,
        context_tokens=flags.context_tokens or settings.context_tokens,
        threads=flags.threads or settings.threads,
        gpu_layers=settings.gpu_layers if flags.gpu_layers is None else flags.gpu_layers,
    )
