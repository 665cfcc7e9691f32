"""Endpoints about the daemon and the door: health, capacity, figures."""

import msgspec

from car_client.errors import CardError
from car_http.answering import Departure
from car_http.daemon.connection import DaemonConnection, Ended, Notice
from car_http.dialects import sse
from car_http.dialects.errors import encoded, openai_error
from car_http.dialects.job import SSE
from car_http.endpoints.context import DoorContext
from car_http.exchange import Exchange
from car_http.problems import problem_of

_NO_STORE = {"cache-control": "no-store"}
TEXT = "text/plain"
_METRICS = TEXT + "; version=0.0.4; charset=utf-8"


async def health(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /health`: 200 while the daemon answers, else 503."""
    await door.pool.result("inference/capacity", {})
    await exchange.respond(b'{"status":"ok"}', headers=_NO_STORE)


async def metrics(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /metrics` with the door's own figures."""
    await exchange.respond(door.metrics.text(door.pool.in_flight).encode(), kind=_METRICS)


async def capacity(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /card/capacity`: the daemon's object, and with `Accept: text/event-stream` every change of it."""
    model = exchange.query("model")
    params = {"model": model} if model else {}
    if SSE not in exchange.head.headers.get("accept", ""):
        await exchange.respond(bytes(await door.pool.result("inference/capacity", params)), headers=_NO_STORE)
        return
    async with door.pool.call("inference/capacity", params | {"subscribe": True}) as connection:
        departure = Departure(connection)
        exchange.on_disconnect(departure.leave)
        try:
            await _changes(connection, exchange)
        except CardError as error:
            if departure.left:
                return
            if not exchange.started:
                raise
            await exchange.write(b"data: " + encoded(openai_error(problem_of(error, {}))) + b"\n\n")
            await exchange.end()
        finally:
            connection.close()  # it is subscribed: no other call may have it


async def _changes(connection: DaemonConnection, exchange: Exchange) -> None:
    while True:
        for event in await connection.events():
            if not exchange.started:
                await exchange.start(200, {"content-type": SSE, **_NO_STORE})
            if isinstance(event, Ended | Notice):
                text = event.result if isinstance(event, Ended) else event.params
                await exchange.write(sse.event("capacity", msgspec.Raw(text)))
