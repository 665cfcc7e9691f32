"""The members of the status that are the same for every user, without the text of any request."""

import os
from collections.abc import Callable

from car_daemon.host.memory import MemorySource, ProcessMemory, read_process_memory
from car_daemon.host.ttl_cache import TtlCache
from car_daemon.ipc.frames import Ready
from car_daemon.ipc.types import PHASES
from car_daemon.methods.capacity_report import CapacityReport
from car_daemon.methods.device_report import devices_of
from car_daemon.methods.model_report import ModelReport
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica
from car_daemon.requests.answer import PendingAnswer
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.request import State
from car_daemon.scheduler.state import QUEUED
from car_protocol import PROTOCOL, __version__
from car_protocol.status import (
    ClusterStatus,
    EngineMemory,
    EngineStatus,
    Memory,
    ModelStatus,
    Queue,
    Status,
    Totals,
)

_FEW = 1000  # requests that are counted for every status
_UNHEALTHY = 0.8  # of the queue's limit, reached by the requests of one class


class StatusReport:
    """Status objects without lists, built from the owners of their facts.

    While more requests than a few wait, the counts of the queue are those of the last 200 ms.
    """

    def __init__(
        self,
        inference: Inference,
        models: ModelReport,
        capacity: CapacityReport,
        *,
        loop_lag_ms: Callable[[], float],
        socket: str,
        read_memory: MemorySource,
        cluster: Callable[[], ClusterStatus | None] = lambda: None,
        clock: Callable[[], float],
    ) -> None:
        self._inference = inference
        self._scheduler = inference.scheduler
        self._models = models
        self._capacity = capacity
        self._loop_lag_ms = loop_lag_ms
        self._socket = socket
        self._read_memory = TtlCache(read_memory, clock)
        self._process_memory = TtlCache(read_process_memory, clock)
        self._cached_queue = TtlCache(self._queue, clock)
        self._cluster = cluster
        self._clock = clock
        self._started = clock()

    def common(self, *, admin: bool) -> Status:
        """Return the members that are the same for every user, or every administrator; the lists are empty."""
        memory, pressure = self._read_memory(), self._scheduler.gate.pressure
        running = self.running()
        return Status(
            version=__version__,
            protocol=PROTOCOL,
            pid=os.getpid(),
            uptime_s=round(self._clock() - self._started, 3),
            state="draining" if self._scheduler.draining else "serving",
            socket=self._socket,
            loop_lag_ms=self._loop_lag_ms(),
            capacity=self._capacity.of(self._models.pool.default),
            models=[self._model_status(entry, running, admin=admin) for entry in self._models.pool],
            queue=self._queue() if len(self._scheduler.requests) <= _FEW else self._cached_queue(),
            sequences=[],
            connections=[],
            totals=self._totals(),
            memory=Memory(total=memory.total, available=memory.available, pressure=pressure),
            cluster=self._cluster() if admin else None,
        )

    def running(self) -> list[PendingAnswer]:
        """Return the answers that hold a sequence, in order of arrival."""
        answers, of_engine = self._inference.runner.answers, self._scheduler.table.of_engine
        engines = [each.engine for entry in self._models.pool for each in entry.replicas if each.engine is not None]
        requests = [request for engine in engines for request in of_engine(engine) if request.state is State.RUNNING]
        running = [answers[request.key] for request in sorted(requests, key=lambda request: request.key)]
        return [answer for answer in running if answer.sequence is not None]

    def _model_status(self, entry: ModelEntry, running: list[PendingAnswer], *, admin: bool) -> ModelStatus:
        engines = [self._engine(each, running) for each in entry.replicas if each.engine is not None]
        return ModelStatus(**self._models.facts(entry, admin=admin), engines=engines)

    def _engine(self, replica: Replica, running: list[PendingAnswer]) -> EngineStatus:
        counters, ready = replica.counters, replica.ready
        steps = counters.delta("decode_steps")
        memory = ProcessMemory() if replica.pid is None else self._process_memory(replica.pid)
        return EngineStatus(
            pid=replica.pid,
            host=replica.host,
            restarts=replica.restarts,
            rss_bytes=memory.resident,
            device=replica.serves_on,
            kv_bytes_used=0 if ready is None else _kv_bytes_used(replica.engine, ready, running),
            kv_bytes_capacity=0 if ready is None else ready.kv_bytes,
            sequences=0 if ready is None else ready.sequences,
            batch_size=round(counters.delta("decode_tokens") / steps, 2) if steps else 0.0,
            decode_tokens_per_s=round(counters.rate("decode_tokens"), 1),
            prefill_tokens_per_s=round(counters.rate("prefill_tokens"), 1),
            cache_hits=counters.total("cache_hits"),
            cached_tokens=counters.total("cached_tokens"),
            evicted_sequences=counters.total("evicted_sequences"),
            saved_bytes=counters.total("saved_bytes"),
            stored_hits=counters.total("stored_hits"),
            stored_bytes=counters.total("stored_bytes"),
            restored_tokens=counters.total("restored_tokens"),
            recomputed_tokens=counters.total("recomputed_tokens"),
            lookup_tried=counters.total("lookup_tried"),
            lookup_right=counters.total("lookup_right"),
            sandbox=[] if ready is None else ready.sandbox,
            memory=None if ready is None or replica.pid is None else _limited(memory, ready),
            devices=devices_of(replica),
            host_experts=0 if ready is None else ready.host_experts,
            utilisation=round(min(1.0, sum(counters.rate(f"{phase}_s") for phase in PHASES)), 3),
            seconds={phase: round(counters.now.get(f"{phase}_s", 0.0), 6) for phase in PHASES},
        )

    def _queue(self) -> Queue:
        queued = [request for request in self._scheduler.requests.values() if request.state in QUEUED]
        throughput = sum(request.spec.priority == "throughput" for request in queued)
        counts = {"latency_critical": len(queued) - throughput, "throughput": throughput}
        oldest = min((request.spec.arrived for request in queued), default=None)
        return Queue(
            **counts,
            oldest_wait_ms=0.0 if oldest is None else round((self._clock() - oldest) * 1000, 1),
            healthy=max(counts.values()) < _UNHEALTHY * self._capacity.limits.queue_limit,
        )

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


def _limited(memory: ProcessMemory, ready: Ready) -> EngineMemory | None:
    """Return the memory of an engine beside its limits; None where it has none."""
    if ready.memory_limits is None:
        return None
    private_limit, virtual_limit = ready.memory_limits
    return EngineMemory(
        private_bytes=memory.private,
        private_limit_bytes=private_limit,
        virtual_bytes=memory.virtual,
        virtual_limit_bytes=virtual_limit,
    )


def _kv_bytes_used(engine: int | None, ready: Ready, running: list[PendingAnswer]) -> int:
    requests = [answer.request for answer in running if answer.request.engine == engine]
    cells = sum(request.prompt_done + request.produced for request in requests)
    return cells * ready.kv_bytes // (ready.sequences * ready.context_tokens)
