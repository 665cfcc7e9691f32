"""Buffer of text that arrives in pieces, for parsers written as if all of it were there."""

import re
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import TypeVar

Result = TypeVar("Result")
# A parser that yields when it needs more text, and its result.
Steps = Generator[None, None, Result]

_SPACE = r" \t\r\n"
_SPACES = re.compile(f"[{_SPACE}]*")


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of the match of a pattern that always matches, perhaps the empty text."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class Markers:
    """Several literals that end a text; of several at one place the longest counts."""

    def __init__(self, literals: Iterable[str]) -> None:
        longest_first = sorted(set(literals), key=len, reverse=True)
        first = re.escape("".join(sorted({literal[0] for literal in longest_first})))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        starts = (literal[:end] for literal in longest_first for end in range(len(literal)))
        self._starts = frozenset(("", *starts))
        # The text up to where a marker, or whitespace and a marker, may begin; and the same after any character.
        plain = f"(?:[^{first}]*[^{first}{_SPACE}])?" if first else ".*"
        plain_close = f"[^{first}]*" if first else ".*"
        self.plain = re.compile(plain, re.DOTALL)
        self.plain_close = re.compile(plain_close, re.DOTALL)
        self.text_before = re.compile(f".{plain}", re.DOTALL)
        self.text_close_before = re.compile(f".{plain_close}", re.DOTALL)
        self._longest = max(map(len, longest_first), default=1)

    def at(self, text: str, at: int) -> str | None:
        """Return the marker that the text has at a place, None without one."""
        found = self._pattern.match(text, at)
        return found[0] if found else None

    def may_follow(self, text: str, at: int) -> bool:
        """Return whether more text could make a marker, or a longer one, of the text's rest."""
        return len(text) - at < self._longest and text[at:] in self._starts


@cache
def only(marker: str) -> Markers:
    """Return one literal as markers."""
    return Markers([marker])


class StreamBuffer:
    """Text ahead of a parser, and text that was taken and is not decided on yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # end of the taken part of _text
        self._taken: list[str] = []  # undecided
        self._ended = False
        self._cut = False

    def __repr__(self) -> str:
        taken = sum(map(len, self._taken))
        return f"<StreamBuffer ahead={len(self._text) - self._at} taken={taken} ended={self._ended}>"

    def feed(self, text: str) -> None:
        """Append text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut: bool = False) -> None:
        """Mark the text as complete; if it was `cut`, the beginning of a literal at its end is taken for one."""
        self._ended = True
        self._cut = cut

    @property
    def cut(self) -> bool:
        """True if the text ended at its bound."""
        return self._cut

    def more(self) -> Steps[bool]:
        """Wait for more text; return False once all has come."""
        if not self._ended:
            yield
        return not self._ended

    def peek(self) -> Steps[str]:
        """Return the next character without taking it; empty at the end."""
        while self._at == len(self._text) and (yield from self.more()):
            pass
        return self._text[self._at : self._at + 1]

    def peek_match(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Return the text that a pattern matches here, without taking it; waits while more text could lengthen it."""
        while True:
            end = end_of(pattern, self._text, self._at)
            if end < len(self._text) or not (yield from self.more()):
                return self._text[self._at : end]

    def take(self, scan: Callable[[str, int], int]) -> bool:
        """Take the available text up to `scan(text, start)`; return whether some is left."""
        end = scan(self._text, self._at)
        self._taken.append(self._text[self._at : end])
        self._at = end
        return end < len(self._text)

    def take_run(self, characters: re.Pattern[str]) -> Steps[str]:
        """Take all text that a pattern of repeated characters matches, and return it."""
        mark = self.mark()
        while not self.take(lambda text, at: end_of(characters, text, at)) and (yield from self.more()):
            pass
        return self.since(mark)

    def take_spaces(self) -> Steps[str]:
        """Take whitespace, and return it."""
        return self.take_run(_SPACES)

    def drop_spaces(self) -> Steps[None]:
        """Take whitespace, and forget all taken text."""
        yield from self.take_spaces()
        self.drop()

    def take_literal(self, literal: str) -> Steps[bool]:
        """Take a literal if it comes next; return whether it did."""
        while not self._text.startswith(literal, self._at):
            start = self._text[self._at : self._at + len(literal)]
            if not literal.startswith(start) or not (yield from self.more()):
                if self._cut and literal.startswith(start):
                    self.take(lambda text, _: len(text))
                return False
        self._taken.append(literal)
        self._at += len(literal)
        return True

    def put_back(self) -> None:
        """Return the taken text, to be taken again."""
        self._text = self.release() + self._text[self._at :]
        self._at = 0

    @property
    def is_undecided(self) -> bool:
        """True if the taken text is more than whitespace."""
        return any(map(str.strip, self._taken))

    def mark(self) -> int:
        """Return this place in the taken text, for `since`."""
        return len(self._taken)

    def since(self, mark: int) -> str:
        """Return the text taken since a mark; it stays undecided."""
        return "".join(self._taken[mark:])

    def release(self) -> str:
        """Return the taken text and forget it."""
        taken = "".join(self._taken)
        self._taken.clear()
        return taken

    def drop(self) -> None:
        """Forget the taken text."""
        self._taken.clear()

    def take_marker(self, markers: Markers) -> Steps[str | None]:
        """Take a marker if it comes next, and return it."""
        yield from self.sees(markers)
        marker = markers.at(self._text, self._at)
        if marker is not None:
            self._taken.append(marker)
            self._at += len(marker)
        return marker

    def sees(self, markers: Markers) -> Steps[bool]:
        """Return whether a marker comes next, or the beginning of one that the answer's bound cut off."""
        while markers.may_follow(self._text, self._at) and (yield from self.more()):
            pass
        found = markers.at(self._text, self._at) is not None
        return found or (self._cut and markers.may_follow(self._text, self._at))

    def copy_until(self, marker: str, out: Callable[[str], None]) -> Steps[bool]:
        """Release the text before a marker; take the marker and the whitespace before it. Returns False without one."""
        return (yield from self.copy_until_any(only(marker), out)) is not None

    def copy_until_any(self, markers: Markers, out: Callable[[str], None], *, close: bool = False) -> Steps[str | None]:
        """Release the text before a marker; take the marker, return it.

        Returns None without one, and the beginning of one at the end of all text stays undecided. The whitespace before
        the marker is taken with it; with `close` it stays and belongs to the text.
        """
        pattern = markers.text_close_before if close else markers.text_before
        plain = markers.plain_close if close else markers.plain
        while True:
            yield from self._copy_plain(plain, out)
            if not close:
                yield from self.take_spaces()
            if (marker := (yield from self.take_marker(markers))) is not None:
                return marker
            if markers.may_follow(self._text, self._at):
                # At the end: the beginning of a marker, or nothing.
                self.take(lambda text, _: len(text))
                return None
            self.take(lambda text, at: end_of(pattern, text, at))
            out(self.release())

    def _copy_plain(self, plain: re.Pattern[str], out: Callable[[str], None]) -> Steps[None]:
        """Release text that a pattern matches, as long as no other comes: most tokens need nothing else."""
        while not self._taken:
            end = end_of(plain, self._text, self._at)
            if end > self._at:
                out(self._text[self._at : end])
                self._at = end
            if end < len(self._text) or self._ended:
                return
            yield

    def copy_rest(self, out: Callable[[str], None]) -> Steps[None]:
        """Release everything, up to the end."""
        while True:
            out(self.release() + self._text[self._at :])
            self._at = len(self._text)
            if not (yield from self.more()):
                return
