"""Reasoning, separated from the answer: the text between a model's thinking tags."""

from collections.abc import Iterable
from typing import NamedTuple

from car_base.ipc.types import Tags
from car_engine.output.stream_buffer import Steps, StreamBuffer


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
        self._decided = False  # whether all further text is the answer
        self._steps = self._read()

    @property
    def thinking(self) -> bool:
        """True from the end of the opening tag to the end of the closing tag."""
        return self._thinking

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
            if (yield from self._begins_answer()):
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
