"""Anthropic's endpoints beside `POST /v1/messages`."""

import msgspec

from car_http.dialects.anthropic import requests
from car_http.dialects.common import as_sent, origin_params, packed
from car_http.endpoints.context import DoorContext, caller_of, fit_to_model, named_as_sent
from car_http.exchange import Exchange


class _Count(msgspec.Struct):
    count: int


async def count_tokens(door: DoorContext, exchange: Exchange, request: requests.CountTokensRequest) -> None:
    """Answer `POST /v1/messages/count_tokens` with the number of tokens of the prompt that `infer` computes."""
    params, claude = requests.read_count(request)
    caller = caller_of(exchange)
    params = packed(params) | origin_params(caller)
    members = as_sent(request, requests.NAMES, caller)
    del request  # its values are packed in the params
    with named_as_sent(members):
        await fit_to_model(door, params, claude=claude)
        found = await exchange.while_connected(door.pool.result_as(_Count, "tokenize", params))
    await exchange.respond(msgspec.json.encode({"input_tokens": found.count}))
