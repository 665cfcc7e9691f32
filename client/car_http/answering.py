"""One inference for one HTTP exchange: whole, or streamed at the pace at which the client reads."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from car_client.errors import CardError, ConnectionLost
from car_client.results import Answer, Chunk
from car_http.daemon.connection import DaemonConnection, Ended, Event
from car_http.daemon.pool import DaemonPool, decoded
from car_http.dialects.job import Job
from car_http.dialects.whole_calls import WholeCalls, without_cut_call
from car_http.exchange import Disconnected, Exchange
from car_http.problems import Problem, defect, problem_of
from car_protocol.answer import Progress

# Clients give up on a silent stream after some tens of seconds; some of them count events alone, and no comments.
ALIVE_S = 15.0
# A stream that the daemon accepted and says nothing about shows its head after this time.
HEAD_S = 1.0
_STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def _later(seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, act)


class Pace(Struct, frozen=True):
    """Seconds after which a silent stream shows its head, and an event without content; `later` puts a call off."""

    head_s: float = HEAD_S
    alive_s: float = ALIVE_S
    later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] = _later


class Gone(Exception):
    """The client left; its request was cancelled."""


async def answer(pool: DaemonPool, job: Job, exchange: Exchange, pace: Pace) -> None:
    """Answer an exchange; raises CardError before the head of the answer, and Gone."""
    while True:
        async with pool.call(*_call(job)) as connection:
            try:
                await _answer(connection, job, exchange, pace)
            except ConnectionLost:
                # A kept connection may end while the call is sent on it.
                if connection.answered or not connection.reused:
                    raise
            else:
                return


def _call(job: Job) -> tuple[str, dict[str, Any]]:
    if job.stream:
        return "infer_stream", job.params | {"progress": True}
    return "infer", job.params


async def _answer(connection: DaemonConnection, job: Job, exchange: Exchange, pace: Pace) -> None:
    left = Departure(connection)
    exchange.on_disconnect(left.leave)
    if job.stream:
        await _Stream(connection, job, exchange, left, pace).run()
    else:
        await _whole(connection, job, exchange, left)


class Departure:
    """Whether the client left; its call ends when it does."""

    def __init__(self, connection: DaemonConnection) -> None:
        self._connection = connection
        self.left = False

    def leave(self) -> None:
        """End the call."""
        self.left = True
        self._connection.close()
        self._connection.wake()


async def _whole(connection: DaemonConnection, job: Job, exchange: Exchange, left: Departure) -> None:
    while True:
        events = await _events(connection, left)
        for event in events:
            if isinstance(event, Ended):
                result = without_cut_call(decoded(event.result, Answer))
                await exchange.respond(job.writer.whole(result), headers=timing_headers(result))
                return


async def _events(connection: DaemonConnection, left: Departure) -> list[Event]:
    try:
        events = await connection.events()
    except ConnectionLost:
        if left.left:
            raise Gone from None
        raise
    if left.left:
        raise Gone
    return events


class _Stream:
    """One stream: the head with the first sign of acceptance, pieces, and its end."""

    def __init__(self, connection: DaemonConnection, job: Job, exchange: Exchange, left: Departure, pace: Pace) -> None:
        self._connection = connection
        self._writer = job.writer
        self._calls = WholeCalls()
        self._members = job.members
        self._exchange = exchange
        self._left = left
        self._pace = pace
        self._showed = False  # an event was written since the last tick: a comment is none
        self._due = False  # an event has to be written now
        self._ended = False

    async def run(self) -> None:
        ticking = _Ticks(self._pace, self._tick)
        try:
            with self._exchange.giving_way():
                while not self._ended:
                    await self._step()
                await self._exchange.end()
        except (Gone, Disconnected):
            raise
        except Problem as problem:
            if not self._exchange.started:
                raise
            await self._give_way(problem)
        except CardError as error:
            if not self._exchange.started:
                raise
            await self._fail(problem_of(error, self._members))
        except Exception:
            if self._exchange.started:
                await self._fail(defect())
            raise  # for the log
        finally:
            ticking.stop()

    async def _fail(self, problem: Problem) -> None:
        """End the stream with an error event."""
        await self._exchange.write(self._writer.fail(problem))
        await self._exchange.end()

    async def _give_way(self, problem: Problem) -> None:
        """End the stream with an error event; raises Disconnected if the client does not read it at once."""
        try:
            async with asyncio.timeout(0):
                await self._fail(problem)
        except TimeoutError:
            raise Disconnected from None  # the memory is needed before this client reads again

    async def _step(self) -> None:
        events = await _events(self._connection, self._left)
        due, self._due = self._due, False
        if not events and not due:
            return  # a part of a frame came
        # Writers count their events, so the first bytes are made first.
        pieces = [] if self._exchange.started else [self._writer.begin()]
        showed = any(pieces)
        for event in events:
            pieces.append(self._bytes(event))
            showed = showed or (bool(pieces[-1]) and not isinstance(event, Progress))
        if due and not showed:
            pieces.append(self._writer.alive())
            showed = True
        self._showed = self._showed or showed
        if not self._exchange.started:
            await self._exchange.start(200, {"content-type": self._writer.kind, **_STREAM_HEADERS})
        if any(pieces):
            await self._exchange.write(b"".join(pieces))

    def _bytes(self, event: Event) -> bytes:
        if isinstance(event, Chunk):
            return b"".join(map(self._writer.chunk, self._calls.released(event)))
        if isinstance(event, Progress):
            return self._writer.progress(event)
        if isinstance(event, Ended):
            self._ended = True
            answer = decoded(event.result, Answer)
            return b"".join(map(self._writer.chunk, self._calls.rest(answer))) + self._writer.end(answer)
        return b""

    def _tick(self) -> None:
        """Wake a stream that wrote no event since the last tick."""
        if not self._showed:
            self._due = True
            self._connection.wake()
        self._showed = False


class _Ticks:
    """Calls `act` once after `head_s`, then every half of `alive_s`: a silence is noticed within `alive_s`."""

    def __init__(self, pace: Pace, act: Callable[[], None]) -> None:
        self._pace = pace
        self._act = act
        self._timer = pace.later(pace.head_s, self._run)

    def stop(self) -> None:
        self._timer.cancel()

    def _run(self) -> None:
        self._timer = self._pace.later(self._pace.alive_s / 2, self._run)
        self._act()


def timing_headers(result: Answer) -> Mapping[str, str]:
    """Return the time in the queue as a header."""
    return {"x-card-queue-ms": str(round(result.timings.queue_ms))}
