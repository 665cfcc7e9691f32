"""`POST /v1/responses`, stateless: the whole conversation comes with every request."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from car_http.dialects.bodies import Form, Own, Part
from car_http.dialects.common import (
    Caller,
    as_sent,
    audio_part,
    called_arguments,
    caller_params,
    converted,
    given,
    image_data,
    own_params,
    packed,
    refuse,
    refuse_call,
)
from car_http.dialects.job import Job
from car_http.dialects.openai_chat import allowed, response_params, thoughts
from car_http.dialects.openai_parts import PRIORITIES
from car_http.dialects.responses.tools import CUSTOM_INPUT, Choice, Tool, Tools, offered_name, read_tools
from car_http.dialects.responses.writer import Facts, ResponsesWriter
from car_http.dialects.vendor_tools import each_once, refuse_vendor_tool, vendor_tool
from car_http.problems import bad
from car_protocol.decide import shown
from car_protocol.meta import note
from car_protocol.sampling import Fraction, Temperature

_NAMES = {
    "max_tokens": ("max_output_tokens",),
    "json_schema": ("text.format",),
    "messages": ("input",),
    "client": ("safety_identifier", "user"),
    "session": ("prompt_cache_key",),
    "priority": ("service_tier",),
    "logprobs": ("top_logprobs", "include"),
    "reasoning": ("reasoning.effort",),
    "template_args": ("reasoning.effort",),
}
_REFUSED = {
    "previous_response_id": "answers are not stored: send the whole conversation in `input`",
    "conversation": "conversations are not stored: send the whole one in `input`",
    "background": "answers are not stored: stream this one, or wait for it",
    "prompt": "prompts are not stored: send `instructions` and `input`",
}
_LOGPROBS = "message.output_text.logprobs"
_ROLES = {"developer": "system"}
_ASSISTANT = "assistant"
_TEXTS = ("input_text", "output_text", "text", "refusal")
Turn = dict[str, Any]
_NO_THOUGHTS: Turn = {"role": _ASSISTANT, "content": None}


class TextOptions(Struct, kw_only=True):
    """The form of the answer."""

    format: Form | None = None


class ReasoningOptions(Struct, kw_only=True):
    """The effort of thoughts."""

    effort: str | None = None


class Item(Struct, kw_only=True):
    """An item of the conversation; it has the members that its type names, a vendor's step in forms of its own."""

    type: Annotated[
        str | None,
        note("message where absent; reasoning, function_call, custom_tool_call, and the last two with `_output`"),
    ] = None
    role: Annotated[str | None, note("of a message")] = None
    content: str | list[Part] | None = None
    summary: Annotated[list[Part] | None, note("thoughts, where `content` has none")] = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Annotated[Any, note("of a function's call, a JSON text")] = None
    input: Annotated[str | None, note("of a custom tool's call")] = None
    output: Annotated[Any, note("the result of a call: a text or parts")] = None


