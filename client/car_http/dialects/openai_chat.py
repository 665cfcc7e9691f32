"""`POST /v1/chat/completions`: requests."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from car_http.dialects.bodies import Choice, Form, ImageUrl, Own, Part, Tool
from car_http.dialects.common import (
    Caller,
    as_sent,
    audio_part,
    called_arguments,
    caller_params,
    given,
    image_data,
    own_params,
    refuse,
    refuse_call,
    same_named,
    top_k_params,
)
from car_http.dialects.job import Job
from car_http.dialects.openai_chat_writer import ChatWriter
from car_http.dialects.openai_parts import PRIORITIES
from car_http.dialects.samplers import Samplers, sampler_params
from car_http.dialects.vendor_tools import each_once, refuse_vendor_tool, vendor_problem, vendor_tool
from car_http.problems import bad
from car_protocol.infer import MAX_ANSWERS, SEEDS
from car_protocol.meta import note
from car_protocol.sampling import Fraction, Penalty, Temperature

NAMES = {
    "max_tokens": ("max_completion_tokens", "max_tokens", "n_predict"),
    "json_schema": ("response_format", "json_schema"),
    "template_args": ("chat_template_kwargs", "reasoning_effort"),
    "client": ("safety_identifier", "user"),
    "session": ("prompt_cache_key",),
    "priority": ("service_tier",),
    "logprobs": ("top_logprobs", "logprobs"),
    "reasoning": ("reasoning_effort",),
    "reasoning_tokens": ("thinking_budget_tokens",),
    "continue_last": ("continue_final_message",),
    "tokens": ("prompt",),
}
_SAMPLED_REFUSED = {
    "dynatemp_range": "the temperature is the same for all tokens: leave it out",
    "lora": "send `card.lora`, with names",
}
_REFUSED = {
    **_SAMPLED_REFUSED,
    "audio": "the models of this machine answer in text",
    "functions": "send `tools` in its place",
    "function_call": "send `tool_choice` in its place",
}
_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "cache_prompt",
    "return_tokens",
)
_OFF = "none"
_FORBIDDEN = -100.0  # the least bias, beside which no token is drawn


class Sampled(Samplers, kw_only=True):
    """Members that chat and completions share, llama.cpp's own included; null counts as absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    top_n_sigma: float | None = None
    dynatemp_range: float | None = None
    lora: list[Any] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[
        dict[str, float] | list[list[Any]] | None, note("by token id; llama-server's: a list of [id, bias]")
    ] = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    card: Own | None = None

    @property
    def length(self) -> int | None:
        """The longest answer: the first of its members that was sent."""
        return self.n_predict if self.max_tokens is None else self.max_tokens

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with its usage."""
        return bool((self.stream_options or {}).get("include_usage"))


class CalledFunction(Struct):
    """A function's name and its arguments as a JSON text."""

    name: str
    arguments: str | None = None


class Call(Struct, kw_only=True):
    """A call of an earlier answer."""

    id: str
    function: CalledFunction
    type: str = "function"


class Message(Struct, kw_only=True):
    """One turn; parts are read by their type."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class ChatRequest(Sampled, kw_only=True):
    """The body; members that it does not name are dropped."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Form | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    thinking_budget_tokens: Annotated[int | None, note("the most tokens of thoughts; -1: no bound")] = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None

    @property
    def length(self) -> int | None:
        """The longest answer: the first of its members that was sent."""
        return super().length if self.max_completion_tokens is None else self.max_completion_tokens


