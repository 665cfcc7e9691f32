"""Costs of scheduling events by engines and waiting requests, and the memory of a waiting request.

`python -m benchmarks.scheduling [--quick]` prints microseconds of CPU for each event and writes them as JSON. The
events are those of the daemon's scheduler alone, without I/O; `benchmarks.day` simulates a day of them.
"""

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from benchmarks.record import this_machine, write_record
from benchmarks.table import markdown
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Prompt, Request, RequestSpec, State
from car_daemon.scheduler.routing.replicas import EngineOffer
from car_daemon.scheduler.scheduler import Scheduler

ENGINES = (1, 10, 100, 1000)
WAITING = (0, 64, 1_000, 10_000, 100_000)
SEQUENCES = 8
USERS, PROCESSES, LABELS = 50, 3, 7
BATCH, BATCHES = 60, 9
BOUNDS = QueueBounds(limit=10**7, max_bytes=2**50)
PROMPT = Prompt(100, 64)
# 64 blocks of 64 tokens that no engine has seen.
UNKNOWN = Prompt(4096, 64, tuple(range(-64, 0)))


class Costs(Struct):
    """Microseconds of CPU for each event, the median of batches."""

    engines: int
    waiting: int
    way: float  # ended + submitted + prepared, all sequences busy
    submit: float
    prepared: float
    lease_and_release: float
    unknown_prompt: float  # the same for a prompt that no engine has
    cancel: float
    expire: float


class Crowd:
    """A scheduler whose sequences are all busy, and requests that wait."""

    def __init__(self, engines: int, waiting: int) -> None:
        self.gate = Gate()
        self.scheduler = Scheduler(self.gate, BOUNDS)
        self.engines = engines
        self.running: list[list[int]] = [[] for _ in range(engines)]
        self._keys = 0
        for engine in range(engines):
            self.scheduler.engine_ready(engine, EngineOffer("m", SEQUENCES), 0.0)
        for _ in range(engines * SEQUENCES + waiting):
            self.prepare(self.submit())
        self.waiting = list(self.scheduler.waiting.requests)

    def request(self, *, timeout: float | None = None, prompt: Prompt | None = None) -> Request:
        """Return a new request of one of the users."""
        self._keys += 1
        uid = 1000 + self._keys % USERS
        process, label = uid * 10 + self._keys % PROCESSES, f"label {self._keys % LABELS}"
        request = Request(
            RequestSpec(
                key=self._keys,
                model="m",
                arrived=0.0,
                client=(uid, label),
                process=process,
                size=100,
                timeout=timeout,
            )
        )
        if prompt is not None:
            request.prompt = prompt
        return request

    def submit(self, timeout: float | None = None) -> Request:
        """Submit a new request."""
        request = self.request(timeout=timeout)
        self.scheduler.submit(request, 0.0)
        return request

    def prepare(self, request: Request) -> None:
        """Report a request as prepared."""
        self.scheduler.prepared(request.key, PROMPT, 0.0)
        if request.state is State.RUNNING and request.engine is not None:
            self.running[request.engine].append(request.key)

    def way(self, number: int) -> None:
        """Let a request end, and another come and be prepared."""
        self.end(number)
        self.prepare(self.submit())

    def end(self, number: int) -> None:
        """Let a request of an engine end, and the next one start."""
        engine = number % self.engines
        for action in self.scheduler.ended(self.running[engine].pop(0), engine, 0.0):
            request = getattr(action, "request", None)
            if isinstance(request, Request) and request.state is State.RUNNING and request.engine is not None:
                self.running[request.engine].append(request.key)


def main() -> None:
    """Measure every event for every number of engines and waiting requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="up to 100 engines and 1,000 waiting requests")
    quick = parser.parse_args().quick
    machine = this_machine()
    rows = [
        measured(engines, waiting)
        for engines in ENGINES[: 3 if quick else None]
        for waiting in WAITING[: 3 if quick else None]
    ]
    headings = Costs.__struct_fields__
    print(markdown(headings, [[f"{getattr(row, name):,.0f}" for name in headings] for row in rows]))
    size, fresh = waiting_bytes(), waiting_bytes(fresh=True)
    print(f"\nmemory of a waiting request beside its params: {size:,.0f} bytes, with a label of its own {fresh:,.0f}")
    print(write_record("scheduling", machine, {"costs": rows, "waiting_bytes": size, "fresh_label_bytes": fresh}))


def measured(engines: int, waiting: int) -> Costs:
    """Return the costs with so many engines and waiting requests."""
    with no_collection():
        crowd = Crowd(engines, waiting)
        way = timed(crowd.way)
        requests: list[Request] = []
        submit = timed(lambda _: requests.append(crowd.submit()))
        prepared = timed(lambda number: crowd.prepare(requests[number]))
        cancel = timed(lambda number: crowd.scheduler.cancel(requests[number].key, 0.0))
        due = [crowd.submit(timeout=1.0 + number) for number in range(BATCH * BATCHES)]
        for request in due:
            crowd.prepare(request)
        expire = timed(lambda number: crowd.scheduler.expire(1.0 + number))
        return Costs(
            engines,
            waiting,
            way=way,
            submit=submit,
            prepared=prepared,
            lease_and_release=timed(leasing(crowd, PROMPT)),
            unknown_prompt=timed(leasing(crowd, UNKNOWN)),
            cancel=cancel,
            expire=expire,
        )


def leasing(crowd: Crowd, prompt: Prompt) -> Callable[[int], object]:
    """Return one lease and its release at a gate, of which one sequence of each engine is free."""
    gate = crowd.gate
    for engine in range(crowd.engines):
        if crowd.running[engine]:
            gate.release(engine, crowd.running[engine].pop())

    def once(_: int) -> None:
        request = crowd.request(prompt=prompt)
        engine = gate.try_lease(request)
        assert engine is not None
        gate.release(engine, request.key)

    return once


def timed(event: Callable[[int], object]) -> float:
    """Return the median microseconds of an event; batches even out the clock's steps."""
    costs = []
    for batch in range(BATCHES):
        begun = time.process_time_ns()
        for number in range(batch * BATCH, (batch + 1) * BATCH):
            event(number)
        costs.append((time.process_time_ns() - begun) / BATCH / 1000)
    return round(statistics.median(costs), 1)


def waiting_bytes(count: int = 5000, *, fresh: bool = False) -> float:
    """Return the bytes that one more waiting request takes, without its params; `fresh`: with a label of its own."""
    crowd = Crowd(1, 0)
    specs = [crowd.request().spec for _ in range(count)]
    tracemalloc.start()
    for number, spec in enumerate(specs):
        client = (spec.client[0], f"fresh {number}") if fresh else spec.client
        facts = {name: getattr(spec, name) for name in spec.__struct_fields__}
        request = Request(RequestSpec(**{**facts, "client": client}))
        crowd.scheduler.submit(request, 0.0)
        crowd.prepare(request)
        del facts
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / count


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector out of the figures, as it is out of the daemon's requests."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
