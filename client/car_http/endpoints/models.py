"""llama-server's endpoints that load and unload models, and show their states."""

import asyncio

import msgspec
from msgspec import Struct

from car_client.errors import CardError
from car_http.answering import Departure, Gone
from car_http.daemon.connection import Notice
from car_http.dialects import rerank, sse
from car_http.dialects.errors import encoded, openai_error
from car_http.dialects.job import SSE
from car_http.dialects.openai_models import model_object
from car_http.dialects.rerank import RerankRequest
from car_http.endpoints.context import DoorContext, caller_of, name_model
from car_http.exchange import Exchange
from car_http.problems import Problem, problem_of
from car_protocol.text import Ranking

_WATCH_S = 2.0


class NamedModel(Struct):
    """The body: the name of a model."""

    model: str


async def load(door: DoorContext, exchange: Exchange, request: NamedModel) -> None:
    """Answer `POST /models/load` once the model is served; an event stream has its progress before."""
    permit(exchange)
    if SSE in exchange.head.headers.get("accept", ""):
        await _load_visibly(door, exchange, request.model)
        return
    await _change(door, exchange, request, "models/load")


async def unload(door: DoorContext, exchange: Exchange, request: NamedModel) -> None:
    """Answer `POST /models/unload` once the model is gone."""
    permit(exchange)
    await _change(door, exchange, request, "models/unload")


async def rank(door: DoorContext, exchange: Exchange, request: RerankRequest) -> None:
    """Answer `POST /v1/rerank`."""
    params = rerank.read(request, caller_of(exchange))
    await name_model(door, params)
    found = await exchange.while_connected(door.pool.result_as(Ranking, "rerank", params))
    await exchange.respond(msgspec.json.encode(rerank.ranking_object(request, found)))


async def watch(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /models/sse` with an event for each model whose state changed."""
    with door.feeds.counted(exchange.owner):
        await _watched(door, exchange)


async def _watched(door: DoorContext, exchange: Exchange) -> None:
    left = asyncio.Event()
    exchange.on_disconnect(left.set)
    shown: dict[str, str] = {}
    changes = await _changes(door, shown)
    await exchange.start(200, {"content-type": SSE, "cache-control": "no-store"})
    with door.feeds.endless(left.set):
        while not left.is_set() and exchange.admitted():
            await exchange.write(changes or sse.ALIVE)
            await _pause(left)
            try:
                changes = await _changes(door, shown)
            except CardError as error:
                await exchange.write(b"data: " + encoded(openai_error(problem_of(error, {}))) + b"\n\n")
                break
    await exchange.end()


def changes_models(exchange: Exchange) -> bool:
    """Return whether a request may change models: not a person's, which the daemon would take for the door's user's."""
    return exchange.key is None or exchange.key.person is None


def permit(exchange: Exchange) -> None:
    """Refuse a person's request; raises Problem."""
    if not changes_models(exchange):
        raise Problem(403, "not_permitted", "people change no models: an administrator does, with `carctl models`")


async def _change(door: DoorContext, exchange: Exchange, request: NamedModel, method: str) -> None:
    await exchange.while_connected(door.pool.result(method, {"model": request.model}))
    door.catalogue.forget()
    await exchange.respond(b'{"success":true}')


async def _load_visibly(door: DoorContext, exchange: Exchange, model: str) -> None:
    async with door.pool.call("models/load", {"model": model, "progress": True}) as connection:
        left = Departure(connection)
        exchange.on_disconnect(left.leave)
        await exchange.start(200, {"content-type": SSE, "cache-control": "no-store"})
        try:
            while not connection.idle:
                for event in await connection.events():
                    if isinstance(event, Notice):
                        await exchange.write(sse.event("progress", event.params))
            await exchange.write(sse.event("loaded", {"model": model}))
        except CardError as error:
            if left.left:
                raise Gone from None
            await exchange.write(b"data: " + encoded(openai_error(problem_of(error, {}))) + b"\n\n")
    door.catalogue.forget()
    await exchange.end()


async def _changes(door: DoorContext, shown: dict[str, str]) -> bytes:
    """Return the events of models whose state is not the shown one, and show it."""
    events = b""
    for model in await door.catalogue.models():
        if shown.get(model.name) != model.state:
            shown[model.name] = model.state
            status = model_object(model, door.metrics.started)["status"]["value"]
            events += sse.data({"model": model.name, "event": "status_change", "data": {"status": status}})
    return events


async def _pause(left: asyncio.Event) -> None:
    """Wait for the next look, or for the client's end."""
    try:
        async with asyncio.timeout(_WATCH_S):
            await left.wait()
    except TimeoutError:
        return
