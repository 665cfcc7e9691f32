"""What the daemon says of itself: capacity, models and status objects, without anybody's text."""

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec import UNSET

from car_daemon.engine.frames import Ready
from car_daemon.engine.laps import PHASES
from car_daemon.inference import Inference
from car_daemon.memory import MemorySource, resident_bytes
from car_daemon.models.entry import ModelEntry
from car_daemon.models.pool import ModelPool
from car_daemon.models.replica import Replica
from car_daemon.peer import Peer
from car_daemon.pending import Pending
from car_daemon.recent import Recent
from car_daemon.scheduler.request import State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol import PROTOCOL, __version__
from car_protocol.capacity import Capacity, Machine
from car_protocol.limits import Limits
from car_protocol.models import Model
from car_protocol.status import (
    ConnectionStatus,
    EngineStatus,
    Memory,
    ModelStatus,
    Queue,
    SequenceStatus,
    Status,
    Totals,
)

# A class that holds this share of the queue's limit is unhealthy.
_UNHEALTHY = 0.8
_QUEUED = (State.ACCEPTED, State.PREPARING, State.WAITING)


class Client(Protocol):
    """A connection as the status shows it."""

    number: int
    peer: Peer
    label: str | None
    tokens_served: int

    @property
    def open_requests(self) -> int:
        """Requests in flight."""
        ...


