"""Endpoints about the daemon and the door: health, capacity, figures."""

import asyncio
from collections.abc import Callable

from msgspec import Raw

from car_client.errors import CardError
from car_http.dialects import sse
from car_http.dialects.errors import encoded, openai_error
from car_http.dialects.job import SSE
from car_http.endpoints.context import DoorContext
from car_http.exchange import Exchange
from car_http.feeds import Listener, Topic, capacity_of
from car_http.problems import Problem, problem_of

NO_STORE = {"cache-control": "no-store"}
TEXT = "text/plain"
_METRICS = TEXT + "; version=0.0.4; charset=utf-8"


async def health(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /health`: 200 while the daemon answers, else 503, as of the last second. Everybody may ask."""
    if (error := await door.health.error()) is not None:
        raise problem_of(error, {})
    await exchange.respond(b'{"status":"ok"}', headers=NO_STORE)


async def metrics(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /metrics` with the door's own figures; refuse a person, because they count everybody's requests."""
    if exchange.key is not None and exchange.key.person is not None:
        raise Problem(403, "not_permitted", "the figures are of all: use a key that `carctl http key NAME` makes")
    await exchange.respond(door.metrics.text(door.pool.in_flight).encode(), kind=_METRICS)


async def capacity(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /card/capacity`: the daemon's object, and with `Accept: text/event-stream` every change of it."""
    model = exchange.query("model")
    if SSE not in exchange.head.headers.get("accept", ""):
        params = {"model": model} if model else {}
        await exchange.respond(bytes(await door.pool.result("inference/capacity", params)), headers=NO_STORE)
        return
    await stream(door, exchange, capacity_of(model), lambda newest: sse.event("capacity", newest))


async def stream(door: DoorContext, exchange: Exchange, topic: Topic, event_of: Callable[[Raw], bytes]) -> None:
    """Answer with an event of each object of a topic until the client leaves, its key or the subscription ends."""
    async with door.feeds.listening(exchange.owner, topic) as listener:
        exchange.on_disconnect(listener.leave)
        try:
            while (
                event := await _next(listener, event_of, door.pace.alive_s if exchange.started else None)
            ) is not None:
                if exchange.started and not exchange.admitted():
                    break
                if not exchange.started:
                    await exchange.start(200, {"content-type": SSE, **NO_STORE})
                await exchange.write(event)
        except CardError as error:
            if not exchange.started:
                raise
            await exchange.write(b"data: " + encoded(openai_error(problem_of(error, {}))) + b"\n\n")
        if exchange.started:
            await exchange.end()


async def _next(listener: Listener, event_of: Callable[[Raw], bytes], within: float | None) -> bytes | None:
    """Return the next event, after so many seconds of silence one without content; None once the client left."""
    try:
        async with asyncio.timeout(within) as silence:
            newest = await listener.next()
    except TimeoutError:
        if not silence.expired():
            raise  # the daemon's
        return sse.ALIVE
    return None if newest is None else event_of(newest)
