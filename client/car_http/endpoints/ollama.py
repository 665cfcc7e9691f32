"""Ollama's endpoints; to change models is an administrator's, as `carctl models` is."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec

from car_client.errors import CardError, DaemonUnavailable, RequestError
from car_client.results import Capacity, Model, ModelDetails
from car_http.answering import Gone
from car_http.dialects.common import Caller, as_sent
from car_http.dialects.errors import encoded, ollama_error
from car_http.dialects.job import NDJSON, Job
from car_http.dialects.ollama import models, requests
from car_http.dialects.ollama.changes import CopyRequest, CreateRequest, Left, Lines, Named, Streamed, read_create
from car_http.dialects.ollama.writer import now
from car_http.dialects.openai_embeddings import shortened
from car_http.endpoints.context import DoorContext, Handler, answer_job, caller_of, embedded, named_as_sent
from car_http.endpoints.models import changes_models, permit
from car_http.exchange import Exchange
from car_http.problems import Problem, problem_of
from car_http.shelf import UnknownModel

G = TypeVar("G", bound=requests.Generated)


def answering(read: Callable[[G, Caller], Job | str]) -> Handler[G]:
    """Return the handler that answers a job, or at once a request without a prompt, which only names its model."""

    async def handle(door: DoorContext, exchange: Exchange, request: G) -> None:
        job, name, unloads = read(request, caller_of(exchange)), request.model, request.unloads
        del request  # its values are packed in the job
        if isinstance(job, Job):
            await answer_job(door, exchange, job)
            if unloads and changes_models(exchange):
                await _unload_idle(door, name)
            return
        found = await door.catalogue.find(job)
        model = found or await door.stand_in() or await door.model(job)
        if unloads:
            permit(exchange)
        if found and changes_models(exchange):
            await _move(door, exchange, model, "models/unload" if unloads else "models/load")
        reason = {"done": True, "done_reason": "unload" if unloads else "load"}
        empty = {"response": "", "message": {"role": "assistant", "content": ""}}
        await exchange.respond(msgspec.json.encode({"model": model.name, "created_at": now()} | empty | reason))

    return handle


async def _move(door: DoorContext, exchange: Exchange, model: Model, method: str) -> None:
    """Load or unload a model, unless it is so already; raises CardError."""
    if (model.state in ("ready", "draining")) != (method == "models/load"):
        await exchange.while_connected(door.pool.result(method, {"model": model.name}))
        door.catalogue.forget()


async def _unload_idle(door: DoorContext, name: str) -> None:
    """Unload a model that no other request uses; its answer is out, so an error has nowhere to go."""
    with suppress(CardError):
        if (model := await door.catalogue.find(name)) is None:
            return  # another one stood in
        capacity = await door.pool.result_as(Capacity, "inference/capacity", {"model": model.name})
        if not (capacity.in_use or capacity.queued or capacity.parked):
            await door.pool.result("models/unload", {"model": model.name})
            door.catalogue.forget()


async def embed(door: DoorContext, exchange: Exchange, request: requests.EmbedRequest) -> None:
    """Answer `POST /api/embed`."""
    vectors, tokens = await _embedded(door, exchange, request)
    shape = {"model": request.model, "embeddings": vectors, "total_duration": 0, "load_duration": 0}
    await exchange.respond(msgspec.json.encode(shape | {"prompt_eval_count": tokens}))


async def embeddings(door: DoorContext, exchange: Exchange, request: requests.EmbedRequest) -> None:
    """Answer the older `POST /api/embeddings`."""
    vectors, _ = await _embedded(door, exchange, request)
    await exchange.respond(msgspec.json.encode({"embedding": vectors[0] if vectors else []}))


async def _embedded(
    door: DoorContext, exchange: Exchange, request: requests.EmbedRequest
) -> tuple[list[list[float]], int]:
    """Return a vector for each text, and the tokens of all; a request without a text only names its model."""
    params = requests.read_embed(request, caller_of(exchange))
    if not params["input"]:
        await door.model(params["model"])
        return [], 0
    with named_as_sent(as_sent(request, requests.EMBED_NAMES, caller_of(exchange))):
        found = await embedded(door, exchange, params)
    return [shortened(vector, request.dimensions) for vector in found.embeddings], found.usage.prompt_tokens


async def version(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /api/version`."""
    await exchange.respond(msgspec.json.encode({"version": models.VERSION}))


async def tags(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /api/tags`."""
    listed = models.tags(await door.catalogue.models(), await door.catalogue.files(), door.metrics.started)
    await exchange.respond(msgspec.json.encode(listed))


async def running(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /api/ps`."""
    listed = models.running(await door.catalogue.models(), await door.catalogue.files(), door.metrics.started)
    await exchange.respond(msgspec.json.encode(listed))


async def show(door: DoorContext, exchange: Exchange, request: Named) -> None:
    """Answer `POST /api/show`."""
    model = await door.model(request.named)
    details = await door.pool.result_as(ModelDetails, "models/show", {"model": model.name})
    await exchange.respond(msgspec.json.encode(models.shown(details, door.metrics.started)))


async def root(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /`, by which clients check that there is a server."""
    await exchange.respond(b"card is running", kind="text/plain; charset=utf-8")


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
