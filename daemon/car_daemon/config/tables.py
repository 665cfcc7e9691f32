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
from car_protocol.meta import PERSON_PATTERN, note
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
    """`[daemon]`."""

    socket: Annotated[
        PathText | None,
        note("the path to listen on, unless a service manager has the socket; clients find it by `CAR_SOCKET`"),
    ] = None
    log_level: Annotated[event_log.Level, note("events of this level and above are logged")] = "info"
    log_format: Annotated[event_log.Format, note("lines for people, or a JSON object a line")] = "console"
    allow_uids: Annotated[
        list[Annotated[int, Meta(ge=0)]],
        note("users that may connect, besides root and the daemon's own; the socket's folder has to let them in too"),
    ] = []
    admin_uids: Annotated[
        list[Annotated[int, Meta(ge=0)]], note("users that may also drain, reload, and load and unload models")
    ] = []
    delegates: Annotated[
        list[Annotated[int, Meta(ge=0)]],
        note("users that may connect, and name the person of `[people]` that a request is of"),
    ] = []
    drain_timeout_s: Annotated[
        float,
        Meta(gt=0, le=86_400),
        note("how long the daemon finishes accepted work before it ends; a service manager waits as long"),
    ] = 30.0
    max_connections: Annotated[Positive, note("connections at once")] = Limits().max_connections
    max_connections_per_uid: Annotated[Positive, note("connections of one user at once")] = (
        Limits().max_connections_per_uid
    )
    usage_days: Annotated[
        int,
        Meta(ge=1, le=36_500),
        note("how long the ledger of usage is kept; it begins with the first person"),
    ] = 400
    sandbox: Annotated[Sandbox, note("`off`: daemon and engines keep all rights of their user")] = "strict"


class CapacityTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[capacity]`; `sequences` is the limit of the machine, and 0 is raised to 1."""

    policy: Annotated[DecidingPolicy, note("how an engine decides how many requests run at once")] = "measured"
    sequences: Annotated[
        Count | None,
        note("how many requests run at once on this machine, over all models, in place of the policy; 0 counts as 1"),
    ] = None
    max_itl_ms: Annotated[
        Positive, note("the policy `measured` declares no more sequences than this time between tokens allows")
    ] = MAX_ITL_MS
    reserve_bytes: Annotated[int, Meta(ge=0), note("memory that KV caches leave to other programs")] = 0


class QueueTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[queue]`."""

    limit: Annotated[Positive, note("requests that may wait")] = QueueBounds().limit
    max_bytes: Annotated[Positive, note("the bytes of the params of requests that wait")] = QueueBounds().max_bytes
    overflow: Annotated[
        Overflow,
        note("what happens beyond that: requests wait outside, the newest is refused, or the oldest is dropped"),
    ] = "block"


class SchedulerTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[scheduler]`; the cells of parked requests are kept in up to `saved_bytes` of host memory.

    With `cache_dir`, prefixes survive their engine in files: up to `cache_bytes` for each model on each kind of device.
    """

    step_target_ms: Annotated[
        Positive, note("how long a step with prompts takes; less makes answers smoother and prompts slower")
    ] = STEP_TARGET_MS
    age_after_s: Annotated[
        float,
        Meta(ge=0, le=86_400),
        note("`throughput` work that waited this long counts as `latency_critical`"),
    ] = DEFAULT_AGE_AFTER_S
    saved_bytes: Annotated[
        int,
        Meta(ge=0),
        note("host memory for KV caches and states of parked requests and of prefixes; the rest is computed again"),
    ] = SAVED_BYTES
    cache_dir: Annotated[
        PathText | None, note("a folder in which prefixes survive a restart; its files contain prompts and answers")
    ] = None
    cache_bytes: Annotated[
        int, Meta(ge=2**24, le=2**62), note("bytes there, for each model on each kind of device")
    ] = CACHE_BYTES


class FairnessTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[fairness]`: the weight of each user by uid, 1 for the others."""

    weights: Annotated[
        dict[Annotated[str, Meta(pattern=r"\A[0-9]{1,10}\Z")], Annotated[float, Meta(ge=0.001, le=1000)]],
        note("shares by uid: a user of weight 2 gets twice the service and twice the places; other users have 1"),
    ] = {}


class MemoryTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[memory]`; without `budget_bytes` models may use the memory that is free.

    `engine_margin_bytes` is what an engine may allocate beyond its load.
    """

    budget_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**62)] | None, note("what all models together may use; what is free if absent")
    ] = None
    engine_margin_bytes: Annotated[
        Annotated[int, Meta(ge=2**28, le=2**62)] | Literal["off"],
        note("what an engine may allocate beyond its load and ordinary requests; `off` sets no limit"),
    ] = MARGIN_BYTES


class MetricsTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[metrics]`; without `listen` no metrics are served over HTTP. `name` is this machine's, beside localhost."""

    listen: Annotated[
        str | None,
        note("`127.0.0.1:PORT`, `[::1]:PORT` or `unix:PATH`, at which metrics are served over HTTP; nowhere if absent"),
    ] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,253}\Z")] | None,
        note("a name of this machine that requests for metrics may use in place of localhost"),
    ] = None
    usage_by_person: Annotated[
        bool, note("`card_usage_*` has a label for the person or user, beside that for the app")
    ] = False


class ClusterTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[cluster]`: the Ray cluster that places engines; `token` is the file of its token, without it Ray's own."""

    address: Annotated[str, note("of the head of a Ray cluster, `HOST:PORT`; `auto` is the head on this machine")]
    token: Annotated[PathText | None, note("the file with the cluster's token; if absent, Ray's own places")] = None
    place_timeout_s: Annotated[
        float,
        Meta(ge=1, le=3600),
        note("how long an engine is offered to the cluster before it is offered again"),
    ] = 60.0


class Temperatures(Struct, frozen=True, forbid_unknown_fields=True):
    """`temperature` of `[models.NAME.decide]`: by which logits of labels are divided, by type of question."""

    choice: Annotated[
        DecisionTemperature | None, note("of choices: above 1 probabilities become more alike, below 1 less")
    ] = None
    score: Annotated[DecisionTemperature | None, note("of scores")] = None
    predicate: Annotated[DecisionTemperature | None, note("of predicates")] = None


class DecideTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[models.NAME.decide]`; an absent temperature is that of the model's file, else 1."""

    temperature: Annotated[
        Temperatures, note("by which the logits of labels are divided; that of the model's file, else 1, if absent")
    ] = Temperatures()


class ModelTable(EngineKeys, frozen=True, forbid_unknown_fields=True):
    """`[models.NAME]`; either `path` or `hf` names its file."""

    path: Annotated[PathText | None, note("the GGUF file; of a split model its first part")] = None
    hf: Annotated[
        str | None, note("`owner/repo/file.gguf`, in place of `path`: a file that `carctl models pull` downloaded")
    ] = None
    sequences: Annotated[
        Sequences | None,
        note("how many requests run at once, in place of the policy; without effect beside `capacity.sequences`"),
    ] = None
    gpu_layers: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        note("layers on GPUs: 0 none, -1 as many as fit, and the model is not served without a GPU"),
    ] = None
    device: Annotated[
        DeviceOrAuto | Annotated[list[Device], Meta(min_length=1)],
        note("`auto`, `cpu`, `gpu` (all GPUs), `gpu0` (the first), or a list of these for an engine on each"),
    ] = AUTO
    replicas: Annotated[
        int, Meta(ge=1, le=256), note("engines on each device: up to 16 here, up to 256 on a cluster")
    ] = 1
    place: Annotated[Place, note("`ray`: engines run on machines of the cluster")] = "here"
    spread: Annotated[
        Spread | None, note("on a cluster: true prefers different nodes, `strict` insists, false fills a node first")
    ] = None
    needs: Annotated[Needs | None, note("on a cluster: what a node must have free")] = None
    adapters: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=128)], PathText],
        note("LoRA adapters that requests may name: name = path"),
    ] = field(default_factory=dict)
    projector: Annotated[PathText | None, note("the file that lets the model read images or sounds")] = None
    chat_template: Annotated[PathText | None, note("a Jinja file in place of the model's own template")] = None
    aliases: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]], note("further names of this model")
    ] = field(default_factory=list)
    default_max_tokens: Annotated[
        Positive | None, note("of requests without `max_tokens`; what fits the context if absent")
    ] = None
    temperature: Annotated[Temperature | None, note("of requests that leave it out")] = None
    top_p: Annotated[Fraction | None, note("of requests that leave it out")] = None
    reasoning: Annotated[ReasoningMode | None, note("of requests that leave it out")] = None
    system: Annotated[str | None, note("the first message of conversations without a system message")] = None
    decide: Annotated[DecideTable, note("how `decide` reads this model")] = DecideTable()
    keep_alive_s: Annotated[float, Meta(ge=0, le=31_536_000), note("how long the model stays loaded without work")] = (
        600.0
    )
    pinned: Annotated[bool, note("the model stays loaded; the default model always does")] = False


class ConfigTables(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole TOML file; `[http]` is read by card-http alone."""

    default_model: Annotated[
        str, note("the model of requests that name none: a name under `[models]`; `guide` is built in")
    ] = GUIDE
    daemon: Annotated[DaemonTable, note("the process and its socket")] = field(default_factory=DaemonTable)
    capacity: Annotated[CapacityTable, note("how many requests run at once")] = field(default_factory=CapacityTable)
    queue: Annotated[QueueTable, note("what waits")] = field(default_factory=QueueTable)
    scheduler: Annotated[SchedulerTable, note("who runs when, and what is kept")] = field(
        default_factory=SchedulerTable
    )
    fairness: Annotated[FairnessTable, note("shares of users")] = field(default_factory=FairnessTable)
    pressure: Annotated[PressureLimits, note("when memory counts as short")] = field(default_factory=PressureLimits)
    memory: Annotated[MemoryTable, note("what models may take")] = field(default_factory=MemoryTable)
    metrics: Annotated[MetricsTable, note("metrics over HTTP")] = field(default_factory=MetricsTable)
    cluster: Annotated[ClusterTable | None, note("engines on other machines, by Ray")] = None
    http: Annotated[dict[str, object], note("read by `card-http` alone")] = {}
    people: Annotated[
        dict[Annotated[str, Meta(pattern=PERSON_PATTERN)], PersonTable], note("people behind delegates, by name")
    ] = {}
    models: Annotated[dict[str, ModelTable], note("the models, by name")] = {}