class Reports:
    """Builds the objects from the owners of their facts."""

    def __init__(
        self,
        scheduler: Scheduler,
        pool: ModelPool,
        inference: Inference,
        limits: Limits,
        *,
        clients: Callable[[], Iterable[Client]],
        loop_lag_ms: Callable[[], float],
        socket: str,
        read_memory: MemorySource,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._inference = inference
        self.limits = limits
        self._clients = clients
        self._loop_lag_ms = loop_lag_ms
        self._socket = socket
        self._read_memory = Recent(read_memory, clock)
        self._resident_bytes = Recent(resident_bytes, clock)
        self._clock = clock
        self._started = clock()
        # Mutable state: the capacity of models while nobody asks them anything, and what had changed how often by then.
        self._idle: dict[ModelEntry, tuple[tuple[int, int], Capacity]] = {}

    def capacity(self, entry: ModelEntry) -> Capacity:
        """Return the capacity object of one model."""
        if self._scheduler.requests:
            return self._capacity(entry)
        # Who asks an idle daemon wakes it, and what runs after a sleep takes several times what it takes warm.
        changes = entry.generation, self._scheduler.gate.changes
        known = self._idle.get(entry)
        if known is None or known[0] != changes:
            known = self._idle[entry] = changes, self._capacity(entry)
        return known[1]

    def _capacity(self, entry: ModelEntry) -> Capacity:
        gate = self._scheduler.gate
        capacity = gate.capacity(entry.name)
        ready = entry.ready
        leased = gate.leased(entry.name)
        states = [request.state for request in self._scheduler.requests.values() if request.model == entry.name]
        return Capacity(
            capacity=capacity,
            declared=gate.declared(entry.name),
            in_use=leased,
            available=max(0, capacity - leased),
            parked=states.count(State.PARKED),
            queued=sum(map(states.count, _QUEUED)),
            queue_limit=self.limits.queue_limit,
            policy=ready.policy if ready else None,
            pressure=gate.pressure,
            state=entry.state,
            model=entry.name,
            context_tokens=ready.context_tokens if ready else None,
            machine=Machine(gate.machine_limit, gate.in_use),
            generation=entry.generation,
            protocol=PROTOCOL,
            version=__version__,
            limits=self.limits,
            reason=entry.reason if entry.reason is not None else UNSET,
            inputs=ready.inputs if ready else UNSET,
        )

    def model(self, entry: ModelEntry) -> Model:
        """Return one entry of the list of models."""
        return Model(**self._model_facts(entry))

    def status(self, peer: Peer) -> Status:
        """Return the status object as `peer` may see it."""
        return Status(
            version=__version__,
            protocol=PROTOCOL,
            pid=os.getpid(),
            uptime_s=round(self._clock() - self._started, 3),
            state="draining" if self._scheduler.draining else "serving",
            socket=self._socket,
            loop_lag_ms=self._loop_lag_ms(),
            capacity=self.capacity(self._pool.default),
            models=[self._model_status(entry) for entry in self._pool],
            queue=self._queue(),
            sequences=self._sequences(peer),
            connections=[_connection(client) for client in self._clients()],
            totals=self._totals(),
            memory=self._memory(),
        )

    def _model_facts(self, entry: ModelEntry) -> dict[str, Any]:
        ready = entry.ready
        return {
            "name": entry.name,
            "path": str(entry.settings.path),
            "state": entry.state,
            "default": entry.default,
            "pinned": entry.pinned,
            "size_bytes": entry.size_bytes,
            "capacity": self._scheduler.gate.capacity(entry.name),
            "context_tokens": ready.context_tokens if ready else None,
            "adapters": sorted(entry.settings.adapters),
            "can": ready.can if ready else [],
            "device": entry.device,
            "replicas": len(entry.replicas),
            "loaded_at": entry.loaded_at if entry.loaded_at is not None else UNSET,
            "last_used_at": entry.last_used_at if entry.last_used_at is not None else UNSET,
            "reason": entry.reason if entry.reason is not None else UNSET,
        }

    def _model_status(self, entry: ModelEntry) -> ModelStatus:
        engines = [self._engine(replica, replica.pid) for replica in entry.replicas if replica.pid is not None]
        return ModelStatus(**self._model_facts(entry), engines=engines)

    def _engine(self, replica: Replica, pid: int) -> EngineStatus:
        counters, ready = replica.counters, replica.ready
        steps = counters.delta("decode_steps")
        return EngineStatus(
            pid=pid,
            restarts=replica.restarts,
            rss_bytes=self._resident_bytes(pid),
            device=replica.device,
            kv_bytes_used=0 if ready is None else self._kv_bytes_used(replica.engine, ready),
            kv_bytes_capacity=0 if ready is None else ready.kv_bytes,
            sequences=0 if ready is None else ready.sequences,
            batch_size=round(counters.delta("decode_tokens") / steps, 2) if steps else 0.0,
            decode_tokens_per_s=round(counters.rate("decode_tokens"), 1),
            prefill_tokens_per_s=round(counters.rate("prefill_tokens"), 1),
            cache_hits=counters.total("cache_hits"),
            cached_tokens=counters.total("cached_tokens"),
            evicted_sequences=counters.total("evicted_sequences"),
            utilisation=round(min(1.0, sum(counters.rate(f"{phase}_s") for phase in PHASES)), 3),
            seconds={phase: round(counters.now.get(f"{phase}_s", 0.0), 6) for phase in PHASES},
        )

    def _kv_bytes_used(self, engine: int | None, ready: Ready) -> int:
        running = [answer.request for answer in self._running() if answer.request.engine == engine]
        cells = sum(request.prompt_done + request.produced for request in running)
        return cells * ready.kv_bytes // (ready.sequences * ready.context_tokens)

    def _queue(self) -> Queue:
        queued = [request for request in self._scheduler.requests.values() if request.state in _QUEUED]
        throughput = sum(request.priority == "throughput" for request in queued)
        counts = {"latency_critical": len(queued) - throughput, "throughput": throughput}
        oldest = min((request.arrived for request in queued), default=None)
        return Queue(
            **counts,
            oldest_wait_ms=0.0 if oldest is None else round((self._clock() - oldest) * 1000, 1),
            healthy=max(counts.values()) < _UNHEALTHY * self.limits.queue_limit,
        )

    def _running(self) -> list[Pending]:
        answers = self._inference.answers.values()
        return [a for a in answers if a.request.state is State.RUNNING and a.sequence is not None]

    def _sequences(self, peer: Peer) -> list[SequenceStatus]:
        return [self._sequence(answer, peer) for answer in self._running()]

    def _sequence(self, answer: Pending, peer: Peer) -> SequenceStatus:
        request, owner = answer.request, answer.owner
        assert answer.sequence is not None
        return SequenceStatus(
            model=request.model,
            sequence=answer.sequence,
            phase="decode" if request.produced else "prefill",
            uid=owner.uid,
            connection=owner.connection,
            prompt_tokens=answer.prompt_tokens,
            done_tokens=request.produced or request.prompt_done,
            age_ms=round((self._clock() - request.arrived) * 1000, 1),
            id=owner.id if peer.uid in (0, owner.uid) else UNSET,
            client=owner.client if owner.client is not None else UNSET,
        )

    def _memory(self) -> Memory:
        reading = self._read_memory()
        return Memory(total=reading.total, available=reading.available, pressure=self._scheduler.gate.pressure)

    def _totals(self) -> Totals:
        totals = self._scheduler.totals
        return Totals(
            received=totals.received,
            completed=totals.completed,
            failed=totals.failed,
            cancelled=totals.cancelled,
            rejected=totals.rejected,
            in_flight=totals.in_flight,
        )


def _connection(client: Client) -> ConnectionStatus:
    return ConnectionStatus(
        connection=client.number,
        uid=client.peer.uid,
        pid=client.peer.pid,
        in_flight=client.open_requests,
        tokens_served=client.tokens_served,
        client=client.label if client.label is not None else UNSET,
    )
