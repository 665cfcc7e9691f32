"""The model's own chat template, in jinja2's sandbox; no text of a message is parsed for control tokens."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.preparer import Refusal
from car_protocol.infer import Message

# Noncharacters, which no text should hold: two that the conversation does not hold mark its words.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class TemplateError(Refusal):
    """The template refuses this conversation."""

    def __init__(self) -> None:
        super().__init__("invalid_params", param="messages")


class ChatTemplate:
    """Renders conversations into tokens; raises jinja2.TemplateSyntaxError for a template that is none."""

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._template = environment.from_string(source)

    def render(self, messages: list[Message]) -> list[int]:
        """Return the conversation's tokens, ready for the assistant's turn; raises TemplateError."""
        marks = self._free_marks(messages)
        rendered = self._rendered([self._protected(message, marks) for message in messages])
        tokens: list[int] = []
        for text, parse_special in _segments(rendered, marks):
            tokens += self._vocabulary.tokenize(text, add_special=False, parse_special=parse_special)
        begin = self._vocabulary.begin
        if self._vocabulary.adds_begin and tokens[:1] != [begin]:
            tokens.insert(0, begin)
        return tokens

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        end = next(iter(sorted(self._vocabulary.ends)), -1)
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=self._vocabulary.text_of(self._vocabulary.begin),
                eos_token=self._vocabulary.text_of(end),
            )
        except (
            jinja2.TemplateError,
            AttributeError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            RecursionError,
        ) as error:
            # A template is the model's code: whatever it raises means that it cannot take this conversation.
            raise TemplateError from error

    def _free_marks(self, messages: list[Message]) -> tuple[str, str]:
        text = "".join(message.text for message in messages)
        free = [mark for mark in _MARKS if mark not in text]
        if len(free) < 2:
            raise TemplateError
        return free[0], free[1]

    def _protected(self, message: Message, marks: tuple[str, str]) -> dict[str, str]:
        text = message.text
        for special in self._vocabulary.specials:
            if special in text:
                text = text.replace(special, marks[0] + special + marks[1])
        return {"role": message.role, "content": text}


def _segments(text: str, marks: tuple[str, str]) -> Iterable[tuple[str, bool]]:
    """Split at the marks: pieces of the template, in which control tokens count, and marked words."""
    opening, closing = marks
    for part in text.split(opening):
        words, found, rest = part.rpartition(closing)
        if found:
            yield words.replace(closing, ""), False
        if rest:
            yield rest, True


def _refuse(_message: str) -> NoReturn:
    raise TemplateError


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
