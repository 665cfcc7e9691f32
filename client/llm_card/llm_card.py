"""The models of card's daemon for the command line `llm`: answers, streams, tools and vectors over its socket."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Literal

import llm
from llm import hookimpl
from llm.parts import AttachmentPart, Message, Part, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field, create_model

from car_client import Answer, AsyncClient, CardError, Chunk, Client, DaemonUnavailable, Model
from car_protocol.infer import InferParams
from car_protocol.methods import schemas

APP = "llm"  # the label by which the daemon shares its sequences and shows requests
# What `llm` passes by other means than `-o`, or what its answers have no place for.
_NO_OPTIONS = {
    *("prompt", "suffix", "model", "n", "progress", "client", "tenant", "person", "return_tokens", "continue_last")
}
_PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool}
_IMAGES = {"image/png", "image/jpeg", "image/webp", "image/gif"}
_SOUNDS = {"audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3", "audio/flac"}


@hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register each model that can answer, the default model as `card` too; none if no daemon answers."""
    for number, model in enumerate(_served("generate")):
        register(CardModel(model), AsyncCardModel(model), aliases=("card",) if number == 0 else ())


@hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register each model that can embed; none if no daemon answers."""
    for model in _served("embed"):
        register(CardEmbedder(model))


def _served(ability: str) -> list[Model]:
    """Return the models that have an ability, the default model first; `llm` starts without a daemon as well."""
    try:
        with Client(connect_timeout=0) as client:
            return [model for model in client.models() if ability in model.can]
    except DaemonUnavailable:
        return []
    except CardError as error:
        raise llm.ModelError(f"card: {error}") from error


def _options() -> type[llm.Options]:
    """Return the options of `infer` that are plain values, by the daemon's own definition."""
    members = schemas([InferParams])["InferParams"]["properties"]
    fields: dict[str, Any] = {}
    for name, schema in members.items():
        if name not in _NO_OPTIONS and not name.startswith("_") and (kind := _kind(schema)) is not None:
            fields[name] = (kind | None, Field(description=schema.get("description"), default=None))
    return create_model("Options", __base__=llm.Options, **fields)


def _kind(schema: dict[str, Any]) -> Any:
    """Return the type of a plain value, None for lists and objects."""
    others = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    if len(others) != 1:
        return None
    if "enum" in others[0]:
        return Literal[tuple(others[0]["enum"])]
    return _PLAIN.get(others[0].get("type", ""))


class _CardModel:
    """What the blocking and the asynchronous model have in common."""

    can_stream = True
    needs_key = None
    Options = _options()

    def __init__(self, model: Model) -> None:
        self.model_id = f"card/{model.name}"
        self.name = model.name
        self.supports_schema = True
        self.supports_tools = "tools" in model.can
        self.attachment_types = {
            *(_IMAGES if "images" in model.can else ()),
            *(_SOUNDS if "audio" in model.can else ()),
        }
        self._chats = "chat" in model.can

    def __str__(self) -> str:
        return f"card: {self.model_id}"

    def _request(self, prompt: llm.Prompt) -> dict[str, Any]:
        """Return the params of `infer` for a prompt; raises ModelError if the model has no chat template for it."""
        params = {name: value for name, value in prompt.options.model_dump().items() if value is not None}
        params |= {"model": self.name, "client": APP}
        if prompt.schema:
            params["json_schema"] = prompt.schema
        if prompt.tools:
            params["tools"] = [_tool(tool) for tool in prompt.tools]
        messages = [turn for message in prompt.messages for turn in _turns(message)]
        if self._chats:
            params["messages"] = messages
        elif [turn["role"] for turn in messages] == ["user"]:
            params["prompt"] = messages[0]["content"]
        else:
            raise llm.ModelError(
                f"{self.model_id} has no chat template: it continues one prompt, without a system text"
            )
        return params


