"""The endpoints of decisions: OpenAI's, and that of TypeSafe's clients and of llama-server."""

import msgspec

from car_client.errors import RequestError
from car_http.dialects import decisions, systemone
from car_http.dialects.decisions import DecideJob, DecisionsRequest
from car_http.dialects.systemone import SystemOneRequest
from car_http.endpoints.context import DoorContext, caller_of, fit_to_model
from car_http.exchange import Exchange
from car_http.problems import problem_of
from car_protocol.decide import Decision


async def openai(door: DoorContext, exchange: Exchange, request: DecisionsRequest) -> None:
    """Answer OpenAI's `POST /v1/decisions`."""
    job = decisions.read(request, caller_of(exchange))
    del request  # its values are packed in the job
    await _decide(door, exchange, job)


async def typesafe(door: DoorContext, exchange: Exchange, request: SystemOneRequest) -> None:
    """Answer `POST /v1/systemone`; a name that no model has, as its clients' default, is a model that can decide."""
    job = systemone.read(request, caller_of(exchange), exchange.files)
    del request  # its values are packed in the job
    name = job.params.get("model")
    if name is not None and await door.catalogue.find(name) is None:
        models = await door.catalogue.models()
        chosen = next((each for each in models if "decide" in each.can), models[0])
        job.params["model"] = chosen.name
    await _decide(door, exchange, job)


async def _decide(door: DoorContext, exchange: Exchange, job: DecideJob) -> None:
    await fit_to_model(door, job.params)
    try:
        found = await exchange.while_connected(door.pool.result_as(Decision, "decide", job.params))
    except RequestError as error:
        param = error.data.get("param")
        problem = problem_of(error, {param: job.named(param)} if isinstance(param, str) else {})
        if error.data.get("lacks") in ("images", "audio"):
            problem.param = job.media
        raise problem from error
    await exchange.respond(msgspec.json.encode(job.whole(found)))
