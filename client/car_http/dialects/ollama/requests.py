"""Ollama's `POST /api/chat`, `/api/generate` and `/api/embed`: requests."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from car_http.dialects.bodies import Own, Tool
from car_http.dialects.common import (
    Caller,
    as_sent,
    called_arguments,
    caller_params,
    given,
    origin_params,
    own_params,
    refuse,
    same_named,
    top_k_params,
)
from car_http.dialects.job import Job
from car_http.dialects.ollama.writer import OllamaWriter
from car_http.dialects.openai_chat import function_tools, thoughts
from car_http.dialects.samplers import Mirostat, sampler_params
from car_http.problems import bad
from car_protocol.infer import SEEDS
from car_protocol.meta import note
from car_protocol.sampling import Fraction, Penalty, Temperature

_REFUSED = {"template": "the model's own template is used: send `raw` with the whole prompt"}
_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_NAMES = {
    "messages": ("messages", "prompt"),
    "json_schema": ("format",),
    "max_tokens": ("options.num_predict",),
    "logprobs": ("top_logprobs", "logprobs"),
    "reasoning": ("think",),
    "template_args": ("think",),
    **{name: (f"options.{name}",) for name in (*_SAME, "top_k", "repeat_last_n", "seed", "stop")},
}
EMBED_NAMES = {"input": ("input", "prompt")}
_DURATION = re.compile(r"-?(?:\d+(?:\.\d*)?|(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+)", re.ASCII)
Whole = Annotated[int | float, note("a whole number; a fraction is dropped")]


class Options(Mirostat, kw_only=True):
    """The options that change an answer; options about memory and threads are the daemon's own."""

    num_predict: Whole | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    temperature: Temperature | None = None
    top_k: Whole | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    repeat_last_n: Whole | None = None
    repeat_penalty: float | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class Called(Struct, kw_only=True):
    """A function's name, and its arguments as data."""

    name: str
    arguments: dict[str, Any] | str = {}


class Call(Struct, kw_only=True):
    """A call of an earlier answer."""

    function: Called
    id: str | None = None


class Message(Struct, kw_only=True):
    """One turn."""

    role: str
    content: str | None = None
    images: list[str] | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Generated(Struct, kw_only=True):
    """The members that chat and generate share; a stream is the default."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: Annotated[float | str | None, note("0: the model is unloaded after the answer")] = None
    card: Own | None = None

    @property
    def unloads(self) -> bool:
        """Whether the model is not needed after the answer; raises Problem for what is not a duration."""
        if isinstance(self.keep_alive, str):
            if not _DURATION.fullmatch(self.keep_alive):
                raise bad("keep_alive", "give a number of seconds, or a duration such as 5m; 0 unloads the model")
            return not self.keep_alive.strip("-.0nuµmsh")
        return self.keep_alive == 0

    @property
    def left_out(self) -> list[str]:
        """The members that have no effect here, as the answer says."""
        forever = str(self.keep_alive).startswith("-")  # a model's `pinned` is configured
        return ["keep_alive"] if forever else []


class ChatRequest(Generated, kw_only=True):
    """The body of `/api/chat`; members that it does not name are dropped."""

    messages: list[Message] | None = None
    tools: list[Tool] | None = None


class GenerateRequest(Generated, kw_only=True):
    """The body of `/api/generate`; members that it does not name are dropped."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None
    template: str | None = None
    context: Annotated[list[int] | None, note("dropped: answers are not stored; /api/chat takes a conversation")] = None

    @property
    def left_out(self) -> list[str]:
        """The members that have no effect here, as the answer says."""
        return super().left_out + (["context"] if self.context else [])


class EmbedRequest(Struct, kw_only=True):
    """The bodies of `/api/embed` and, with `prompt`, of `/api/embeddings`."""

    model: str
    input: str | list[str] | None = None
    prompt: str | None = None
    dimensions: int | None = None
    truncate: bool | None = None


def read_chat(request: ChatRequest, caller: Caller) -> Job | str:
    """Translate a chat; without messages return the model's name, which such a request loads. Raises Problem."""
    if not request.messages:
        return request.model
    tools, left_out = function_tools(request.tools)
    params = {"messages": _messages(request.messages)} | given(tools=tools or None)
    return _job(
        request,
        caller,
        params,
        OllamaWriter(request.model, chats=True, left_out=[*left_out, *request.left_out]),
        left_out,
    )


