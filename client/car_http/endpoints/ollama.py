"""Ollama's endpoints."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from car_client.errors import CardError
from car_client.results import Capacity, Model, ModelDetails
from car_http.dialects.common import Caller, as_sent
from car_http.dialects.job import Job
from car_http.dialects.ollama import models, requests
from car_http.dialects.ollama.changes import Named
from car_http.dialects.ollama.writer import now
from car_http.dialects.openai_embeddings import shortened
from car_http.endpoints.context import DoorContext, Handler, answer_job, caller_of, embedded, named_as_sent
from car_http.endpoints.models import changes_models, permit
from car_http.exchange import Exchange

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
