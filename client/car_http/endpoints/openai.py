"""OpenAI's endpoints."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from car_client.errors import QuotaReached
from car_client.results import Answer, Model
from car_http.answering import timing_headers
from car_http.dialects import openai_embeddings, openai_models
from car_http.dialects import transcriptions as transcribing
from car_http.dialects.anthropic.requests import is_claude
from car_http.dialects.common import Caller
from car_http.dialects.job import Job
from car_http.dialects.openai_completions import Prompts
from car_http.dialects.openai_embeddings import EmbeddingsRequest
from car_http.dialects.transcriptions import TranscriptionRequest
from car_http.endpoints.context import (
    DoorContext,
    Handler,
    R,
    answer_job,
    caller_of,
    embedded,
    fit_to_model,
    named_as_sent,
)
from car_http.endpoints.system import TEXT
from car_http.exchange import Exchange
from car_http.problems import Problem, bad

# Of the prompts of one request: more would only wait in the daemon's queue, where a user has so many places.
_AT_ONCE = 16


def completing(read: Callable[[R, Caller], Job | Prompts]) -> Handler[R]:
    """Return the handler that answers completions; each of several prompts is a request of its own to the daemon."""

    async def handle(door: DoorContext, exchange: Exchange, request: R) -> None:
        job = read(request, caller_of(exchange))
        del request  # its values are packed in the job
        if not isinstance(job, Prompts):
            await answer_job(door, exchange, job)
            return
        with named_as_sent(job.members):
            for params in job.params:
                await fit_to_model(door, params)
            try:
                answers = await exchange.while_connected(_answers(door, job.params))
            except QuotaReached as error:
                most = error.data.get("value", 0)
                at_once = sum(params.get("n", 1) for params in job.params[:_AT_ONCE])
                if error.data.get("limit") != "in_flight" or most >= at_once:
                    raise
                # Another attempt would end the same way.
                raise bad("prompt", f"{at_once} answers at once, at most {most} for your key: send fewer") from error
        longest_queued = max(answers, key=lambda answer: answer.timings.queue_ms)
        await exchange.respond(job.whole(answers), headers=timing_headers(longest_queued))

    return handle


async def _answers(door: DoorContext, each: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Return the answers to all; if one fails, the others are cancelled. Raises CardError."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def answered(params: Mapping[str, Any]) -> Answer:
        async with places:
            return await door.pool.result_as(Answer, "infer", params)

    calls = [asyncio.create_task(answered(params)) for params in each]
    try:
        return await asyncio.gather(*calls)
    finally:
        while calls:
            calls.pop().cancel()  # without a name: an error of a call keeps this frame


async def transcriptions(door: DoorContext, exchange: Exchange, request: TranscriptionRequest) -> None:
    """Answer `POST /v1/audio/transcriptions`; a name that no model has, as `whisper-1`, is one that takes sounds."""
    job = transcribing.read(request, caller_of(exchange), exchange.files)
    exchange.files = {}  # in the job now
    as_text = request.response_format == transcribing.TEXT
    name = job.params.get("model")
    if name is None or await door.catalogue.find(name) is None:
        chosen = next((each for each in await door.catalogue.models() if "audio" in each.can), None)
        if chosen is None:
            message = "no model of this machine takes sounds: add one with a projector of audio"
            raise Problem(400, "unsupported_by_model", message, param="model")
        job.params["model"] = chosen.name
    if not as_text:
        await answer_job(door, exchange, job)
        return
    with named_as_sent(job.members):
        found = await exchange.while_connected(door.pool.result_as(Answer, "infer", job.params))
    await exchange.respond(job.writer.whole(found), headers=timing_headers(found), kind=TEXT)


async def embeddings(door: DoorContext, exchange: Exchange, request: EmbeddingsRequest) -> None:
    """Answer `POST /v1/embeddings`."""
    job = openai_embeddings.read(request, caller_of(exchange))
    found = await embedded(door, exchange, job.params)
    await exchange.respond(msgspec.json.encode(openai_embeddings.embeddings_object(job, found)))


async def models(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /v1/models`."""
    found = await door.catalogue.models()
    listed = openai_models.models_object(found, door.metrics.started, anthropic=exchange.head.anthropic)
    await exchange.respond(msgspec.json.encode(listed))


async def model(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /v1/models/NAME`."""
    found = await _named(door, exchange.path["name"], anthropic=exchange.head.anthropic)
    shown = openai_models.model_object(found, door.metrics.started, anthropic=exchange.head.anthropic)
    await exchange.respond(msgspec.json.encode(shown))


async def _named(door: DoorContext, name: str, *, anthropic: bool) -> Model:
    """Return the model that answers to a name; a name of Claude's is the default model to Anthropic's clients."""
    if anthropic and is_claude(name):
        return await door.catalogue.find(name) or await door.catalogue.default()
    return await door.model(name)
