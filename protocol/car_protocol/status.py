"""The daemon's own methods: its status, without the text of any request, and the methods that change it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from car_protocol.answer import Parted
from car_protocol.capacity import Capacity, Pressure
from car_protocol.envelope import Id
from car_protocol.infer import Milliseconds
from car_protocol.meta import Params, note
from car_protocol.models import DeviceStatus, Model

Phase = Literal["prefill", "decode"]
Awaited = Literal["place", "engine", "prompt", "sequence", "turn", "reader"]


class EngineMemory(Struct, frozen=True, kw_only=True):
    """Memory of an engine process and its limits, set once its model was loaded: an allocation beyond one fails."""

    private_bytes: Annotated[int, note("writable and its own: KV caches, repacked weights, stacks, also if unused")]
    private_limit_bytes: int
    virtual_bytes: Annotated[int, note("address space, also of mapped files and of what is only reserved")]
    virtual_limit_bytes: int


class EngineStatus(Struct, frozen=True, kw_only=True):
    """One engine process; rates in tokens per second, sizes in bytes."""

    pid: Annotated[int | None, note("null of an engine on another machine")]
    restarts: Annotated[int, note("engines started in place of one that died")]
    rss_bytes: Annotated[int, note("memory of the process; 0 of one on another machine")]
    device: Annotated[str, note("as `models/list` names it")]
    kv_bytes_used: Annotated[int, note("filled by running requests")]
    kv_bytes_capacity: int
    sequences: Annotated[int, note("declared")]
    batch_size: Annotated[float, note("rows of a step, lately")]
    decode_tokens_per_s: Annotated[float, note("sampled, lately")]
    prefill_tokens_per_s: Annotated[float, note("prompt tokens computed, lately")]
    cache_hits: Annotated[int, note("requests whose prompt was computed only in part")]
    cached_tokens: Annotated[int, note("prompt tokens that were not computed again")]
    computed_tokens: Annotated[int, note("prompt tokens and texts computed, those of lost cells again")] = 0
    sampled_tokens: Annotated[int, note("tokens of answers")] = 0
    evicted_sequences: Annotated[int, note("prefixes that were evicted from their sequence")]
    utilisation: Annotated[float, note("share of the time that it computes, 0 to 1")]
    saved_bytes: Annotated[
        int,
        note("of `rss_bytes`: cells and states of requests and prefixes, at most `saved_bytes` of the configuration"),
    ] = 0
    stored_hits: Annotated[int, note("of `cache_hits`: requests whose cells were read from a file of `cache_dir`")] = 0
    stored_bytes: Annotated[int, note("of the files of `cache_dir` that the engine may use")] = 0
    restored_tokens: Annotated[int, note("tokens of parked requests whose cells came back from host memory")] = 0
    recomputed_tokens: Annotated[int, note("tokens of parked requests that were computed again")] = 0
    lookup_tried: Annotated[int, note("tokens of earlier text that were tried as the next tokens")] = 0
    lookup_right: Annotated[int, note("tokens of `lookup_tried` that were right: each spared a step")] = 0
    sandbox: Annotated[list[str], note('what the kernel lets the process not do; empty with `sandbox = "off"`')] = []
    memory: Annotated[EngineMemory | None, note("null of an engine without memory limits")] = None
    devices: Annotated[list[DeviceStatus], note("GPUs that hold a part of the model, empty on a CPU")] = []
    host_experts: Annotated[int, note("layers whose experts the GPUs have no room for")] = 0
    host: Annotated[str | None, note("the address of its machine; null on this one")] = None
    seconds: Annotated[dict[str, float], note("seconds of its steps so far, by phase: `decode`, `sample`, ...")]


class ModelStatus(Model, frozen=True, kw_only=True):
    """A model entry with its engines."""

    engines: list[EngineStatus]
    read_again: Annotated[
        dict[str, int], note("prompt tokens computed again, by the reasons that `usage.parted` of an answer has")
    ] = field(default_factory=dict)


class Queue(Struct, frozen=True, kw_only=True):
    """Requests that wait, by class; the oldest wait in milliseconds."""

    latency_critical: Annotated[int, note("requests of that class that wait")]
    throughput: Annotated[int, note("requests of that class that wait")]
    oldest_wait_ms: float
    healthy: Annotated[bool, note("no class holds four fifths of the queue's limit")]


class Labelled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work of a client, as the client itself names it."""

    person: Annotated[str | None, note("of the request; of a connection's last call")] = None
    client: Annotated[str | None, note("the label, likewise")] = None
    tenant: Annotated[str | None, note("likewise")] = None

    @property
    def caller(self) -> str:
        """The person, the tenant and the label, as far as they are given."""
        return "/".join(filter(None, (self.person, self.tenant, self.client)))


