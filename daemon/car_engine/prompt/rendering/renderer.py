"""A chat as the pieces of a prompt; control tokens in a client's texts stay plain text. It runs in a child."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from traceback import walk_tb
from typing import Any

import jinja2
import msgspec
from msgspec.structs import replace

from car_base.host.event_log import named
from car_base.ipc.frames import Chat
from car_engine.child.frames import Answer, Declined, Defect, Invalid, Job, Opened, OpenTemplate, Render, Segments
from car_engine.prompt.rendering.environment import local_now
from car_engine.prompt.rendering.writer import TemplateWriter
from car_engine.prompt.special_token_escaper import SpecialTokenEscaper, new_secret
from car_protocol.conversation import Message

# Members of a chat beside its messages, with their empty values.
_OPTIONAL: dict[str, Any] = {"template_args": {}, "tools": []}
_RESERVED = ("messages", "tools")
# Variables in which templates read tools.
_TOOLS = ("tools", "functions")
_SHORT = Chat(messages=[Message("user", "Hi")])
_MOST_CHARACTERS = 300
# The file name of frames that jinja makes for the lines of a template without a file.
_FILE = "<template>"


class TemplateRenderer:
    """Renders chats by a template; raises what jinja raises for a source that cannot be compiled."""

    def __init__(self, template: OpenTemplate, now: Callable[[], datetime] = local_now) -> None:
        self._template = template
        self._writer = TemplateWriter(template.source, {"bos_token": template.begin, "eos_token": template.end}, now)
        self._escaper = SpecialTokenEscaper(template.specials, self._writer.literals)

    @property
    def takes_tools(self) -> bool:
        """True if the template reads tools."""
        return not self._writer.reads.names.isdisjoint(_TOOLS)

    @property
    def asking(self) -> tuple[str, int]:
        """The text after a chat that asks for an answer, and how many of its characters later prompts have too."""
        return self._writer.asking

    def try_out(self) -> None:
        """Render a short chat, so that the first chat of a client is as fast as later chats."""
        self.render(Render("", _SHORT, 0))

    def render(self, job: Render) -> Segments | Declined:
        """Return a chat's pieces, ready for the assistant's turn."""
        chat, thinking = job.chat, self._template.thinking
        if any(name in chat.template_args for name in _RESERVED):
            return Declined("template_args")
        # Lower case, because escapes in a call's arguments or in a literal may be of either case.
        mark = self._escaper.free_mark((msgspec.json.encode(chat).decode() + self._template.source).lower())
        if mark is None:
            return Declined("messages")
        # A marker at the end of the last message's text shows where a template goes on after it.
        secret = new_secret() if chat.continue_last else None
        try:
            escape = partial(self._escaper.escape, mark=mark)
            text = self._writer.text(chat if secret is None else _ending_in(chat, secret), escape, typed=job.typed)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is the model's code and may raise anything
            return Declined(self._fault(chat, mark), template_fault(error, mark))
        size = _size_without(text, mark)
        if size > job.most_bytes:
            # Its pieces take many times its memory.
            return Segments(size)
        if secret is not None:
            text, shown, _ = text.rpartition(secret)
            if not shown:
                return Declined("continue_last", "the chat template does not end with the last message")
            last = chat.messages[-1].text
            inside = thinking is not None and last.rfind(thinking.open) > last.rfind(thinking.close)
            return Segments(size, list(self._escaper.segments(text, mark)), inside)
        inside = thinking is not None and text.rstrip().endswith(thinking.open)
        if thinking is not None and inside and chat.reasoning == "off":
            # As the templates of models that may skip thinking do.
            text, inside = f"{text.rstrip()}\n\n{thinking.close}\n\n", False
        header = self._template.header
        begun = header if header is not None and text.endswith(header) else ""
        return Segments(size, list(self._escaper.segments(text, mark)), inside, begun)

    def _fault(self, chat: Chat, mark: str) -> str:
        """Return the member without which the template takes the chat."""
        for member, nothing in _OPTIONAL.items():
            if getattr(chat, member):
                with suppress(Exception):
                    self._writer.text(replace(chat, **{member: nothing}), partial(self._escaper.escape, mark=mark))
                    return member
        return "messages"


def template_fault(error: Exception, mark: str = "") -> str:
    """Return jinja's own message of a failure, without marks, after the template's line if that is known."""
    message = (str(error) or type(error).__name__).replace(mark, "")[:_MOST_CHARACTERS]
    line = _line(error)
    return message if line is None else f"line {line}: {message}"


def _line(error: Exception) -> int | None:
    if isinstance(error, jinja2.TemplateSyntaxError):
        # Its text is the message with the template's line, which may be long.
        return error.lineno
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == _FILE]
    return lines[-1] if lines else None


def _size_without(text: str, mark: str) -> int:
    """Return the bytes of a text without its marks; a character has at most two, unless the template adds some."""
    marks = text.count(mark)
    return max(len(text.encode()) - marks * len(mark.encode()), marks // 2)


def _ending_in(chat: Chat, secret: str) -> Chat:
    """Return the chat with a secret after the text of its last message."""
    last = chat.messages[-1]
    return replace(chat, messages=[*chat.messages[:-1], replace(last, content=last.text + secret)])


class Preparation:
    """Answers jobs; a MemoryError is the child's end. `now` returns the local time."""

    def __init__(self, now: Callable[[], datetime] = local_now) -> None:
        self._now = now
        self._renderers: dict[str, TemplateRenderer] = {}  # by the names of their templates

    def answer(self, job: Job) -> Answer:
        """Do one job."""
        try:
            match job:
                case OpenTemplate():
                    return self._open(job)
                case Render():
                    return self._renderers[job.template].render(job)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - reported with its place, as a fault of the request
            return Defect(named(error))

    def _open(self, job: OpenTemplate) -> Opened | Invalid:
        try:
            renderer = TemplateRenderer(job, self._now)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - Python's own compiler refuses what jinja accepts, and both recurse
            return Invalid(template_fault(error))
        renderer.try_out()
        self._renderers[job.name] = renderer
        return Opened(renderer.takes_tools, *renderer.asking)
