"""Sampled tokens into reasoning, text up to a stop string, and tool calls."""

import codecs
import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import Tags
from car_engine.output.stream_buffer import Steps, StreamBuffer
from car_engine.output.tool_calls import Part, Thought, ToolCallReader


class StopSearch:
    """Keep back text that may become a stop string; the earliest wins, of several at one place the longest."""

    def __init__(self, stops: list[str]) -> None:
        longest_first = sorted(stops, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if stops else None
        self._starts = {stop[:end] for stop in stops for end in range(1, len(stop))}
        self._longest = max(map(len, stops), default=0)
        self._undecided = ""
        self.stopped_by: str | None = None

    def push(self, text: str) -> str:
        """Read a piece of text; return the text that it releases."""
        if self._pattern is None:
            return text
        if self.stopped_by is not None:
            return ""
        self._undecided += text
        length = len(self._undecided)
        places = range(max(0, length - self._longest + 1), length)
        decided = next((place for place in places if self._undecided[place:] in self._starts), length)
        return self._release(self._search(decided))

    def finish(self) -> str:
        """Return the undecided text, after the last piece."""
        return self._release(self._search(len(self._undecided)))

    def _search(self, end: int) -> int:
        """Return the end of the text that may be released: a stop string that begins before `end`, or `end`."""
        found = self._pattern.search(self._undecided) if self._pattern else None
        if found is None or found.start() >= end:
            return end
        self.stopped_by = found[0]
        return found.start()

    def _release(self, end: int) -> str:
        released = self._undecided[:end]
        self._undecided = "" if self.stopped_by is not None else self._undecided[end:]
        return released


class Split(NamedTuple):
    """The text that one piece released."""

    reasoning: str
    text: str


class ReasoningSplit:
    """Split a text that begins with an opening tag, or `inside` one; drops the tags and whitespace around them.

    A text of `answer` in the place of a thought begins the answer: the model did not think.
    """

    def __init__(self, tags: Tags, *, inside: bool, answer: Iterable[str] = ()) -> None:
        self._tags = tags
        self._answer = [text.strip() for text in answer]
        self._buffer = StreamBuffer()
        self._reasoning: list[str] = []  # released by this piece
        self._text: list[str] = []  # released by this piece
        self._thinking = inside
        self._unsure = bool(self._answer)  # whether the begin of a thought may be that of the answer
        self._decided = False  # whether all further text is the answer
        self._steps = self._read()

    @property
    def may_think(self) -> bool:
        """False once all further text is the answer."""
        return not self._decided

    @property
    def thinking(self) -> bool:
        """True from the end of the opening tag to the end of the closing tag."""
        return self._thinking

    @property
    def thought_begun(self) -> bool:
        """True inside a thought that is known not to be the answer."""
        return self._thinking and not self._unsure

    def push(self, text: str) -> Split:
        """Read a piece of output."""
        if self._decided:
            return Split("", text)
        self._buffer.feed(text)
        return self._advance()

    def finish(self, *, cut: bool = False) -> Split:
        """Return the undecided rest, after the last piece; if the answer was `cut`, without the beginning of a tag."""
        self._buffer.end(cut=cut)
        return self._advance()

    def _advance(self) -> Split:
        next(self._steps, None)
        split = Split("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return split

    def _read(self) -> Steps[None]:
        if not self._thinking:
            yield from self._buffer.take_spaces()
            self._thinking = yield from self._buffer.take_literal(self._tags.open)
            self._drop_cut()
        if self._thinking:
            yield from self._buffer.drop_spaces()
            answers = yield from self._begins_answer()
            self._unsure = False
            if answers:
                self._thinking = False
            elif (yield from self._buffer.copy_until(self._tags.close, self._reasoning.append)):
                self._thinking = False
                yield from self._buffer.drop_spaces()
            else:
                self._drop_cut()
                self._reasoning.append(self._buffer.release())
        self._decided = True
        yield from self._buffer.copy_rest(self._text.append)

    def _begins_answer(self) -> Steps[bool]:
        """Return whether the answer begins here, without taking any of it."""
        for text in self._answer:
            if (yield from self._buffer.take_literal(text)):
                self._buffer.put_back()
                return True
        return False

    def _drop_cut(self) -> None:
        """Drop the beginning of a tag that the answer's bound cut off."""
        if self._buffer.cut:
            self._buffer.drop()


class Released(Struct, frozen=True, gc=False):
    """The text that one token released; `calls` has pieces of calls, and text after the first call."""

    text: str
    reasoning: str
    calls: list[CallDelta | str]

    def joined(self, after: "Released") -> "Released":
        """Return this output and the one after it as one."""
        reasoning = self.reasoning + after.reasoning
        if not self.calls:
            return Released(self.text + after.text, reasoning, after.calls)
        between = [after.text] if after.text else []
        return Released(self.text, reasoning, [*self.calls, *between, *after.calls])


NOTHING = Released("", "", [])


class OutputReader:
    """Bytes of tokens into output that may be sent; stop strings match within text alone, never across a call.

    With `one_call` the output ends with its first call.
    """

    def __init__(
        self,
        stops: list[str],
        thinking: ReasoningSplit | None,
        calls: ToolCallReader | None,
        *,
        keep: bool = False,
        one_call: bool = False,
    ) -> None:
        self.plain = not stops and thinking is None and calls is None  # no token ends the answer, or begins a thought
        self._incomplete = b""  # bytes of a character
        self._thinking = thinking
        self._calls = calls
        self._keep = keep and thinking is not None
        self._undecided = ""  # text that may become a part of a kept thought
        self._stops = StopSearch(stops)
        self._one_call = one_call
        self._called = False  # the only call ended

    @property
    def ended(self) -> bool:
        """True once nothing more is read: after a stop string, or the only call."""
        return self._called or self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was found, None without one."""
        return self._stops.stopped_by

    def push(self, piece: bytes) -> Released:
        """Read one token's bytes."""
        # An incremental decoder would make one more call of Python for each token.
        piece = self._incomplete + piece
        text, used = codecs.utf_8_decode(piece, "replace")
        self._incomplete = piece[used:]
        if self.plain:
            return Released(text, "", [])
        return self._read(text, ended=False)

    def finish(self, *, cut: bool = False) -> Released:
        """Return the undecided rest; if the answer was `cut`, without the beginning of a call or of a character."""
        text, _ = codecs.utf_8_decode(self._incomplete, "replace", not cut)
        return self._read(text, ended=True, cut=cut)

    @property
    def thinking(self) -> bool:
        """True inside reasoning."""
        split, calls = self._thinking, self._calls
        return (split is not None and split.thinking) or (calls is not None and calls.thinking)

    @property
    def may_think(self) -> bool:
        """True inside reasoning, and if reasoning may come."""
        split, calls = self._thinking, self._calls
        return (split is not None and split.may_think) or (calls is not None and calls.may_think)

    def _read(self, text: str, *, ended: bool, cut: bool = False) -> Released:
        if self.ended:
            return NOTHING
        reasoning, answer = self._thinking.push(text) if self._thinking is not None else ("", text)
        if ended and self._thinking is not None:
            rest = self._thinking.finish(cut=cut)
            reasoning, answer = reasoning + rest.reasoning, answer + rest.text
        # Calls inside a thought do not count.
        parts: list[Part] = self._calls.push(answer) if self._calls is not None else [answer]
        if ended and self._calls is not None:
            parts += self._calls.finish(cut=cut)
        if len(parts) == 1 and isinstance(parts[0], str) and not (ended or self._keep):
            # Most tokens.
            return Released(self._stops.push(parts[0]), reasoning, [])
        kept = ""
        if self._keep:
            self._undecided += text
            # A thought is kept with its tags, once it is known not to be part of the answer.
            if answer or ended or (self._thinking is not None and self._thinking.thought_begun):
                kept, self._undecided = self._undecided[: len(self._undecided) - len(answer)], ""
        released = self._until_stop([kept, *parts])
        if ended and not self._called:
            released.append(self._stops.finish())
        output = _output(released)
        return replace(output, reasoning="" if self._keep else reasoning + output.reasoning)

    def _until_stop(self, parts: list[Part]) -> list[Part]:
        """Return the parts in front of a stop string, or up to the end of the only call."""
        released: list[Part] = []
        for part in parts:
            if isinstance(part, str):
                released.append(self._stops.push(part))
                continue
            # A stop string does not match across a call: text that could have begun one is released.
            released.append(self._stops.finish())
            if self.stopped_by is not None:
                break
            released.append(part)
            if self._one_call and isinstance(part, CallDelta) and part.ended:
                self._called = True
                break
        return released


def _output(parts: list[Part]) -> Released:
    """Return parts as one output."""
    texts, thoughts, calls = list[str](), list[str](), list[CallDelta | str]()
    for part in parts:
        if isinstance(part, Thought):
            thoughts.append(part.text)
        elif isinstance(part, str) and not calls:
            texts.append(part)
        elif part:
            calls.append(part)
    return Released("".join(texts), "".join(thoughts), calls)
