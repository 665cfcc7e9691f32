"""A compiled chat template: chats into text, in a second form if the first form fails."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any

from jinja2 import nodes
from msgspec import UNSET
from msgspec.structs import replace

from car_base.ipc.frames import Chat
from car_engine.prompt.rendering.chat_variables import ChatForm, Escape, chat_variables, dates
from car_engine.prompt.rendering.environment import TemplateRefusal, chat_environment
from car_engine.prompt.rendering.template_reads import reads_of
from car_protocol.conversation import SYSTEM_ROLES, FunctionCall, Message, TextPart, ToolCall

_BETWEEN = "\n\n"
_JOINED = ("system", "user")  # the roles whose turns take the text of a late system message


def folded(messages: list[Message]) -> list[Message]:
    """Return the messages without a system role; text that no user's turn follows is a turn of its own."""
    turns: list[Message] = []
    waiting: list[str] = []  # texts of system messages before the next user's turn
    for message in messages:
        if message.role == "system":
            waiting.append(message.text)
        elif message.role == "user" and waiting:
            turns.append(_with(message, _BETWEEN.join(waiting)))
            waiting.clear()
        else:
            turns.append(message)
    return [*turns, Message("user", _BETWEEN.join(waiting))] if waiting else turns


def folded_late(messages: list[Message]) -> list[Message]:
    """Return the messages with at most one of the system, the first; later text goes into turns of the user.

    It joins the turn before it, so that a conversation that goes on keeps its beginning, else the turn after it, and
    is a turn of its own if neither is the user's. The results of one turn's calls stay together.
    """
    turns: list[Message] = []
    waiting: list[str] = []  # texts of system messages before the next turn
    for message in messages:
        if message.role == "system" and turns:
            if turns[-1].role in _JOINED and not waiting:
                turns[-1] = _followed(turns[-1], message.text)
            else:
                waiting.append(message.text)
        elif message.role == "tool" or not waiting:
            turns.append(message)
        else:
            turns += _after(_BETWEEN.join(waiting), message)
            waiting.clear()
    return [*turns, Message("user", _BETWEEN.join(waiting))] if waiting else turns


def _after(text: str, message: Message) -> list[Message]:
    """Return a text and the message after it, as one turn if that is the user's."""
    return [_with(message, text)] if message.role == "user" else [Message("user", text), message]


def renamed(messages: list[Message]) -> list[Message]:
    """Return the messages with a developer's as the system's, which most models take them for."""
    return [replace(message, role="system") if message.role == "developer" else message for message in messages]


def _with(message: Message, text: str) -> Message:
    if isinstance(message.content, list):
        return replace(message, content=[TextPart(text + _BETWEEN), *message.content])
    return replace(message, content=_BETWEEN.join((text, message.text)))


def _followed(message: Message, text: str) -> Message:
    if isinstance(message.content, list):
        return replace(message, content=[*message.content, TextPart(_BETWEEN + text)])
    return replace(message, content=_BETWEEN.join((message.text, text)))


def one_by_one(messages: list[Message]) -> list[Message]:
    """Return the messages with each call as an answer of its own, which its result follows."""
    turns: list[Message] = []
    rest = messages
    while rest:
        message, *rest = rest
        if len(message.tool_calls or ()) < 2:
            turns.append(message)
            continue
        results = list(takewhile(lambda each: each.role == "tool", rest))
        rest = rest[len(results) :]
        turns += _apart(message, results)
    return turns


def _apart(message: Message, results: list[Message]) -> list[Message]:
    """Return the calls of an answer with their results; results of no call come last."""
    turns: list[Message] = []
    left = list(results)
    for number, call in enumerate(message.tool_calls or ()):
        base = message if number == 0 else Message("assistant", "")
        turns.append(replace(base, tool_calls=[call]))
        # A result without an id is of the next call.
        place = next((place for place, each in enumerate(left) if each.tool_call_id in (call.id, UNSET)), None)
        if place is not None:
            turns.append(left.pop(place))
    return turns + left


_SAID = "a message of a role"
_USER = Message("user", "Hi")
_CALLS = ("first_function", "second_function")


