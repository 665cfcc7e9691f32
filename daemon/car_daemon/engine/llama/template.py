"""The model's own chat template; no text of a client is parsed for control tokens."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from jinja2 import nodes
from msgspec.structs import replace

from car_daemon.engine.frames import Chat
from car_daemon.engine.image_slots import Slot, cut
from car_daemon.engine.llama.marks import Marks
from car_daemon.engine.llama.sandbox import chat_environment
from car_daemon.engine.llama.variables import chat_variables
from car_daemon.engine.output.format import detect
from car_daemon.engine.refusal import Refusal
from car_daemon.engine.sight import Carried

_MAX_BYTES = 64 * 1024 * 1024
# What a chat has beside its messages, and the member's value where it has none.
_OPTIONAL: dict[str, Any] = {"template_args": {}, "tools": []}
_RESERVED = ("messages", "tools")


class Vocabulary(Protocol):
    """What rendering needs to know about a model's tokens."""

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
        """Whether every text has to begin with it."""
        ...

    @property
    def end(self) -> int:
        """The token that ends a turn; -1 for none."""
        ...

    def text_of(self, token: int) -> str:
        """Return a token's text, also where it is a control token; empty for none."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens."""
        ...


class TemplateError(Refusal):
    """The template refuses a chat; `param` is the member of the request at fault."""

    def __init__(self, param: str) -> None:
        super().__init__("invalid_params", param=param)


class Rendered(NamedTuple):
    """A prompt, whether it ends inside an opened thinking part, and the first position of each image."""

    tokens: list[int]
    inside: bool
    starts: list[int] = []  # noqa: RUF012 - the default of a tuple's member, which nobody changes


class ChatTemplate:
    """Renders chats into tokens; raises jinja2.TemplateSyntaxError for a template that is none."""

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        environment = chat_environment()
        tree = environment.parse(source)
        self.format = detect(source)
        self._source = source
        self._vocabulary = vocabulary
        self._template = environment.from_string(source)
        self._marks = Marks(vocabulary.specials, _texts(tree))
        self._null_content = any(map(_asks_for_content, tree.find_all(nodes.Test)))
        self._names = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}

    @property
    def takes_tools(self) -> bool:
        """Whether the template looks at tools at all."""
        return "tools" in self._names

    def render(self, chat: Chat, check: Callable[[int], None] = lambda _: None) -> Rendered:
        """Return the chat's tokens, ready for the assistant's turn; raises TemplateError.

        `check` is told how many bytes there are to be cut into tokens, and may raise.
        """
        segments, inside = self._segments(chat, typed=False)
        check(sum(len(text.encode()) for text, _ in segments))
        tokens = [token for text, parse in segments for token in self._cut(text, parse_special=parse)]
        return Rendered(self._begun(tokens), inside)

    def render_images(self, carried: Carried, check: Callable[[int], None] = lambda _: None) -> Rendered:
        """Return a chat's tokens with what stands for its images; raises Refusal where one has no place."""
        try:
            return self._placed(carried, check, typed=False)
        except Refusal:
            # Some templates show images only where content is a list of parts.
            return self._placed(carried, check, typed=True)

    def _placed(self, carried: Carried, check: Callable[[int], None], *, typed: bool) -> Rendered:
        segments, inside = self._segments(carried.chat, typed=typed)
        tokens: list[int] = []
        starts = [0] * len(carried.files)
        pieces = list(cut(segments, len(carried.files), carried.secret))
        check(sum(len(piece.text.encode()) for piece in pieces if not isinstance(piece, Slot)))
        for piece in pieces:
            if isinstance(piece, Slot):
                starts[piece.image] = len(tokens)
                tokens += carried.placeholders[piece.image]
            else:
                tokens += self._cut(piece.text, parse_special=piece.parse_special)
        begun = self._begun(tokens)
        before = len(begun) - len(tokens)
        return Rendered(begun, inside, [before + start for start in starts])

    def _segments(self, chat: Chat, *, typed: bool) -> tuple[list[tuple[str, bool]], bool]:
        """Return the rendered pieces, with whether control tokens count in each, and whether they end in a thought."""
        if any(name in chat.template_args for name in _RESERVED):
            raise TemplateError("template_args")
        mark = self._free_mark(chat)
        try:
            text = self._text(chat, mark, typed=typed)
        except Exception as error:
            raise TemplateError(self._fault(chat, mark)) from error
        inside = self._ends_inside(text)
        if inside and chat.reasoning == "off":
            text, inside = self._closed(text), False
        return list(self._marks.segments(text, mark)), inside

    def _free_mark(self, chat: Chat) -> str:
        # Lower case, as escapes in the text of a call's arguments or in a literal may be of either.
        mark = self._marks.free((msgspec.json.encode(chat).decode() + self._source).lower())
        if mark is None:
            raise TemplateError("messages")
        return mark

    def _text(self, chat: Chat, mark: str, *, typed: bool = False) -> str:
        put = partial(self._marks.put, mark=mark)
        given = chat_variables(chat, put, null_content=self._null_content, typed=typed)
        defaults = {
            "add_generation_prompt": True,
            "bos_token": self._vocabulary.text_of(self._vocabulary.begin),
            "eos_token": self._vocabulary.text_of(self._vocabulary.end),
        }
        return "".join(_bounded(self._template.generate(defaults | given)))

    def _fault(self, chat: Chat, mark: str) -> str:
        """Return the member without which the template takes the chat."""
        for member, nothing in _OPTIONAL.items():
            if getattr(chat, member) and self._takes(replace(chat, **{member: nothing}), mark):
                return member
        return "messages"

    def _takes(self, chat: Chat, mark: str) -> bool:
        try:
            self._text(chat, mark)
        except Exception:  # noqa: BLE001 - a template is the model's code and may raise anything
            return False
        return True

    def _ends_inside(self, text: str) -> bool:
        thinking = self.format.thinking
        return thinking is not None and text.rstrip().endswith(thinking.open)

    def _closed(self, text: str) -> str:
        """Close the thinking part that the text ends with, as models that may skip thinking have it."""
        assert self.format.thinking is not None
        return f"{text.rstrip()}\n\n{self.format.thinking.close}\n\n"

    def _cut(self, text: str, *, parse_special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=parse_special)

    def _begun(self, tokens: list[int]) -> list[int]:
        """Return tokens that begin as every text of this model does."""
        begin = self._vocabulary.begin
        return [begin, *tokens] if self._vocabulary.adds_begin and tokens[:1] != [begin] else tokens


def _texts(tree: nodes.Template) -> Iterator[str]:
    """Yield the string literals in a template's expressions."""
    return (const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str))


def _asks_for_content(test: nodes.Test) -> bool:
    """Whether a template asks here if a message's content is none."""
    match test.node:
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return test.name == "none"
        case nodes.Name():
            return test.name == "none" and test.node.name == "content"
    return False


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    """Pass text on; raises ValueError for more than a prompt can be, and for what is no Unicode text."""
    size = 0
    for piece in pieces:
        size += len(piece.encode())
        if size > _MAX_BYTES:
            raise ValueError("the template writes without end")
        yield piece
