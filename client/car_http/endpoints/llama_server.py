"""llama-server's own endpoints about tokens, vectors, templates, adapters and sequences, and LM Studio's of models."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from car_client.results import Capacity, ModelDetails
from car_http.dialects import llama_completion, llama_models, openai_completions
from car_http.dialects.common import Caller, given, origin_params, packed
from car_http.dialects.job import Job
from car_http.dialects.llama_completion import LlamaCompletionRequest
from car_http.dialects.openai_chat import ChatRequest
from car_http.dialects.openai_chat import read as read_chat
from car_http.endpoints.context import DoorContext, Handler, R, caller_of, embedded, fit_to_model, named_as_sent
from car_http.endpoints.openai import completing
from car_http.endpoints.system import NO_STORE
from car_http.exchange import Exchange
from car_http.problems import Problem, bad
from car_protocol.meta import note
from car_protocol.text import Text, Tokens

# The params of `infer` that decide the tokens of a conversation.
_COUNTED = ("model", "messages", "tools", "parallel_tool_calls", "template_args", "reasoning", "continue_last")
completion = completing(llama_completion.read)
_openais = completing(openai_completions.read)


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


class EmbeddingRequest(Struct, kw_only=True):
    """The texts to turn into vectors."""

    content: str | list[Any] | None = None
    input: Annotated[str | list[Any] | None, note("in place of `content`")] = None
    model: str | None = None
    embd_normalize: Annotated[int | None, note("2: vectors of length 1, as without it; -1: as they are")] = None


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


async def completions(door: DoorContext, exchange: Exchange, request: LlamaCompletionRequest) -> None:
    """Answer `POST /completions`, which llama-server and OpenAI's clients without `/v1` have both."""
    await (_openais if request.openais else completion)(door, exchange, request)


async def embedding(door: DoorContext, exchange: Exchange, request: EmbeddingRequest) -> None:
    """Answer `POST /embedding`."""
    name = "input" if request.content is None else "content"
    texts = getattr(request, name)
    texts = [texts] if isinstance(texts, str) else texts
    if not texts or any(not isinstance(text, str) for text in texts):
        raise bad(name, "give a text or a list of texts: token ids are not embedded")
    if request.embd_normalize not in (None, -1, 2):
        raise bad("embd_normalize", "give 2 for vectors of length 1, or -1 for vectors as they are")
    params = {"input": texts, "normalize": request.embd_normalize != -1} | given(model=request.model or None)
    params |= origin_params(caller_of(exchange))
    with named_as_sent({"input": name}):
        found = await embedded(door, exchange, params)
    shown = [{"index": place, "embedding": [vector]} for place, vector in enumerate(found.embeddings)]
    await exchange.respond(msgspec.json.encode(shown))


async def props(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /props`."""
    model = await door.model(exchange.query("model"))
    details = await door.pool.result_as(ModelDetails, "models/show", {"model": model.name})
    await exchange.respond(msgspec.json.encode(llama_models.props_object(details)))


async def slots(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /slots`; with `fail_on_no_slot` it is 503 while all are leased."""
    model = await door.model(exchange.query("model"))
    capacity = await door.pool.result_as(Capacity, "inference/capacity", {"model": model.name})
    if exchange.query("fail_on_no_slot") not in (None, "0") and not capacity.available:
        raise Problem(503, "no_slot", "all sequences of the model are leased: a request would wait")
    await exchange.respond(msgspec.json.encode(llama_models.slots(capacity)), headers=NO_STORE)


async def lm_studio_models(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer LM Studio's `GET /api/v0/models`."""
    files = await door.catalogue.files()
    shown = [llama_models.lm_studio_object(each, files.get(each.name)) for each in await door.catalogue.models()]
    await exchange.respond(msgspec.json.encode({"object": "list", "data": shown}))


async def lm_studio_model(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer LM Studio's `GET /api/v0/models/NAME`."""
    model = await door.model(exchange.path["name"])
    files = await door.catalogue.files()
    await exchange.respond(msgspec.json.encode(llama_models.lm_studio_object(model, files.get(model.name))))


async def adapters(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /lora-adapters`: a request has the adapters that it names."""
    model = await door.model(exchange.query("model"))
    shown = [{"id": place, "path": name, "scale": 0.0} for place, name in enumerate(model.adapters)]
    await exchange.respond(msgspec.json.encode(shown))


def _counted(job: Job) -> dict[str, Any]:
    return {name: value for name, value in job.params.items() if name in _COUNTED}


async def _tokens(door: DoorContext, exchange: Exchange, params: dict[str, Any]) -> Tokens:
    await fit_to_model(door, params)
    params |= origin_params(caller_of(exchange))
    return await exchange.while_connected(door.pool.result_as(Tokens, "tokenize", params))


async def _text(door: DoorContext, exchange: Exchange, params: dict[str, Any]) -> str:
    await fit_to_model(door, params)
    params |= origin_params(caller_of(exchange))
    return (await exchange.while_connected(door.pool.result_as(Text, "detokenize", params))).text
