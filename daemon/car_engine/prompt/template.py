"""The chat template of a model; control tokens in a client's texts stay plain text."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_base.ipc.template_syntax import abilities_of
from car_base.ipc.types import Tags, ToolStyle
from car_engine.output.format import detect
from car_engine.prompt.image_prompt import ImagePrompt, Slot, new_secret, split_at_markers
from car_engine.prompt.rendering.writer import TemplateWriter
from car_engine.prompt.sandbox import local_now
from car_engine.prompt.special_token_escaper import SpecialTokenEscaper
from car_engine.prompt.template_fault import template_fault
from car_protocol.conversation import Message

# A template is code of some kilobytes; its compilation takes a thousand times its size.
_MOST_SOURCE = 512 * 1024
# Members of a chat beside its messages, with their empty values.
_OPTIONAL: dict[str, Any] = {"template_args": {}, "tools": []}
_RESERVED = ("messages", "tools")
# Variables in which templates read tools.
_TOOLS = ("tools", "functions")
_SHORT = Chat(messages=[Message("user", "Hi")])


class Vocabulary(Protocol):
    """The tokens of a model."""

    @property
    def specials(self) -> list[str]:
        """The texts of all control tokens."""
        ...

    @property
    def begin(self) -> int:
        """The token that begins a text."""
        ...

    @property
    def adds_begin(self) -> bool:
        """True if every text has to begin with it."""
        ...

    @property
    def end(self) -> int:
        """The token that ends a turn; -1 for none."""
        ...

    def text_of(self, token: int) -> str:
        """Return a token's text, also a control token's; empty for -1."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens."""
        ...


class InvalidTemplate(Exception):
    """A source that cannot be compiled; the message has jinja's own words and the line."""


class TemplateError(Refusal):
    """A chat that the template refuses; `param` is the member of the request at fault, `why` is jinja's own message."""

    def __init__(self, param: str, why: str | None = None) -> None:
        super().__init__("invalid_params", param=param, **({} if why is None else {"why": why}))


class Rendered(NamedTuple):
    """A prompt, whether it ends inside an opened thinking part, the first position of each image.

    `begun` is the part of a message's header that it ends with, and `tail` the number of tokens that ask for an answer.
    """

    tokens: list[int]
    inside: bool
    starts: list[int] = []  # noqa: RUF012 - the default of a tuple's member is never changed
    begun: str = ""
    tail: int = 1


class _End(NamedTuple):
    """The end of a prompt: inside a thought, or after the beginning of a message's header."""

    inside: bool
    begun: str