class SequenceStatus(Labelled, frozen=True, kw_only=True, omit_defaults=True):
    """One lease; `id` is left out for requests of other users, which only administrators are sent."""

    model: str
    sequence: Annotated[int, note("in the engine; -1 of texts, and before the first step")]
    phase: Phase
    uid: int
    connection: int
    prompt_tokens: int
    done_tokens: Annotated[int, note("of the prompt, then of the answer")]
    age_ms: Annotated[float, note("since the request arrived")]
    id: Annotated[Id | None, note("left out for requests of other users")] = None


class WaitingStatus(Labelled, frozen=True, kw_only=True, omit_defaults=True):
    """Requests of one connection and label that wait for the same."""

    model: str
    awaits: Annotated[
        Awaited,
        note(
            "a `place` in the full queue, an `engine`, which loads or restarts, the `prompt` as tokens, a free "
            "`sequence`; `turn`: parked for others; `reader`: parked until their client reads"
        ),
    ]
    requests: int
    position: Annotated[
        int | None,
        note("of the first of them in the queue of its model, if it waits there; 0 is next, 63 the last that is told"),
    ] = None
    oldest_ms: Annotated[float, note("since the oldest of them arrived")]
    uid: int
    connection: int


class ConnectionStatus(Labelled, frozen=True, kw_only=True, omit_defaults=True):
    """One connected client."""

    connection: Annotated[int, note("its number")]
    uid: int
    pid: int
    in_flight: Annotated[int, note("requests")]
    tokens_served: Annotated[int, note("completion tokens of ended requests")]


class MoreConnections(Struct, frozen=True, kw_only=True):
    """Sums over the connections that a list of the busiest leaves out."""

    connections: int
    in_flight: Annotated[int, note("requests")]
    tokens_served: Annotated[int, note("completion tokens of ended requests")]


class OtherUsers(Struct, frozen=True, kw_only=True):
    """The figures of other users, whose connections and sequences only administrators are sent."""

    connections: int
    in_flight: Annotated[int, note("requests")]
    sequences: Annotated[int, note("leased")]


class Totals(Struct, frozen=True, kw_only=True):
    """Requests since the start; `received` is the sum of the others at every reading."""

    received: Annotated[int, note("the sum of the others at every reading")]
    completed: Annotated[int, note("answered with a result")]
    failed: Annotated[int, note("1002, 1005, 1007 or -32603")]
    cancelled: Annotated[int, note("-32800")]
    rejected: Annotated[int, note("all other errors")]
    in_flight: Annotated[int, note("not answered yet")]


class Memory(Struct, frozen=True, kw_only=True):
    """The machine's memory in bytes."""

    total: int
    available: int
    pressure: Pressure


class StatusParams(Params, frozen=True, kw_only=True):
    """With `subscribe` the status comes again every `interval_ms` as `daemon/status_changed`; false ends that."""

    subscribe: Annotated[
        bool | None,
        note("true also sends `daemon/status_changed` with the same object every `interval_ms`, false ends that"),
    ] = None
    interval_ms: Annotated[int, Meta(ge=100, le=60_000), note("rounded to tenths of a second")] = 1000


class NodeStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A machine of the cluster; its resources are all that it has, in use or not."""

    address: str
    alive: Annotated[bool, note("as the cluster has it: a machine that is cut off stays alive for about a minute")]
    cpus: Annotated[float, note("in all")]
    gpus: Annotated[float, note("in all")]
    engines: Annotated[int, note("of this daemon, connected")]
    avoided_s: Annotated[
        float | None, note("seconds for which others come first: its connection was lost, or it refused an engine")
    ] = None
    reason: Annotated[str | None, note("the reason why it is avoided")] = None


class ClusterStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cluster of `[cluster]`, as the placer reported it last."""

    address: Annotated[str, note("of its head, as configured")]
    placer_pid: Annotated[int | None, note("of the process that places engines; null until one is needed")]
    ray: Annotated[str | None, note("Ray's version; null until the placer is connected")]
    reason: Annotated[str | None, note("the reason why the placer has no connection to the cluster")] = None
    nodes: list[NodeStatus] = field(default_factory=lambda: [])  # sent also when it is empty: see `Model.aliases`


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status object."""

    version: str
    protocol: str
    pid: int
    uptime_s: Annotated[float, note("since its start")]
    state: Literal["serving", "draining"]
    socket: Annotated[str, note("path of the socket that it listens on")]
    loop_lag_ms: Annotated[float, note("delay of the daemon's event loop")]
    capacity: Annotated[Capacity, note("of the default model")]
    models: Annotated[list[ModelStatus], note("each model's entry with its `engines`, the default one first")]
    queue: Queue
    sequences: Annotated[
        list[SequenceStatus], note("leased by requests for answers: of the caller's user, for administrators of all")
    ]
    connections: Annotated[
        list[ConnectionStatus], note("of the caller's user, for administrators of all; the 100 busiest")
    ]
    totals: Annotated[Totals, note("requests since the start")]
    memory: Annotated[Memory, note("of the machine")]
    waiting: Annotated[list[WaitingStatus], note("of the caller's user, for administrators of all; 100 at most")] = (
        field(default_factory=lambda: [])
    )  # sent also when it is empty: see `Model.aliases`
    more_connections: Annotated[
        MoreConnections | None, note("sums over the connections that the list leaves out; absent if it has all")
    ] = None
    others: Annotated[OtherUsers | None, note("all other users; left out for administrators")] = None
    cluster: Annotated[ClusterStatus | None, note("for administrators; left out without `[cluster]`")] = None


class DrainParams(Params, frozen=True, kw_only=True):
    """The time that running and waiting requests have to finish; None is the configured timeout."""

    timeout_ms: Annotated[
        Milliseconds | None,
        note("five seconds less than `drain_timeout_s` if absent; of several the shortest counts"),
    ] = None


class Drained(Struct, frozen=True):
    """Requests that the daemon completed while it drained, and requests that it refused at the timeout."""

    completed: Annotated[int, note("requests that were answered while the daemon drained, not counting errors")]
    refused: Annotated[int, note("requests that got 1003 at the timeout")]


class WhyParams(Params, frozen=True, kw_only=True):
    """One request, or all that are remembered."""

    id: Annotated[Id | None, note("of a request; absent for all")] = None


class ReadPrompt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt that was answered: how much of it was computed, and why."""

    id: Annotated[Id, note("of the request")]
    connection: Annotated[int, note("its number in the status")]
    model: str
    age_s: Annotated[float, note("since the answer")]
    prompt_tokens: int
    cached_tokens: Annotated[int, note("of the prompt, not computed again")]
    client: Annotated[str | None, note("the label of the request")] = None
    parted: Annotated[Parted | None, note("as in the answer's `usage`")] = None


class Why(Struct, frozen=True):
    """The last prompts of the caller."""

    prompts: Annotated[list[ReadPrompt], note("the newest first, at most 32")]


class CancelOtherParams(Params, frozen=True, kw_only=True):
    """The connection and the request to cancel, as the status names them."""

    connection: Annotated[int, note("its number in the status")]
    id: Annotated[Id, note("its id in the status; an unknown id is ignored")]
