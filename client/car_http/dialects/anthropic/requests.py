"""`POST /v1/messages` and `/v1/messages/count_tokens`: requests."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from car_http.dialects.anthropic.writer import MessagesWriter
from car_http.dialects.common import Caller, caller_params, given, own_params, refuse, same_named
from car_http.dialects.job import Job
from car_http.dialects.openai_chat import response_params
from car_http.problems import bad
from car_protocol.sampling import Fraction, Temperature

MEMBERS = {"stop": "stop_sequences", "json_schema": "output_config.format", "session": "metadata.user_id"}
_REFUSED = {
    "mcp_servers": "the door connects to no server: connect the client to it",
    "container": "there are no containers",
}
# Claude Code's first system block, which changes with every request: prefix caches would never match.
_BILLING = "x-anthropic-billing-header:"
_ANY_MODEL = "claude"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING = {"disabled": "off", "enabled": "on", "adaptive": None}
Block = dict[str, Any]
Turn = dict[str, Any]


class Turned(Struct, kw_only=True):
    """One turn: a text or blocks."""

    role: str
    content: str | list[Block]


class Counted(Struct, kw_only=True):
    """The members that decide the prompt."""

    messages: list[Turned]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class MessagesRequest(Counted, kw_only=True):
    """The body; members that it does not name are dropped."""

    max_tokens: int
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    card: dict[str, Any] | None = None
    mcp_servers: Any = UNSET
    container: Any = UNSET


def read(request: MessagesRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    refuse(request, _REFUSED)
    stream = bool(request.stream)
    session = (request.metadata or {}).get("user_id")
    params = prompt_params(request) | same_named(request, ("temperature", "top_p", "top_k"))
    params |= given(max_tokens=request.max_tokens, stop=request.stop_sequences or None, tool_choice=_choice(request))
    if request.tools and (request.tool_choice or {}).get("disable_parallel_tool_use"):
        params["parallel_tool_calls"] = False
    params |= caller_params(caller, user=None, session=session if isinstance(session, str) else None, stream=stream)
    params |= _format(request)
    writer = MessagesWriter(request.model or "")
    return Job(params | own_params(caller, request.card), stream, writer, MEMBERS, _any_model(request))


def read_count(request: Counted) -> tuple[dict[str, Any], bool]:
    """Return the params of `tokenize`, and whether the default model answers for an unknown name; raises Problem."""
    return prompt_params(request) | {"count_only": True}, _any_model(request)


def prompt_params(request: Counted) -> dict[str, Any]:
    """Return the params that decide the prompt; raises Problem."""
    turns = [{"role": "system", "content": text}] if (text := _system(request.system)) else []
    for place, message in enumerate(request.messages):
        turns += _turns(message, f"messages[{place}]")
    last = turns[-1] if turns else {}
    prefilled = last.get("role") == "assistant" and isinstance(last["content"], str) and "tool_calls" not in last
    return given(
        model=request.model or None,
        messages=turns,
        tools=[_tool(tool, f"tools[{place}]") for place, tool in enumerate(request.tools or [])] or None,
        continue_last=prefilled or None,
    ) | _thinking(request.thinking)


def _any_model(request: Counted) -> bool:
    return (request.model or "").startswith(_ANY_MODEL)


def _system(system: str | list[Block] | None) -> str:
    blocks = [system] if isinstance(system, str) else [str(block.get("text", "")) for block in system or []]
    return "\n\n".join(text for text in blocks if text and not text.startswith(_BILLING))


def _thinking(thinking: dict[str, Any] | None) -> dict[str, Any]:
    mode = _THINKING.get(str((thinking or {}).get("type")))
    return given(reasoning=mode)


def _format(request: MessagesRequest) -> dict[str, Any]:
    form = request.output_format or (request.output_config or {}).get("format")
    return response_params(form) if isinstance(form, dict) else {}


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise bad(place, f"tools of the type `{tool.get('type')}` are not offered: only those with an `input_schema`")
    function = given(name=tool.get("name"), description=tool.get("description"), parameters=schema)
    return {"type": "function", "function": function}


def _choice(request: Counted) -> Any:
    choice = request.tool_choice
    if not choice or not request.tools:
        return None
    if choice.get("type") == "tool":
        return {"name": choice.get("name")}
    if choice.get("type") not in _CHOICES:
        raise bad("tool_choice", "give {type: auto}, {type: any}, {type: none} or {type: tool, name}")
    return _CHOICES[choice["type"]]


def _turns(message: Turned, place: str) -> list[Turn]:
    """Return a message as turns: the results of tools are turns of their own, before the user's text."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant(message.content, place)]
    results, parts = [], []
    for number, block in enumerate(message.content):
        at = f"{place}.content[{number}]"
        if block.get("type") == "tool_result":
            results.append(_result(block, at))
        else:
            parts.append(_part(block, at))
    return [*results, {"role": message.role, "content": parts}] if parts or not results else results


def _assistant(blocks: list[Block], place: str) -> Turn:
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            arguments = msgspec.json.encode(block.get("input", {})).decode()
            calls.append({"id": block.get("id"), "function": {"name": block.get("name"), "arguments": arguments}})
        elif kind != "redacted_thinking":
            raise bad(f"{place}.content[{number}]", f"blocks of the type `{kind}` are not offered")
    content = "".join(texts)
    return {"role": "assistant", "content": content or (None if calls else "")} | given(
        reasoning="\n".join(thoughts) or None, tool_calls=calls or None
    )


def _result(block: Block, place: str) -> Turn:
    content = block.get("content", "")
    if isinstance(content, list):
        content = [_part(part, f"{place}.content[{number}]") for number, part in enumerate(content)] or ""
    return {"role": "tool", "content": content, "tool_call_id": block.get("tool_use_id")}


def _part(block: Block, place: str) -> dict[str, Any]:
    kind, source = block.get("type"), block.get("source")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if isinstance(source, dict) and isinstance(source.get("data"), str):
        if kind == "image" and source.get("type") == "base64":
            return {"type": "image", "data": source["data"]}
        if kind == "document" and source.get("type") == "text":
            return {"type": "text", "text": source["data"]}
    if kind == "image":
        raise bad(place, "send the image as base64: the door fetches nothing")
    raise bad(place, f"blocks of the type `{kind}` are not offered here")
