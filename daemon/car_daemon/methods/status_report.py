"""The status: members that are the same for every user, its lists as one user may see them, and its feed."""

import os
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct, structs

from car_base.host import defects
from car_base.host.memory import MemorySource, ProcessMemory, read_process_memory
from car_base.host.timers import Periodic, TtlCache
from car_base.ipc.frames import Ready
from car_base.ipc.types import PHASES
from car_daemon.connections.connection import Connection
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.connections.server import Server
from car_daemon.methods.model_report import CapacityReport, ModelReport, devices_of
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import PendingAnswer
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.request import QUEUED, Request, State
from car_protocol import PROTOCOL, __version__
from car_protocol.envelope import Notification, encode_message
from car_protocol.methods import STATUS_CHANGED
from car_protocol.status import (
    Awaited,
    ClusterStatus,
    ConnectionStatus,
    EngineMemory,
    EngineStatus,
    Memory,
    ModelStatus,
    MoreConnections,
    OtherUsers,
    Queue,
    SequenceStatus,
    Status,
    Totals,
    WaitingStatus,
)

# The shortest interval of the protocol; others are multiples of it.
TICK_S = 0.1

# Returns the encoded notification for a user or person.
Encode = Callable[[Identity], bytes]
# Writes an encoded notification to a client now; one to a client that does not read is dropped.
Push = Callable[[bytes], None]


class Subscription(Struct):
    """The viewer, the ticks between two notifications, and the number of the tick at which the next one is due."""

    viewer: Identity
    every: int
    due: int


class StatusFeed:
    """Notifies subscribers; subscribers that are due at a tick take turns with the frames of connections.

    `encoder` is called at most once a tick, and what it returns once for each viewer.
    """

    def __init__(self, fair_queue: FairQueue, encoder: Callable[[], Encode]) -> None:
        self._fair_queue = fair_queue
        self._encoder = encoder
        self._timer = Periodic(TICK_S, self._tick)
        self._ticks = 0
        self._subscriptions: dict[Push, Subscription] = {}
        self._due: dict[Push, None] = {}  # in order
        self._joined = False  # whether the fair queue calls `work`
        self._encode: Encode | None = None  # of the tick, made when its first notification is sent

    def __repr__(self) -> str:
        return f"<StatusFeed subscribers={len(self._subscriptions)} due={len(self._due)}>"

    def add(self, push: Push, viewer: Identity, interval_s: float) -> None:
        """Notify a subscriber at this interval, in place of any before; the first time after one interval."""
        every = max(1, round(interval_s / TICK_S))
        if not self._subscriptions:
            self._timer.start()
        self._subscriptions[push] = Subscription(viewer, every, self._ticks + every)

    def remove(self, push: Push) -> None:
        """Notify a subscriber no more."""
        self._subscriptions.pop(push, None)
        self._due.pop(push, None)
        if not self._subscriptions:
            self._timer.stop()

    def work(self) -> bool:
        """Notify the next subscriber that is due; return True if more are."""
        if self._due:
            push = next(iter(self._due))
            del self._due[push]
            try:
                if self._encode is None:
                    self._encode = cache(self._encoder())
                push(self._encode(self._subscriptions[push].viewer))
            except Exception as error:  # noqa: BLE001 - a defect must not end the turns of the connections
                defects.report("status.failed", error)
        self._joined = bool(self._due)
        return self._joined

    def _tick(self) -> None:
        self._ticks += 1
        self._encode = None
        for push, subscription in self._subscriptions.items():
            if subscription.due <= self._ticks:
                subscription.due = self._ticks + subscription.every
                self._due[push] = None
        if self._due and not self._joined:
            self._joined = True
            self._fair_queue.join(self.work, owner=None)


_AWAITED: dict[State, Awaited] = {State.PREPARING: "prompt", State.WAITING: "sequence"}
_ROOT = 0
_MOST_LISTED = 100  # connections, and groups of waiting requests
_FEW = 1000  # requests that are counted for every status
_UNHEALTHY = 0.8  # of the queue's limit, reached by the requests of one class


