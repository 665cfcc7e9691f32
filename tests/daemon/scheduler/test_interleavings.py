"""Random walks of clients, engines and the clock: the invariants of scheduling hold after every event."""

from collections import Counter
from itertools import chain
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.request import Request, RequestSpec, State
from car_protocol.capacity import Pressure
from car_protocol.infer import Priority
from tests.daemon.scheduler.fakes import FakeEngine, World

MODELS = ("a", "b")
DEVICES = ("cpu", "gpu0")
HOSTS = ("n1", "n2")
USABLE: dict[Pressure, float] = {"none": 1.0, "some": 0.75, "critical": 0.5}
TIMEOUTS = st.none() | st.floats(0.5, 5.0)
CHOICES = st.integers(0, 2**16)
FAILED = ("deadline_exceeded", "engine_lost", "internal_error")
CLASSES: tuple[Priority, ...] = ("latency_critical", "throughput")
PRIORITIES = st.sampled_from(CLASSES)
OVERFLOWS = st.sampled_from(["block", "drop_newest", "drop_oldest"])
T = TypeVar("T")


def pick(candidates: list[T], choice: int) -> T | None:
    """Return one of the candidates, None where there are none."""
    return candidates[choice % len(candidates)] if candidates else None


def has_images(key: int) -> bool:
    """Return whether a request has images, which its engine encodes before it reports the prompt."""
    return key % 2 == 0