class CardModel(_CardModel, llm.Model):
    """One of the daemon's models."""

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str | StreamEvent]:
        """Yield the answer's pieces; raises ModelError with the daemon's words."""
        try:
            with Client() as client:
                if not stream:
                    answer = client.infer(**self._request(prompt))
                    yield from _events(answer)
                else:
                    with client.infer_stream(**self._request(prompt)) as chunks:
                        for chunk in chunks:
                            yield from _events(chunk)
                        answer = chunks.answer
                _finish(response, answer)
        except CardError as error:
            raise llm.ModelError(f"card: {error}") from error


class AsyncCardModel(_CardModel, llm.AsyncModel):
    """One of the daemon's models, for asyncio."""

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.AsyncResponse, conversation: llm.AsyncConversation | None
    ) -> AsyncIterator[str | StreamEvent]:
        """Yield the answer's pieces; raises ModelError with the daemon's words."""
        try:
            async with AsyncClient() as client:
                if not stream:
                    answer = await client.infer(**self._request(prompt))
                    for event in _events(answer):
                        yield event
                else:
                    async with client.infer_stream(**self._request(prompt)) as chunks:
                        async for chunk in chunks:
                            for event in _events(chunk):
                                yield event
                        answer = chunks.answer
                _finish(response, answer)
        except CardError as error:
            raise llm.ModelError(f"card: {error}") from error


class CardEmbedder(llm.EmbeddingModel):
    """One of the daemon's models that turns texts into vectors."""

    needs_key = None
    batch_size = 256  # the texts of one request

    def __init__(self, model: Model) -> None:
        self.model_id = f"card/{model.name}"
        self.name = model.name

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        """Yield a vector for each text; raises ModelError with the daemon's words."""
        texts = [item if isinstance(item, str) else item.decode() for item in items]
        try:
            with Client() as client:
                yield from client.embed(texts, model=self.name).embeddings
        except CardError as error:
            raise llm.ModelError(f"card: {error}") from error


def _tool(tool: llm.Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _turns(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the daemon's turns for a message of `llm`: one for each result of a tool, else one."""
    if message.role == "tool":
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                yield {
                    "role": "tool",
                    "content": part.output,
                    "tool_call_id": part.tool_call_id or "",
                    "name": part.name,
                }
        return
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCallPart)]
    attached = [_attached(part) for part in message.parts if isinstance(part, AttachmentPart)]
    text = _joined(message.parts, TextPart)
    turn: dict[str, Any] = {"role": message.role, "content": text or (None if calls else "")}
    if attached:
        turn["content"] = [*([{"type": "text", "text": text}] if text else ()), *attached]
    if calls:
        turn["tool_calls"] = calls
    if thoughts := _joined(message.parts, ReasoningPart):
        turn["reasoning"] = thoughts
    yield turn


def _joined(parts: Iterable[Part], kind: type[TextPart] | type[ReasoningPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def _call(part: ToolCallPart) -> dict[str, Any]:
    return {"id": part.tool_call_id or "", "function": {"name": part.name, "arguments": json.dumps(part.arguments)}}


def _attached(part: AttachmentPart) -> dict[str, Any]:
    assert part.attachment is not None
    kind = "audio" if part.attachment.resolve_type() in _SOUNDS else "image"
    return {"type": kind, "data": part.attachment.base64_content()}


def _events(piece: Answer | Chunk) -> Iterator[StreamEvent]:
    """Yield the thoughts and the text of a piece."""
    if piece.reasoning:
        yield StreamEvent(type="reasoning", chunk=piece.reasoning)
    if piece.text:
        yield StreamEvent(type="text", chunk=piece.text)


def _finish(response: llm.Response | llm.AsyncResponse, answer: Answer | None) -> None:
    """Note the calls and the usage; raises ModelError for a call that was cut or is wrong."""
    if answer is None:
        return
    for call in answer.tool_calls or ():
        if call.invalid:
            raise llm.ModelError(f"card: the model's call of {call.function.name} is not valid: {call.invalid}")
        arguments = json.loads(call.function.arguments or "{}")
        response.add_tool_call(llm.ToolCall(name=call.function.name, arguments=arguments, tool_call_id=call.id))
    usage = answer.usage
    details = {"cached_tokens": usage.cached_tokens} if usage.cached_tokens else None
    response.set_usage(input=usage.prompt_tokens, output=usage.completion_tokens, details=details)