def read_generate(request: GenerateRequest, caller: Caller) -> Job | str:
    """Translate a prompt; without one return the model's name, which such a request loads. Raises Problem."""
    refuse(request, _REFUSED)
    if not request.prompt and not request.images:
        return request.model
    return _job(request, caller, _prompt(request), OllamaWriter(request.model, chats=False, left_out=request.left_out))


def read_embed(request: EmbedRequest, caller: Caller) -> dict[str, Any]:
    """Return the params of `embed`, without a text of a request that only names its model; raises Problem."""
    texts = (request.prompt if request.input is None else request.input) or []
    if request.dimensions is not None and request.dimensions < 1:
        raise bad("dimensions", "give a number of at least 1")
    listed = [texts] if isinstance(texts, str) else texts
    params = {"input": listed, "model": request.model, "truncate": request.truncate is not False}
    return params | origin_params(caller)


def _job(
    request: Generated, caller: Caller, params: dict[str, Any], writer: OllamaWriter, left_out: Sequence[str] = ()
) -> Job:
    stream = request.stream is not False
    options = request.options or Options()
    params |= {"model": request.model} | _sampling(options)
    params |= given(logprobs=(request.top_logprobs or 0) if request.logprobs else None)
    params |= _format(request.format) | _thinking(request.think)
    params |= caller_params(caller, user=None, session=None, stream=stream)
    members = as_sent(request, _NAMES, caller)
    return Job(params | own_params(caller, request.card), stream, writer, members, left_out=left_out)


def _prompt(request: GenerateRequest) -> dict[str, Any]:
    """Return the prompt as it is if a gap or raw text is to be continued, else as a conversation."""
    if request.raw or request.suffix:
        if request.images:
            raise bad("images", "go with a prompt in the model's own template: leave out `raw` and `suffix`")
        return {"prompt": request.prompt or ""} | given(
            suffix=request.suffix or None, parse_special=request.raw or None
        )
    system = [{"role": "system", "content": request.system}] if request.system else []
    user = Message(role="user", content=request.prompt, images=request.images)
    return {"messages": [*system, *_messages([user])]}


def _messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Return the turns; a call without an id has its place as one, and so has the result of a tool."""
    turns, calls, results = [], 0, 0
    for message in messages:
        ids = [call.id or f"call_{calls + place}" for place, call in enumerate(message.tool_calls or [])]
        calls += len(ids)
        answered = message.tool_call_id
        if message.role == "tool" and answered is None:
            answered, results = f"call_{results}", results + 1
        turns.append(_turn(message, ids, answered))
    return turns


def _turn(message: Message, ids: list[str], answered: str | None) -> dict[str, Any]:
    calls = [
        {"id": call_id, "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)}}
        for call_id, call in zip(ids, message.tool_calls or [], strict=True)
    ]
    content: Any = message.content or (None if calls else "")
    if message.images:
        images = [{"type": "image", "data": image.rpartition(",")[2]} for image in message.images]
        content = [*images, {"type": "text", "text": message.content or ""}]
    return {"role": message.role, "content": content} | given(
        reasoning=message.thinking or None, tool_calls=calls or None, tool_call_id=answered, name=message.tool_name
    )


def _arguments(arguments: dict[str, Any] | str) -> str:
    return called_arguments(arguments) if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _sampling(options: Options) -> dict[str, Any]:
    stop = [options.stop] if isinstance(options.stop, str) else options.stop
    seed = _whole(options.seed)
    return (
        same_named(options, _SAME)
        | sampler_params(options, "options.")
        | top_k_params(_whole(options.top_k))
        | given(
            max_tokens=_longest(_whole(options.num_predict)),
            repeat_last_n=_whole(options.repeat_last_n),
            seed=None if seed is None or seed < 0 else seed % SEEDS,
            stop=[each for each in stop or [] if each] or None,
        )
    )


def _whole(figure: float | None) -> int | None:
    """Return a figure without its fraction: programs without whole numbers send 40.0."""
    return None if figure is None else int(figure)


def _longest(most: int | None) -> int | None:
    """Return the longest answer; 0 and less mean what fits, as without a figure."""
    return most if most and most > 0 else None


def _format(form: str | dict[str, Any] | None) -> dict[str, Any]:
    if form in (None, ""):
        return {}
    if isinstance(form, dict):
        return {"json_schema": form, "lenient": True}
    if form != "json":
        raise bad("format", "give json or a JSON schema")
    return {"json_schema": {"type": "object"}, "lenient": True}


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if isinstance(think, bool):
        return {"reasoning": "on" if think else "off"}
    return thoughts(think) | given(template_args={"reasoning_effort": think} if think else None)
