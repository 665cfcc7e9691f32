"""Invisible marks at the client's characters with which a control token could begin."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

# Noncharacters, which no text should hold: one that a conversation does not hold marks its characters.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_NEVER = "(?!)"


class Marks:
    """Tells control tokens that a client wrote from a template's own, however the template moves text about.

    A mark stands on either side of every character that begins a control token, so that it is still there where
    text was split, stripped, reversed or joined to other text. Words that the template looks for stay unmarked.
    """

    def __init__(self, specials: Sequence[str], looked_for: Iterable[str]) -> None:
        self._specials = frozenset(specials)
        self._lengths = sorted({len(special) for special in specials}, reverse=True)
        self._begins = re.compile(_one_of(sorted({special[0] for special in specials})))
        self._prefixes = {special[:length] for special in specials for length in range(1, len(special))}
        kept = [words for words in looked_for if self._begins.search(words) and not self._makes_special(words)]
        self._kept = frozenset(kept)
        self._guarded = re.compile(_one_of(sorted(kept, key=len, reverse=True)) + "|" + _beginnings(specials))

    def free(self, text: str) -> str | None:
        """Return a mark that text holds neither as it is nor escaped; None where it holds all."""
        return next((mark for mark in _NONCHARACTERS if mark not in text and _escaped(mark) not in text), None)

    def put(self, value: Any, mark: str) -> Any:
        """Return the value with marks in all its strings."""
        match value:
            case str():
                return self._guarded.sub(lambda found: self._marked(found[0], mark), value)
            case dict():
                return {self.put(key, mark): self.put(inner, mark) for key, inner in value.items()}
            case list():
                return [self.put(inner, mark) for inner in value]
        return value

    def segments(self, text: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Cut rendered text, without its marks, into pieces and whether control tokens count in them."""
        # Where a template escapes what it writes (repr, ASCII only), the mark is escaped too.
        parts = text.replace(_escaped(mark), mark).split(mark)
        plain = "".join(parts)
        done = 0
        for start, stop in self._foreign(plain, set(accumulate(map(len, parts[:-1])))):
            if done < start:
                yield plain[done:start], True
            yield plain[start:stop], False
            done = stop
        if done < len(plain):
            yield plain[done:], True

    def _foreign(self, plain: str, marked: set[int]) -> Iterator[tuple[int, int]]:
        """Yield what lies between two of the template's control tokens, wherever a client's begin in it."""
        own, foreign = self._found(plain, marked)
        done = 0
        for start, stop in [*own, (len(plain), len(plain))]:
            if bisect_left(foreign, done) < bisect_left(foreign, start):
                yield done, start
            done = max(done, stop)

    def _found(self, plain: str, marked: set[int]) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the spans of the template's control tokens, and where the client's begin."""
        own, foreign = [], []
        for begin in self._begins.finditer(plain) if marked else ():
            start = begin.start()
            length = self._length_at(plain, start)
            if length and start + 1 in marked:
                foreign.append(start)
            elif length:
                own.append((start, start + length))
        return own, foreign

    def _marked(self, words: str, mark: str) -> str:
        return words if words in self._kept else mark + words + mark

    def _length_at(self, text: str, start: int) -> int:
        """Return the length of the control token that begins there; 0 for none."""
        return next((length for length in self._lengths if text[start : start + length] in self._specials), 0)

    def _makes_special(self, words: str) -> bool:
        """Whether a control token is in the words or could begin at their end."""
        places = [begin.start() for begin in self._begins.finditer(words)]
        return any(words[place:] in self._prefixes or self._length_at(words, place) for place in places)


def _beginnings(specials: Sequence[str]) -> str:
    """Return a pattern for the characters to mark: letters only where the rest of a control token follows."""
    signs = sorted({special[0] for special in specials if not special[0].isalnum()})
    words = [f"{special[0]}(?={re.escape(special[1:])})" for special in specials if special[0].isalnum()]
    return "|".join([_one_of(signs), *words])


def _one_of(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, words)) or _NEVER


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"
