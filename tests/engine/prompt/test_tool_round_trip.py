"""What a template of a family writes of a call is read back as that call."""

import json
from itertools import count
from typing import Any

import pytest

from car_base.ipc.frames import CallDelta
from car_base.ipc.template_syntax import abilities_of
from car_base.ipc.types import ToolStyle
from car_engine.output.families import FAMILIES
from car_engine.output.literals import kinds_of
from car_engine.output.tool_calls import ToolCallReader
from car_engine.prompt.template import ChatTemplate
from car_protocol.answer import joined_calls
from car_protocol.conversation import Message, Tool
from tests.engine.output.recorded import ARGUMENTS, FUNCTIONS
from tests.engine.prompt.chats import call, calls, chat, opened
from tests.engine.prompt.fakes import FakeVocabulary
from tests.engine.prompt.family_templates import TEMPLATES

VOCABULARY = FakeVocabulary(["<s>", "</s>"], begin="<s>", end="</s>")
TOOLS = [Tool("function", function) for function in FUNCTIONS]
LOOK_UP = call("look_up", json.dumps(ARGUMENTS, ensure_ascii=False), key="call00001")
LIST_ALL = call("list_all", "{}", key="call00002")


def written(template: ChatTemplate, *messages: Message, **members: Any) -> str:
    """Return a conversation with tools as the template writes it."""
    return VOCABULARY.written(template.render(chat(*messages, tools=TOOLS, **members)).tokens)


def read_back(style: ToolStyle, answer: str) -> tuple[list[tuple[str, object]], str]:
    """Return the calls of an answer, and its text."""
    header = FAMILIES[style].header
    numbers = count()
    begun = header.start if header is not None and not answer.startswith(header.starts) else ""
    reader = ToolCallReader(style, lambda: f"id{next(numbers)}", kinds_of(FUNCTIONS), begun=begun)
    parts = reader.push(answer) + reader.finish()
    found = [each.function for each in joined_calls(part for part in parts if isinstance(part, CallDelta))]
    text = "".join(part for part in parts if isinstance(part, str))
    return [(function.name, json.loads(function.arguments)) for function in found], text


def test_every_style_that_a_template_shows_has_a_template_here() -> None:
    # Arrays of Mistral are told from its newer calls by the vocabulary.
    assert set(TEMPLATES) == set(FAMILIES) - {"mistral_v3"}


@pytest.mark.parametrize("style", TEMPLATES)
def test_calls_are_read_back_from_a_template_of_their_family(style: ToolStyle) -> None:
    template = opened(TEMPLATES[style], VOCABULARY)
    assert template.format.tools == style
    assert "tools" in abilities_of(TEMPLATES[style])
    asked = Message("user", "Look up")
    whole = written(template, asked, calls(LOOK_UP, LIST_ALL))
    answer = whole.removeprefix(written(template, asked)).removeprefix("assistant: ").removesuffix("</s>")
    assert read_back(style, answer) == ([("look_up", ARGUMENTS), ("list_all", {})], "")
