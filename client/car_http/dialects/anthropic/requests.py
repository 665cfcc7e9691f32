"""`POST /v1/messages` and `/v1/messages/count_tokens`: requests."""

from collections.abc import Iterator, Mapping, Set
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from car_http.dialects.anthropic.writer import MessagesWriter
from car_http.dialects.bodies import Form, Own
from car_http.dialects.common import (
    Caller,
    as_sent,
    caller_params,
    converted,
    given,
    own_params,
    refuse,
    refuse_call,
    same_named,
    top_k_params,
)
from car_http.dialects.job import Job
from car_http.dialects.openai_chat import response_params
from car_http.dialects.vendor_tools import each_once, refuse_vendor_tool, vendor_tool
from car_http.problems import bad
from car_protocol.meta import note
from car_protocol.sampling import Fraction, Temperature

NAMES = {
    "stop": ("stop_sequences",),
    "json_schema": ("output_format", "output_config.format"),
    "template_args": ("output_config.effort",),
    "reasoning": ("thinking",),
    "reasoning_tokens": ("thinking.budget_tokens",),
    "session": ("metadata.user_id",),
    "continue_last": ("messages",),
}
_ASSISTANT = "assistant"
_REFUSED = {"container": "there are no containers"}
# Claude Code's first system block, which changes with every request: prefix caches would never match.
_BILLING = "x-anthropic-billing-header:"
_ANY_MODEL = "claude"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING = {"disabled": "off", "enabled": "on", "adaptive": None}
Turn = dict[str, Any]


class Source(Struct, kw_only=True):
    """The data of an image or of a document."""

    type: Annotated[str, note("base64, of a document text")]
    data: str | None = None


class Block(Struct, kw_only=True):
    """A block of a content; it has the members that its type names."""

    type: Annotated[str, note("text, image, document, thinking, redacted_thinking, tool_use, tool_result")]
    text: str | None = None
    source: Source | str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Annotated[Any, note("arguments of a call, as data")] = None
    tool_use_id: str | None = None
    content: Annotated[Any, note("of a tool_result: a text or blocks")] = None
    title: Annotated[str | None, note("of a document")] = None
    context: Annotated[str | None, note("facts about a document")] = None


class Offered(Struct, kw_only=True):
    """A tool."""

    name: str | None = None
    type: Annotated[str | None, note("`custom` or none: a tool of Anthropic's servers is left out")] = None
    description: str | None = None
    input_schema: Annotated[dict[str, Any] | None, note("a JSON schema")] = None


class Choice(Struct, kw_only=True):
    """Whether tools are called, and which one."""

    type: Annotated[str, note("auto, any, none or tool")]
    name: Annotated[str | None, note("of the tool")] = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, kw_only=True):
    """Whether the model thinks."""

    type: Annotated[str, note("enabled, disabled or adaptive")]
    budget_tokens: Annotated[int | None, note("the most tokens of thoughts")] = None


class Metadata(Struct, kw_only=True):
    """Facts about the request."""

    user_id: Annotated[str | None, note("the session")] = None


class Output(Struct, kw_only=True):
    """The output that is requested."""

    format: Form | None = None
    effort: Annotated[str | None, note("for templates that take one: low, medium, high, ...")] = None


class Turned(Struct, kw_only=True):
    """One turn: a text or blocks."""

    role: str
    content: str | list[Block]


class CountTokensRequest(Struct, kw_only=True):
    """The members that decide the prompt."""

    messages: list[Turned]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[Offered] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: Output | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """The body; members that it does not name are dropped."""

    max_tokens: int
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    output_format: Form | None = None
    card: Own | None = None
    mcp_servers: Any = None
    container: Any = None