def read(request: ChatRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    refuse(request, _REFUSED)
    if request.modalities not in (None, ["text"], []):
        raise bad("modalities", 'the models of this machine answer in text: send ["text"] or leave it out')
    begins = request.add_generation_prompt or (request.chat_template_kwargs or {}).get("add_generation_prompt")
    if begins and request.continue_final_message:
        raise bad("add_generation_prompt", "begins a new message: leave it out, or leave out `continue_final_message`")
    if request.top_logprobs and not request.logprobs:
        raise bad("top_logprobs", "goes with `logprobs` true: send both, or neither")
    params = sampled_params(request, caller)
    params["messages"] = [_message(each, f"messages[{place}]") for place, each in enumerate(request.messages)]
    params |= given(
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        parallel_tool_calls=request.parallel_tool_calls,
        continue_last=request.continue_final_message or None,
    )
    tools, left_out = function_tools(request.tools)
    left_out += ("web_search_options",) if request.web_search_options is not None else ()
    params |= _tools(request, tools, left_out) | _reasoning(request)
    form = response_params(request.response_format, "response_format")
    if form and request.json_schema is not None:
        raise bad("json_schema", "is a second form beside `response_format`: send one of both")
    params |= form
    writer = ChatWriter(
        request.model or "",
        usage=request.wants_usage,
        progress=bool(request.return_progress),
        probable=bool(request.logprobs),
        answers=request.n or 1,
        left_out=left_out,
    )
    members = as_sent(request, NAMES, caller)
    return Job(params | own_params(caller, request.card), request.streams, writer, members, left_out=left_out)


def sampled_params(request: Sampled, caller: Caller) -> dict[str, Any]:
    """Return the params of the members that chat and completions share; raises Problem."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    refuse(request, _SAMPLED_REFUSED)
    params = same_named(request, _SAME) | top_k_params(request.top_k) | sampler_params(request)
    params |= given(
        model=request.model or None,
        logit_bias=_biases(request.logit_bias),
        json_schema=request.json_schema,
        grammar=request.grammar or None,
        max_tokens=_length(request.length),
        stop=[each for each in stop or [] if each] or None,
        n=None if request.n == 1 else request.n,
        seed=None if request.seed is None or request.seed < 0 else request.seed % SEEDS,
        priority=PRIORITIES.get(request.service_tier or ""),
    )
    user = request.safety_identifier or request.user
    return params | caller_params(caller, user=user, session=request.prompt_cache_key, stream=request.streams)


def response_params(form: Form | None, param: str) -> dict[str, Any]:
    """Return the schema of a form, which is the member `param` of the body; raises Problem."""
    if form is None or form.type == "text":
        return {}
    named = form.json_schema or form
    # llama-server's clients send a schema with `json_object` too.
    schema = named.schema or ({"type": "object"} if form.type == "json_object" else None)
    if form.type not in ("json_object", "json_schema") or schema is None:
        raise bad(param, "give {type: text}, {type: json_object} or {type: json_schema} with a schema")
    # Without `strict` OpenAI takes keywords that it cannot enforce.
    return {"json_schema": schema, "lenient": not named.strict}


def _biases(biases: dict[str, float] | list[list[Any]] | None) -> dict[str, float] | None:
    """Return what is added to logits by token id; `false` forbids a token; raises Problem."""
    if not isinstance(biases, list):
        return biases
    for place, each in enumerate(biases):
        is_token = len(each) == 2 and type(each[0]) is int and each[0] >= 0
        if not is_token or not (each[1] is False or type(each[1]) in (int, float)):
            raise bad(f"logit_bias[{place}]", "give [token id, bias] or [token id, false]: /tokenize has the ids")
    return {str(token): _FORBIDDEN if bias is False else bias for token, bias in biases}


def _length(figure: int | None) -> int | None:
    """Return the longest answer; below 0 it is what fits, as without a figure."""
    return None if figure is None or figure < 0 else figure


def _message(message: Message, place: str) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "function": {"name": call.function.name, "arguments": called_arguments(call.function.arguments)},
        }
        for call in message.tool_calls or []
    ]
    content: Any = message.content
    if isinstance(message.content, list):
        content = [_part(part, f"{place}.content[{number}]") for number, part in enumerate(message.content)] or ""
    if content is None and not calls:
        content = message.refusal or ""
    return {"role": _ROLES.get(message.role, message.role), "content": content} | given(
        name=message.name,
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    )


_ROLES = {"developer": "system", "function": "tool"}


def _part(part: Part, place: str) -> dict[str, Any]:
    text = {"text": part.text, "refusal": part.refusal}.get(part.type)
    if text is not None:
        return {"type": "text", "text": text}
    if part.type == "image_url" and part.image_url is not None:
        url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
        return {"type": "image", "data": image_data(url, f"{place}.image_url")}
    if part.type == "input_audio":
        return audio_part(part, f"{place}.input_audio")
    raise bad(place, "a part is {type: text, text}, {type: image_url, image_url: {url}} or {type: input_audio, ...}")


def function_tools(tools: list[Tool] | None) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the tools as the daemon takes them, and vendors' tools, which are left out; raises Problem for others."""
    kinds = [vendor_tool(tool.type) for tool in tools or []]
    offered = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools or []) if kinds[place] is None]
    return offered, each_once(kinds)


def _tool(tool: Tool, place: str) -> dict[str, Any]:
    function = tool.function
    if tool.type not in (None, "function") or function is None:
        raise bad(place, "only tools of the type `function` are offered")
    return {"type": "function", "function": same_named(function, function.__struct_fields__)}


def _tools(request: ChatRequest, offered: list[dict[str, Any]], left_out: Sequence[str]) -> dict[str, Any]:
    """Return the tools that may be called, and whether they are."""
    choice = request.tool_choice
    if not offered:
        refuse_call(choice, left_out)
        return {}
    if choice is None or isinstance(choice, str):
        return given(tools=offered, tool_choice=choice)
    if choice.type == "function" and choice.function is not None:
        return {"tools": offered, "tool_choice": {"name": choice.function.name}}
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        listed = choice.allowed_tools.tools
        names = {tool.function.name for tool in listed if tool.function}
        found = allowed(offered, names, each_once(vendor_tool(tool.type) for tool in listed))
        return {"tools": found, "tool_choice": choice.allowed_tools.mode}
    refuse_vendor_tool(vendor_tool(choice.type))
    raise bad("tool_choice", "give auto, none, required, {type: function, function: {name}} or {type: allowed_tools}")


def allowed(offered: list[dict[str, Any]], names: set[str], left_out: Sequence[str]) -> list[dict[str, Any]]:
    """Return the tools of these names; raises Problem for a name that no tool has, and for no name."""
    if left_out and not names:
        raise vendor_problem(left_out)
    unknown = names - {tool["function"]["name"] for tool in offered}
    if unknown or not names:
        raise bad("tool_choice", f"no tool has the name `{min(unknown)}`" if unknown else "name a tool that is allowed")
    return [tool for tool in offered if tool["function"]["name"] in names]


def _reasoning(request: ChatRequest) -> dict[str, Any]:
    """Return the mode of thoughts, and the effort for templates that take one."""
    arguments = dict(request.chat_template_kwargs or {})
    if request.add_generation_prompt is False and not request.continue_final_message:
        arguments["add_generation_prompt"] = False
    effort = request.reasoning_effort
    if effort is not None and effort != _OFF:
        arguments.setdefault("reasoning_effort", effort)
    budget = request.thinking_budget_tokens
    return thoughts(effort) | given(template_args=arguments or None, reasoning_tokens=None if budget == -1 else budget)


def thoughts(effort: str | None) -> dict[str, Any]:
    """Return the mode of thoughts for an effort; without one it is the model's own."""
    return {} if effort is None else {"reasoning": "off" if effort == _OFF else "on"}
