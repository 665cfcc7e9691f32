"""llama-server's own endpoints about tokens, templates and adapters."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from car_http.dialects.common import Caller, given, packed
from car_http.dialects.job import Job
from car_http.dialects.openai_chat import ChatRequest
from car_http.dialects.openai_chat import read as read_chat
from car_http.endpoints.context import DoorContext, Handler, R, caller_of, fit_to_model, named_as_sent
from car_http.exchange import Exchange
from car_http.problems import bad
from car_protocol.text import Text, Tokens

# Of the params of `infer`, those that decide the tokens of a conversation.
_COUNTED = ("model", "messages", "tools", "parallel_tool_calls", "template_args", "reasoning", "continue_last")


class TokenizeRequest(Struct, kw_only=True):
    """The text to cut into tokens."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Struct, kw_only=True):
    """The tokens to write out."""

    tokens: list[int]
    model: str | None = None


async def tokenize(door: DoorContext, exchange: Exchange, request: TokenizeRequest) -> None:
    """Answer `POST /tokenize`."""
    if request.with_pieces:
        raise bad("with_pieces", "leave it out, and send tokens to /detokenize")
    special = {"add_special": request.add_special, "parse_special": request.parse_special}
    params = given(model=request.model or None, text=request.content) | special
    found = await _tokens(door, exchange, params)
    await exchange.respond(msgspec.json.encode({"tokens": found.tokens or []}))


async def detokenize(door: DoorContext, exchange: Exchange, request: DetokenizeRequest) -> None:
    """Answer `POST /detokenize`."""
    params = given(model=request.model or None, tokens=request.tokens)
    await exchange.respond(msgspec.json.encode({"content": await _text(door, exchange, params)}))


async def apply_template(door: DoorContext, exchange: Exchange, request: ChatRequest) -> None:
    """Answer `POST /apply-template` with the prompt that a conversation makes, without images."""
    job = read_chat(request, caller_of(exchange))
    with named_as_sent(job.members):
        tokens = (await _tokens(door, exchange, _counted(job))).tokens or []
        if any(token < 0 for token in tokens):
            raise bad("messages", "images and sounds have no text: leave them out")
        params = given(model=job.params.get("model"), tokens=tokens, special=True)
        text = await _text(door, exchange, params) if tokens else ""
    await exchange.respond(msgspec.json.encode({"prompt": text}))


def counting(read: Callable[[R, Caller], Job]) -> Handler[R]:
    """Return the handler that answers with the number of tokens of a request's prompt."""

    async def handle(door: DoorContext, exchange: Exchange, request: R) -> None:
        job = read(request, caller_of(exchange))
        del request  # its values are packed in the job
        with named_as_sent(job.members):
            found = await _tokens(door, exchange, packed(_counted(job)) | {"count_only": True})
        shown = {"object": "response.input_tokens", "input_tokens": found.count}
        await exchange.respond(msgspec.json.encode(shown))

    return handle


async def adapters(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /lora-adapters`: a request has those that it names."""
    model = await door.model(exchange.query("model"))
    shown = [{"id": place, "path": name, "scale": 0.0} for place, name in enumerate(model.adapters)]
    await exchange.respond(msgspec.json.encode(shown))


def _counted(job: Job) -> dict[str, Any]:
    return {name: value for name, value in job.params.items() if name in _COUNTED}


async def _tokens(door: DoorContext, exchange: Exchange, params: dict[str, Any]) -> Tokens:
    await fit_to_model(door, params)
    return await exchange.while_connected(door.pool.result_as(Tokens, "tokenize", params))


async def _text(door: DoorContext, exchange: Exchange, params: dict[str, Any]) -> str:
    await fit_to_model(door, params)
    return (await exchange.while_connected(door.pool.result_as(Text, "detokenize", params))).text
