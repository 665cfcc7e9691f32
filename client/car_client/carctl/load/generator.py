"""Runs a workload against an endpoint and measures it."""

import asyncio
import time
from collections.abc import Callable

from car_client.carctl.load.codec import LoadError
from car_client.carctl.load.connection import Connection
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.figures import Figures, summary
from car_client.carctl.load.request import Request
from car_client.carctl.load.timed_answer import TimedAnswer
from car_client.carctl.load.workload import Workload


async def generate(endpoint: Endpoint, workload: Workload, tick: Callable[[], None] | None = None) -> Figures:
    """Return the figures of a whole workload; `tick` is called with every answer. Raises LoadError."""
    return await Generator(endpoint, workload, tick).run()


class Generator:
    """One run: its connections and its answers."""

    def __init__(self, endpoint: Endpoint, workload: Workload, tick: Callable[[], None] | None) -> None:
        self._endpoint = endpoint
        self._workload = workload
        self._tick = tick
        self._requests = workload.all_requests()
        self._connections: list[Connection] = []  # all that were opened
        self._idle: list[Connection] = []  # open and without a request
        self._answers: list[TimedAnswer] = []

    async def run(self) -> Figures:
        """Run the workload once."""
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            await (self._closed_loop() if self._workload.rate is None else self._open_loop(begin))
        finally:
            for connection in self._connections:
                connection.close()
        own_cpu = (time.process_time() - cpu) / (time.perf_counter() - begin)
        if not self._answers:
            raise LoadError("no request was answered in the given time: give it more")
        last = max(answer.piece_times[-1] for answer in self._answers)
        if self._workload.seconds is not None:
            last = min(last, begin + self._workload.seconds)
        return summary(self._answers, begin + self._workload.warm_up, last, own_cpu)

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
        for request, moment in zip(self._requests, self._workload.arrivals(), strict=False):
            if self._workload.seconds is not None and moment > self._workload.seconds:
                break
            await asyncio.sleep(begin + moment - time.perf_counter())
            done = {task for task in running if task.done()}
            await asyncio.gather(*done)  # a failed request ends the run
            running = running - done | {asyncio.create_task(self._answer(request))}
        await asyncio.gather(*running)

    async def _answer(self, request: Request) -> None:
        connection = self._idle_connection()
        if connection is None:
            connection = await self._endpoint.connect(self._workload.options)
            self._connections.append(connection)
        self._answers.append(await connection.stream(request))
        if connection.reusable:
            self._idle.append(connection)
        if self._tick is not None:
            self._tick()

    def _idle_connection(self) -> Connection | None:
        """Return an idle connection that is still open, None without one."""
        while self._idle:
            if (connection := self._idle.pop()).reusable:
                return connection
        return None
