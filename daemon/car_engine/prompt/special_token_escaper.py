"""Control tokens in a client's text, kept apart from a template's own by invisible marks."""

import re
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

# Noncharacters, which Unicode keeps out of texts: the mark is one that the conversation does not contain.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_NEVER = "(?!)"


class SpecialTokenEscaper:
    """Distinguishes control tokens that a client wrote from a template's own, however the template moves text.

    A mark stands on either side of every character that begins a control token, so that it survives if text is
    split, stripped, reversed or joined. Words that the template compares with, `looked_for`, stay unmarked.
    """

    def __init__(self, specials: Sequence[str], looked_for: Iterable[str]) -> None:
        self._specials = frozenset(specials)
        self._lengths = sorted({len(special) for special in specials}, reverse=True)
        self._begins = re.compile(_one_of(sorted({special[0] for special in specials})))
        self._prefixes = {special[:length] for special in specials for length in range(1, len(special))}
        kept = [words for words in looked_for if self._begins.search(words) and not self._makes_special(words)]
        self._kept = frozenset(kept)
        # The characters to mark: letters only if the rest of a control token follows.
        signs = sorted({special[0] for special in specials if not special[0].isalnum()})
        words = [f"{special[0]}(?={re.escape(special[1:])})" for special in specials if special[0].isalnum()]
        longest_first = sorted(kept, key=len, reverse=True)
        self._guarded = re.compile("|".join([_one_of(longest_first), _one_of(signs), *words]))

    def free_mark(self, text: str) -> str | None:
        """Return a mark that text contains neither as it is nor escaped; None if it contains every mark."""
        return next((mark for mark in _NONCHARACTERS if mark not in text and _escaped(mark) not in text), None)

    def escape(self, value: Any, mark: str) -> Any:
        """Return a value with marks in all its strings."""
        match value:
            case str():
                return self._guarded.sub(
                    lambda found: found[0] if found[0] in self._kept else mark + found[0] + mark, value
                )
            case dict():
                return {self.escape(key, mark): self.escape(inner, mark) for key, inner in value.items()}
            case list():
                return [self.escape(inner, mark) for inner in value]
        return value

    def segments(self, text: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of rendered text without its marks, and whether control tokens count in each."""
        # A template that escapes its text (repr, ASCII only) has escaped the mark too.
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
        """Yield the spans between two of the template's control tokens in which a client's control token begins."""
        own, foreign = [], []
        for begin in self._begins.finditer(plain) if marked else ():
            start = begin.start()
            length = self._length_at(plain, start)
            if length and start + 1 in marked:
                foreign.append(start)
            elif length:
                own.append((start, start + length))
        done = 0
        for start, stop in [*own, (len(plain), len(plain))]:
            if bisect_left(foreign, done) < bisect_left(foreign, start):
                yield done, start
            done = max(done, stop)

    def _length_at(self, text: str, start: int) -> int:
        """Return the length of the control token at `start`, 0 for none."""
        return next((length for length in self._lengths if text[start : start + length] in self._specials), 0)

    def _makes_special(self, words: str) -> bool:
        """Return whether the words contain a control token or end with the beginning of one."""
        places = [begin.start() for begin in self._begins.finditer(words)]
        return any(words[place:] in self._prefixes or self._length_at(words, place) for place in places)


def new_secret() -> str:
    """Return the part that the marks of one conversation share: 128 random bits as digits, which have one case."""
    return str(secrets.randbits(128))


def _one_of(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, words)) or _NEVER


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"