class Interleavings(RuleBasedStateMachine):
    """One rule for every event of the scheduler."""

    @initialize(
        limit=st.none() | st.integers(1, 3),
        bounds=st.builds(QueueBounds, st.integers(1, 6), st.just(10), OVERFLOWS),
        sequences=st.lists(st.integers(1, 3), max_size=2),
    )
    def begin(self, limit: int | None, bounds: QueueBounds, sequences: list[int]) -> None:
        self.world = World(limit, bounds)
        self.world.scheduler.set_weights({1: 2.0})
        self.clients: list[list[int]] = [[], [], []]
        self.pressures: dict[str, Pressure] = {}  # of the hosts that have engines
        for model, count in zip(MODELS, sequences, strict=False):
            self.world.start_engine(model, count)

    # Events of clients.

    @rule(
        model=st.sampled_from(MODELS),
        priority=PRIORITIES,
        size=st.integers(0, 12),
        wait=st.integers(0, 4),
        queue=st.integers(0, 4),
        timeout=TIMEOUTS,
        queue_timeout=TIMEOUTS,
        client=st.integers(0, 2),
        process=st.integers(0, 1),
        supersede=st.integers(0, 6),
        prepared=st.booleans(),
        device=st.sampled_from([None, None, None, *DEVICES]),
        session=st.integers(0, 3),
    )
    def submit(
        self,
        model: str,
        priority: Priority,
        size: int,
        wait: int,
        queue: int,
        timeout: float | None,
        queue_timeout: float | None,
        client: int,
        process: int,
        supersede: int,
        prepared: bool,
        device: str | None,
        session: int,
    ) -> None:
        request = self.world.submit(
            model,
            client=(client, ("label", "another", process)[size % 3]),
            process=process,
            size=size,
            priority=priority,
            wait=bool(wait),
            queue=bool(queue),
            timeout=timeout,
            queue_timeout=queue_timeout,
            supersede=None if supersede else (client, "key"),
            progress=prepared,
            device=device,
            session=(client, str(session)) if session else None,
        )
        self.clients[client].append(request.key)
        self.take_stages(request.key, int(prepared))

    @rule(wanted=st.lists(st.tuples(st.sampled_from(MODELS), PRIORITIES), min_size=2, max_size=5))
    def submit_many(self, wanted: list[tuple[str, Priority]]) -> None:
        for model, priority in wanted:
            self.take_stages(self.world.submit(model, priority=priority).key, 2)

    @rule(choice=CHOICES)
    def cancel(self, choice: int) -> None:
        key = pick(list(self.world.scheduler.requests), choice)
        if key is not None:
            self.world.cancel(key)

    @rule(choice=CHOICES)
    def pause(self, choice: int) -> None:
        key = pick(list(self.world.scheduler.requests), choice)
        if key is not None:
            self.world.pause(key)

    @rule(choice=CHOICES)
    def unpause(self, choice: int) -> None:
        key = pick([r.key for r in self.world.scheduler.requests.values() if r.parking.paused], choice)
        if key is not None:
            self.world.unpause(key)

    @rule(client=st.integers(0, 9))
    def disconnect(self, client: int) -> None:
        for key in self.clients[client] if client < len(self.clients) else ():
            self.world.cancel(key)

    @rule(model=st.sampled_from(MODELS), stages=st.integers(0, 3))
    def a_request_that_is_cancelled_leaves_no_trace(self, model: str, stages: int) -> None:
        # A full queue may drop another request for it, and its place changes whose turn it is to enter; a request that
        # parks another does leave a trace.
        backlog = self.world.scheduler.backlog
        if backlog.held_back or not backlog.fits(Request(RequestSpec(key=0, model=model, arrived=0.0))):
            return
        before = self.leases_and_waiting()
        request = self.world.submit(model, priority="throughput")
        self.take_stages(request.key, stages)
        self.world.cancel(request.key)
        engine = self.world.engine_with(request.key)
        if engine is not None and request.key in engine.running:
            self.world.end(engine, request.key)
        assert self.leases_and_waiting() == before
        if engine is not None and request.key in engine.preparing:
            self.world.prepare(engine, request.key, images=has_images(request.key))
            assert self.leases_and_waiting() == before

    def take_stages(self, key: int, stages: int) -> None:
        engine = self.world.engine_with(key)
        if engine is not None and stages > 0 and key in engine.preparing:
            self.world.prepare(engine, key, blocks=(key % 3, key % 5), images=has_images(key))
        engine = self.world.engine_with(key)
        if engine is not None and stages > 1 and key in engine.running:
            self.world.advance(key, stages)

    def leases_and_waiting(self) -> tuple[object, ...]:
        world = self.world
        leases = [sorted(engine.running) for engine in world.engines.values()]
        waiting = sorted(request.key for request in world.scheduler.waiting.requests.values())
        available = [world.gate.available(model) for model in MODELS]
        backlog = (len(world.scheduler.backlog), len(world.scheduler.backlog.held_back))
        return leases, waiting, available, backlog, world.gate.in_use, world.scheduler.totals.in_flight

    # Events of engines.

    @rule(
        model=st.sampled_from(MODELS),
        sequences=st.integers(1, 3),
        device=st.sampled_from(DEVICES),
        host=st.sampled_from([None, None, *HOSTS]),
    )
    def engine_ready(self, model: str, sequences: int, device: str, host: str | None = None) -> None:
        if len(self.world.engines_of(model)) < 2 + bool(host):
            if host is not None:
                self.pressures.setdefault(host, "none")
            self.world.start_engine(model, sequences, device, host)

    @rule(host=st.sampled_from([None, *HOSTS]), level=st.sampled_from(list(USABLE)))
    def host_pressed(self, host: str | None, level: Pressure) -> None:
        self.world.press(host, level)
        if host is not None and host in self.pressures:
            self.pressures[host] = level

    @rule(choice=CHOICES, level=st.sampled_from(list(USABLE)))
    def gpu_pressed(self, choice: int, level: Pressure) -> None:
        engine = pick([each for each in self.world.engines.values() if each.host is None], choice)
        if engine is not None:
            self.world.press_engine(engine, level)

    @rule(choice=CHOICES, refused=st.integers(0, 9))
    def prepared(self, choice: int, refused: int) -> None:
        jobs = [(engine, key) for engine in self.world.engines.values() for key in sorted(engine.preparing)]
        job = pick(jobs, choice)
        if job is not None and refused:
            self.world.prepare(*job, images=has_images(job[1]))
        elif job is not None:
            self.world.refuse(*job)

    @rule(choice=CHOICES, tokens=st.integers(1, 3), streams=st.booleans())
    def advanced(self, choice: int, tokens: int, streams: bool) -> None:
        running = [key for engine in self.world.engines.values() for key in sorted(engine.running)]
        key = pick(running, choice)
        if key is not None:
            self.world.advance(key, tokens, streams=streams)

    @rule(choice=CHOICES, failed=st.integers(0, 9))
    def ended(self, choice: int, failed: int) -> None:
        job = pick([(engine, key) for engine in self.world.engines.values() for key in engine.may_end], choice)
        if job is not None:
            self.world.end(*job, failed=not failed)

    @rule(choice=CHOICES)
    def set_aside(self, choice: int) -> None:
        told = [(engine, key) for engine in self.world.engines.values() for key in sorted(engine.to_park)]
        job = pick(told, choice)
        if job is not None:
            self.world.set_aside(*job)

    @rule(choice=CHOICES, likely=st.booleans())
    def engine_lost(self, choice: int, likely: bool) -> None:
        engine = pick(list(self.world.engines.values()), choice)
        if engine is not None and likely:
            self.world.lose_engine(engine)
            up = {each.host for each in self.world.engines.values()}
            self.pressures = {host: level for host, level in self.pressures.items() if host in up}

    @rule(model=st.sampled_from(MODELS), unlikely=st.integers(0, 3))
    def model_failed(self, model: str, unlikely: int) -> None:
        if not unlikely:
            self.world.fail_model(model, {engine.device for engine in self.world.engines_of(model)})

    @rule(seconds=st.floats(0.1, 2.0) | st.just(31.0))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # Invariants after each event.

    @invariant()
    def leases_are_what_runs_and_never_more_than_declared(self) -> None:
        gate = self.world.gate
        for model in MODELS:
            assert gate.occupancy(model).leased == sum(len(engine.running) for engine in self.world.engines_of(model))
            assert gate.occupancy(model).leased <= (gate.occupancy(model).declared or 0)
        engines = self.world.engines.values()
        assert gate.in_use == sum(len(engine.running) for engine in engines)
        assert gate.machine_limit is None or self.leased_here() <= gate.machine_limit

    @invariant()
    def capacity_is_the_sum_over_machines(self) -> None:
        for model in MODELS:
            shares = [self.most(model, host) for host in (None, *HOSTS)]
            assert self.world.gate.capacity(model) == max(1, sum(shares))
            assert self.world.gate.available(model) == sum(self.free(model, host) for host in (None, *HOSTS))
        assert set(self.world.gate.hosts) == self.pressures.keys()

    def leased_here(self) -> int:
        return sum(len(engine.running) for engine in self.world.engines.values() if engine.host is None)

    def most(self, model: str, host: str | None) -> int:
        """Return the requests of a model that a machine may run at once."""
        declared = sum(each.sequences for each in self.world.engines_of(model) if each.host == host)
        if host is None:
            usable = sum(self.usable(each) for each in self.world.engines_of(model) if each.host is None)
            return min(usable, self.allowed_here(declared))
        return max(1, int(declared * USABLE[self.pressures[host]])) if declared else 0

    def allowed_here(self, declared: int) -> int:
        """Return the requests of a model that the limit and the memory of this machine let run at once."""
        limit = self.world.gate.machine_limit
        limited = declared if limit is None else min(declared, limit)
        return max(1, int(limited * USABLE[self.world.gate.pressure])) if declared else 0

    def usable(self, engine: FakeEngine) -> int:
        """Return the sequences that the pressure on an engine's GPU leaves it."""
        return max(1, int(engine.sequences * USABLE[engine.level]))

    def free(self, model: str, host: str | None) -> int:
        """Return the requests of a model that a machine may start now."""
        engines = [each for each in self.world.engines_of(model) if each.host == host]
        limit = self.world.gate.machine_limit
        if host is not None:
            free = self.most(model, host) - sum(len(engine.running) for engine in engines)
        else:
            allowed = self.allowed_here(sum(each.sequences for each in engines))
            free = sum(max(0, self.usable(each) - len(each.running)) for each in engines)
            free = min(free, allowed - sum(len(engine.running) for engine in engines))
        if host is None and limit is not None:
            free = min(free, limit - self.leased_here())
        return max(0, free)

    @invariant()
    def every_request_has_its_one_answer_or_is_in_flight(self) -> None:
        world = self.world
        for key, endings in world.endings.items():
            assert len(endings) == (key not in world.scheduler.requests)
            assert (world.requests[key].state is State.ENDED) == bool(endings)

    @invariant()
    def the_totals_add_up(self) -> None:
        totals, endings = self.world.scheduler.totals, Counter(chain.from_iterable(self.world.endings.values()))
        assert totals.received == len(self.world.requests)
        assert totals.in_flight == len(self.world.scheduler.requests)
        assert totals.completed == endings["completed"]
        assert totals.cancelled == endings["cancelled"]
        assert totals.failed == sum(endings[reason] for reason in FAILED)
        assert totals.rejected == endings.total() - totals.completed - totals.cancelled - totals.failed

    @invariant()
    def nothing_waits_while_a_lease_is_free_for_it(self) -> None:
        for request in self.world.scheduler.waiting.requests.values():
            assert request.state in (State.WAITING, State.PARKED)
            engines = self.engines_for(request)
            assert not any(self.free(request.model, engine.host) for engine in engines)

    @invariant()
    def everything_runs_where_it_may(self) -> None:
        for engine in self.world.engines.values():
            assert all(self.world.requests[key].spec.device in (None, engine.device) for key in engine.running)

    def engines_for(self, request: Request) -> list[FakeEngine]:
        engines = self.world.engines_of(request.model)
        return [each for each in engines if self.usable(each) > len(each.running) and self.suits(request, each)]

    def suits(self, request: Request, engine: FakeEngine) -> bool:
        if request.state is State.PARKED:
            return request.key in engine.parked
        return request.spec.device in (None, engine.device)

    @invariant()
    def nothing_is_forgotten_before_the_queue(self) -> None:
        backlog = self.world.scheduler.backlog
        accepted = [r for r in self.world.scheduler.requests.values() if r.state is State.ACCEPTED]
        uncounted = [r for r in accepted if r.key not in backlog.counted]
        assert all(r.key in backlog.held_back or r.leased_at is not None for r in uncounted)
        assert all(r.state in (State.ACCEPTED, State.PREPARING) for r in backlog.held_back.values())
        assert not backlog.held_back or not backlog.fits(backlog.entering())
        idle = [r for r in accepted if r.key not in backlog.held_back]
        assert not any(self.suits(request, each) for request in idle for each in self.world.engines_of(request.model))

    @invariant()
    def nothing_that_is_paused_waits_for_a_lease(self) -> None:
        assert not any(request.parking.paused for request in self.world.scheduler.waiting.requests.values())

    @invariant()
    def the_queue_is_bounded(self) -> None:
        backlog = self.world.scheduler.backlog
        assert len(backlog) <= backlog.bounds.limit

    @invariant()
    def the_accounts_count_what_waits_and_runs(self) -> None:
        scheduler, root = self.world.scheduler, self.world.scheduler.charging.overall.root
        waiting = Counter(r.spec.client[0] for r in scheduler.waiting.requests.values())
        for user in range(3):
            account = root.children.get(user)
            assert (0 if account is None else account.waiting) == waiting[user]
        if not scheduler.requests:
            assert not root.children

    @invariant()
    def a_lease_is_counted_once_below_every_level(self) -> None:
        for engine in self.world.engines.values():
            running = [self.world.requests[key] for key in engine.running]
            assert all(r.label is not None and r.label.leases > 0 for r in running if r.state is State.RUNNING)

    @invariant()
    def running_work_is_never_dropped(self) -> None:
        for fail in self.world.fails:
            if fail.reason == "overloaded":
                assert fail.request.leased_at is None or fail.request.retried

    @invariant()
    def there_are_at_most_as_many_parkings_as_requests_that_took_a_lease(self) -> None:
        requests = self.world.requests.values()
        parkings, took = sum(each.parking.count for each in requests), sum(each.parking.took for each in requests)
        # Whose engine died begins anew, and may take a lease again.
        assert took <= parkings <= took + sum(each.retried for each in requests)

    def teardown(self) -> None:
        """With engines that stay up, readers that come back and work that ends, everything ends."""
        if not hasattr(self, "world"):
            return
        for key in list(self.world.scheduler.requests):
            self.world.unpause(key)
        for model in MODELS:
            devices = {engine.device for engine in self.world.engines_of(model)}
            for device in set(DEVICES) - devices:
                self.world.start_engine(model, 1, device)
        for _ in range(3 * len(self.world.requests) + 1):
            for engine in self.world.engines.values():
                self.settle(engine)
        assert not self.world.scheduler.requests
        assert not len(self.world.scheduler.waiting.requests)
        assert len(self.world.scheduler.backlog) == len(self.world.scheduler.backlog.held_back) == 0
        assert self.world.gate.in_use == 0
        assert self.world.scheduler.next_deadline() is None
        assert not self.world.scheduler.charging.overall.root.children
        assert not self.world.scheduler.table.models
        assert not any(engine.running | engine.parked for engine in self.world.engines.values())
        self.every_request_has_its_one_answer_or_is_in_flight()
        self.the_totals_add_up()

    def settle(self, engine: FakeEngine) -> None:
        for key in sorted(engine.preparing):
            self.world.prepare(engine, key, images=has_images(key))
        for key in sorted(engine.to_park):
            self.world.set_aside(engine, key)
        for key in engine.may_end:
            self.world.end(engine, key)


Interleavings.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
TestInterleavings = Interleavings.TestCase