class ChatTemplate:
    """Renders chats into tokens; raises InvalidTemplate for a source that cannot be compiled.

    A configured `style` of calls and `tags` of thoughts override those that the template shows. Without
    `begins` a text gets no begin token that the template does not write.
    """

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        style: ToolStyle | None = None,
        tags: Tags | None = None,
        now: Callable[[], datetime] = local_now,
        *,
        begins: bool = True,
    ) -> None:
        if len(source) > _MOST_SOURCE:
            raise InvalidTemplate(f"it has {len(source):,} characters, the limit is {_MOST_SOURCE:,}")
        texts = {"bos_token": vocabulary.text_of(vocabulary.begin), "eos_token": vocabulary.text_of(vocabulary.end)}
        try:
            self._writer = TemplateWriter(source, texts, now)
        except Exception as error:  # noqa: BLE001 - Python's own compiler refuses what jinja accepts, and both recurse
            raise InvalidTemplate(template_fault(error)) from None
        self.format = detect(source, style, tags)
        self._source = source
        self._vocabulary = vocabulary
        self._adds_begin = begins and vocabulary.adds_begin
        self._escaper = SpecialTokenEscaper(vocabulary.specials, self._writer.literals)

    @property
    def abilities(self) -> list[str]:
        """`tools` and `thinking`, by the template's source."""
        return abilities_of(self._source, self.format.tools, self.format.thinking)

    @property
    def takes_tools(self) -> bool:
        """True if the template reads tools."""
        return not self._writer.reads.names.isdisjoint(_TOOLS)

    def try_out(self) -> None:
        """Render a short chat, because a template that does not end is better found by a load than by a request."""
        with suppress(Refusal):
            self.render(_SHORT)

    def render(self, chat: Chat, check: Callable[[int], None] = lambda _: None) -> Rendered:
        """Return the chat's tokens, ready for the assistant's turn; raises TemplateError.

        `check` gets the number of bytes to tokenize, and may raise.
        """
        segments, end = self._segments(chat, check, typed=False)
        tokens = [token for text, parse in segments for token in self._cut(text, parse_special=parse)]
        return Rendered(self._begun(tokens), end.inside, begun=end.begun, tail=self._tail(chat, segments))

    def render_images(self, prompt: ImagePrompt, check: Callable[[int], None] = lambda _: None) -> Rendered:
        """Return a chat's tokens with the placeholders of its images; raises Refusal where an image has no place."""
        try:
            return self._placed(prompt, check, typed=False)
        except Refusal:
            # Some templates show images only where content is a list of parts.
            return self._placed(prompt, check, typed=True)

    def _placed(self, prompt: ImagePrompt, check: Callable[[int], None], *, typed: bool) -> Rendered:
        segments, end = self._segments(prompt.chat, lambda size: check(size - prompt.marker_bytes), typed=typed)
        tokens: list[int] = []
        starts = [0] * len(prompt.files)
        pieces = split_at_markers(segments, len(prompt.files), prompt.secret)
        check(sum(len(piece.text.encode()) for piece in pieces if not isinstance(piece, Slot)))
        for piece in pieces:
            if isinstance(piece, Slot):
                starts[piece.image] = len(tokens)
                tokens += prompt.placeholders[piece.image]
            else:
                tokens += self._cut(piece.text, parse_special=piece.parse_special)
        begun = self._begun(tokens)
        before = len(begun) - len(tokens)
        return Rendered(
            begun, end.inside, [before + start for start in starts], end.begun, self._tail(prompt.chat, segments)
        )

    def _segments(
        self, chat: Chat, check: Callable[[int], None], *, typed: bool
    ) -> tuple[list[tuple[str, bool]], _End]:
        """Return the rendered pieces, whether control tokens count in each, and how they end.

        `check` gets the size of the text before it is cut into pieces, which take many times its memory.
        """
        if any(name in chat.template_args for name in _RESERVED):
            raise TemplateError("template_args")
        # Lower case, because escapes in a call's arguments or in a literal may be of either case.
        mark = self._escaper.free_mark((msgspec.json.encode(chat).decode() + self._source).lower())
        if mark is None:
            raise TemplateError("messages")
        # A marker at the end of the last message's text shows where a template goes on after it.
        secret = new_secret() if chat.continue_last else None
        try:
            escape = partial(self._escaper.escape, mark=mark)
            text = self._writer.text(chat if secret is None else _ending_in(chat, secret), escape, typed=typed)
        except Exception as error:
            raise TemplateError(self._fault(chat, mark), template_fault(error, mark)) from error
        check(_size_without(text, mark))
        thinking = self.format.thinking
        if secret is not None:
            text, shown, _ = text.rpartition(secret)
            if not shown:
                raise TemplateError("continue_last", "the chat template does not end with the last message")
            last = chat.messages[-1].text
            inside = thinking is not None and last.rfind(thinking.open) > last.rfind(thinking.close)
            return list(self._escaper.segments(text, mark)), _End(inside, "")
        inside = thinking is not None and text.rstrip().endswith(thinking.open)
        if thinking is not None and inside and chat.reasoning == "off":
            # As the templates of models that may skip thinking do.
            text, inside = f"{text.rstrip()}\n\n{thinking.close}\n\n", False
        header = self.format.family.header if self.format.family is not None else None
        begun = header.start if header is not None and text.endswith(header.start) else ""
        return list(self._escaper.segments(text, mark)), _End(inside, begun)

    def _fault(self, chat: Chat, mark: str) -> str:
        """Return the member without which the template takes the chat."""
        for member, nothing in _OPTIONAL.items():
            if getattr(chat, member):
                # A template is the model's code and may raise anything.
                with suppress(Exception):
                    self._writer.text(replace(chat, **{member: nothing}), partial(self._escaper.escape, mark=mark))
                    return member
        return "messages"

    def _cut(self, text: str, *, parse_special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=parse_special)

    def _tail(self, chat: Chat, segments: list[tuple[str, bool]]) -> int:
        """Return the number of tokens at the end that ask for an answer, at least 1."""
        text, own = segments[-1] if segments else ("", False)
        asking = "" if chat.continue_last else self._writer.asking
        _, found, rest = text.rpartition(asking) if own and asking else ("", "", "")
        return max(1, len(self._cut(found + rest, parse_special=True)))

    def _begun(self, tokens: list[int]) -> list[int]:
        """Return the tokens with the model's begin token, where every text has to begin with it."""
        begin = self._vocabulary.begin
        return [begin, *tokens] if self._adds_begin and tokens[:1] != [begin] else tokens


def _size_without(text: str, mark: str) -> int:
    """Return the bytes of a text without its marks; a character has at most two, unless the template adds some."""
    marks = text.count(mark)
    return max(len(text.encode()) - marks * len(mark.encode()), marks // 2)


def _ending_in(chat: Chat, secret: str) -> Chat:
    """Return the chat with a secret after the text of its last message."""
    last = chat.messages[-1]
    return replace(chat, messages=[*chat.messages[:-1], replace(last, content=last.text + secret)])