def read(request: MessagesRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    refuse(request, _REFUSED)
    stream = bool(request.stream)
    session = request.metadata.user_id if request.metadata else None
    params = prompt_params(request) | same_named(request, ("temperature", "top_p")) | top_k_params(request.top_k)
    params |= given(
        max_tokens=request.max_tokens,
        stop=request.stop_sequences or None,
        reasoning_tokens=request.thinking.budget_tokens if request.thinking else None,
    )
    offered = {tool["function"]["name"] for tool in params.get("tools", [])}
    params |= _choice(request.tool_choice, offered, left_out=dict(_vendor_tools(request.tools)))
    if "tools" in params and request.tool_choice and request.tool_choice.disable_parallel_tool_use:
        params["parallel_tool_calls"] = False
    params |= caller_params(caller, user=None, session=session, stream=stream)
    params |= _format(request)
    left_out = each_once(_left_out(request))
    writer = MessagesWriter(request.model or "", left_out)
    members, claude = as_sent(request, NAMES, caller), is_claude(request.model or "")
    return Job(params | own_params(caller, request.card), stream, writer, members, claude, left_out)


def read_count(request: CountTokensRequest) -> tuple[dict[str, Any], bool]:
    """Return the params of `tokenize`, and whether the default model answers for an unknown name; raises Problem."""
    return prompt_params(request) | {"count_only": True}, is_claude(request.model or "")


def prompt_params(request: CountTokensRequest) -> dict[str, Any]:
    """Return the params that decide the prompt; raises Problem."""
    turns = [{"role": "system", "content": text}] if (text := _system(request.system)) else []
    for place, message in enumerate(request.messages):
        turns += _turns(message, f"messages[{place}]")
    last = turns[-1] if turns else {}
    prefilled = last.get("role") == _ASSISTANT and isinstance(last["content"], str) and "tool_calls" not in last
    return given(
        model=request.model or None,
        messages=turns,
        tools=_tools(request.tools) or None,
        continue_last=prefilled or None,
        template_args=_effort(request.output_config),
    ) | _thinking(request.thinking)


def is_claude(name: str) -> bool:
    """Return whether the default model answers to a name that no model has."""
    return name.startswith(_ANY_MODEL)


def _system(system: str | list[Block] | None) -> str:
    blocks = [Block(type="text", text=system)] if isinstance(system, str) else system or []
    for place, block in enumerate(blocks):
        if block.type != "text":
            raise bad(f"system[{place}]", f"blocks of the type `{block.type}` are not offered here: send text")
    return "\n\n".join(block.text for block in blocks if block.text and not block.text.startswith(_BILLING))


def _thinking(thinking: Thinking | None) -> dict[str, Any]:
    if thinking is None:
        return {}
    if thinking.type not in _THINKING:
        raise bad("thinking.type", f"give {', '.join(_THINKING)}")
    return given(reasoning=_THINKING[thinking.type])


def _effort(output: Output | None) -> dict[str, Any] | None:
    return None if output is None or output.effort is None else {"reasoning_effort": output.effort}


def _format(request: MessagesRequest) -> dict[str, Any]:
    form = None if request.output_config is None else request.output_config.format
    if request.output_format is None:
        return response_params(form, "output_config.format")
    if form is not None:
        raise bad("output_format", "is a second form beside `output_config.format`: send one of both")
    return response_params(request.output_format, "output_format")


def _left_out(request: MessagesRequest) -> Iterator[str | None]:
    """Yield what only Anthropic's servers have: of the tools, and of the steps of the conversation."""
    if request.mcp_servers:
        yield "mcp_servers"
    for _, kind in _vendor_tools(request.tools):
        yield kind
    for message in request.messages:
        if message.role == _ASSISTANT and not isinstance(message.content, str):
            yield from (_vendor_step(block) for block in message.content)


def _vendor_tools(tools: list[Offered] | None) -> list[tuple[str | None, str]]:
    """Return the name and the kind of each tool that is left out."""
    kinds = [(tool, vendor_tool(tool.type)) for tool in tools or []]
    return [(tool.name, kind) for tool, kind in kinds if kind is not None]


def _vendor_step(block: Block) -> str | None:
    """Return the tool of a step that Anthropic's server took, None for other blocks."""
    return vendor_tool(block.name) or block.type if block.type == "server_tool_use" else vendor_tool(block.type)


def _tools(tools: list[Offered] | None) -> list[dict[str, Any]]:
    return [_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools or []) if vendor_tool(tool.type) is None]


def _tool(tool: Offered, place: str) -> dict[str, Any]:
    if not tool.name:
        raise bad(f"{place}.name", "give a name")
    if tool.input_schema is None:
        if tool.type is None:
            raise bad(f"{place}.input_schema", "give the JSON schema of the arguments")
        raise bad(place, f"tools of the type `{tool.type}` are not offered: only those with an `input_schema`")
    function = given(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return {"type": "function", "function": function}


def _choice(choice: Choice | None, offered: Set[str], left_out: Mapping[str | None, str]) -> dict[str, Any]:
    """Return whether the tools that are offered are called; raises Problem for a choice of one that is left out."""
    if choice is None:
        return {}
    if not offered:
        refuse_call(_CHOICES.get(choice.type, choice.type), each_once(left_out.values()))
        return {}
    if choice.type == "tool" and choice.name is not None:
        if choice.name not in offered:
            refuse_vendor_tool(left_out.get(choice.name))
        return {"tool_choice": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise bad("tool_choice", "give {type: auto}, {type: any}, {type: none} or {type: tool, name}")
    return {"tool_choice": _CHOICES[choice.type]}


def _turns(message: Turned, place: str) -> list[Turn]:
    """Return a message as turns: the results of tools are turns of their own, before the user's text."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == _ASSISTANT:
        return [_assistant(message.content, place)]
    results, parts = [], []
    for number, block in enumerate(message.content):
        at = f"{place}.content[{number}]"
        if block.type == "tool_result":
            results.append(_result(block, at))
        else:
            parts.append(_part(block, at))
    return [*results, {"role": message.role, "content": parts}] if parts or not results else results


def _assistant(blocks: list[Block], place: str) -> Turn:
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(blocks):
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            arguments = msgspec.json.encode({} if block.input is None else block.input).decode()
            calls.append({"id": block.id, "function": {"name": block.name, "arguments": arguments}})
        elif block.type != "redacted_thinking" and not _vendor_step(block):
            raise bad(f"{place}.content[{number}]", f"blocks of the type `{block.type}` are not offered")
    content = "".join(texts)
    return {"role": _ASSISTANT, "content": content or (None if calls else "")} | given(
        reasoning="\n".join(thoughts) or None, tool_calls=calls or None
    )


def _result(block: Block, place: str) -> Turn:
    content = converted(block.content, str | list[Block] | None, f"{place}.content")
    if isinstance(content, list):
        content = [_part(part, f"{place}.content[{number}]") for number, part in enumerate(content)]
    return {"role": "tool", "content": content or "", "tool_call_id": block.tool_use_id}


def _part(block: Block, place: str) -> dict[str, Any]:
    if block.type == "text" and block.text is not None:
        return {"type": "text", "text": block.text}
    if isinstance(block.source, Source) and block.source.data is not None:
        if block.type == "image" and block.source.type == "base64":
            return {"type": "image", "data": block.source.data}
        if block.type == "document" and block.source.type == "text":
            return {"type": "text", "text": "\n".join(filter(None, (block.title, block.context, block.source.data)))}
    if block.type == "image":
        raise bad(place, "send the image as base64: the door fetches nothing")
    raise bad(place, f"blocks of the type `{block.type}` are not offered here")