class StatusReport:
    """Status objects without lists, built from the owners of their facts.

    While there are more requests than a few, the waiting requests and their counts are up to 200 ms old.
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
        self._cached_waiting = TtlCache(self._waiting, clock)
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
        """Return the answers that hold a lease, in order of arrival."""
        answers, of_engine = self._inference.runner.answers, self._scheduler.table.of_engine
        engines = [each.engine for entry in self._models.pool for each in entry.replicas if each.engine is not None]
        requests = [request for engine in engines for request in of_engine(engine) if request.state is State.RUNNING]
        return [answers[request.key] for request in sorted(requests, key=lambda request: request.key)]

    def waiting(self) -> list[WaitingStatus]:
        """Return the requests that wait, the longest wait first; requests that wait for the same are one entry."""
        return (self._waiting if len(self._scheduler.requests) <= _FEW else self._cached_waiting)()

    def _waiting(self) -> list[WaitingStatus]:
        answers, held_back = self._inference.runner.answers, self._scheduler.backlog.held_back
        positions = self._positions()
        groups: defaultdict[tuple[Any, ...], list[Request]] = defaultdict(list)
        for request in self._scheduler.requests.values():
            if (awaits := _awaited(request, held_back=request.key in held_back)) is not None:
                origin = answers[request.key].origin
                caller = (origin.identity, origin.connection, origin.client, origin.tenant or None)
                groups[*caller, request.model, awaits].append(request)
        found = [
            WaitingStatus(
                uid=identity.uid,
                person=identity.person,
                connection=connection,
                client=client,
                tenant=tenant,
                model=model,
                awaits=awaits,
                requests=len(requests),
                position=min((positions[each.key] for each in requests if each.key in positions), default=None),
                oldest_ms=round((self._clock() - min(each.spec.arrived for each in requests)) * 1000, 1),
            )
            for (identity, connection, client, tenant, model, awaits), requests in groups.items()
        ]
        return sorted(found, key=lambda each: -each.oldest_ms)

    def _positions(self) -> dict[int, int]:
        """Return the positions, by key, of the first requests in the queue of each model."""
        waiting = self._scheduler.waiting
        targets = {request.target for request in waiting.requests.values()}
        return {request.key: position for target in targets for position, request in waiting.positions(target)}

    def _model_status(self, entry: ModelEntry, running: list[PendingAnswer], *, admin: bool) -> ModelStatus:
        engines = [self._engine(each, running) for each in entry.replicas if each.engine is not None]
        latencies = self._inference.latencies.get(entry.name)
        read_again = {} if latencies is None else dict(latencies.read_again)
        return ModelStatus(**self._models.facts(entry, admin=admin), engines=engines, read_again=read_again)

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
            computed_tokens=counters.total("prefill_tokens") + counters.total("text_tokens"),
            sampled_tokens=counters.total("sampled_tokens"),
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


def _awaited(request: Request, *, held_back: bool) -> Awaited | None:
    """Return what a request waits for; None while it runs."""
    if request.state is State.PARKED:
        return "reader" if request.parking.paused else "turn"
    if request.state is State.ACCEPTED:
        return "place" if held_back else "engine"
    return _AWAITED.get(request.state)


def _limited(memory: ProcessMemory, ready: Ready) -> EngineMemory | None:
    """Return the memory of an engine beside its limits; None if it has none."""
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


class _Clients(NamedTuple):
    listed: list[ConnectionStatus]
    more: MoreConnections | None
    others: OtherUsers | None  # without sequences; None for administrators


class UserView:
    """Lists a user's own sequences and connections and counts all others'; the users `admins` are sent all.

    If there are too many connections to read every time, the lists are up to 200 ms old.
    """

    def __init__(
        self,
        report: StatusReport,
        *,
        server: Callable[[], Server],
        admins: Callable[[], set[int]],
        clock: Callable[[], float],
    ) -> None:
        self._report = report
        self._server = server
        self._admins = admins
        self._clock = clock
        self._cached_clients = TtlCache(self._clients, clock)

    def status(self, viewer: Identity) -> Status:
        """Return the status object for a user or person."""
        return self.of(viewer, self._report.common(admin=viewer.number in self._admins()))

    def encoder(self) -> Encode:
        """Return the function that encodes the notification for a viewer, at this moment."""
        admins, common = self._admins(), cache(self._report.common)

        def encode(viewer: Identity) -> bytes:
            return encode_message(Notification(STATUS_CHANGED, self.of(viewer, common(admin=viewer.number in admins))))

        return encode

    def of(self, viewer: Identity, common: Status) -> Status:
        """Return a status with the lists for a viewer: what is its own, for administrators all."""
        many = len(self._server()) > _MOST_LISTED
        clients = (self._cached_clients if many else self._clients)(viewer)
        running = self._report.running()
        everything = clients.others is None
        sequences = [each for each in running if everything or _sees(viewer, each.origin.identity)]
        waiting = [each for each in self._report.waiting() if everything or _sees_waiting(viewer, each)]
        others: OtherUsers | None = None
        if clients.others is not None:
            others = structs.replace(clients.others, sequences=len(running) - len(sequences))
        return structs.replace(
            common,
            sequences=[self._sequence(answer, viewer) for answer in sequences],
            connections=clients.listed,
            waiting=waiting[:_MOST_LISTED],
            more_connections=clients.more,
            others=others,
        )

    def _clients(self, viewer: Identity) -> "_Clients":
        everyone = list(self._server())
        if viewer.number in self._admins():
            return _Clients(*_busiest(everyone), None)
        own = [each for each in everyone if _sees(viewer, each.identity)]
        in_flight = sum(len(each.requests) for each in everyone if not _sees(viewer, each.identity))
        others = OtherUsers(connections=len(everyone) - len(own), in_flight=in_flight, sequences=0)
        return _Clients(*_busiest(own), others)

    def _sequence(self, answer: PendingAnswer, viewer: Identity) -> SequenceStatus:
        request, origin = answer.request, answer.origin
        return SequenceStatus(
            model=request.model,
            sequence=-1 if answer.sequence is None else answer.sequence,
            phase="decode" if request.produced else "prefill",
            uid=origin.identity.uid,
            person=origin.identity.person,
            connection=origin.connection,
            prompt_tokens=answer.prompt_tokens,
            done_tokens=request.produced or request.prompt_done,
            age_ms=round((self._clock() - request.spec.arrived) * 1000, 1),
            id=origin.id if viewer.number == _ROOT or viewer == origin.identity else None,
            client=origin.client,
            tenant=origin.tenant or None,
        )


def _sees(viewer: Identity, other: Identity) -> bool:
    """Return whether a viewer sees the requests of an identity: its own, and a delegate the requests of its people."""
    return viewer == other or (viewer.person is None and viewer.uid == other.uid)


def _sees_waiting(viewer: Identity, each: WaitingStatus) -> bool:
    return viewer.uid == each.uid and viewer.person in (None, each.person)


def _busiest(connections: list[Connection]) -> tuple[list[ConnectionStatus], MoreConnections | None]:
    """Return the connections to list, and the sums over the rest."""
    if len(connections) <= _MOST_LISTED:
        return [_connection(each) for each in connections], None
    ranked = sorted(connections, key=lambda each: (len(each.requests), each.requests.tokens_served), reverse=True)
    rest = [each.requests for each in ranked[_MOST_LISTED:]]
    more = MoreConnections(
        connections=len(rest),
        in_flight=sum(map(len, rest)),
        tokens_served=sum(each.tokens_served for each in rest),
    )
    return [_connection(each) for each in ranked[:_MOST_LISTED]], more


def _connection(connection: Connection) -> ConnectionStatus:
    return ConnectionStatus(
        connection=connection.number,
        uid=connection.peer.uid,
        person=connection.identity.person,
        pid=connection.peer.pid,
        in_flight=connection.requests.own,
        tokens_served=connection.requests.tokens_served,
        client=connection.label,
        tenant=connection.tenant or None,
    )
