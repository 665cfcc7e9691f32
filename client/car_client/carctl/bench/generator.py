"""Runs a workload against the daemon or a completion server and measures it."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from car_client.async_client import AsyncClient
from car_client.carctl.bench.completions import CompletionServer, LoadError, is_url
from car_client.carctl.bench.figures import Figures, TimedAnswer, summary
from car_client.carctl.bench.workload import PlannedRequest, Workload
from car_client.carctl.launch.apps import KEY_VARIABLE


class LoadedDaemon:
    """A connection to the daemon; `options` are members of every request for an answer."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._client = AsyncClient(path, max_retries=0)
        self._options = options

    async def connect(self) -> None:
        """Connect; raises DaemonUnavailable."""
        await self._client.connect()

    async def stream(self, params: Mapping[str, Any], started: asyncio.Event | None = None) -> TimedAnswer:
        """Send a request and return its timed answer; `started` is set with the first piece. Raises CardError."""
        piece_times: list[float] = []
        sent_at = time.perf_counter()
        stream = self._client.infer_stream(**{**self._options, **params})
        async for _ in stream:
            piece_times.append(time.perf_counter())
            if started is not None:
                started.set()
        answer = stream.answer
        assert answer is not None
        times = piece_times or [time.perf_counter()]
        usage = answer.usage
        counts = (usage.completion_tokens, usage.prompt_tokens, answer.timings.queue_ms, usage.cached_tokens)
        return TimedAnswer(sent_at, times, *counts, answer.text)

    async def whole(self, params: Mapping[str, Any]) -> TimedAnswer:
        """Send params of `embed` or `decide`; the answer has one piece and no tokens. Raises CardError."""
        method, known = ("embed", ("model",)) if "input" in params else ("decide", ("model", "client"))
        options = {name: self._options[name] for name in known if name in self._options}
        sent_at = time.perf_counter()
        usage = (await self._client.call(method, {**options, **params}))["usage"]
        counts = (0, usage["prompt_tokens"], None, usage.get("cached_tokens"))
        return TimedAnswer(sent_at, [time.perf_counter()], *counts)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()


# A connection that answers requests: to the daemon, or to another server.
Target = LoadedDaemon | CompletionServer


async def connect(address: str, options: dict[str, Any]) -> Target:
    """Return a target that adds options to every request: a daemon's socket, or an `http://` URL, its key from the
    environment.
    """
    if is_url(address):
        return CompletionServer(address, options, os.environ.get(KEY_VARIABLE))
    daemon = LoadedDaemon(address, options)
    await daemon.connect()
    return daemon


async def generate(address: str, workload: Workload, tick: Callable[[], None] | None = None) -> Figures:
    """Return the figures of a whole workload; `tick` is called with every answer. Raises CardError."""
    return await Generator(address, workload, tick).run()


class Generator:
    """One run: its connections and its answers."""

    def __init__(self, address: str, workload: Workload, tick: Callable[[], None] | None) -> None:
        self._address = address
        self._workload = workload
        self._tick = tick
        self._requests = workload.all_requests()
        self._daemons: list[Target] = []  # all that were connected
        self._idle: list[Target] = []  # without a request
        self._answers: list[TimedAnswer] = []

    async def run(self) -> Figures:
        """Run the workload once."""
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            await (self._closed_loop() if self._workload.rate is None else self._open_loop(begin))
        finally:
            for each in self._daemons:
                await each.aclose()
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

    async def _answer(self, request: PlannedRequest) -> None:
        if self._idle:
            target = self._idle.pop()
        else:
            target = await connect(self._address, self._workload.options)
            self._daemons.append(target)
        self._answers.append(await target.stream(request.params))
        self._idle.append(target)
        if self._tick is not None:
            self._tick()
