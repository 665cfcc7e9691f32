"""OpenAI's endpoints."""

import msgspec

from car_http.dialects import openai_embeddings, openai_models
from car_http.endpoints.context import DoorContext, Path, caller_of, embedded
from car_http.exchange import Exchange


async def embeddings(door: DoorContext, exchange: Exchange, path: Path) -> None:
    """Answer `POST /v1/embeddings`."""
    job = openai_embeddings.read(await exchange.body(), caller_of(exchange))
    found = await embedded(door, exchange, job.params)
    await exchange.respond(msgspec.json.encode(openai_embeddings.embeddings_object(job, found)))


async def models(door: DoorContext, exchange: Exchange, path: Path) -> None:
    """Answer `GET /v1/models`."""
    listed = openai_models.models_object(await door.catalogue.models(), door.metrics.started)
    await exchange.respond(msgspec.json.encode(listed))


async def model(door: DoorContext, exchange: Exchange, path: Path) -> None:
    """Answer `GET /v1/models/NAME`."""
    shown = openai_models.model_object(await door.model(path["name"]), door.metrics.started)
    await exchange.respond(msgspec.json.encode(shown))


async def props(door: DoorContext, exchange: Exchange, path: Path) -> None:
    """Answer llama-server's `GET /props`."""
    found = await door.model(exchange.query("model"))
    await exchange.respond(msgspec.json.encode(openai_models.props_object(found)))
