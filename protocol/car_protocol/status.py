"""`daemon/status`: what the daemon is doing, without anybody's text."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from car_protocol.capacity import Capacity, Pressure
from car_protocol.envelope import Id
from car_protocol.meta import Params
from car_protocol.models import Model

Phase = Literal["prefill", "decode"]


class EngineStatus(Struct, frozen=True, kw_only=True):
    """One engine process; rates in tokens per second, sizes in bytes."""

    pid: int
    restarts: int
    rss_bytes: int
    device: str
    kv_bytes_used: int
    kv_bytes_capacity: int
    sequences: int
    batch_size: float
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    cache_hits: int
    cached_tokens: int
    evicted_sequences: int
    utilisation: float


class ModelStatus(Model, frozen=True, kw_only=True):
    """A model entry with its engines."""

    engines: list[EngineStatus]


class Queue(Struct, frozen=True, kw_only=True):
    """Requests that wait, by class; the oldest wait in milliseconds."""

    latency_critical: int
    throughput: int
    oldest_wait_ms: float
    healthy: bool


class SequenceStatus(Struct, frozen=True, kw_only=True):
    """One leased sequence; `id` is left out for requests of other users."""

    model: str
    sequence: int
    phase: Phase
    uid: int
    connection: int
    prompt_tokens: int
    done_tokens: int
    age_ms: float
    id: Id | UnsetType = UNSET
    client: str | UnsetType = UNSET


class ConnectionStatus(Struct, frozen=True, kw_only=True):
    """One connected client."""

    connection: int
    uid: int
    pid: int
    in_flight: int
    tokens_served: int
    client: str | UnsetType = UNSET


class Totals(Struct, frozen=True, kw_only=True):
    """Requests since the start; `received` is the sum of the others at every reading."""

    received: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    in_flight: int


class Memory(Struct, frozen=True, kw_only=True):
    """The machine's memory in bytes."""

    total: int
    available: int
    pressure: Pressure


class StatusParams(Params, frozen=True, kw_only=True):
    """With `subscribe` the status comes again every `interval_ms` as `daemon/status_changed`; false ends that."""

    subscribe: bool | None = None
    interval_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000


class Status(Struct, frozen=True, kw_only=True):
    """The status object."""

    version: str
    protocol: str
    pid: int
    uptime_s: float
    state: Literal["serving", "draining"]
    socket: str
    loop_lag_ms: float
    capacity: Capacity
    models: list[ModelStatus]
    queue: Queue
    sequences: list[SequenceStatus]
    connections: list[ConnectionStatus]
    totals: Totals
    memory: Memory
