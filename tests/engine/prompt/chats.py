"""Chats and templates that tests render."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from car_base.ipc.frames import Chat
from car_engine.prompt.rendering.environment import local_now
from car_engine.prompt.rendering.renderer import Preparation
from car_engine.prompt.template import ChatTemplate
from car_engine.prompt.vocabulary import PromptVocabulary
from car_protocol.conversation import Function, FunctionCall, Message, Tool, ToolCall
from tests.engine.prompt.fakes import FakeVocabulary

TODAY = datetime(2030, 1, 7, 12, tzinfo=UTC)
TEMPLATES = Path(__file__).parent / "templates"
Family = Literal["chatml", "llama3", "mistral", "gemma", "phi4", "qwen3", "deepseek_r1"]

_CHATML = ["<|im_start|>", "<|im_end|>"]
_LLAMA = ["begin_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag"]
_MISTRAL = ["INST", "/INST", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS", "/TOOL_RESULTS"]
_PHI = ["system", "user", "assistant", "end", "tool", "/tool", "tool_call", "/tool_call", "tool_response"]
_DEEPSEEK = ["begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁sep"] + [
    f"tool▁{what}▁{side}" for what in ("calls", "call", "outputs", "output") for side in ("begin", "end")
]
_VOCABULARIES: dict[Family, FakeVocabulary] = {
    "chatml": FakeVocabulary(_CHATML, end="<|im_end|>"),
    "llama3": FakeVocabulary([f"<|{name}|>" for name in _LLAMA], begin="<|begin_of_text|>", adds_begin=True),
    "mistral": FakeVocabulary(["<s>", "</s>", *(f"[{name}]" for name in _MISTRAL)], begin="<s>", end="</s>"),
    "gemma": FakeVocabulary(["<bos>", "<start_of_turn>", "<end_of_turn>"], begin="<bos>", adds_begin=True),
    "phi4": FakeVocabulary([f"<|{name}|>" for name in _PHI], end="<|end|>"),
    "qwen3": FakeVocabulary(_CHATML, end="<|im_end|>"),
    "deepseek_r1": FakeVocabulary(
        [f"<｜{name}｜>" for name in _DEEPSEEK],
        begin="<｜begin▁of▁sentence｜>",
        end="<｜end▁of▁sentence｜>",
        adds_begin=True,
    ),
}
FAMILIES = list(_VOCABULARIES)
WITH_TOOLS: list[Family] = ["llama3", "mistral", "phi4", "qwen3", "deepseek_r1"]


def opened(source: str, vocabulary: PromptVocabulary, now: Callable[[], datetime] = local_now) -> ChatTemplate:
    """Return a template that is rendered in this process, as a child renders it."""
    return ChatTemplate(source, vocabulary, Preparation(now).answer)


@cache
def family(name: Family) -> tuple[ChatTemplate, FakeVocabulary]:
    """Return the template of a model family, and its control tokens."""
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return opened(source, _VOCABULARIES[name], lambda: TODAY), _VOCABULARIES[name]


def chat(*messages: Message, **members: Any) -> Chat:
    """Return a chat."""
    return Chat(messages=list(messages), **members)


def user(*contents: str) -> list[Message]:
    """Return what a user says."""
    return [Message("user", content) for content in contents]


def call(name: str, arguments: str, *, key: str = "call00001") -> ToolCall:
    """Return one call."""
    return ToolCall(key, FunctionCall(name, arguments))


def calls(*made: ToolCall, reasoning: str | None = None) -> Message:
    """Return a turn that is made of calls."""
    return Message("assistant", None, reasoning=reasoning, tool_calls=list(made))


def result(content: str, *, key: str = "call00001") -> Message:
    """Return what a call brought."""
    return Message("tool", content, tool_call_id=key)


def tool(name: str, description: str, properties: dict[str, Any], required: Sequence[str] = ()) -> Tool:
    """Return a function that may be called."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return Tool("function", Function(name, description, parameters))
