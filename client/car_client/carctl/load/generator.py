"""Runs a workload against an endpoint and says what it measured."""

import asyncio
import time
from collections.abc import Callable, Iterator

from car_client.carctl.load.connection import Connection
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.figures import Figures, summary
from car_client.carctl.load.request import Request
from car_client.carctl.load.timed import Timed
from car_client.carctl.load.wire import LoadError
from car_client.carctl.load.workload import Workload


async def generate(endpoint: Endpoint, workload: Workload, tick: Callable[[], None] | None = None) -> Figures:
    """Return the figures of a whole workload; `tick` is called with every answer. Raises LoadError."""
    return await Generator(endpoint, workload, tick).run()


class Generator:
    """One run: its connections, and the answers that came."""

    def __init__(self, endpoint: Endpoint, workload: Workload, tick: Callable[[], None] | None) -> None:
        self._endpoint = endpoint
        self._workload = workload
        self._tick = tick
        self._requests = workload.all_requests()
        # Mutable state: all connections, those that wait for work, and what was answered.
        self._connections: list[Connection] = []
        self._idle: list[Connection] = []
        self._answers: list[Timed] = []

    async def run(self) -> Figures:
        """Run it once."""
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            await (self._closed_loop() if self._workload.rate is None else self._open_loop(begin))
        finally:
            for connection in self._connections:
                connection.close()
        own_cpu = (time.process_time() - cpu) / (time.perf_counter() - begin)
        if not self._answers:
            raise LoadError("no request was answered in the given time")
        return summary(self._answers, begin + self._workload.warm_up, self._last(begin), own_cpu)

    def _last(self, begin: float) -> float:
        last = max(answer.came[-1] for answer in self._answers)
        return last if self._workload.seconds is None else min(last, begin + self._workload.seconds)

    async def _closed_loop(self) -> None:
        end = time.perf_counter() + (self._workload.seconds or float("inf"))

        async def client() -> None:
            for request in self._requests:
                await self._answer(request)
                if time.perf_counter() >= end:
                    return

        await asyncio.gather(*(client() for _ in range(self._workload.clients)))

    async def _open_loop(self, begin: float) -> None:
        running: set[asyncio.Task[None]] = set()
        for request, moment in self._arriving():
            await asyncio.sleep(begin + moment - time.perf_counter())
            done = {task for task in running if task.done()}
            await asyncio.gather(*done)  # one that failed ends the run
            running = running - done | {asyncio.create_task(self._answer(request))}
        await asyncio.gather(*running)

    def _arriving(self) -> Iterator[tuple[Request, float]]:
        for request, moment in zip(self._requests, self._workload.arrivals(), strict=False):
            if self._workload.seconds is not None and moment > self._workload.seconds:
                return
            yield request, moment

    async def _answer(self, request: Request) -> None:
        connection = self._waiting() or await self._connect()
        self._answers.append(await connection.stream(request))
        if connection.reusable:
            self._idle.append(connection)
        if self._tick is not None:
            self._tick()

    def _waiting(self) -> Connection | None:
        """Return a connection that nobody uses; what was lost while it waited is left out."""
        while self._idle:
            if (connection := self._idle.pop()).reusable:
                return connection
        return None

    async def _connect(self) -> Connection:
        connection = await self._endpoint.connect(self._workload.options)
        self._connections.append(connection)
        return connection
