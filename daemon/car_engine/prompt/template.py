"""The chat template of a model: chats, which a child renders, into tokens."""

import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_base.ipc.template_syntax import abilities_of
from car_base.ipc.types import Tags, ToolStyle
from car_engine.child.children import ChildLost
from car_engine.child.frames import Answer, Invalid, Job, Opened, OpenTemplate, Render, Segments, expected
from car_engine.output.format import detect
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.image_prompt import ImagePrompt, PromptText, Slot, slots_in, split_at_markers
from car_engine.prompt.vocabulary import PromptVocabulary
from car_protocol.conversation import SYSTEM_ROLES, Message

_UNLIMITED = ContextLimit(sys.maxsize, 1)
_QUESTION, _ANSWER = Message("user", "Is it?"), Message("assistant", "Yes")


class InvalidTemplate(Exception):
    """A source that cannot be used; the message goes on after "the chat template"."""


def lead_of(prompt: str, before: str, thought: str | None) -> str:
    """Return what comes between a prompt and its answer's text, of a template that writes `before` ahead of the text.

    A prompt may go on with an empty `thought`, which no template writes ahead of an answer that is there. Behind it
    comes the header of the answer, if there is one. A space is no lead: models write it with the first word.
    """
    pairs = enumerate(zip(prompt, before, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(prompt), len(before)))
    if common < len(prompt):
        # Markers that begin alike are different markers.
        marker = before.rfind("<", 0, common)
        common = marker if marker > before.rfind(">", 0, common) else common
        empty = thought is not None and prompt.startswith(thought, common)
        if not empty or prompt.rstrip().endswith(before[common:].strip()):
            return ""
    return before[common:] if before[common:] != " " else ""


class Rendered(NamedTuple):
    """A prompt, whether it ends inside an opened thinking part, the first position of each image.

    `begun` is the part of a message's header that it ends with. `own` is how many of the last tokens later prompts of
    the chat do not have, and behind it how many other chats with the same beginning do not have, if that is known.
    """

    tokens: list[int]
    inside: bool
    starts: list[int] = []  # noqa: RUF012 - the default of a tuple's member is never changed
    begun: str = ""
    own: tuple[int, ...] = (1,)


