"""Reasoning apart from the answer: what a model writes between its thinking tags."""

from typing import NamedTuple

from car_daemon.engine.output.format import Tags
from car_daemon.engine.output.tape import Steps, Tape


class Split(NamedTuple):
    """What one piece released."""

    reasoning: str
    text: str


class ReasoningSplit:
    """Split what begins with an opening tag, or comes `inside` one; the tags and whitespace at them are dropped."""

    def __init__(self, tags: Tags, *, inside: bool) -> None:
        self._tags = tags
        # Mutable state: the text and how far it was read, what this piece released, and whether reasoning is on.
        self._tape = Tape()
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._thinking = inside
        self._steps = self._read()

    @property
    def thinking(self) -> bool:
        """True from the end of the opening tag to that of the closing one; false while none has come."""
        return self._thinking

    def push(self, text: str) -> Split:
        """Take a piece of what the model writes."""
        self._tape.feed(text)
        return self._advance()

    def finish(self) -> Split:
        """Return what was held back, when no more comes."""
        self._tape.end()
        return self._advance()

    def _advance(self) -> Split:
        next(self._steps, None)
        split = Split("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return split

    def _read(self) -> Steps[None]:
        if not self._thinking:
            yield from self._tape.take_spaces()
            self._thinking = yield from self._tape.take_literal(self._tags.open)
        if self._thinking:
            yield from self._read_reasoning()
        yield from self._tape.copy_rest(self._text.append)

    def _read_reasoning(self) -> Steps[None]:
        yield from self._drop_spaces()
        closed = yield from self._tape.copy_until(self._tags.close, self._reasoning.append)
        if not closed:
            self._reasoning.append(self._tape.release())
            return
        self._thinking = False
        yield from self._drop_spaces()

    def _drop_spaces(self) -> Steps[None]:
        yield from self._tape.take_spaces()
        self._tape.drop()
