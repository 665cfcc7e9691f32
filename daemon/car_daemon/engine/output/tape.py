"""Text that arrives in pieces, for parsers that are written as if all of it were there."""

import re
from collections.abc import Callable, Generator
from functools import cache
from typing import TypeVar

Result = TypeVar("Result")
# What a step of a parser returns in the end; it yields where it can only go on with more text.
Steps = Generator[None, None, Result]

_SPACE = r" \t\r\n"
_SPACES = re.compile(f"[{_SPACE}]*")


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where a pattern that always matches, be it nothing, ends."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


@cache
def _text_before(first: str) -> re.Pattern[str]:
    """Match one character, and what follows it up to where whitespace and a marker may begin."""
    first = re.escape(first)
    return re.compile(f".(?:[^{first}]*[^{first}{_SPACE}])?", re.DOTALL)


class Tape:
    """The text ahead, and what was taken from it and is not decided on yet."""

    def __init__(self) -> None:
        # Mutable state: the newest text, how far it was taken, what was taken, and whether all text has come.
        self._text = ""
        self._at = 0
        self._taken: list[str] = []
        self._ended = False

    def feed(self, text: str) -> None:
        """Append text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that all text has come."""
        self._ended = True

    def more(self) -> Steps[bool]:
        """Wait for more text; false once all has come."""
        if not self._ended:
            yield
        return not self._ended

    def peek(self) -> Steps[str]:
        """Return the next character without taking it; empty at the end."""
        while self._at == len(self._text) and (yield from self.more()):
            pass
        return self._text[self._at : self._at + 1]

    def take(self, scan: Callable[[str, int], int]) -> bool:
        """Take what is there up to where `scan(text, start)` ends; return whether something is left."""
        end = scan(self._text, self._at)
        self._taken.append(self._text[self._at : end])
        self._at = end
        return end < len(self._text)

    def take_run(self, characters: re.Pattern[str]) -> Steps[None]:
        """Take all that a pattern of repeated characters matches."""
        while not self.take(lambda text, at: end_of(characters, text, at)) and (yield from self.more()):
            pass

    def take_spaces(self) -> Steps[None]:
        """Take whitespace."""
        return self.take_run(_SPACES)

    def take_literal(self, literal: str) -> Steps[bool]:
        """Take this text if it comes next, else nothing."""
        while not self._text.startswith(literal, self._at):
            start = self._text[self._at : self._at + len(literal)]
            if not literal.startswith(start) or not (yield from self.more()):
                return False
        self._taken.append(literal)
        self._at += len(literal)
        return True

    def mark(self) -> int:
        """Return this place in what is taken, for `since`."""
        return len(self._taken)

    def since(self, mark: int) -> str:
        """Return what was taken since a mark; it stays undecided."""
        return "".join(self._taken[mark:])

    def release(self) -> str:
        """Return what was taken."""
        taken = "".join(self._taken)
        self._taken.clear()
        return taken

    def drop(self) -> None:
        """Forget what was taken."""
        self._taken.clear()

    def copy_until(self, marker: str, out: Callable[[str], None]) -> Steps[bool]:
        """Release the text before a marker; take that, with the whitespace before it. False if none comes."""
        pattern = _text_before(marker[0])
        while True:
            yield from self.take_spaces()
            if (yield from self.take_literal(marker)):
                return True
            if not (yield from self.peek()):
                return False
            self.take(lambda text, at: end_of(pattern, text, at))
            out(self.release())

    def copy_rest(self, out: Callable[[str], None]) -> Steps[None]:
        """Release everything, up to the end."""
        while True:
            self.take(lambda text, _: len(text))
            out(self.release())
            if not (yield from self.more()):
                return
