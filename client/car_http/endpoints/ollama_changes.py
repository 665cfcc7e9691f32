"""Ollama's endpoints that change models: an administrator's, as `carctl models` is."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from car_client.errors import CardError, DaemonUnavailable, RequestError
from car_http.answering import Gone
from car_http.dialects.errors import encoded, ollama_error
from car_http.dialects.job import NDJSON
from car_http.dialects.ollama.changes import CopyRequest, CreateRequest, Left, Lines, Named, Streamed, read_create
from car_http.endpoints.context import DoorContext
from car_http.endpoints.models import permit
from car_http.exchange import Exchange
from car_http.problems import Problem, problem_of
from car_http.shelf import UnknownModel

_SUCCESS = {"status": "success"}


async def pull(door: DoorContext, exchange: Exchange, request: Streamed) -> None:
    """Answer `POST /api/pull` once the model is here; lines show how far it is."""
    permit(exchange)
    name = request.named
    if await door.catalogue.find(name) is not None:
        await _shown(door, exchange, lambda lines: None, request.stream)
    else:
        await _shown(door, exchange, partial(door.shelf.pull, name), request.stream)


async def create(door: DoorContext, exchange: Exchange, request: CreateRequest) -> None:
    """Answer `POST /api/create` with a model that has settings of its own beside the file of another one."""
    permit(exchange)
    name, source, own = request.named, request.from_ or "", read_create(request)
    await _shown(door, exchange, partial(door.shelf.create, name, source, own), request.stream)


async def copy(door: DoorContext, exchange: Exchange, request: CopyRequest) -> None:
    """Answer `POST /api/copy`: the model has a further name."""
    permit(exchange)
    await _changed(door, exchange, partial(door.shelf.copy, request.source, request.destination))


async def delete(door: DoorContext, exchange: Exchange, request: Named) -> None:
    """Answer `DELETE /api/delete`."""
    permit(exchange)
    await _changed(door, exchange, partial(door.shelf.delete, request.named))


async def _changed(door: DoorContext, exchange: Exchange, change: Callable[[], None]) -> None:
    with _explained():
        await asyncio.to_thread(change)
    door.catalogue.forget()
    await exchange.respond(b"")


async def _shown(door: DoorContext, exchange: Exchange, change: Callable[[Lines], None], stream: bool | None) -> None:
    """Answer with the lines of a change, which a thread makes; without a stream with its end alone."""
    lines = Lines()
    exchange.on_disconnect(lines.leave)
    task = asyncio.create_task(asyncio.to_thread(change, lines))
    try:
        if stream is False:
            with _explained():
                await task
            await exchange.respond(msgspec.json.encode(_SUCCESS))
            return
        await exchange.start(200, {"content-type": NDJSON, "cache-control": "no-store"})
        try:
            with _explained():
                async for line in lines.until(task):
                    await exchange.write(_line(line))
            await exchange.write(_line(_SUCCESS))
        except Problem as problem:
            await exchange.write(encoded(ollama_error(problem)) + b"\n")
        await exchange.end()
    except Left:
        raise Gone from None
    finally:
        lines.leave()  # a change whose client left, or whose door ends, goes no further
        door.catalogue.forget()


@contextmanager
def _explained() -> Iterator[None]:
    """Raise Problem in place of the errors of a change."""
    try:
        yield
    except UnknownModel as error:
        raise Problem(404, "model_not_found", str(error)) from error
    except (DaemonUnavailable, RequestError) as error:
        raise problem_of(error, {}) from error
    except CardError as error:
        raise Problem(400, "invalid_value", str(error)) from error


def _line(shape: dict[str, str]) -> bytes:
    return msgspec.json.encode(shape) + b"\n"
