"""The tables of the configuration file: the keys of each, their ranges and their defaults."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from car_base.host import event_log
from car_base.host.devices import AUTO, PATTERN, PATTERN_OR_AUTO
from car_base.host.memory import PressureLimits
from car_base.ipc.engine_settings import MARGIN_BYTES, MAX_ITL_MS, SAVED_BYTES, STEP_TARGET_MS, EngineKeys
from car_base.ipc.types import Sandbox
from car_daemon.models.settings import CACHE_BYTES, Needs, Place, Spread
from car_daemon.people.people import PersonTable
from car_daemon.scheduler.backlog import Overflow, QueueBounds
from car_daemon.scheduler.scheduler import DEFAULT_AGE_AFTER_S
from car_protocol.conversation import ReasoningMode
from car_protocol.limits import Limits
from car_protocol.meta import PERSON_PATTERN
from car_protocol.sampling import Fraction, Temperature

GUIDE = "guide"
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# The kernel refuses a path that contains NUL.
PathText = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
Device = Annotated[str, Meta(pattern=PATTERN)]
DeviceOrAuto = Annotated[str, Meta(pattern=PATTERN_OR_AUTO)]
Sequences = Annotated[int, Meta(ge=1, le=256)]
DecisionTemperature = Annotated[float, Meta(ge=0.01, le=100)]
DecidingPolicy = Literal["measured", "memory", "ram_tiers", "ram_per_8gb"]


class ConfigError(Exception):
    """The configuration is invalid; the message names the key and says what to do."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class DaemonTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[daemon]`; processes of the users `delegates` may name people, beside the daemon's own user and root."""

    socket: PathText | None = None
    log_level: event_log.Level = "info"
    log_format: event_log.Format = "console"
    allow_uids: list[Annotated[int, Meta(ge=0)]] = []
    admin_uids: list[Annotated[int, Meta(ge=0)]] = []
    delegates: list[Annotated[int, Meta(ge=0)]] = []
    drain_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 30.0
    max_connections: Positive = Limits().max_connections
    max_connections_per_uid: Positive = Limits().max_connections_per_uid
    sandbox: Sandbox = "strict"


class CapacityTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[capacity]`; `sequences` is the limit of the machine, and 0 is raised to 1."""

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
    """`[scheduler]`; the cells of parked requests are kept in up to `saved_bytes` of host memory.

    With `cache_dir`, prefixes survive their engine in files: up to `cache_bytes` for each model on each kind of device.
    """

    step_target_ms: Positive = STEP_TARGET_MS
    age_after_s: Annotated[float, Meta(ge=0, le=86_400)] = DEFAULT_AGE_AFTER_S
    saved_bytes: Annotated[int, Meta(ge=0)] = SAVED_BYTES
    cache_dir: PathText | None = None
    cache_bytes: Annotated[int, Meta(ge=2**24, le=2**62)] = CACHE_BYTES


class FairnessTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[fairness]`: the weight of each user by uid, 1 for the others."""

    weights: dict[Annotated[str, Meta(pattern=r"\A[0-9]{1,10}\Z")], Annotated[float, Meta(ge=0.001, le=1000)]] = {}


class MemoryTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[memory]`; without `budget_bytes` models may use the memory that is free.

    `engine_margin_bytes` is what an engine may allocate beyond its load.
    """

    budget_bytes: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    engine_margin_bytes: Annotated[int, Meta(ge=2**28, le=2**62)] | Literal["off"] = MARGIN_BYTES


class MetricsTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[metrics]`; without `listen` no metrics are served over HTTP. `name` is this machine's, beside localhost."""

    listen: str | None = None
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,253}\Z")] | None = None


class ClusterTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[cluster]`: the Ray cluster that places engines; `token` is the file of its token, without it Ray's own."""

    address: str
    token: PathText | None = None
    place_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0


class Temperatures(Struct, frozen=True, forbid_unknown_fields=True):
    """`temperature` of `[models.NAME.decide]`: by which logits of labels are divided, by type of question."""

    choice: DecisionTemperature | None = None
    score: DecisionTemperature | None = None
    predicate: DecisionTemperature | None = None


class DecideTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[models.NAME.decide]`; an absent temperature is that of the model's file, else 1."""

    temperature: Temperatures = Temperatures()


class ModelTable(EngineKeys, frozen=True, forbid_unknown_fields=True):
    """`[models.NAME]`; either `path` or `hf` names its file."""

    path: PathText | None = None
    hf: str | None = None
    sequences: Sequences | None = None
    gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    device: DeviceOrAuto | Annotated[list[Device], Meta(min_length=1)] = AUTO
    replicas: Annotated[int, Meta(ge=1, le=256)] = 1
    place: Place = "here"
    spread: Spread | None = None
    needs: Needs | None = None
    adapters: dict[Annotated[str, Meta(min_length=1, max_length=128)], PathText] = field(default_factory=dict)
    projector: PathText | None = None
    chat_template: PathText | None = None
    aliases: list[Annotated[str, Meta(min_length=1, max_length=128)]] = field(default_factory=list)
    default_max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    reasoning: ReasoningMode | None = None
    system: str | None = None
    decide: DecideTable = DecideTable()
    keep_alive_s: Annotated[float, Meta(ge=0, le=31_536_000)] = 600.0
    pinned: bool = False


class ConfigTables(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole TOML file; `[http]` is read by card-http alone."""

    default_model: str = GUIDE
    daemon: DaemonTable = field(default_factory=DaemonTable)
    capacity: CapacityTable = field(default_factory=CapacityTable)
    queue: QueueTable = field(default_factory=QueueTable)
    scheduler: SchedulerTable = field(default_factory=SchedulerTable)
    fairness: FairnessTable = field(default_factory=FairnessTable)
    pressure: PressureLimits = field(default_factory=PressureLimits)
    memory: MemoryTable = field(default_factory=MemoryTable)
    metrics: MetricsTable = field(default_factory=MetricsTable)
    cluster: ClusterTable | None = None
    http: dict[str, object] = {}
    people: dict[Annotated[str, Meta(pattern=PERSON_PATTERN)], PersonTable] = {}
    models: dict[str, ModelTable] = {}
