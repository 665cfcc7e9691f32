"""OpenAI's endpoints."""

import msgspec

from car_http.dialects import openai_embeddings, openai_models
from car_http.dialects.openai_embeddings import EmbeddingsRequest
from car_http.endpoints.context import DoorContext, caller_of, embedded
from car_http.exchange import Exchange


async def embeddings(door: DoorContext, exchange: Exchange, request: EmbeddingsRequest) -> None:
    """Answer `POST /v1/embeddings`."""
    job = openai_embeddings.read(request, caller_of(exchange))
    found = await embedded(door, exchange, job.params)
    await exchange.respond(msgspec.json.encode(openai_embeddings.embeddings_object(job, found)))


async def models(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /v1/models`."""
    found = await door.catalogue.models()
    listed = openai_models.models_object(found, door.metrics.started, anthropic=_is_anthropic(exchange))
    await exchange.respond(msgspec.json.encode(listed))


async def model(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /v1/models/NAME`."""
    found = await door.model(exchange.path["name"])
    shown = openai_models.model_object(found, door.metrics.started, anthropic=_is_anthropic(exchange))
    await exchange.respond(msgspec.json.encode(shown))


async def props(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer llama-server's `GET /props`."""
    found = await door.model(exchange.query("model"))
    await exchange.respond(msgspec.json.encode(openai_models.props_object(found)))


def _is_anthropic(exchange: Exchange) -> bool:
    """Return whether one of Anthropic's clients sent the request: they share this path with OpenAI's."""
    return "anthropic-version" in exchange.head.headers