class TemplateWriter:
    """Renders chats as text; raises what jinja raises for a source that cannot be compiled.

    `tokens` are the texts of the begin and the end token; `now` returns the local time.
    """

    def __init__(self, source: str, tokens: dict[str, str], now: Callable[[], datetime]) -> None:
        environment = chat_environment(now)
        tree = environment.parse(source)
        self._template = environment.from_string(source)
        self._tokens = tokens
        self._now = now
        self.reads = reads_of(tree)
        self.literals = [const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)]

    def text(self, chat: Chat, escape: Escape, *, typed: bool = False) -> str:
        """Return a chat's text; raises what the template raises, its own refusal before others."""
        taken = replace(chat, messages=self._taken(chat.messages))
        return self._formed(taken, escape, typed=typed or self.needs_parts)

    @cached_property
    def needs_parts(self) -> bool:
        """True if the template shows content only if it is a list of parts."""
        said = [Message("user", _SAID)]
        return _SAID not in (self._tried(said) or "") and _SAID in (self._tried(said, typed=True) or "")

    @cached_property
    def takes_system(self) -> bool:
        """True if the template shows a system message."""
        return self._shows("system")

    @cached_property
    def takes_late_system(self) -> bool:
        """True if the template shows a system message after the user's."""
        shown = self._tried([Message("system", "Hello"), _USER, Message("system", _SAID)], typed=self.needs_parts)
        return shown is not None and _SAID in shown

    @cached_property
    def takes_developer(self) -> bool:
        """True if the template has a place of its own for a developer's message."""
        return "developer" in self.reads.words and self._shows("developer")

    @cached_property
    def takes_calls(self) -> bool:
        """True if the template shows all calls of an answer; also if it shows none."""
        made = (_called(_CALLS[:1]), _called(_CALLS))
        one, several = (self._tried([_USER, *turns], typed=self.needs_parts) for turns in made)
        return one is None or _CALLS[0] not in one or (several is not None and _CALLS[1] in several)

    @cached_property
    def asking(self) -> tuple[str, int]:
        """The text after a chat that asks for an answer, and how many of its characters later prompts have too.

        The text is empty if the template has no such text, or refuses a short chat.
        """
        with suppress(Exception):
            asked, said = (
                self._formed(Chat(messages=[_USER], continue_last=last), lambda value: value, typed=self.needs_parts)
                for last in (False, True)
            )
            if asked.startswith(said):
                answered = self._tried([_USER, Message("assistant", _SAID), _USER], typed=self.needs_parts) or ""
                alike = takewhile(lambda pair: pair[0] == pair[1], zip(asked, answered, strict=False))
                return asked.removeprefix(said), max(0, sum(1 for _ in alike) - len(said))
        return "", 0

    def _taken(self, messages: list[Message]) -> list[Message]:
        """Return messages in roles that the template takes."""
        roles = {message.role for message in messages}
        if "developer" in roles and not self.takes_developer:
            messages = renamed(messages)
        if any(message.role == "system" for message in messages[1:]) and not self.takes_late_system:
            messages = folded_late(messages)
        if not roles.isdisjoint(SYSTEM_ROLES) and not self.takes_system:
            messages = folded(messages)
        if any(len(message.tool_calls or ()) > 1 for message in messages) and not self.takes_calls:
            messages = one_by_one(messages)
        return messages

    def _shows(self, role: str) -> bool:
        """Return whether a message is shown; true if the template takes not even a short chat without it."""
        shown, alone = (self._tried(said, typed=self.needs_parts) for said in ([Message(role, _SAID), _USER], [_USER]))
        return _SAID in shown if shown is not None else alone is None

    def _tried(self, messages: list[Message], *, typed: bool = False) -> str | None:
        # A template is the model's code and may raise anything.
        with suppress(Exception):
            return self._formed(Chat(messages=messages), lambda value: value, typed=typed)
        return None

    def _formed(self, chat: Chat, escape: Escape, *, typed: bool) -> str:
        try:
            return self._written(chat, escape, ChatForm(typed))
        except MemoryError:
            raise
        except TemplateRefusal as refusal:
            with suppress(Exception):
                return self._written(chat, escape, ChatForm(typed, complete=True))
            raise refusal from None
        except Exception:  # noqa: BLE001 - the second form raises its own
            return self._written(chat, escape, ChatForm(typed, complete=True))

    def _written(self, chat: Chat, escape: Escape, form: ChatForm) -> str:
        given = chat_variables(chat, escape, self.reads, form)
        defaults: dict[str, Any] = {
            "add_generation_prompt": not chat.continue_last,
            **self._tokens,
            **dates(self._now()),
        }
        text = self._template.render(defaults | given)
        # Raises for text that is not valid Unicode.
        text.encode()
        return text


def _called(names: Iterable[str]) -> list[Message]:
    """Return an answer with calls, and their results."""
    # Some templates take ids of nine characters only.
    calls = [ToolCall(f"call0000{number}", FunctionCall(name, "{}")) for number, name in enumerate(names)]
    results = [Message("tool", "done", tool_call_id=call.id, name=call.function.name) for call in calls]
    return [Message("assistant", "", tool_calls=calls), *results]