class ChatTemplate:
    """Renders chats into tokens; raises InvalidTemplate for a source that cannot be used.

    `ask` has a child do a job, and raises ChildLost; the child has the template by its `name`. A configured `style` of
    calls and `tags` of thoughts override the template's own. Without `begins` a text gets no begin token that the
    template does not write.
    """

    def __init__(
        self,
        source: str,
        vocabulary: PromptVocabulary,
        ask: Callable[[Job], Answer],
        style: ToolStyle | None = None,
        tags: Tags | None = None,
        *,
        name: str = "chat",
        begins: bool = True,
    ) -> None:
        self.format = detect(source, style, tags)
        self._source = source
        self._vocabulary = vocabulary
        self._adds_begin = begins and vocabulary.adds_begin
        self._ask = ask
        self._name = name
        family = self.format.family
        opening = OpenTemplate(
            name,
            source,
            vocabulary.text_of(vocabulary.begin),
            vocabulary.text_of(vocabulary.end),
            vocabulary.specials,
            self.format.thinking,
            family.header.start if family is not None and family.header is not None else None,
        )
        try:
            opened = ask(opening)
        except ChildLost as lost:
            raise InvalidTemplate(f"takes {lost}, for a short chat: set another one") from None
        if isinstance(opened, Invalid):
            raise InvalidTemplate(f"is not valid Jinja: {opened.why}")
        found = expected(Opened, opened)
        self.takes_tools = found.takes_tools
        self._asking, self._kept = found.asking, found.kept

    @property
    def abilities(self) -> list[str]:
        """`tools` and `thinking`, by the template's source."""
        return abilities_of(self._source, self.format.tools, self.format.thinking)

    def reads(self, variable: str) -> bool:
        """Return whether the template may read a variable of this name."""
        return variable in self._source

    @cached_property
    def lead(self) -> list[int]:
        """The tokens between the end of a prompt without thoughts and the answer's text, as a header of the answer."""
        asked = Chat(messages=[_QUESTION], reasoning="off")
        try:
            prompt, whole = (
                "".join(text for text, _ in self._segments(chat, _UNLIMITED.most_bytes, typed=False).pieces)
                for chat in (asked, replace(asked, messages=[_QUESTION, _ANSWER], continue_last=True))
            )
        except Refusal:
            # It shows no answer that goes on, so the answer's text follows the prompt as far as is known.
            return []
        thought = None if self.format.thinking is None else self.format.thinking.open
        return self._cut(lead_of(prompt, whole.removesuffix(_ANSWER.text), thought), parse_special=True)

    def render(self, chat: Chat, limit: ContextLimit = _UNLIMITED, max_tokens: int | None = None) -> Rendered:
        """Return the chat's tokens, ready for the assistant's turn; raises Refusal."""
        segments = self._segments(chat, limit.most_bytes, typed=False)
        limit.check_bytes(segments.size, max_tokens)
        tokens = self._tokens(segments.pieces)
        own = self._own(chat, segments.pieces, tokens)
        return Rendered(self._begun(tokens), segments.inside, begun=segments.begun, own=own)

    def render_images(
        self, prompt: ImagePrompt, limit: ContextLimit = _UNLIMITED, max_tokens: int | None = None
    ) -> Rendered:
        """Return a chat's tokens with the placeholders of its images; raises Refusal if an image has no place."""
        try:
            return self._placed(prompt, limit, max_tokens, typed=False)
        except Refusal:
            # Some templates show images only if content is a list of parts.
            return self._placed(prompt, limit, max_tokens, typed=True)

    def _placed(self, prompt: ImagePrompt, limit: ContextLimit, max_tokens: int | None, *, typed: bool) -> Rendered:
        segments = self._segments(prompt.chat, limit.most_bytes + prompt.marker_bytes, typed=typed)
        limit.check_bytes(segments.size - prompt.marker_bytes, max_tokens)
        tokens: list[int] = []
        starts = [0] * len(prompt.files)
        pieces = split_at_markers(segments.pieces, len(prompt.files), prompt.secret)
        limit.check_bytes(sum(len(piece.text.encode()) for piece in pieces if not isinstance(piece, Slot)), max_tokens)
        for piece in pieces:
            if isinstance(piece, Slot):
                starts[piece.image] = len(tokens)
            tokens += self._placed_tokens(piece, prompt)
        begun = self._begun(tokens)
        before = len(begun) - len(tokens)
        own = self._own(prompt.chat, segments.pieces, begun, prompt)
        return Rendered(begun, segments.inside, [before + start for start in starts], segments.begun, own)

    def _segments(self, chat: Chat, most_bytes: int, *, typed: bool) -> Segments:
        """Return the rendered pieces, without pieces if they have more bytes."""
        try:
            return expected(Segments, self._ask(Render(self._name, chat, most_bytes, typed)))
        except ChildLost as lost:
            why = f"the chat template takes {lost}, for these messages: send shorter ones, or set another template"
            raise Refusal("invalid_params", param="messages", why=why) from None

    def _cut(self, text: str, *, parse_special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=parse_special)

    def _tokens(self, pieces: Iterable[tuple[str, bool]], media: ImagePrompt | None = None) -> list[int]:
        if media is not None:
            return [token for piece in slots_in(pieces, media.secret) for token in self._placed_tokens(piece, media)]
        return [token for text, parse in pieces for token in self._cut(text, parse_special=parse)]

    def _placed_tokens(self, piece: PromptText | Slot, media: ImagePrompt) -> list[int]:
        if isinstance(piece, Slot):
            return media.placeholders[piece.image]
        return self._cut(piece.text, parse_special=piece.parse_special)

    def _own(
        self, chat: Chat, pieces: list[tuple[str, bool]], tokens: list[int], media: ImagePrompt | None = None
    ) -> tuple[int, ...]:
        """Return how many of the last tokens later prompts of the chat do not have, at least 1.

        Behind it, in the first turn of a chat, is how many other chats with the same system message and tools do not
        have: the tokens from the user's text on, or from an image before it, unless they depend on the text before it.
        """
        text, templates = pieces[-1] if pieces else ("", False)
        asking = "" if chat.continue_last else self._asking
        _, found, rest = text.rpartition(asking) if templates and asking else ("", "", "")
        tail = max(1, len(self._cut((found + rest)[self._kept :], parse_special=True)))
        said = [message for message in chat.messages if message.role not in SYSTEM_ROLES]
        if len(said) != 1 and any(message.role != "user" for message in said):
            return (tail,)
        # Of several in a row the first may be a document, about which other chats ask otherwise.
        ends = dict.fromkeys(text for message in (*said[-1:], *said[:1]) if (text := message.text.strip()))
        counts = (self._from(text, pieces, len(found + rest), tokens, media) for text in ends)
        return (tail, *filter(None, counts))

    def _from(
        self, said: str, pieces: list[tuple[str, bool]], asking: int, tokens: list[int], media: ImagePrompt | None
    ) -> int:
        """Return how many of the last tokens begin with a text; 0 without it, or if they depend on what precedes."""
        for number, (piece, parse) in reversed(list(enumerate(pieces))):
            end = len(piece) - asking if number == len(pieces) - 1 else len(piece)
            if (place := piece.rfind(said, 0, end)) >= 0:
                last = self._tokens([(piece[place:], parse), *pieces[number + 1 :]], media)
                return len(last) if tokens[-len(last) :] == last else 0
        return 0

    def _begun(self, tokens: list[int]) -> list[int]:
        """Return the tokens with the model's begin token, if every text has to begin with it."""
        begin = self._vocabulary.begin
        return [begin, *tokens] if self._adds_begin and tokens[:1] != [begin] else tokens
