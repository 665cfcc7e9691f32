"""Guesses from earlier text: where it goes on alike, and how probable each guessed token is."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import takewhile

# Occurrences of up to 3, up to 8 and more tokens differ: two to six kinds change what copies gain by 5% at most.
_KINDS = (3, 8)
# Assumed by kind until tokens were seen. A heuristic: between the shares of copies and of free texts.
_ASSUMED = (0.4, 0.7, 0.9)
# The assumption counts as much as so many tokens; twice as many change what copies gain by 5% at most.
_TRUST = 4
# From so many tokens on the older tokens fade, because texts change.
_MEMORY = 256


class Odds:
    """The probability that the token after an earlier occurrence follows again, by the length of the occurrence.

    Every token of the request's own answer teaches it, whether it was tried or not.
    """

    def __init__(self) -> None:
        self._seen = [0.0 for _ in _ASSUMED]
        self._right = [0.0 for _ in _ASSUMED]

    def __repr__(self) -> str:
        return f"<Odds {[round(self._probability(kind), 2) for kind in range(len(_ASSUMED))]}>"

    def expected(self, length: int, most: int) -> list[float]:
        """Return the tokens that a decode brings with 0 to `most` guesses after an occurrence of a length.

        The first wrong guess ends the decode; each right guess makes the occurrence longer.
        """
        tokens, reached = [1.0], 1.0
        for further in range(most):
            reached *= self._probability(bisect_left(_KINDS, length + further))
            tokens.append(tokens[-1] + reached)
        return tokens

    def learn(self, length: int, *, right: bool) -> None:
        """Count the token after an occurrence of a length."""
        kind = bisect_left(_KINDS, length)
        self._seen[kind] += 1
        self._right[kind] += right
        if self._seen[kind] > _MEMORY:
            self._seen[kind] /= 2
            self._right[kind] /= 2

    def _probability(self, kind: int) -> float:
        return (self._right[kind] + _TRUST * _ASSUMED[kind]) / (self._seen[kind] + _TRUST)


# The last tokens of a text are searched in it: as many as the first kind has, or else two; the last occurrence counts.
_LONG, _SHORT = _KINDS[0], 2
# The longest occurrence that is told apart: one of the last kind.
_LONGEST = _KINDS[-1] + 1
# Tokens before the end that are searched: bounds the time of a search to some tens of microseconds.
_WINDOW = 16_384
_BYTES = array("i").itemsize


class PromptLookup:
    """The tokens of one request so far, and the earlier place from which they go on alike.

    Tokens of `ends` are not guessed, because nothing of the answer follows.
    """

    def __init__(self, tokens: Iterable[int], ends: frozenset[int] = frozenset()) -> None:
        self.tokens = array("i", tokens)
        self._ends = ends
        self._odds = Odds()
        self._place = -1  # after the occurrence that the text follows; -1 if it has to be searched
        self._length = 0  # of this occurrence

    def __repr__(self) -> str:
        return f"<PromptLookup {len(self.tokens)} tokens, {self._length} as before {self._place}, {self._odds!r}>"

    def add(self, token: int) -> None:
        """Append the next token of the prompt or the answer, and learn whether it was to be guessed."""
        if self._place >= 0:
            right = self.tokens[self._place] == token
            self._odds.learn(self._length, right=right)
            self._place = self._place + 1 if right else -1
            self._length += right
        self.tokens.append(token)

    def follows(self) -> bool:
        """Return whether the last tokens occurred before, so that the next tokens can be guessed."""
        if self._place < 0:
            self._find()
        return self._place >= 0 and self.tokens[self._place] >= 0

    def guess(self, most: int) -> list[int]:
        """Return up to `most` tokens to try; none if nothing occurred before."""
        if not self.follows():
            return []
        # A repetition that reached the end so far is guessed to continue.
        tokens, place, period = self.tokens, self._place, len(self.tokens) - self._place
        following = (tokens[place + step % period] for step in range(most))
        # Negative numbers are placeholders of images, and cannot be tried.
        return list(takewhile(lambda token: token >= 0 and token not in self._ends, following))

    def expected(self, most: int) -> list[float]:
        """Return the tokens that a decode brings with 0 to `most` of these guesses."""
        return self._odds.expected(self._length, most) if self.follows() else [1.0]

    def _find(self) -> None:
        """Find the place after the last earlier occurrence of the last tokens, and its length.

        Most tokens of a text without repetition end with the search of the short one.
        """
        window = memoryview(self.tokens)[-_WINDOW:].tobytes()
        place = _last_place(window, _SHORT)
        if place < 0:
            return
        before = len(self.tokens) - len(window) // _BYTES
        self._place, self._length = before + place, self._length_at(before + place)
        if self._length < _LONG and (longer := _last_place(window, _LONG)) >= 0:
            self._place, self._length = before + longer, self._length_at(before + longer)

    def _length_at(self, place: int) -> int:
        """Return the number of equal tokens before a place and the end, up to the longest that is told apart."""
        tokens, most = self.tokens, min(_LONGEST, place)
        return next((length for length in range(most) if tokens[place - length - 1] != tokens[-length - 1]), most)


def _last_place(window: bytes, length: int) -> int:
    """Return the place after the last earlier occurrence of the last `length` tokens; -1 if there is none."""
    wanted, end = window[-length * _BYTES :], len(window) - 1
    if len(window) <= len(wanted):
        return -1
    while (found := window.rfind(wanted, 0, end)) >= 0:
        if found % _BYTES == 0:
            return found // _BYTES + length
        end = found + len(wanted) - 1
    return -1