class ResponsesRequest(Struct, kw_only=True):
    """The body; members that it does not name are dropped."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    metadata: dict[str, Any] | None = None
    card: Own | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    prompt: Any = None


def read(request: ResponsesRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    refuse(request, _REFUSED)
    stream = bool(request.stream)
    tools = read_tools(request.tools or [])
    probable = _LOGPROBS in (request.include or []) or request.top_logprobs is not None
    params = given(
        messages=_conversation(request),
        model=request.model or None,
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        logprobs=(request.top_logprobs or 0) if probable else None,
        parallel_tool_calls=request.parallel_tool_calls,
        priority=PRIORITIES.get(request.service_tier or ""),
    )
    params |= _tools(request, tools)
    user = request.safety_identifier or request.user
    params |= caller_params(caller, user=user, session=request.prompt_cache_key, stream=stream)
    params |= response_params(request.text.format if request.text else None, "text.format")
    params |= _reasoning(request.reasoning)
    steps = () if isinstance(request.input, str) else (vendor_tool(item.type) for item in request.input)
    left_out = each_once([*tools.left_out, *steps])
    writer = ResponsesWriter(_facts(request, tools, left_out))
    members = as_sent(request, _NAMES, caller)
    return Job(params | own_params(caller, request.card), stream, writer, members, left_out=left_out)


def _facts(request: ResponsesRequest, tools: Tools, left_out: Sequence[str]) -> Facts:
    """Return the members of the request that every response repeats, and where its tools come from."""
    return Facts(
        model=request.model or "",
        origins=tools.origins,
        left_out=left_out,
        repeated=packed(
            {
                "instructions": request.instructions,
                "max_output_tokens": request.max_output_tokens,
                "metadata": request.metadata or {},
                "parallel_tool_calls": request.parallel_tool_calls is not False,
                "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
                "temperature": request.temperature,
                "text": {"format": (request.text and request.text.format) or {"type": "text"}},
                "tool_choice": request.tool_choice or "auto",
                "tools": request.tools or [],
                "top_p": request.top_p,
                "user": request.user,
            }
        ),
    )


def _reasoning(options: ReasoningOptions | None) -> dict[str, Any]:
    effort = options.effort if options else None
    if effort is None:
        return {}
    arguments = None if effort == "none" else {"reasoning_effort": effort}
    return thoughts(effort) | given(template_args=arguments)


def _tools(request: ResponsesRequest, tools: Tools) -> dict[str, Any]:
    """Return the tools that may be called, and whether they are."""
    choice, offered = request.tool_choice, tools.offered
    if not offered:
        refuse_call(choice, tools.left_out)
        return {}
    if choice is None or isinstance(choice, str):
        return given(tools=offered, tool_choice=choice)
    if choice.type in ("function", "custom") and choice.name is not None:
        return {"tools": offered, "tool_choice": {"name": offered_name(choice.name, choice.namespace)}}
    if choice.type == "allowed_tools":
        kinds = [(each, vendor_tool(each.type)) for each in choice.tools or []]
        names = {offered_name(each.name or "", each.namespace) for each, kind in kinds if kind is None}
        found = allowed(offered, names, each_once(kind for _, kind in kinds))
        return {"tools": found, "tool_choice": choice.mode or "auto"}
    refuse_vendor_tool(vendor_tool(choice.type))
    raise bad("tool_choice", "give auto, none, required, {type: function, name} or {type: allowed_tools, mode, tools}")


def _conversation(request: ResponsesRequest) -> list[Turn]:
    """Return the turns of a request."""
    turns: list[Turn] = []
    if request.instructions:
        turns.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*turns, {"role": "user", "content": request.input}]
    return conversation(request.input, "input", turns)


def conversation(items: Sequence[Item], place: str, before: Sequence[Turn] = ()) -> list[Turn]:
    """Return the turns of items behind others; thoughts, text and calls that follow each other are one turn.

    Steps that a vendor's server took are left out. `place` is the member of the request, for errors; raises Problem.
    """
    turns = list(before)
    for number, item in enumerate(items):
        if vendor_tool(item.type) is None and (turn := _turn(item, f"{place}[{number}]")) != _NO_THOUGHTS:
            _add(turns, turn)
    return [_whole(turn) for turn in turns]


def _whole(turn: Turn) -> Turn:
    """Return a turn; thoughts that ended without text or call have an empty text."""
    thoughts_alone = turn["content"] is None and "tool_calls" not in turn
    return turn | {"content": ""} if thoughts_alone else turn


def _add(turns: list[Turn], turn: Turn) -> None:
    last = turns[-1] if turns else None
    if last is None or turn["role"] != _ASSISTANT or last["role"] != _ASSISTANT or _begins(turn, last):
        turns.append(turn)
        return
    calls = last.get("tool_calls", []) + turn.get("tool_calls", [])
    merged = {**last, **{name: value for name, value in turn.items() if value is not None}}
    last.update(merged | ({"tool_calls": calls} if calls else {}))


def _begins(turn: Turn, last: Turn) -> bool:
    """Return whether a turn of the assistant comes after a whole one: its text or thoughts follow text or calls."""
    if turn.get("tool_calls"):
        return False
    return bool(last.get("tool_calls")) or (last.get("content") is not None)


def _turn(item: Item, place: str) -> Turn:
    kind = item.type or "message"
    readers = {
        "message": _message,
        "function_call": _call,
        "custom_tool_call": _call,
        "function_call_output": _output,
        "custom_tool_call_output": _output,
        "reasoning": _thoughts,
    }
    reader = readers.get(kind)
    if reader is None:
        raise bad(place, f"items of the type `{kind}` are not offered")
    return reader(item, place)


def _message(item: Item, place: str) -> Turn:
    if item.role is None:
        raise bad(f"{place}.role", "give a role")
    return {"role": _ROLES.get(item.role, item.role), "content": _content(item.content, f"{place}.content")}


def _call(item: Item, place: str) -> Turn:
    if not item.name:
        raise bad(f"{place}.name", "give the name of the tool")
    arguments = called_arguments(converted(item.arguments, str | None, f"{place}.arguments"))
    if item.type == "custom_tool_call":
        arguments = msgspec.json.encode({CUSTOM_INPUT: item.input or ""}).decode()
    call = {"id": item.call_id, "function": {"name": offered_name(item.name, item.namespace), "arguments": arguments}}
    return {"role": _ASSISTANT, "content": None, "tool_calls": [call]}


def _output(item: Item, place: str) -> Turn:
    output = converted(item.output, str | list[Part] | None, f"{place}.output")
    return {"role": "tool", "content": _content(output, f"{place}.output"), "tool_call_id": item.call_id}


def _thoughts(item: Item, place: str) -> Turn:
    """Return thoughts of an earlier answer; thoughts that another server encrypted are left out."""
    text = item.content if isinstance(item.content, str) else _joined(item.content or item.summary or [])
    return _NO_THOUGHTS | ({"reasoning": text} if text else {})


def _joined(parts: list[Part]) -> str:
    return "\n".join(part.text or "" for part in parts)


def _content(content: str | list[Part] | None, place: str) -> Any:
    if isinstance(content, str):
        return content
    if content is None:
        raise bad(place, "give a text or a list of parts")
    parts = [_part(part, f"{place}[{number}]") for number, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def json_value(part: Part, place: str) -> Any:
    """Return the value of a part of the type `input_json`; raises Problem if it has none."""
    if part.data is None:
        raise bad(f"{place}.data", "give a JSON value that is not null")
    return part.data


def _part(part: Part, place: str) -> dict[str, Any]:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type in _TEXTS and text is not None:
        return {"type": "text", "text": text}
    if part.type == "input_image" and isinstance(part.image_url, str):
        return {"type": "image", "data": image_data(part.image_url, f"{place}.image_url")}
    if part.type == "input_json":
        return {"type": "text", "text": shown(json_value(part, place))}
    if part.type == "input_audio":
        return audio_part(part, f"{place}.input_audio")
    raise bad(
        place, "a part is {type: input_text, text}, {type: input_image, image_url} or {type: input_audio, input_audio}"
    )
