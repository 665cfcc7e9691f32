"""The tables of the configuration file: what may stand in each, and what holds without it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from car_daemon import logs
from car_daemon.devices import PATTERN
from car_daemon.models.entry import MAX_ITL_MS, SAVED_BYTES, STEP_TARGET_MS
from car_daemon.scheduler.backlog import Overflow, QueueBounds
from car_daemon.scheduler.pressure import PressureLimits
from car_daemon.scheduler.scheduler import DEFAULT_AGE_AFTER_S
from car_protocol.limits import Limits

GUIDE = "guide"
MAX_THREADS = 1024
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# The kernel takes no path with a NUL in it.
PathText = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
Device = Annotated[str, Meta(pattern=PATTERN)]
Sequences = Annotated[int, Meta(ge=1, le=256)]
DecidingPolicy = Literal["measured", "memory", "ram_tiers", "ram_per_8gb"]


class ConfigError(Exception):
    """The configuration cannot be used; the message says which key and what to do."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class DaemonTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[daemon]`."""

    socket: PathText | None = None
    log_level: logs.Level = "info"
    log_format: logs.Format = "console"
    allow_uids: list[Annotated[int, Meta(ge=0)]] = []
    admin_uids: list[Annotated[int, Meta(ge=0)]] = []
    drain_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 30.0
    max_connections: Positive = Limits().max_connections
    max_connections_per_uid: Positive = Limits().max_connections_per_uid


class CapacityTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[capacity]`; `sequences` is the limit of the machine, 1 where it is 0."""

    policy: DecidingPolicy = "measured"
    sequences: Count | None = None
    max_itl_ms: Positive = MAX_ITL_MS
    reserve_bytes: Annotated[int, Meta(ge=0)] = 0


class QueueTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[queue]`."""

    limit: Positive = QueueBounds().limit
    max_bytes: Positive = QueueBounds().max_bytes
    overflow: Overflow = "block"


class SchedulerTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[scheduler]`; `saved_bytes` of host memory keep the cells of parked requests."""

    step_target_ms: Positive = STEP_TARGET_MS
    age_after_s: Annotated[float, Meta(ge=0, le=86_400)] = DEFAULT_AGE_AFTER_S
    saved_bytes: Annotated[int, Meta(ge=0)] = SAVED_BYTES


class MemoryTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[memory]`; None is what is free."""

    budget_bytes: Annotated[int, Meta(ge=1, le=2**62)] | None = None


class MetricsTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[metrics]`; nothing is served where `listen` is absent."""

    listen: str | None = None


class ModelTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[models.NAME]`; either `path` or `hf` says where its file is."""

    path: PathText | None = None
    hf: str | None = None
    context_tokens: Positive | None = None
    sequences: Sequences | None = None
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None = None
    gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    device: Device | list[Device] = []
    replicas: Annotated[int, Meta(ge=1, le=16)] = 1
    adapters: dict[Annotated[str, Meta(min_length=1, max_length=128)], PathText] = {}
    projector: PathText | None = None
    chat_template: PathText | None = None
    speculative: bool = False
    keep_alive_s: Annotated[float, Meta(ge=0, le=31_536_000)] = 600.0
    pinned: bool = False


class ConfigFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole TOML file."""

    default_model: str = GUIDE
    daemon: DaemonTable = field(default_factory=DaemonTable)
    capacity: CapacityTable = field(default_factory=CapacityTable)
    queue: QueueTable = field(default_factory=QueueTable)
    scheduler: SchedulerTable = field(default_factory=SchedulerTable)
    pressure: PressureLimits = field(default_factory=PressureLimits)
    memory: MemoryTable = field(default_factory=MemoryTable)
    metrics: MetricsTable = field(default_factory=MetricsTable)
    models: dict[str, ModelTable] = {}
